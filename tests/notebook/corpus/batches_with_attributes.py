# Batches that are dicts and lists of classes of their own, with attributes that say something of the samples.
# %% setup
import collections
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Encoding(dict):
    pass


class Sized(collections.UserDict):
    def __init__(self, entries=None, size=0):
        super().__init__(entries)
        self.size = size


class Lengths(list):
    lengths = None


class Fields(collections.abc.MutableMapping):
    def __init__(self, fields, batch_size):
        self._fields, self.batch_size = dict(fields), batch_size

    def __getitem__(self, key):
        return self._fields[key]

    def __setitem__(self, key, value):
        self._fields[key] = value

    def __delitem__(self, key):
        del self._fields[key]

    def __iter__(self):
        return iter(self._fields)

    def __len__(self):
        return len(self._fields)


def fields_of(samples):
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.stack([y for _, y in samples])}


def encoded(samples):
    batch = Encoding(fields_of(samples))
    batch.total, batch.norms, batch.kind = float(batch["x"].sum()), torch.stack([x.norm() for x, _ in samples]), f"{len(samples)} samples"
    return batch


def listed(samples):
    batch = Lengths(fields_of(samples).values())
    batch.lengths = [int(x.abs().sum()) for x, _ in samples]
    return batch


functions = [
    encoded,
    listed,
    lambda samples: Sized(fields_of(samples), len(samples)),
    lambda samples: Fields(fields_of(samples), torch.Size([len(samples)])),
]
x = torch.randn(26, 4)
loaders = [DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True, collate_fn=function) for function in functions]
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
losses, noted = [], []
# %% cell
for loader in loaders:
    for batch in loader:
        xb, yb = batch if isinstance(batch, list) else (batch["x"], batch["y"])
        loss = F.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        noted.append([type(batch).__name__, *(getattr(batch, name, None) for name in ("size", "lengths", "batch_size", "total", "kind"))])
        noted.append(batch.norms.tolist() if hasattr(batch, "norms") else None)
del batch
# %% compare
losses, noted, model.state_dict()
