"""A collate function hands on objects of the data set: the cell writes to them, and tells them from others, as on one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from jupyter_dtrain.engine.data.handed_objects import are_plain, hands_on
from tests.conftest import in_turn
from tests.engine.ranks import Ranks, run_notebook, run_plain
from tests.notebook.corpus_cells import apart, text_apart

TWO: Any = [0, 1]
SETUP = """
import random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
MISSING = object()
def value(i): return torch.randn(3, generator=torch.Generator().manual_seed(i))
def step(x, y):
    opt.zero_grad()
    loss = F.mse_loss(net(x).squeeze(-1), y)
    loss.backward()
    opt.step()
    return loss.item()

class Graph:
    def __init__(self, i): self.x, self.y, self.seen, self.more = value(i), value(i)[:1].sum(), 0, {"log": []}

class Closed(Graph):
    def __getstate__(self): return {name: kept for name, kept in vars(self).items() if name != "more"}
"""
LIST_OF_DICTS = """
losses = []
for epoch in range(2):
    for gs in loader:
        losses.append(step(torch.stack([g["x"] for g in gs]), torch.stack([g["y"] for g in gs])))
        for g in gs:
            g["seen"] += 1
            g["pred"] = net(g["x"]).item()
            g["last"] = losses[-1]
        print(any(gs[0] is g for g in items), len(gs))
"""
DICTS = 'items = [{"x": value(i), "y": value(i).sum(), "seen": 0} for i in range(11)]\n'
OF_GRAPHS = """
losses, memory = [], {}
for epoch in range(2):
    for gs in loader:
        losses.append(step(torch.stack([g.x for g in gs]), torch.stack([g.y for g in gs])))
        for g in gs:
            g.seen += 1
            g.more["log"].append(losses[-1])
            memory[g] = memory.get(g, 0) + 1
print(len(memory), sorted(memory.values()), all(g in memory for g in items))
"""
WITH_BOXES = """
losses = []
for epoch in range(2):
    for images, targets in loader:
        for t in targets:
            t["boxes"][:, 2:] += t["boxes"][:, :2]
        y = torch.stack([t["boxes"].sum() for t in targets])
        losses.append(step(images, y / 100))
"""
BOXES = """
class Boxes(Dataset):
    def __init__(self): self.t = [{"boxes": value(i)[:, None].repeat(1, 4).abs()} for i in range(11)]
    def __len__(self): return 11
    def __getitem__(self, i): return value(i), self.t[i]
def stack(b):
    images, targets = zip(*b)
    return torch.stack(images), list(targets)
data = Boxes()
loader = DataLoader(data, 4, shuffle=True, collate_fn=stack)
"""
ROWS = """
class Rows(Dataset):
    def __init__(self): self.rows = {kind}
    def __len__(self): return 11
    def __getitem__(self, i): return value(i), self.rows[i]
def stack(b):
    x, rows = zip(*b)
    return torch.stack(x), list(rows)
data = Rows()
loader = DataLoader(data, 4, collate_fn=stack)
"""
WRITTEN_ROWS = """
losses = []
for epoch in range(2):
    for x, rows in loader:
        for row in rows:
            row *= 1.5
        losses.append(step(x, torch.stack([torch.as_tensor(row).sum() for row in rows])))
"""
CASES = {
    "dicts of a list": (DICTS + "loader = DataLoader(items, 4, shuffle=True, collate_fn=lambda b: b)", LIST_OF_DICTS, "losses, items"),
    "boxes": (BOXES, WITH_BOXES, "losses, data.t"),
    "keys of a memory": (
        "items = [Graph(i) for i in range(11)]\nloader = DataLoader(items, 4, shuffle=True, collate_fn=lambda b: b)",
        OF_GRAPHS,
        "losses, [(g.seen, g.more) for g in items]",
    ),
    "objects that leave something out of their pickles": (
        "items = [Closed(i) for i in range(11)]\nloader = DataLoader(items, 4, shuffle=True, collate_fn=lambda b: b)",
        OF_GRAPHS,
        "losses, [(g.seen, g.more) for g in items]",
    ),
    "the same, made for each sample": (
        (
            "class Made(Dataset):\n"
            "    def __len__(self): return 11\n"
            "    def __getitem__(self, i): return Closed(i)\n"
            "loader = DataLoader(Made(), 4, collate_fn=lambda b: b)"
        ),
        (
            "losses = []\nfor gs in loader:\n"
            "    losses.append(step(torch.stack([g.x for g in gs]), torch.stack([g.y for g in gs])))\n"
            "    print([g.more for g in gs])"
        ),
        "losses",
    ),
    "a sentinel": (
        (
            'items = [{"x": value(i), "y": MISSING if i % 3 else value(i).sum()} for i in range(11)]\n'
            "loader = DataLoader(items, 4, collate_fn=lambda b: b)"
        ),
        (
            "losses = []\nfor gs in loader:\n"
            '    known = [g for g in gs if g["y"] is not MISSING]\n'
            '    if known:\n        losses.append(step(torch.stack([g["x"] for g in known]), torch.stack([g["y"] for g in known])))\n'
            "    print(len(known))"
        ),
        "losses",
    ),
    "a sentinel in tuples that are made for each sample": (
        (
            "class Pairs(Dataset):\n"
            "    def __len__(self): return 11\n"
            "    def __getitem__(self, i): return value(i), (i, MISSING if i % 3 else 1.0)\n"
            "loader = DataLoader(Pairs(), 4, collate_fn=lambda b: (torch.stack([x for x, _ in b]), [y for _, y in b]))"
        ),
        "losses = []\nfor x, ys in loader:\n    losses.append(step(x, torch.tensor([0.0 if y is MISSING else y for _, y in ys])))",
        "losses",
    ),
    "a lambda": (
        'items = [{"x": value(i), "f": lambda v, i=i: v * i} for i in range(11)]\nloader = DataLoader(items, 4, collate_fn=lambda b: b)',
        (
            "losses = []\nfor gs in loader:\n"
            '    losses.append(step(torch.stack([g["x"] for g in gs]), torch.stack([g["f"](g["x"]).sum() for g in gs])))'
        ),
        "losses",
    ),
    "a cache": (
        (
            "class Cached(Dataset):\n"
            "    def __init__(self): self.cache = {}\n"
            "    def __len__(self): return 11\n"
            "    def __getitem__(self, i):\n"
            '        if i not in self.cache: self.cache[i] = {"x": value(i), "y": value(i).sum(), "seen": 0}\n'
            "        return self.cache[i]\n"
            "data = Cached()\nloader = DataLoader(data, 4, shuffle=True, collate_fn=lambda b: b)"
        ),
        LIST_OF_DICTS.replace("g in items", "g in data.cache.values()"),
        "losses, data.cache",
    ),
    "tensors of a list": (ROWS.format(kind="[value(i) for i in range(11)]"), WRITTEN_ROWS, "losses, data.rows"),
    "views of a tensor": (ROWS.format(kind="torch.stack([value(i) for i in range(11)])"), WRITTEN_ROWS, "losses, data.rows"),
    "views of an array": (
        ROWS.format(kind="np.stack([value(i).numpy() for i in range(11)])"),
        WRITTEN_ROWS,
        "losses, data.rows.tolist()",
    ),
    "none in the first batch": (
        (
            'items = [{"x": value(i), "t": {"y": value(i).sum(), "seen": 0} if i > 5 else None} for i in range(11)]\n'
            'loader = DataLoader(items, 4, collate_fn=lambda b: (torch.stack([g["x"] for g in b]), [g["t"] for g in b]))'
        ),
        (
            "losses = []\nfor epoch in range(2):\n    for x, ts in loader:\n"
            '        losses.append(step(x, torch.tensor([0.0 if t is None else t["y"].item() for t in ts])))\n'
            '        for t in ts:\n            if t is not None: t["seen"] += 1\n'
        ),
        "losses, items",
    ),
    "made for each sample": (
        (
            "class Made(Dataset):\n"
            "    def __len__(self): return 11\n"
            '    def __getitem__(self, i): return value(i), {"y": value(i).sum(), "name": str(i)}\n'
            "loader = DataLoader(Made(), 4, shuffle=True, collate_fn=lambda b: (torch.stack([x for x, _ in b]), [t for _, t in b]))"
        ),
        (
            "losses, names = [], []\nfor x, ts in loader:\n"
            '    losses.append(step(x, torch.stack([t["y"] for t in ts])))\n'
            '    names += [t["name"] for t in ts]'
        ),
        "losses, names",
    ),
    "in workers": (
        DICTS + "loader = DataLoader(items, 4, shuffle=True, collate_fn=list, num_workers=2)",
        LIST_OF_DICTS.replace("any(gs[0] is g for g in items)", "gs[0]['seen']"),
        "losses, items",
    ),
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(most=3) as ranks:
        yield ranks


@pytest.mark.parametrize(("name", "world_size"), in_turn(list(CASES), [2, 3]))
def test_a_cell_comes_to_the_same(ranks, name, world_size):
    setup, cell, compare = CASES[name]
    (plain,) = ranks.call(1, run_plain, SETUP + setup, cell, compare)
    of_ranks = ranks.call(world_size, run_notebook, SETUP + setup, cell, compare, {"global_draws": True})
    for one in of_ranks:
        assert apart(plain["compared"], one["compared"]) is None
    assert apart(plain["random"], of_ranks[0]["random"]) is None
    assert text_apart(plain["printed"], of_ranks[0]["printed"]) is None


class Plain:
    def __init__(self, **attributes):
        vars(self).update(attributes)


class Reduced(Plain):
    def __reduce__(self):
        return Plain, ()


SHARED = {"vocabulary": [1]}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: {"y": torch.ones(2), "name": "a", "box": [1, 2]}, False),
        (lambda: Plain(y=torch.ones(2), at=(1, [2])), False),
        (lambda: ("text", 3, None, torch.float32), False),
        (lambda: Plain(words=SHARED), True),
        (lambda: (1, SHARED["vocabulary"]), True),
        (lambda: Reduced(y=1), True),
        (lambda: [lambda: 1], True),
    ],
)
def test_what_must_not_be_copied(make, expected):
    first, second = (next(iter(DataLoader(TWO, 2, collate_fn=lambda b: [make() for _ in b]))) for _ in range(2))
    assert hands_on(first, second, {(): "entries"}) == expected
    assert are_plain(first, {(): "entries"}) == (type(first[0]) is tuple and not expected)
