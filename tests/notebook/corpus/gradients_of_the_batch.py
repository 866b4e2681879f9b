# Gradients by the batch that models ask for inside, that are read between passes, and that tensors keep on the way; the type of a loss.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x_all = torch.randn(41, 3)
loader = DataLoader(TensorDataset(x_all, x_all.pow(2).sum(1, keepdim=True)), batch_size=12, shuffle=True)


class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        x.requires_grad_()
        return self.net(x)


class Forces(Energy):
    def forward(self, batch):
        batch["x"].requires_grad = True
        energy = self.net(batch["x"])
        return energy, -torch.autograd.grad(energy.sum(), batch["x"], create_graph=True)[0]


class Meter:
    def __init__(self):
        self.values = []

    def update(self, value):
        self.values.append(value.item() if type(value) == torch.Tensor else "no tensor")


energy, forces = Energy(), Forces()
features, head = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Linear(4, 1)
optimizer = torch.optim.Adam([*energy.parameters(), *forces.parameters(), *features.parameters(), *head.parameters()], lr=0.01)
# %% cell
meter, seen = Meter(), []
for x, y in loader:
    optimizer.zero_grad()
    out = energy(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    loss = F.mse_loss(out, y) + (slope.norm(dim=1) - 1).pow(2).mean()
    loss.backward()
    meter.update(loss)
    seen.append((x.requires_grad, x.is_leaf, x.grad.norm().item()))

    x = x.detach()
    e, f = forces({"x": x})
    loss = F.mse_loss(e, y) + F.l1_loss(f, -2 * x.detach())
    loss.backward()
    meter.update(loss)
    seen.append((x.requires_grad, x.grad.norm().item()))

    x = x.detach().requires_grad_()
    h = features(x)
    h.retain_grad()
    (by_hidden,) = torch.autograd.grad(head(h).sum(), h, create_graph=True)
    seen.append((by_hidden.sum().item(), h.grad.sum().item()))
    scores = torch.zeros(len(x), 2)
    scores[:, :1] = head(h)
    seen.append(F.cross_entropy(scores, (y[:, 0] > 2).long()).item())
    F.mse_loss(head(h), y).backward(retain_graph=True)
    seen.append((x.grad.norm().item(), h.grad.norm().item()))
    h.grad.mul_(0.5)
    (F.l1_loss(head(h), y) + by_hidden.pow(2).mean()).backward()  # adds to what was read
    seen.append((x.grad.norm().item(), h.grad.norm().item()))
    optimizer.step()
print(type(loss), type(x).__name__, meter.values[-1])
# %% compare
energy.state_dict(), forces.state_dict(), features.state_dict(), head.state_dict(), seen, meter.values
