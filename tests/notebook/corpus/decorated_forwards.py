# One decorator above several forwards, and layers that one function makes: what mixes samples is inside of what they close over.
# %% setup
import functools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def checked(forward):
    @functools.wraps(forward)
    def wrapper(self, x):
        out = forward(self, x)
        assert out.dim() == 2
        return out

    return wrapper


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    @checked
    def forward(self, x):
        return x * self.w


class Standardize(nn.Module):
    @checked
    def forward(self, x):
        return (x - x.mean(0)) / (1 + x.amax(0))


class Lambda(nn.Module):
    def __init__(self, func):
        super().__init__()
        self.func = func

    def forward(self, x):
        return self.func(x)


def then(f, g):
    return lambda x: g(f(x))


loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 2)), batch_size=8, shuffle=True)
nets = [
    nn.Sequential(Scale(), Standardize(), nn.Linear(4, 2)),
    nn.Sequential(
        nn.Linear(4, 4), Lambda(then(torch.tanh, lambda x: x * 2)), Lambda(then(torch.exp, lambda x: x / x.sum(0))), nn.Linear(4, 2)
    ),
]
losses = []
# %% cell
for net in nets:
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
# %% compare
[net.state_dict() for net in nets], losses
