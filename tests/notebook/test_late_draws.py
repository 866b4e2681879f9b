"""A data set that draws random numbers, though not for a loader's first batch, comes to the same plain and on engines.

So does a model that draws in another order than in its first call.
"""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import difference

SETUP = """
import random
import numpy as np
from torch.utils.data import Dataset, Subset

class Data(Dataset):
    def __init__(self, draw, **options):
        generator = torch.Generator().manual_seed(1)
        self.x, self.draw, self.p, self.epoch = torch.randn(45, 4, generator=generator), draw, 0.0, 0
        self.y = torch.arange(45) // 23
        vars(self).update(options)

    def __len__(self):
        return 45

    def __getitem__(self, i):
        return self.draw(self, self.x[i], int(self.y[i])), self.y[i]

def by_class(s, x, y): return x + 0.1 * torch.randn(4) if y else x
def by_epoch(s, x, y): return x + 0.1 * torch.randn(4) if s.epoch else x
def by_chance(s, x, y): return x * 1.5 if s.p and torch.rand(()) < s.p else x
def with_numpy(s, x, y): return x + np.random.normal() if y else x
def with_python(s, x, y): return x + random.random() if y else x
def with_its_own(s, x, y): return x + torch.randn(4, generator=s.g) if s.epoch else x
def for_few(s, x, y): return x + torch.randn(4) if y and x[0] > 0.7 else x
def stack(samples):
    x, y = zip(*samples)
    return torch.stack(x), torch.stack(y)

def make():
    global model, optimizer, losses, sums
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    losses, sums = [], []
"""
TRAIN = """
for epoch in range(3):
    data.epoch, data.p = epoch, 0.5 * min(epoch, 1)
    if epoch and hasattr(data, "g"):
        data.g = data.g or torch.Generator().manual_seed(4)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        sums.append(x.double().sum().item())
    print(f"epoch {epoch}: {losses[-1]:.4f}")
"""
STATE = (
    "(losses, sums, [p.detach() for p in model.parameters()], torch.rand(2).tolist(), np.random.rand(2).tolist(),"
    " random.random(), data.epoch)"
)
LATE = "goes by all samples of a batch from here on"
LOADERS = {
    "for the minority class": "DataLoader(data := Data(by_class), 6)",
    "in a later epoch": "DataLoader(data := Data(by_epoch), 6, shuffle=True)",
    "for few samples, of a subset": "DataLoader(Subset(data := Data(for_few), range(3, 43)), 7)",
    "by NumPy": "DataLoader(data := Data(with_numpy), 6)",
    "by Python": "DataLoader(data := Data(with_python), 6)",
    "with a collate function": "DataLoader(data := Data(by_class), 6, collate_fn=stack)",
    "with a probability of zero at first": "DataLoader(data := Data(by_chance), 6, shuffle=True)",
    "in workers": "DataLoader(data := Data(by_class), 6, num_workers=2)",
    "in workers, by epoch and with a collate function": "DataLoader(data := Data(by_epoch), 6, num_workers=2, collate_fn=stack)",
    "in persistent workers": "DataLoader(data := Data(by_class), 6, num_workers=2, persistent_workers=True)",
}
RARE = ("by NumPy", "by Python", "with a probability of zero at first", "in persistent workers")


@pytest.fixture
def prepared(notebook):
    notebook.run(IMPORTS + SETUP)
    return notebook


def compare(notebook, loader, engines, cell=TRAIN, options=""):
    """Return how a cell's run on engines differs from a plain one, and the run."""
    notebook.run(f"make()\nloader = {loader}")
    plain = notebook.run(cell)
    expected = notebook.value(STATE)
    notebook.run(f"make()\nloader = {loader}")
    ran = notebook.run(f"%%distribute --engines {engines} {options}\n{cell}")
    assert ran.stdout == plain.stdout
    return difference(notebook.value(STATE), expected), ran


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long if name in RARE else ()) for name in LOADERS])
def test_a_late_draw_takes_the_run_back(prepared, name):
    apart, ran = compare(prepared, LOADERS[name], 2)
    assert apart is None
    assert LATE in "".join(ran.notices)


DROPPED = """
class Drops(nn.Module):
    def forward(self, h):
        for _ in range(3):
            if torch.rand(1) < 0.5: continue
            h = h * torch.rand(len(h))[:, None]
        return h
"""


def test_a_model_that_draws_in_another_order_takes_the_run_back(prepared):
    prepared.run(DROPPED)
    apart, ran = compare(prepared, "DataLoader(data := Data(lambda s, x, y: x), 6)\nmodel.insert(1, Drops())", 2)
    assert apart is None
    assert LATE in "".join(ran.notices)


@pytest.mark.parametrize("collate", ["", "collate_fn=stack"])
def test_a_generator_that_a_later_epoch_makes_needs_no_way_back(prepared, collate):
    apart, ran = compare(prepared, f"DataLoader(data := Data(with_its_own, g=None), 6, shuffle=True, {collate})", 3)
    assert apart is None
    assert LATE not in "".join(ran.notices)


def test_a_data_set_that_draws_at_once_or_never_takes_none_back(prepared):
    for draw in ("lambda s, x, y: x", "lambda s, x, y: x + torch.randn(4)"):
        apart, ran = compare(prepared, f"DataLoader(data := Data({draw}), 6, shuffle=True)", 3)
        assert apart is None
        assert LATE not in "".join(ran.notices)


BESIDE = """
import threading
import {library}
ended = threading.Event()
def use_up():
    while not ended.is_set():
        random.random()
thread = threading.Thread(target=use_up)
{train}
thread.start()  # where the loader is known to draw nothing
{train}
ended.set()
thread.join()
"""


def test_draws_of_dasks_threads_take_none_back(prepared):
    prepared.run("import time\nmake()\nloader = DataLoader(data := Data(lambda s, x, y: time.sleep(0.001) or x), 6, shuffle=True)")
    ran = prepared.run("%%distribute --engines 2\n" + BESIDE.format(library="distributed", train=TRAIN))
    assert LATE not in "".join(ran.notices)


@pytest.mark.parametrize("options", ["--checkpoint-every 2", pytest.param("--strategy zero1", marks=pytest.mark.long)])
def test_the_run_goes_back_to_within_an_epoch(prepared, options):
    apart, ran = compare(prepared, "DataLoader(data := Data(for_few), 3, num_workers=2)", 2, options=options)
    assert apart is None
    (notice,) = (line for line in ran.notices if LATE in line)
    assert ("resuming from step" in notice) == ("every" in options)


VALIDATED = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data := Data(by_class), 6):
            losses.append(F.cross_entropy(model(x), y).item())
            sums.append(x.double().sum().item())
    model.train()
"""


def test_evaluation_comes_to_the_same(prepared):
    rows = "DataLoader(torch.utils.data.TensorDataset(torch.randn(20, 4), torch.arange(20) % 2), 5, shuffle=True)"
    apart, _ = compare(prepared, rows, 3, VALIDATED)
    assert apart is None
