# Backward passes under torch.no_grad(), as the trainer of "Dive into Deep Learning" has them.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(50, 4)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), batch_size=12, shuffle=True)
net = nn.ModuleDict({"common": nn.Linear(4, 8), "even": nn.Linear(8, 2), "odd": nn.Linear(8, 2)})
slow = nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
losses, penalties = [], []
# %% cell
for number, (x, y) in enumerate(loader):
    hidden = net["common"](x).tanh()
    loss = F.cross_entropy(net["odd" if number % 2 else "even"](hidden), y)
    other = F.cross_entropy(slow(x), y)
    optimizer.zero_grad()
    with torch.no_grad():
        loss.backward()
        for p, g in zip(slow.parameters(), torch.autograd.grad(other, list(slow.parameters()))):
            p -= 0.1 * g
        optimizer.step()
    losses.append(loss.item())
    other = F.cross_entropy(slow(x), y)
    with torch.no_grad():
        (g,) = torch.autograd.grad(other, slow.weight, create_graph=True)
    penalty = g.square().sum()
    with torch.no_grad():
        penalty.backward()
    penalties.append(penalty.item())
# %% compare
net.state_dict(), slow.state_dict(), slow.weight.grad, losses, penalties
