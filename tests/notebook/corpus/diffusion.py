# A small DDPM: times drawn per batch, noise like x, the model takes both.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(30, 2)), batch_size=8, shuffle=True)
steps = 10
betas = torch.linspace(1e-3, 0.2, steps)
alpha_bar = torch.cumprod(1 - betas, dim=0)

class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Embedding(steps, 4)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Linear(8, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], dim=1))

model = Denoiser()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
# %% cell
losses = []
for epoch in range(2):
    for (x0,) in loader:
        t = torch.randint(0, steps, (x0.shape[0],))
        noise = torch.randn_like(x0)
        a = alpha_bar[t][:, None]
        xt = a.sqrt() * x0 + (1 - a).sqrt() * noise
        loss = nn.functional.mse_loss(model(xt, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"{epoch}: {losses[-1]:.5f}")
x = torch.randn(4, 2)
with torch.no_grad():
    for i in reversed(range(steps)):
        x = x - 0.1 * model(x, torch.full((4,), i))
print(x)
# %% compare
model.state_dict(), losses, x
