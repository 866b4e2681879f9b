# Models that keep state of their samples in place: in tensors, arrays, objects, what these hold, parameters that nobody trains, metrics.
# %% setup
import dataclasses
import types
import numpy as np
import torch
import torchmetrics
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Meter:
    __slots__ = ("total", "n")

    def __init__(self):
        self.total, self.n = 0.0, 0

    def update(self, value, n):
        self.total, self.n = self.total + value * n, self.n + n


@dataclasses.dataclass
class Stats:
    n: int = 0
    means: list = dataclasses.field(default_factory=list)


class Tensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.n, self.sums, self.hist = torch.zeros(()), torch.zeros(4), torch.zeros(3)
        self.largest, self.usage = torch.zeros(()), torch.zeros(3, dtype=torch.long)
        self.nested = {"n": torch.zeros(1), "list": [torch.zeros(2)]}
        self.frozen = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x):
        self.n += len(x)
        torch.add(self.sums, x.sum(0), out=self.sums)
        self.hist[1].add_(x[:, 0].sum())
        self.largest.copy_(torch.maximum(self.largest, x.max()))
        self.usage.index_add_(0, (x[:, 1] > 0).long(), torch.ones(len(x), dtype=torch.long))
        self.nested["n"] += len(x)
        self.nested["list"][0][1] += x.mean()
        self.frozen += len(x)
        return self.linear(x)


class Objects(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.array, self.meter, self.stats = np.zeros(2), Meter(), Stats()
        self.space, self.trackers, self.correct = types.SimpleNamespace(n=0), [Stats()], 0

    def forward(self, x):
        out = self.linear(x)
        self.array += [len(x), out.mean().item()]
        self.meter.update(out.mean().item(), len(x))
        self.stats.n += len(x)
        self.stats.means.append(x.mean().item())
        self.space.n += len(x)
        self.trackers[0].n += len(x)
        self.correct += ((out > 0) == (x[:, :1] > 0)).sum().item()
        return out


class Running(nn.Module):
    """What it returns goes by its state."""

    def __init__(self):
        super().__init__()
        self.linear, self.mean = nn.Linear(4, 1), torch.zeros(4)

    def forward(self, x):
        self.mean.lerp_(x.mean(0), 0.1)
        return self.linear(x) + 0.1 * (x - self.mean).sum(1, keepdim=True)


class Loss(nn.Module):
    """What it returns has no row per sample, which is found in the call that counts too."""

    def __init__(self):
        super().__init__()
        self.linear, self.n, self.calls = nn.Linear(4, 1), torch.zeros(()), torch.zeros(())
        self.accuracy, self.mean = torchmetrics.classification.BinaryAccuracy(), torchmetrics.MeanMetric()

    def forward(self, x, y):
        out = self.linear(x)
        self.n += len(x)
        self.calls += 1
        self.accuracy.update(out.sigmoid().detach(), (y > 0).int())
        self.mean.update(out.detach().mean(), weight=len(x))
        return F.mse_loss(out, y)


class Calls(nn.Module):
    """It may be shared out: what it keeps goes by no sample."""

    def __init__(self):
        super().__init__()
        self.linear, self.n, self.space = nn.Linear(4, 1), torch.zeros(()), types.SimpleNamespace(calls=[])

    def forward(self, x):
        self.n += 1
        self.space.calls.append(self.n.item())
        return self.linear(x) * min(1.0, self.n.item() / 5)


x = torch.randn(26, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
models, loss_of = [Tensors(), Objects(), Running(), Calls()], Loss()
optimizer = torch.optim.SGD([p for model in [*models, loss_of] for p in model.parameters() if p.requires_grad], lr=0.05)
losses = []
# %% cell
for epoch in range(2):
    for xb, yb in loader:
        loss = sum(F.mse_loss(model(xb), yb) for model in models) + loss_of(xb, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(epoch, models[0].n.item(), models[1].space.n, models[3].n.item(), loss_of.accuracy.compute().item())
kept = models[1]
counted = kept.array, kept.meter.total, kept.meter.n, kept.stats.n, kept.stats.means, kept.space.n, kept.trackers[0].n, kept.correct
tensors = [getattr(models[0], name) for name in ("n", "sums", "hist", "largest", "usage", "nested", "frozen")]
# %% compare
losses, counted, tensors, models[2].mean, loss_of.n, loss_of.calls, models[3].space.calls, [model.state_dict() for model in models]
