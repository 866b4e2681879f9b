# Records and batches with slots: dataclasses of the notebook's, one that a model is handed and keeps features in, and a class of the cell's.
# %% setup
from dataclasses import dataclass
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

@dataclass(slots=True)
class Record:
    epoch: int
    loss: float

@dataclass(frozen=True, slots=True)
class Settings:
    rate: float = 0.1
    epochs: int = 2

@dataclass(slots=True)
class Batch:
    x: torch.Tensor
    features: torch.Tensor | None = None

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 4), nn.Linear(4, 1)
    def forward(self, batch):
        batch.features = self.hidden(batch.x).tanh()
        return self.out(batch.features)[:, 0]

settings, records = Settings(), [Record(-1, 0.5)]
x = torch.randn(21, 3)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=4, shuffle=True)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate)
# %% cell
class Kept:
    __slots__ = ("loss", "x")
    def __init__(self, x, loss):
        self.x, self.loss = x, loss

kept, batches = [], []
for epoch in range(settings.epochs):
    for x, y in loader:
        batch = Batch(x)
        loss = (model(batch) - y).square().mean() + 0.1 * batch.features.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(Kept(x, loss.detach()))
        batches.append(batch)
    records.append(Record(epoch, loss.item()))
records[0].loss += 1
newest = Record(7, 8.0)
try:
    newest.note = "no such slot"
except AttributeError:
    print("refused")
# %% compare
model.state_dict(), [(r.epoch, r.loss) for r in [*records, newest]], [(k.x, k.loss) for k in kept],
[(b.x, b.features.detach()) for b in batches], [type(r) is Record for r in records], hasattr(kept[0], "__dict__")
