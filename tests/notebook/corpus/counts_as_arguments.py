# Counts over the batch where PyTorch takes plain numbers: how many samples are hard, a rank in a bank, a slope.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
X = torch.randn(75, 6)
Y = (X[:, 0] + X[:, 1] ** 2 > 0.6).long() + (X[:, 2] > 1).long()
loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
# %% cell
losses = []
bank = torch.linspace(-1, 1, 20)
for x, y in loader:
    out = model(x)
    per = F.cross_entropy(out, y, reduction="none")
    k = (per.detach() > per.detach().mean()).sum()
    hard = per.topk(k).values.mean()
    th = bank.kthvalue(k).values
    win = bank.roll(k)[:3].sum()
    margin = F.softplus(bank, beta=k).mean() + F.leaky_relu(bank, 0.01 * k).mean()
    loss = hard + th.abs() * 0.1 + win * 0.0 + margin * 0
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append((loss.item(), th.item(), win.item(), margin.item()))
# %% compare
list(model.parameters()), losses
