# Functions with a gradient of their own that has none itself, in a model and in the cell.
# %% setup
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.data import DataLoader


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return Scale.apply(x, self.w)


loader = DataLoader(torch.randn(20, 4), batch_size=8, shuffle=True)
net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
losses = []
# %% cell
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * 2


for x in loader:
    loss = Double.apply(net(x)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
# %% compare
net.state_dict(), losses, Double.apply(torch.ones(2))
