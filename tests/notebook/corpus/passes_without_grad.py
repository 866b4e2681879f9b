# Backward passes under torch.no_grad(), and a model whose parameters() is a list, as "Dive into Deep Learning" has them.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset



class Scratch(nn.Module):
    def __init__(self):
        super().__init__()
        self.W, self.b = torch.randn(4, 2, requires_grad=True), torch.zeros(2, requires_grad=True)

    def parameters(self):
        return [self.W, self.b]

    def forward(self, x):
        exponentials = torch.exp(x @ self.W + self.b)
        return exponentials / exponentials.sum(1, keepdim=True)


X = torch.randn(50, 4)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), batch_size=12, shuffle=True)
net = nn.ModuleDict({"common": nn.Linear(4, 8), "even": nn.Linear(8, 2), "odd": nn.Linear(8, 2)})
slow, scratch = nn.Linear(4, 2), Scratch()
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
    likely = scratch(x)[list(range(len(x))), y]
    (-likely.log().mean()).backward()
    with torch.no_grad():
        for p in scratch.parameters():
            p -= 0.1 * p.grad
            p.grad.zero_()
# %% compare
net.state_dict(), scratch.parameters(), slow.state_dict(), slow.weight.grad, losses, penalties
