# Gradient penalty with torch.autograd.grad(create_graph=True), several critic steps.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(33, 3) + 1), batch_size=8, shuffle=True)
critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
gen = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
opt_critic = torch.optim.Adam(critic.parameters(), lr=1e-2, betas=(0.0, 0.9))
opt_gen = torch.optim.Adam(gen.parameters(), lr=1e-2, betas=(0.0, 0.9))
LAMBDA_GP = 10

def gradient_penalty(critic, real, fake):
    batch_size = real.shape[0]
    alpha = torch.rand((batch_size, 1)).repeat(1, 3)
    interpolated = real * alpha + fake.detach() * (1 - alpha)
    interpolated.requires_grad_(True)
    mixed_scores = critic(interpolated)
    gradient = torch.autograd.grad(
        inputs=interpolated,
        outputs=mixed_scores,
        grad_outputs=torch.ones_like(mixed_scores),
        create_graph=True,
        retain_graph=True,
    )[0]
    gradient = gradient.view(gradient.shape[0], -1)
    gradient_norm = gradient.norm(2, dim=1)
    return torch.mean((gradient_norm - 1) ** 2)
# %% cell
hist = []
for epoch in range(2):
    for batch_idx, (real,) in enumerate(loader):
        cur_batch_size = real.shape[0]
        for _ in range(2):
            noise = torch.randn(cur_batch_size, 2)
            fake = gen(noise)
            critic_real = critic(real).reshape(-1)
            critic_fake = critic(fake).reshape(-1)
            gp = gradient_penalty(critic, real, fake)
            loss_critic = -(torch.mean(critic_real) - torch.mean(critic_fake)) + LAMBDA_GP * gp
            critic.zero_grad()
            loss_critic.backward(retain_graph=True)
            opt_critic.step()
        gen_fake = critic(fake).reshape(-1)
        loss_gen = -torch.mean(gen_fake)
        gen.zero_grad()
        loss_gen.backward()
        opt_gen.step()
        hist.append((loss_critic.item(), loss_gen.item(), gp.item()))
    print(f"Epoch {epoch} Loss D: {loss_critic:.4f}, loss G: {loss_gen:.4f}")
# %% compare
critic.state_dict(), gen.state_dict(), opt_critic.state_dict(), hist
