"""Loaders on several ranks: the cell sees the batches of one process, in their order, and each sample is loaded once."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from textwrap import indent
from typing import Any

import pytest

from tests.conftest import in_turn, one_of
from tests.engine.ranks import run_notebook, run_plain

BASE = """
import random
from collections import namedtuple
from dataclasses import dataclass
import numpy as np
import torch
from torch import nn
from torch.utils.data import *

seen = []  # indices in the order of loading
exec("def note(index): seen.append(index)")  # as of a library: a data set whose own code keeps something is loaded whole by every rank

class Data(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        note(int(i))
        return torch.tensor([float(i), i * 10.0]), int(i)

class Texts(Data):
    def __getitem__(self, i):
        note(int(i))
        return {"text": f"text {i}", "x": torch.tensor([float(i)]), "nested": {"y": (i, [i * 1.5])}, "array": np.array([i, i])}

Pair = namedtuple("Pair", "first second")
class Pairs(Data):
    def __getitem__(self, i):
        note(int(i))
        return Pair(torch.ones(2) * i, Pair(i, str(i)))

class Stream(IterableDataset):
    def __init__(self, n, step=1):
        self.n, self.step = n, step
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([torch.tensor([float(i)]) for i in range(first, self.n, step)])

def show(batch):
    if isinstance(batch, torch.Tensor):
        return batch.dtype, list(batch.shape), batch.tolist()
    if isinstance(batch, np.ndarray):
        return batch.tolist()
    if isinstance(batch, dict):
        return {key: show(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return type(batch).__name__, [show(value) for value in batch]
    return batch

model = nn.Linear(2, 1)
"""
RUN = """
batches = []
for batch in loader:
    batches.append(show(batch))
"""
OF_ITERATORS = """
it = iter(loader)
batches = [iter(it) is it]
try: batches.append(len(it))
except TypeError: batches.append("none")
batches += [show(batch) for batch in iter(it)]
"""
PADDED = """
def collate(items):
    n = max(1 + i % 3 for _, i in items)
    padded = torch.zeros(len(items), n)
    for row, (x, i) in enumerate(items):
        padded[row, : 1 + i % 3] = i
    return {"x": torch.stack([x for x, _ in items]), "padded": padded, "ids": [i for _, i in items]}
loader = DataLoader(Data(11), batch_size=4, collate_fn=collate)
"""

MAPPINGS = """
from collections import UserDict, defaultdict
class Encoding(UserDict):
    def __init__(self, data=None, *, order):
        super().__init__(data)
        self.order = order
def collate(items):
    more = defaultdict(list, ids=torch.tensor([i for _, i in items]))
    return Encoding({"x": torch.stack([x for x, _ in items]), "more": more}, order="C")
loader = DataLoader(Data(11), batch_size=4, collate_fn=collate)
"""


@dataclass
class Case:
    """A loader, and what is special about it.

    Attributes
    ----------
    setup, cell : str
    once : bool
        Whether the ranks together load each sample as often as one process does.
    """

    setup: str
    cell: str = RUN
    once: bool = True


CASES = {
    "in order": Case("loader = DataLoader(Data(14), batch_size=5)"),
    "shuffled": Case("loader = DataLoader(Data(14), batch_size=5, shuffle=True)"),
    "shuffled, three times": Case("loader = DataLoader(Data(14), batch_size=5, shuffle=True)", "batches = [[show(b) for b in loader] for _ in range(3)]"),
    "shuffled by a generator": Case("g = torch.Generator().manual_seed(5); loader = DataLoader(Data(14), batch_size=5, shuffle=True, generator=g)", RUN + RUN + "batches.append(torch.rand(2, generator=g).tolist())"),
    "sampler with a generator of its own": Case("g = torch.Generator().manual_seed(5); data = Data(11); loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data, generator=g))"),
    "last one dropped": Case("loader = DataLoader(Data(14), batch_size=5, drop_last=True)"),
    "weighted": Case("loader = DataLoader(Data(14), batch_size=5, sampler=WeightedRandomSampler([1.0] * 7 + [3.0] * 7, 14))"),
    "with replacement": Case("data = Data(6); loader = DataLoader(data, batch_size=5, sampler=RandomSampler(data, replacement=True, num_samples=15))"),
    "subset": Case("loader = DataLoader(Subset(Data(14), [3, 1, 12, 5, 6, 0, 2]), batch_size=3, sampler=SubsetRandomSampler([0, 2, 4, 6, 1, 3]))"),
    "sampler of the user's own": Case("class Backwards(Sampler):\n    def __len__(self): return 7\n    def __iter__(self): return iter(range(6, -1, -1))\nloader = DataLoader(Data(7), batch_size=4, sampler=Backwards())"),
    "sampler that draws as it goes": Case("class Draws(Sampler):\n    def __len__(self): return 9\n    def __iter__(self):\n        for _ in range(9): yield int(torch.randint(9, ()))\nloader = DataLoader(Data(9), batch_size=3, sampler=Draws())"),
    "sampler that is a list": Case("loader = DataLoader(Data(7), batch_size=3, sampler=[5, 1, 3, 2, 6, 0])"),
    "batch sampler": Case("loader = DataLoader(Data(11), batch_sampler=BatchSampler(SequentialSampler(range(11)), 4, drop_last=False))"),
    "batches of different sizes": Case("loader = DataLoader(Data(12), batch_sampler=[[0, 1, 2, 3, 4, 5], [6, 7, 8], [9, 10, 11]])"),
    "batches as tuples, tensors, arrays": Case("loader = DataLoader(Data(12), batch_sampler=[(0, 1, 2), torch.tensor([3, 4, 5, 6]), np.array([7, 8, 9]), range(9, 12)])"),
    "batches as generators and sets": Case("class Batches:\n    def __iter__(self):\n        yield (i for i in range(4))\n        yield {7, 8, 9}\n        yield dict.fromkeys([5, 6, 4])\n    def __len__(self): return 3\nloader = DataLoader(Data(12), batch_sampler=Batches())"),
    "fewer samples than ranks": Case("loader = DataLoader(Data(5), batch_size=2)", once=False),
    "one sample at a time": Case("loader = DataLoader(Data(4), batch_size=1, shuffle=True)", once=False),
    "one batch of all": Case("loader = DataLoader(Data(14), batch_size=100)"),
    "no data": Case("loader = DataLoader(Data(0), batch_size=4)"),
    "workers": Case("loader = DataLoader(Data(14), batch_size=5, num_workers=2, multiprocessing_context='fork')", once=False),
    "workers, shuffled, kept": Case("loader = DataLoader(Data(14), batch_size=5, shuffle=True, num_workers=1, persistent_workers=True, prefetch_factor=3, multiprocessing_context='fork')", "batches = [[show(b) for b in loader] for _ in range(3)]\ndel loader", once=False),
    "texts and structures": Case("loader = DataLoader(Texts(11), batch_size=4)"),
    "named tuples": Case("loader = DataLoader(Pairs(11), batch_size=4)"),
    "single tensors": Case("loader = DataLoader(TensorDataset(torch.arange(11.0), torch.arange(11)), batch_size=4)"),
    "plain numbers": Case("loader = DataLoader([i * 1.5 for i in range(11)], batch_size=4)"),
    "concatenated": Case("loader = DataLoader(ConcatDataset([Data(4), Data(5)]), batch_size=3, shuffle=True)"),
    "split at random": Case("a, b = random_split(Data(14), [11, 3]); loader = DataLoader(a, batch_size=4)"),
    "many at once": Case("class Many(Data):\n    def __getitems__(self, indices):\n        [note(i) for i in indices]; return [torch.tensor([i]) for i in indices]\nloader = DataLoader(Many(11), batch_size=4)"),
    "collate function": Case("loader = DataLoader(Data(11), batch_size=4, collate_fn=lambda items: (torch.stack([x for x, _ in items]).mul(2), torch.tensor([i for _, i in items])))", once=False),
    "collate function that pads": Case(PADDED, once=False),
    "collate function that pads later on": Case(PADDED.replace("i % 3", "(i >= 5) * (i % 3)") + "loader = DataLoader(Data(21), batch_size=4, collate_fn=collate)", "batches = [[show(b) for b in loader] for _ in range(2)]", once=False),
    "collate function that puts time first": Case("loader = DataLoader(Data(11), batch_size=4, collate_fn=lambda items: torch.stack([x for x, _ in items], dim=1))", once=False),
    "collate function that wants all samples": Case("loader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: torch.stack([x for x, _ in items]).reshape(2, 2, -1))", once=False),
    "collate function that wants pairs": Case("def pairs(items):\n    assert len(items) % 2 == 0; return torch.stack([x for x, _ in items])\nloader = DataLoader(Data(10), batch_size=4, collate_fn=pairs)", once=False),
    "collate function that wants pairs, in a worker": Case("def pairs(items):\n    assert len(items) % 2 == 0; return torch.stack([x for x, _ in items])\nloader = DataLoader(Data(10), batch_size=4, collate_fn=pairs, num_workers=1, multiprocessing_context='fork')", once=False),
    "collate function that leaves samples out": Case("loader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: torch.stack([x for x, i in items if int(i) % 5 != 4]))", once=False),
    "collate function that has a row per sample by chance": Case("loader = DataLoader(Data(11), batch_size=4, collate_fn=lambda items: (torch.stack([x for x, _ in items]), torch.cat([torch.full((1 if i < 4 else i % 2, 2), float(k)) for k, (_, i) in enumerate(items)])))", once=False),
    "collate function that has a row for each sample of a part": Case("boxes = [1, 1, 1, 1, 2, 0, 1, 1, 0, 2, 1, 2]\nloader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: (torch.stack([x for x, _ in items]), torch.cat([torch.full((boxes[i], 2), float(i)) for _, i in items])))", once=False),
    "collate function that makes one thing more later": Case("def collate(items):\n    x = torch.stack([x for x, _ in items]); return (x, x * 2) if items[0][1] > 3 else (x,)\nloader = DataLoader(Data(12), batch_size=4, collate_fn=collate)", once=False),
    "collate function that makes another type of numbers later": Case("loader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: torch.tensor([i if i != 5 else i / 2 for _, i in items]))", once=False),
    "collate function that counts some samples": Case("loader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: (torch.stack([x for x, _ in items]), sum(i > 4 for _, i in items), torch.tensor(sum(i > 8 for _, i in items))))", once=False),
    "collate function that finds nothing at first": Case("loader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: (torch.stack([x for x, _ in items]), torch.tensor([i for _, i in items]) if any(i > 4 for _, i in items) else None))", once=False),
    "collate function that is exchanged": Case("def backwards(items):\n    return default_collate(items[::-1])\nloader = DataLoader(Data(11), batch_size=4, shuffle=True)", "batches = []\nfor collate in (default_collate, backwards, list, backwards, default_collate):\n    loader.collate_fn = collate; batches.append([show(b) for b in loader])", once=False),
    "collate function that scales some batches": Case("def scaled(items):\n    x = torch.stack([x for x, _ in items]); return x / x.max() if x.max() > 50 else x\nloader = DataLoader(Data(12), batch_size=4, collate_fn=scaled)", once=False),
    "collate function that sorts later on": Case("loader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: [i for _, i in sorted(items, key=lambda item: min(0, 5 - item[1]))])", once=False),
    "collate function that leaves out what comes twice": Case("loader = DataLoader(Data(12), batch_size=4, collate_fn=lambda items: (torch.stack([x for x, _ in items]), list({i if i < 4 else i % 2 for _, i in items})))", once=False),
    "collate function that pads later on, by PyTorch's function": Case("from torch.nn.utils.rnn import pad_sequence\nloader = DataLoader(Data(21), batch_size=4, collate_fn=lambda items: (pad_sequence([torch.ones(1 + (i >= 5) * (i % 3)) for _, i in items]), [i for _, i in items]))", "batches = [[show(b) for b in loader] for _ in range(2)]", once=False),
    "collate function that counts its batches": Case("class Resized(Data):\n    count, width = 0, 2\n    def collate(self, items):\n        if self.count % 2 == 0: self.width = 1 + self.count\n        self.count += 1\n        return torch.stack([x.repeat(self.width) for x, _ in items])\ndata = Resized(21); loader = DataLoader(data, batch_size=4, collate_fn=data.collate)", "batches = [(show(b), data.count, data.width) for _ in range(2) for b in loader]", once=False),
    "collate function that makes mappings": Case(MAPPINGS, "batches = [(type(b).__name__, b.order, b['more']['no one'], show(dict(b))) for b in loader]", once=False),
    "collate function that gives a tensor attributes": Case("def collate(items):\n    x = torch.stack([x for x, _ in items]); x.n, x.ids = len(items), [i for _, i in items]; return x\nloader = DataLoader(Data(11), batch_size=4, collate_fn=collate)", "batches = [(show(x), x.n, x.ids, show(x * 2)) for x in loader]", once=False),
    "collate function that gives tensors in it attributes": Case("def collate(items):\n    x, y = torch.stack([x for x, _ in items]), torch.tensor([i for _, i in items]); y.kind = 'label'; return {'x': x, 'pair': (x * 2, y)}\nloader = DataLoader(Data(11), batch_size=4, collate_fn=collate)", "batches = [(show(b), b['pair'][1].kind) for b in loader]", once=False),
    "collate function that gives a tensor attributes later on": Case("def collate(items):\n    x = torch.stack([x for x, _ in items])\n    if items[0][1] > 3: x.n = len(items)\n    return x, x * 2\nloader = DataLoader(Data(11), batch_size=4, collate_fn=collate)", "batches = [[(show(x), getattr(x, 'n', None), show(y)) for x, y in loader] for _ in range(2)]", once=False),
    "collate function that makes lists of tensors with attributes": Case("def collate(items):\n    xs = [x for x, _ in items]\n    for n, x in enumerate(xs): x.n = n + len(xs)\n    return xs\nloader = DataLoader(Data(11), batch_size=4, collate_fn=collate)", "batches = [[(show(x), x.n) for x in xs] for xs in loader]", once=False),
    "batches by the data set, with attributes": Case("class Batches(Data):\n    def __getitem__(self, i):\n        if i == self.n: raise IndexError\n        note(i); x = torch.arange(6.0) + i; x.n = i; return x\nloader = DataLoader(Batches(3), batch_size=None)", "batches = [(show(x), x.n) for x in loader]", once=False),
    "stream of batches with attributes": Case("class Batches(Stream):\n    def __iter__(self):\n        for i in range(4):\n            x = torch.arange(6.0) + i; x.n = i; yield x\nloader = DataLoader(Batches(3), batch_size=None)", "batches = [(show(x), x.n) for x in loader]", once=False),
    "collate function that makes lists": Case("loader = DataLoader(Data(11), batch_size=4, collate_fn=list)", once=False),
    "batches by the data set": Case("class Batches(Data):\n    def __getitem__(self, i):\n        if i == self.n: raise IndexError\n        note(i); return torch.arange(6.0) + i, i\nloader = DataLoader(Batches(3), batch_size=None)", once=False),
    "stream": Case("loader = DataLoader(Stream(11), batch_size=4)"),
    "stream without batches": Case("loader = DataLoader(Stream(5), batch_size=None)"),
    "stream with workers": Case("loader = DataLoader(Stream(11), batch_size=3, num_workers=2, multiprocessing_context='fork')"),
    "stream with one worker": Case("loader = DataLoader(Stream(11), batch_size=3, num_workers=1, multiprocessing_context='fork', drop_last=True)"),
    "stream with workers that end at different times": Case("class Uneven(Stream):\n    def __iter__(self):\n        info = get_worker_info()\n        return iter([torch.tensor([100.0 * info.id + i]) for i in range([7, 1, 0, 12][info.id])])\nloader = DataLoader(Uneven(11), batch_size=3, num_workers=4, multiprocessing_context='fork')"),
    "stream with workers that draw": Case("class Draws(Stream):\n    def __iter__(self):\n        for _ in range(4): yield {'draws': torch.tensor([torch.rand(()), random.random(), np.random.rand(), get_worker_info().seed]), 'text': str(get_worker_info().id)}\ndef begin(number): torch.rand(number)\ng = torch.Generator().manual_seed(5); loader = DataLoader(Draws(9), batch_size=3, num_workers=2, multiprocessing_context='fork', worker_init_fn=begin, generator=g)", RUN + RUN + "batches.append(torch.rand(2, generator=g).tolist())"),
    "stream with workers that stay": Case("class Draws(Stream):\n    def __iter__(self):\n        for _ in range(4): yield torch.rand(2)\nloader = DataLoader(Draws(9), batch_size=3, num_workers=2, persistent_workers=True, multiprocessing_context='fork')", "batches = [[show(b) for b in loader] for _ in range(3)]\ndel loader"),
    "stream of what is not known": Case("class Odd(Stream):\n    def __iter__(self):\n        return iter([{'a': {}}] * 4)\nloader = DataLoader(Odd(9), batch_size=3, num_workers=2, multiprocessing_context='fork')"),
    "an iterator's own": Case("loader = DataLoader(Data(11), batch_size=4)", OF_ITERATORS),
    "an iterator's own, not split": Case("loader = DataLoader(Data(11), batch_size=4)", "model.eval()\nwith torch.no_grad():\n    it = iter(loader); batches = [iter(it) is it, len(it), [show(b) for b in iter(it)]]", once=False),
    "an iterator's own, of a stream": Case("loader = DataLoader(Stream(11), batch_size=4)", OF_ITERATORS),
    "an iterator's own, of a stream with workers": Case("loader = DataLoader(Stream(11), batch_size=4, num_workers=2, multiprocessing_context='fork')", OF_ITERATORS),
    "mappings that cannot be changed": Case("from collections.abc import Mapping\nclass Frozen(Mapping):\n    def __init__(self, data): self.data = data\n    def __getitem__(self, key): return self.data[key]\n    def __iter__(self): return iter(self.data)\n    def __len__(self): return len(self.data)\nloader = DataLoader(Data(11), batch_size=4, collate_fn=lambda items: Frozen({'x': torch.stack([x for x, _ in items]), 'ids': [i for _, i in items]}))", "batches = [(type(b).__name__, show(dict(b))) for b in loader]", once=False),
    "data classes": Case("@dataclass\nclass Both:\n    x: torch.Tensor\n    ids: list\n    scale: float = 1.5\nloader = DataLoader(Data(11), batch_size=4, collate_fn=lambda items: Both(torch.stack([x for x, _ in items]), [i for _, i in items]))", "batches = [(type(b).__name__, show(b.x), b.ids, b.scale) for b in loader]", once=False),
    "objects that refuse comparison": Case("class Odd:\n    def __init__(self, n): self.n = n\n    def __eq__(self, other): raise NotImplementedError\nloader = DataLoader(Data(11), batch_size=4, collate_fn=lambda items: (torch.stack([x for x, _ in items]), Odd(len(items))))", "batches = [(show(x), odd.n) for x, odd in loader]", once=False),
    "a batch of nothing": Case("def collate(items):\n    items = [x for x, i in items if not 4 <= i < 8]\n    return torch.stack(items) if items else None\nloader = DataLoader(Data(15), batch_size=4, collate_fn=collate)", once=False),
    "batches without rows": Case("loader = DataLoader(Data(11), batch_size=4, collate_fn=lambda items: {'n': 3, 'text': 'none'})", once=False),
    "samples that cannot be copied": Case("import threading\nclass Locked(Data):\n    def __getitem__(self, i): return *super().__getitem__(i), threading.Lock()\nloader = DataLoader(Locked(11), batch_size=4, collate_fn=lambda items: torch.stack([x for x, _, lock in items if not lock.locked()]))", once=False),
    "stream that keeps its place in an array": Case("class Placed(Stream):\n    def __init__(self, n): super().__init__(n); self.place, self.names = np.zeros(1), ('a', ['b'])\n    def __iter__(self):\n        for i in range(self.n): self.place += 1; self.names[1].append(i); yield {'x': torch.tensor([float(i)]), 'n': {'at': float(self.place[0]), 'of': {}}}\ndata = Placed(7); loader = DataLoader(data, batch_size=3, collate_fn=list)", RUN + RUN + "batches += [data.place.tolist(), data.names]", once=False),
    "enumerated": Case("loader = DataLoader(Data(11), batch_size=4)", "batches = [(i, show(x), show(y)) for i, (x, y) in enumerate(loader, 1)]"),
    "by hand": Case("loader = DataLoader(Data(11), batch_size=4, shuffle=True)", "it = iter(loader)\nbatches = [show(next(it)), len(it), show(next(it)), show(next(it)), next(it, 'end')]"),
    "by hand, one and no more": Case("loader = DataLoader(Data(11), batch_size=4, shuffle=True)", "batches = [show(next(iter(loader))) for _ in range(3)]"),
    "two at once": Case("a = DataLoader(Data(9), batch_size=4); b = DataLoader(Texts(9), batch_size=2, shuffle=True)", "batches = [(show(x), show(y)) for x, y in zip(a, b)]", once=False),
    "the same one twice at once": Case("loader = DataLoader(Data(11), batch_size=4, shuffle=True)", "batches = [(show(x), show(y)) for x, y in zip(loader, loader)]"),
    "the same one inside itself": Case("loader = DataLoader(Data(8), batch_size=4, shuffle=True)", "batches = [(show(x), [show(y) for y in loader]) for x in loader]"),
    "left in the middle": Case("loader = DataLoader(Data(14), batch_size=5, shuffle=True)", "for batch in loader: break\nbatches = [show(batch)] + [show(b) for b in loader]"),
    "inside a function": Case("loader = DataLoader(Data(11), batch_size=4)\ndef walk(source):\n    for batch in source: yield show(batch)", "batches = list(walk(loader))"),
    "made in the cell": Case("data = Data(11)", "loader = DataLoader(data, 4, shuffle=True)\nbatches = [show(b) for b in loader]"),
    "evaluation in between": Case("loader = DataLoader(Data(11), batch_size=4)", "batches = []\nfor x, y in loader:\n    batches.append(show(x))\n    model.eval()\n    with torch.no_grad(): batches.append([show(v) for v, _ in loader])\n    model.train()", once=False),
    "lengths": Case("loader = DataLoader(Data(11), batch_size=4)", "batches = [len(loader), len(loader.dataset), loader.batch_size, [len(x) for x, _ in loader], len(loader.sampler)]"),
    "draws between batches": Case("loader = DataLoader(Data(11), batch_size=4, shuffle=True)", "batches = [(show(b), torch.rand(2).tolist(), random.random(), float(np.random.rand())) for b in loader]"),
}  # fmt: skip


COMPARE = "batches, seen, len(loader) if 'loader' in dir() and not isinstance(loader.dataset, Stream) else None"


@pytest.fixture(scope="module")
def plain(ranks) -> dict[str, Any]:
    """What one process does, by case."""
    return {name: ranks.call(1, run_plain, BASE + case.setup, case.cell, COMPARE)[0] for name, case in CASES.items()}


@pytest.mark.parametrize(("name", "world_size"), in_turn(CASES, [2, 3]))
def test_the_cell_sees_the_batches_of_one_process(name, world_size, ranks, plain):
    case = CASES[name]
    expected_batches, expected_seen, expected_length = plain[name]["compared"]
    found = ranks.call(world_size, run_notebook, BASE + case.setup, case.cell, COMPARE, {"global_draws": True})
    for rank in found:
        batches, _, length = rank["compared"]
        assert batches == expected_batches
        assert length == expected_length
        assert comparable(rank["random"]) == comparable(plain[name]["random"]), "numbers drawn afterwards"
    if case.once:
        assert sum((Counter(rank["compared"][1]) for rank in found), Counter()) == Counter(expected_seen)


COUNTED = """
import io
totals, text, calls, notes = np.zeros(2), io.StringIO(), 0, []
class Kept: calls = 0
def counting():
    own, late = 0, None
    def count(x):
        nonlocal own
        own += 1
        x.own = own
        return x
    return count
def collate(items):
    x = torch.stack([x for x, _ in items])
    {effect}
    return x
loader = DataLoader(Data(11), batch_size=4, collate_fn=collate)
"""
EFFECTS = {
    "an array": "totals[0] += float(x.sum()); totals[1] += 1",
    "a text": "text.write(f'{len(x)} ')",
    "a global variable": "global calls; calls += 1; x = x + calls",
    "a list by its method": "append(len(items))",
    "a class": "Kept.calls += 1; Kept.last = len(x)",
    "a variable around it": "x = count(x) + count.__closure__[0].cell_contents",
}


@pytest.mark.parametrize(("name", "world_size"), in_turn(EFFECTS, [2, 3]))
def test_what_a_collate_function_keeps_is_that_of_one_process(name, world_size, ranks):
    setup = BASE + COUNTED.replace("{effect}", EFFECTS[name]) + "append, count = notes.append, counting()"
    compare = "batches, totals.tolist(), text.getvalue(), calls, notes, Kept.calls, getattr(Kept, 'last', None)"
    (expected,) = ranks.call(1, run_plain, setup, RUN, compare)
    for rank in ranks.call(world_size, run_notebook, setup, RUN, compare, {"global_draws": True}):
        assert rank["compared"] == expected["compared"]


AUGMENTED = """
class Augmented(Data):
    def __getitem__(self, i):
        x, i = super().__getitem__(i)
        return x + torch.rand(2) if random.random() < 0.5 else x * np.random.rand(), i
"""
WALK = "batches = [[show(b) for b in loader] for _ in range(2)]"
WORKERS = "num_workers=2, multiprocessing_context='fork')"
AUGMENTING = {
    "in this process": Case("loader = DataLoader(Augmented(11), batch_size=4, shuffle=True)"),
    "by a generator of its own": Case("class Own(Data):\n    def __init__(self, n):\n        super().__init__(n); self.transforms = [{'noise': np.random.default_rng(3)}]\n    def __getitem__(self, i):\n        return super().__getitem__(i)[0] + self.transforms[0]['noise'].random(), i\ndata = Own(11); loader = DataLoader(data, batch_size=4, shuffle=True)", WALK + "\nbatches.append(data.transforms[0]['noise'].random())"),
    "some samples only": Case("class Some(Augmented):\n    def __getitem__(self, i):\n        return super().__getitem__(i) if i == 3 else Data.__getitem__(self, i)\nloader = DataLoader(Some(11), batch_size=4)"),
    "many at once": Case("class Many(Data):\n    def __getitems__(self, indices):\n        shift = torch.rand(2); return [torch.tensor([i]) + shift for i in indices]\nloader = DataLoader(Many(11), batch_size=4)"),
    "by a collate function": Case("def mixed(items):\n    order = torch.randperm(len(items)); return torch.stack([items[k][0] for k in order.tolist()])\nloader = DataLoader(Data(11), batch_size=4, collate_fn=mixed)"),
    "by a collate function, later on": Case("class Noisy:\n    def __call__(self, items):\n        return self.noisy(torch.stack([x for x, _ in items]))\n    def noisy(self, x):\n        return x + torch.rand(2) + np.random.rand() if x[0, 0] > 3 else x\nloader = DataLoader(Data(11), batch_size=4, collate_fn=Noisy())"),
    "before a collate function": Case("loader = DataLoader(Augmented(11), batch_size=4, shuffle=True, collate_fn=lambda items: torch.stack([x for x, _ in items]))"),
    "with a sampler that draws": Case("data = Augmented(9); loader = DataLoader(data, batch_size=4, sampler=WeightedRandomSampler([1.0] * 9, 9))"),
    "in workers": Case("loader = DataLoader(Augmented(11), batch_size=2, shuffle=True, " + WORKERS),
    "in workers that stay": Case("loader = DataLoader(Augmented(11), batch_size=2, shuffle=True, persistent_workers=True, " + WORKERS, WALK + "\ndel loader"),
    "in workers with seeds of their own": Case("def begin(number):\n    for seed in (torch.manual_seed, random.seed, np.random.seed): seed(number + len(get_worker_info().dataset))\nloader = DataLoader(Augmented(11), batch_size=2, worker_init_fn=begin, " + WORKERS),
    "in workers, before a collate function": Case("loader = DataLoader(Augmented(11), batch_size=2, collate_fn=lambda items: torch.stack([x for x, _ in items]), " + WORKERS),
    "in workers, an iterator's own": Case("loader = DataLoader(Augmented(11), batch_size=2, " + WORKERS, OF_ITERATORS),
    "with a sampler that keeps its order": Case("class Kept(Sampler):\n    def __init__(self): self.order, self.seeds, self.once = np.arange(9), [3, 5], list(range(9))\n    def __len__(self): return 9\n    def __iter__(self):\n        self.seeds.append(1); self.order += 1; random.shuffle(self.once); return iter([self.once[n % 9] for n in self.order])\nkept = Kept(); loader = DataLoader(Augmented(9), batch_size=4, sampler=kept)", WALK + "\nbatches.append((kept.order.tolist(), kept.seeds, kept.once))"),
    "by hand": Case("loader = DataLoader(Augmented(11), batch_size=4, shuffle=True)", "it = iter(loader)\nbatches = [show(next(it)), torch.rand(2).tolist(), show(next(it)), show(next(it)), next(it, 'end')]"),
    "two loaders at once": Case("loader = DataLoader(Augmented(11), batch_size=4, shuffle=True); other = DataLoader(Data(11), batch_size=4, shuffle=True)", "batches = [(show(a), show(b)) for _ in range(2) for a, b in zip(loader, other)]"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "world_size"), in_turn(AUGMENTING, [2, 3]))
def test_samples_are_augmented_as_on_one_process(name, world_size, ranks):
    case = AUGMENTING[name]
    cell = WALK if case.cell is RUN else case.cell
    compare = "batches"
    (expected,) = ranks.call(1, run_plain, BASE + AUGMENTED + case.setup, cell, compare)
    for rank in ranks.call(world_size, run_notebook, BASE + AUGMENTED + case.setup, cell, compare, {"global_draws": True}):
        assert rank["compared"] == expected["compared"]
        assert comparable(rank["random"]) == comparable(expected["random"]), "numbers drawn afterwards"


def test_a_batch_that_is_named_as_what_the_data_set_reads_of_itself_is_let_be(ranks):
    """What the data set may change is looked for by names: the batch of the epoch before is found, and is no memory of others."""
    setup = BASE + (
        "class Named(Data):\n    x = 0.0\n    def __getitem__(self, i):\n        return super().__getitem__(i)[0] + self.x\n"
        "loader = DataLoader(Named(11), batch_size=4); net = torch.nn.Linear(2, 1)"
    )
    cell = "for _ in range(2):\n    for x in loader:\n        net(x).sum().backward()"
    assert [rank["notes"] for rank in ranks.call(2, run_notebook, setup, cell, "0", {"global_draws": True})] == [[], []]


def test_each_rank_augments_its_own_samples_where_that_is_asked_for(ranks):
    setup = BASE + AUGMENTED + "loader = DataLoader(Augmented(12), batch_size=4)"
    found = ranks.call(2, run_notebook, setup, WALK, "batches, seen")
    assert found[0]["compared"][0] == found[1]["compared"][0]
    for rank in found:
        assert len(rank["compared"][1]) == 12, "half of the samples of two epochs"


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_stream_of_a_worker_is_read_by_one_rank(ranks, tmp_path, world_size):
    path = tmp_path / str(world_size)
    setup = (
        BASE
        + f"""
class Written(Stream):
    def __iter__(self):
        for item in super().__iter__():
            with open({str(path)!r}, "a") as file:
                file.write(f"{{int(item)}}\\n")
            yield item
loader = DataLoader(Written(11), batch_size=2, num_workers=3, multiprocessing_context="fork")
"""
    )
    ranks.call(world_size, run_notebook, setup, RUN, COMPARE)
    assert sorted(map(int, path.read_text().split())) == list(range(11))


def test_evaluation_with_gradients_on_is_not_split(ranks):
    setup = BASE + "loader = DataLoader(Data(8), batch_size=4)\nmodel = nn.Linear(2, 1)"
    cell = "split = []\nfor x, _ in loader:\n    split.append(hasattr(x, 'placement'))\n    model(x.double()).sum().backward()\n"
    cell += "model.eval()\nsplit += [hasattr(x, 'placement') for x, _ in loader]"
    for rank in ranks.call(2, run_notebook, setup, cell, "split"):
        assert rank["compared"] == [True, True, False, False]


@pytest.mark.parametrize("name", one_of(2, CASES))
def test_evaluation_that_is_split_sees_the_batches_of_one_process(name, ranks, plain):
    case = CASES[name]
    expected_batches, expected_seen, _ = plain[name]["compared"]
    found = ranks.call(
        3, run_notebook, BASE + case.setup, "model.eval()\n" + without_gradients(case.cell), COMPARE, {"split_evaluation": True}
    )
    for rank in found:
        assert rank["compared"][0] == expected_batches
    if case.once and name != "evaluation in between":
        assert sum((Counter(rank["compared"][1]) for rank in found), Counter()) == Counter(expected_seen)


def without_gradients(cell: str) -> str:
    return "with torch.no_grad():\n" + indent(cell, "    ")


def test_a_model_in_training_mode_sees_whole_batches_though_no_gradients_are_wanted(ranks):
    cell = without_gradients("batches = [type(x).__name__ for x, _ in loader]")
    for rank in ranks.call(2, run_notebook, BASE + CASES["in order"].setup, cell, COMPARE, {"split_evaluation": True}):
        assert rank["compared"][0] == ["Tensor"] * 3


OF_ONE_BATCH_SIZE = [
    name
    for name, case in CASES.items()
    if case.setup.count("batch_size=") == 1 and "batch_size" not in case.cell and "next(" not in case.cell
]


@pytest.mark.parametrize("name", one_of(2, OF_ONE_BATCH_SIZE))
def test_batches_of_each_rank_are_those_of_one_process_with_larger_ones(name, ranks):
    case = CASES[name]
    larger = re.sub(r"batch_size=(\d+)", lambda found: f"batch_size={2 * int(found[1])}", case.setup)
    (expected,) = ranks.call(1, run_plain, BASE + larger, case.cell, COMPARE)
    found = ranks.call(2, run_notebook, BASE + case.setup, case.cell, COMPARE, {"per_rank_batches": True})
    for rank in found:
        assert rank["compared"][0] == expected["compared"][0]
        assert comparable(rank["random"]) == comparable(expected["random"])


@pytest.mark.parametrize(("setup", "length"), [("DataLoader(Data(11), batch_size=2)", 3), ("DataLoader(Data(0), batch_size=2)", 0)])
def test_the_length_of_a_loader_is_that_of_the_larger_batches(setup, length, ranks):
    cell = "batches = [len(loader), len(list(loader)), len(iter(loader)), loader.batch_size]\nmodel.eval()\nbatches.append(len(loader))"
    for rank in ranks.call(2, run_notebook, BASE + f"loader = {setup}", cell, COMPARE, {"per_rank_batches": True}):
        assert rank["compared"][0] == [length, length, length, 2, length]


def comparable(random: Any) -> Any:
    tensor, *rest = random
    return tensor.tolist(), *rest
