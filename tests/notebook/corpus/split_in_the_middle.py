# A graph that is cut and sewn together by hand (split learning), losses and vectors in turns from all of a model and from a part of it.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 2)), batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
# %% cell
for x, y in loader:
    features = model[1](model[0](x))
    received = features.detach().requires_grad_()
    loss = F.mse_loss(model[2](received), y)
    opt.zero_grad()
    loss.backward()
    features.backward(received.grad)
    opt.step()
    losses.append(loss.item())
for x, y in loader:
    opt.zero_grad()
    model(x).backward(y / len(x))
    opt.step()
    opt.zero_grad()
    loss = model[1](model[0](x)).mean()
    loss.backward()
    losses.append((loss.item(), model[2].weight.grad is None))
    opt.step()
print(losses[-1])
# %% compare
model.state_dict(), losses
