# A library of the user's, installed, whose loss and collate function read settings in its objects: set before, by a setter and in the cell.
# %% setup
import importlib
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

folder = Path(tempfile.mkdtemp())
(folder / "corpus_lib.py").write_text("""
import contextlib
import dataclasses
from types import SimpleNamespace

import torch


@dataclasses.dataclass
class Settings:
    gain: float = 1.0
    powers: list = dataclasses.field(default_factory=lambda: [1.0])


settings = Settings()
options = SimpleNamespace(shift=0.0, inner=SimpleNamespace(steps=0))
SQUARED = 3 > 2


def configure(**values):
    for name, value in values.items():
        setattr(settings, name, value)


@contextlib.contextmanager
def override(**values):
    before = {name: getattr(settings, name) for name in values}
    configure(**values)
    yield
    configure(**before)


def collate(rows):
    x, y = torch.utils.data.default_collate(rows)
    return x * settings.gain, y + options.shift


def loss_of(output, target):
    options.inner.steps += 1
    difference = output.squeeze(1) - target
    return (difference.pow(2) if SQUARED else difference.abs()).mean() * sum(settings.powers)
""")
sys.path.insert(0, str(folder))
sys.modules.pop("corpus_lib", None)
corpus_lib = importlib.import_module("corpus_lib")
from corpus_lib import settings

x = torch.randn(26, 4)
loader = DataLoader(TensorDataset(x, x.sin().sum(1)), batch_size=8, shuffle=True, collate_fn=corpus_lib.collate)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.05)
corpus_lib.configure(gain=0.5)
corpus_lib.options.shift = 0.1
settings.powers.append(0.5)
# %% cell
hist = []
for epoch in range(2):
    with corpus_lib.override(gain=corpus_lib.settings.gain + epoch):
        for xb, yb in loader:
            opt.zero_grad()
            loss = corpus_lib.loss_of(model(xb), yb)
            loss.backward()
            opt.step()
            hist.append(loss.item())
    settings.powers[0] *= 0.9
# %% compare
model.state_dict(), hist, settings.gain, corpus_lib.settings.powers, settings is corpus_lib.settings, vars(corpus_lib.options.inner)
