# An energy-based model: samples walk down the energy with gradients that are clamped, detached and zeroed in place.
# %% setup
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.rand(50, 6)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
examples = [torch.rand(1, 6) * 2 - 1 for _ in range(32)]
def generate(model, samples, steps=3, step_size=0.1):
    was_training = model.training
    model.eval()
    for p in model.parameters():
        p.requires_grad = False
    samples.requires_grad = True
    noise = torch.randn(samples.shape)
    for _ in range(steps):
        noise.normal_(0, 0.005)
        samples.data.add_(noise.data)
        samples.data.clamp_(min=-1.0, max=1.0)
        out = -model(samples)
        out.sum().backward()
        samples.grad.data.clamp_(-0.03, 0.03)
        samples.data.add_(-step_size * samples.grad.data)
        samples.grad.detach_()
        samples.grad.zero_()
    for p in model.parameters():
        p.requires_grad = True
    model.train(was_training)
    return samples
log = []
# %% cell
for (real,) in loader:
    real = real + 0.005 * torch.randn_like(real)
    fresh = np.random.binomial(real.shape[0], 0.2)
    start = torch.cat([torch.rand(fresh, 6) * 2 - 1, torch.cat(random.choices(examples, k=real.shape[0] - fresh))])
    fake = generate(model, start)
    examples = (list(fake.detach().chunk(real.shape[0])) + examples)[:64]
    real_out, fake_out = model(torch.cat([real, fake.detach()])).chunk(2, dim=0)
    regularization = 0.1 * (real_out**2 + fake_out**2).mean()
    loss = regularization + fake_out.mean() - real_out.mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    log.append((loss.item(), regularization.item()))
print(log[-1])
# %% compare
model.state_dict(), log, examples
