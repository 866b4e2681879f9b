"""Models that make something of several samples only from a later call on: they come to what one process comes to."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_dtrain.engine.cell import run_cell
from tests.conftest import in_turn
from tests.engine.ranks import Ranks, Run, run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import random
from functools import partial
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.randn(20, 3), torch.randn(20, 2)), batch_size=8)
EPOCH = 0

class Settings:
    late = False
    stage = "early"

settings = Settings()

class Early:
    f = staticmethod(lambda h: h)

    def apply(self, h):
        return h

class Late:
    def apply(self, h):
        return h - h.mean(0)

def centred(h):
    return h - h.mean(0)

def centred_rows(h):
    return h - h.mean(1, keepdim=True)

def scaled(h, late=False):
    if late:
        h = h / h.norm()
    return h

def by_number(h):
    number = len(h)
    return h.sum(1, keepdim=True) ** 2 / number + h

def f_early(h):
    return h

def f_late(h):
    return h - h.mean(0)

FUNCTIONS = [f_early, lambda h: h - h.mean(0)]

class Centred(nn.Module):
    def forward(self, h):
        return centred(h)

class Net(nn.Module):
    late = False

    def __init__(self):
        super().__init__()
        self.first, self.last, self.calls, self.epoch, self.centre = nn.Linear(3, 6), nn.Linear(6, 2), 0, 0, Centred()
        {held}
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def f_0(self, h):
        return h

    def f_1(self, h):
        return h - h.mean(0)

    f_2 = f_0

    @property
    def is_late(self):
        return self.calls > 4

    def divided(self, h):
        return h / h.norm()

    def forward(self, x, epoch=0, *, alpha=0.0):
        self.calls, h = self.calls + 1, torch.tanh(self.first(x))
        {then}
        return self.last(h)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
HELD = {
    "functions": '{"0": torch.sin, "1": partial(f_late), "2": f_early}',
    "pools": "[lambda h: h, lambda h: h + torch.cumsum(h, 0)]",
    "parts": 'nn.ModuleDict({"0": nn.Identity(), "1": Centred(), "2": nn.Tanh()})',
    "means": "lambda h, dim: h.mean(dim, keepdim=True)",
    "kept": "lambda h: h.sort(0).values",
}
"""What of the model's attributes only some models have."""
CELL = """
losses = []
for epoch in range(3):
    EPOCH = model.epoch = epoch
    settings.late, settings.stage = epoch == 1, ["early", "late", "last"][epoch]
    for x, y in loader:
        loss = F.mse_loss(model(x, epoch, alpha=max(0.0, epoch - 0.5)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""
LATER = {
    "a count of calls": "if self.calls > 4: h = h - h.mean(0, keepdim=True)",
    "a count in a buffer": "self.steps += 1\n        if self.steps > 4: h = h / h.std()",
    "an attribute that the cell sets": "if self.epoch >= 1: h = h - h.amax(dim=0)",
    "an argument": "h = h if epoch < 2 else h + h.roll(1, 0)",
    "an argument by name": "if alpha > 0: h = self.divided(h)",
    "a global name": "if EPOCH == 1: h = centred(h)",
    "each third call": "if not self.calls % 3: h = self.centre(h)",
    "an early return": "if self.calls < 5: return self.last(h)\n        if self.training: h = torch.mm(torch.mm(h, h.t()), h)",
    "a function from a list, by number": "h = self.pools[self.epoch % 2](h)",
    "a function from a dict": "h = self.functions[str(self.epoch)](h)",
    "a method by its name": 'h = getattr(self, f"f_{epoch}")(h)',
    "a method by a variable": 'name = "f_" + str(self.calls // 4); h = getattr(self, name)(h)',
    "a module of a dict": "h = self.parts[str(self.epoch)](h)",
    "a dict of methods": 'h = {"0": self.f_0, "1": self.divided, "2": self.f_0}[str(epoch)](h)',
    "one of two functions": "f = f_early if epoch < 1 else centred; h = f(h)",
    "one of two lambdas": "h = (lambda h: h, lambda h: h - h.mean(0))[self.calls > 5](h)",
    "a global list": "h = FUNCTIONS[EPOCH % 2](h)",
    "a global name for a function": 'h = globals()["f_" + settings.stage.replace("last", "early")](h)',
    "a match": """match self.epoch:
            case 0: pass
            case _: h = h - h.mean(0)""",
    "a condition in a variable": "late = self.calls > 4\n        if late: h = self.kept(h)",
    "a condition handed on": "h = scaled(h, self.calls > 4)",
    "a property": "if self.is_late: h = h - h.mean(0)",
    "an object's setting": "if settings.late: h = h - h.mean(0)",
    "an object's word": 'h = h - h.mean(0) if settings.stage == "late" else h',
    "a loop": "for _ in range(self.epoch): h = h - h.mean(0)",
    "a loop that grows": "for i, part in enumerate((nn.Identity(), self.centre)):\n            if i <= epoch: h = part(h)",
    "a while": "n = self.epoch\n        while n > 0: h, n = self.divided(h), n - 1",
    "a random number": "if random.random() < 0.3: h = h - h.mean(0)",
    "an object that is chosen": "h = (Early(), Late())[self.epoch > 0].apply(h)",
    "another dim": "h = h - self.means(h, 0 if self.calls > 5 else 1)",
    "one sample": "if self.calls > 5: h = h - h[0]",
    "the next sample": "if self.calls > 5: h = torch.cat([h[1:], h[:1]])",
    "pairs": "if self.calls > 5: h = torch.einsum('ij,kj->ik', h, h) @ h",
    "an order that the first batch has": "h = h[(epoch * x[:, 0] + torch.arange(len(x)) * (epoch < 1)).argsort()]",
    "an order of the batch": "h = h[x[:, 0].sort(0, True).indices]",
    "a number of samples": "if self.calls > 4: h = h / len(h)",
    "a size": "h = h * x.shape[0] if epoch else h",
    "a size that is given": "if self.calls > 4: h = h.div(len(h))",
    "a size in a variable": "n, _ = h.size()\n        if self.calls > 4: h = h + self.calls / n",
    "a size that is summed": "if self.calls > 4: self.calls += x.size(0); h = h / self.calls",
    "a size by another function": "h = (f_early, by_number)[self.calls > 4](h)",
    "modules in a list": "for part in [*self.parts.values()][:self.epoch + 1]: h = part(h)",
}


def assert_as_plain(ranks: Ranks, setup: str, cell: str, world_size: int, options: dict[str, bool]) -> None:
    (plain,) = ranks.call(1, run_plain, setup, cell, "losses, model.state_dict()")
    for found in ranks.call(world_size, run_notebook, setup, cell, "losses, model.state_dict()", options):
        assert apart(plain["compared"], found["compared"]) is None


@pytest.mark.parametrize(("name", "world_size"), in_turn(LATER, [2, 3]))
def test_what_begins_later(ranks, name, world_size):
    setup = setup_of(LATER[name])
    assert_as_plain(ranks, setup, CELL, world_size, {"global_draws": True})


OPTIONS = {"global_draws": True, "global_batchnorm": True}
CHANGED = {
    "a module": ("nn.Identity()", "h = self.own(h)", "model.own = Centred()"),
    "a module of a list": ("nn.ModuleList([nn.Identity()])", "for own in self.own: h = own(h)", "model.own.append(Centred())"),
    "a layer that takes statistics": ("nn.ModuleList()", "for own in self.own: h = own(h)", "model.own.append(nn.BatchNorm1d(6))"),
    "a layer that draws": ("nn.Identity()", "h = self.own(h)", "model.own = nn.Dropout(0.3)"),
    "a module's setting": ("nn.Softmax(dim=1)", "h = self.own(h)", "model.own.dim = 0"),
    "a number": ("1", "h = h - h.mean(self.own, keepdim=True)", "model.own = 0"),
    "a function": ("f_early", "h = self.own(h)", "model.own = f_late"),
    "a method": ("None", "h = self.f_0(h)", "model.f_0 = model.f_1"),
    "an object": ("Early()", "h = self.own.apply(h)", "model.own = Late()"),
    "an object's function": ("Early()", "h = self.own.f(h)", "model.own.f = f_late"),
    "a function of a list": ("[f_early]", "for f in self.own: h = f(h)", "model.own.append(f_late)"),
    "a function of a dict": ('{"a": f_early}', 'h = self.own["a"](h)', 'model.own["a"] = f_late'),
    "a global name": ("None", "h = centred_rows(h)", "centred_rows = f_late"),
    "a method of the class": ("None", "h = self.f_0(h)", "Net.f_0 = Net.f_1"),
    "a setting in a dict": ('{"late": False}', 'if self.own["late"]: h = h - h.mean(0)', 'model.own["late"] = True'),
    "a flag and a number": ("False", "if self.own and self.calls > 0: h = h - h.mean(0)", "model.own = True"),
    "a flag or a number": ("True", "if not (self.own or self.calls > 99): h = h - h.mean(0)", "model.own = False"),
    "a flag of the class": ("None", "if self.late and self.calls > 0: h = h - h.mean(0)", "Net.late = True"),
    "what is there": ("nn.Identity()", "if self.own is None: h = h - h.mean(0)", "model.own = None"),
}


@pytest.mark.parametrize(("name", "world_size"), in_turn(CHANGED, [2, 3]))
def test_what_the_cell_changes(ranks, name, world_size):
    own, then, change = CHANGED[name]
    setup = SETUP.replace("{then}", then).replace("{held}", f"self.own = {own}")
    cell = CELL.replace("    for x, y in", f"    if epoch == 1:\n        {change}\n    for x, y in")
    assert_as_plain(ranks, setup, cell, world_size, OPTIONS)


ONE_SAMPLE_FIRST = {
    "a mean": "h = h - h.mean(0)",
    "an order": "h = h[x[:, 0].argsort()]",
    "a layer along the batch": "h = self.own(h)[0]",
}


@pytest.mark.parametrize(("name", "world_size"), in_turn(ONE_SAMPLE_FIRST, [2, 3]))
def test_a_first_batch_of_one_sample(ranks, name, world_size):
    setup = SETUP.replace("{then}", ONE_SAMPLE_FIRST[name]).replace("{held}", "self.own = nn.RNN(6, 6)")
    setup = setup.replace("batch_size=8", "batch_sampler=[[0], [1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11, 12], [13, 14]]")
    assert_as_plain(ranks, setup, CELL, world_size, OPTIONS)


LAYERS = {
    "a setting": "model[1].dim = 0",
    "another layer": "model[1] = nn.Softmax(dim=0)",
    "one more": "model.append(nn.LogSoftmax(dim=0))",
}


@pytest.mark.parametrize(("name", "world_size"), in_turn(LAYERS, [2, 3]))
def test_what_the_cell_changes_of_layers_alone(ranks, name, world_size):
    setup = SETUP.replace("model = Net()", "model = nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1))").replace("{then}", "pass")
    setup = setup.replace("{held}", "pass")
    cell = CELL.replace("    EPOCH = model.epoch = epoch\n", f"    if epoch == 1:\n        {LAYERS[name]}\n")
    cell = cell.replace("model(x, epoch, alpha=max(0.0, epoch - 0.5))", "model(x)")
    assert_as_plain(ranks, setup, cell, world_size, OPTIONS)


APART = {
    "what has been run": "if self.calls > 0: h = h - h.mean(1, keepdim=True)",
    "a flag": "if not self.training: h = h - h.mean(0)",
    "a flag's word": 'h = h if isinstance(epoch, int) else getattr(self, "f_1")(h)',
    "an argument that is not there": "if x is None: h = h - h.mean(0)",
    "a function that is called": "if self.calls > 4: h = h * 2\n        h = centred_rows(h)",
    "an order that is undone": "order = x[:, 0].argsort(descending=True)\n        h = h[order][order.argsort()]",
    "an order in each sample": "h = h.sort(1).values",
    "each sample": "if self.calls > 4: h = h / h.norm(dim=1, keepdim=True)",
    "a shape": "n, size = h.shape\n        if self.calls > 4: h = h.reshape(n * size // 6, 6) + torch.zeros(len(h) * 1, 6)",
    "a size of another dim": "if self.calls > 4: h = h * h.size(1) / (h.shape[1] + 1)",
}


@pytest.mark.parametrize("name", APART)
def test_what_no_call_mixes_stays_divided(ranks, name):
    assert ranks.call(2, opened, setup_of(APART[name])) == [[]] * 2


def setup_of(then: str) -> str:
    held = [f"self.{name} = {value}" for name, value in HELD.items() if f"self.{name}" in then]
    return SETUP.replace("{then}", then).replace("{held}", "; ".join(held) or "pass")


def opened(run: Run, setup: str) -> list[str]:
    """Return the classes of the models whose code ran on the global batch."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(setup, "setup", namespace)
    training = run.training(namespace["model"], global_draws=True)
    with training.installed():
        run_cell(CELL, "cell", namespace)
    return sorted(type(model).__name__ for model, called in training._models.known.infos() if called.is_open)
