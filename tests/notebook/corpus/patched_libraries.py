# A notebook that puts functions of its own, and names of old versions, into libraries. Functions that need the notebook's names are
# taken out again: later cells of the corpus have other names.
# %% setup
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset


def add_to_class(Class):
    def wrapper(function):
        setattr(Class, function.__name__, function)

    return wrapper


@add_to_class(nn.Module)
def num_elements(self):
    return sum(p.numel() for p in self.parameters())


def patch(function):
    setattr(Optimizer, function.__name__, function)


@patch
def rate(self: Optimizer):
    return self.param_groups[0]["lr"]


def gaussian_nll_loss(*args, **kwargs):
    return librarys_own(*args, **kwargs) * 2


def stack(tensors, dim=0, **options):
    return librarys_stack(tensors, dim, **options)


np.as_float = float
librarys_stack = getattr(torch.stack, "librarys_own", torch.stack)
stack.librarys_own = librarys_stack
torch.stack = stack
librarys_own = getattr(F.gaussian_nll_loss, "librarys_own", F.gaussian_nll_loss)  # the setup is run again
gaussian_nll_loss.librarys_own = librarys_own
F.gaussian_nll_loss = gaussian_nll_loss
torch.Tensor.mean_square = lambda self: self.pow(2).mean()
LR = 0.05
X = torch.randn(50, 4)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=12, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=LR)
losses = []
# %% cell
for x, y in loader:
    output = model(x)
    both = torch.stack([output[:, 0], x[:, 0]], 1)
    loss = (output - y).mean_square() + F.gaussian_nll_loss(both, x[:, :2], y.abs() + 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(np.as_float(loss))
print(model.num_elements(), optimizer.rate())
# %% compare
model.state_dict(), losses, setattr(torch, "stack", librarys_stack), setattr(F, "gaussian_nll_loss", librarys_own)
