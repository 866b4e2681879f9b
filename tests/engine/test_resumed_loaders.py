"""Loops over data loaders, ended at any batch and gone on with elsewhere: each sample once, in the order of one run."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from jupyter_dtrain.engine.comm.rank_store import StoreChannel
from jupyter_dtrain.engine.control import Control
from jupyter_dtrain.engine.resume.loops import Loops
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.task import Semantics
from jupyter_dtrain.engine.telemetry.notices import Notices
from jupyter_dtrain.engine.telemetry.observer import Observer
from jupyter_dtrain.engine.timing import Timing
from jupyter_dtrain.protocol import Notice
from tests.conftest import in_turn, one_of
from tests.engine.ranks import models_in
from tests.unit.resuming import plain, resumed, watched

SETUP = """
import random
import torch
from torch.utils.data import *

trace = []   # what the program saw
loaded = []  # samples in the order of loading
exec("def note(index): loaded.append(index)")  # as of a library: see test_loaders.py

class Data(Dataset):
    def __init__(self, n):
        self.n = n
    def __len__(self):
        return self.n
    def __getitem__(self, i):
        note(int(i))
        return torch.tensor([float(i)])

class Augmented(Data):
    def __getitem__(self, i):
        return super().__getitem__(i) + torch.rand(1) + random.random()

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(7.0))

class Counting(IterableDataset):
    def __init__(self):
        self.epoch, self.given, self.rng = 0, 0, random.Random(3)
    def __iter__(self):
        self.epoch += 1
        for i in range(7):
            self.given += 1
            yield torch.tensor(i + self.epoch * 10 + self.given * 100 + self.rng.random())

class Epochs(Sampler):
    def __init__(self, n):
        self.n, self.epoch, self.rng = n, 0, random.Random(3)
    def __iter__(self):
        self.epoch += 1
        order = list(range(self.n))
        self.rng.shuffle(order)
        return iter([(i + self.epoch) % self.n for i in order])
    def __len__(self):
        return self.n

class Shuffling(Sampler):
    def __init__(self, n):
        self.order = list(range(n))
    def __iter__(self):
        random.shuffle(self.order)
        return iter(list(self.order))
    def __len__(self):
        return len(self.order)

class Bar:
    # a progress bar as tqdm makes it: no iterator itself, and never saved
    def __init__(self, items):
        self.items, self.lock = items, (i for i in ())
    def __iter__(self):
        for item in self.items:
            yield item
Bar.__module__ = "tqdm.std"

def show(*batches):
    trace.append([batch.flatten().tolist() for batch in batches] + [random.random(), torch.rand(1).item()])
"""

LOADERS = {
    "in order": "DataLoader(Data(7), batch_size=2)",
    "shuffled": "DataLoader(Data(7), batch_size=2, shuffle=True)",
    "with a generator": "DataLoader(Data(7), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5))",
    "with workers": "DataLoader(Data(7), batch_size=2, shuffle=True, num_workers=2, multiprocessing_context='fork')",
    "with a sampler": "DataLoader(Data(7), batch_size=2, sampler=Epochs(7))",
    "with a sampler that shuffles its own list": "DataLoader(Data(7), batch_size=2, sampler=Shuffling(7))",
    "augmented, with a sampler that shuffles its own list": "DataLoader(Augmented(7), batch_size=2, sampler=Shuffling(7))",
    "weighted": "DataLoader(Data(7), batch_size=2, sampler=WeightedRandomSampler(torch.arange(1.0, 8), 7))",
    "with a batch sampler": "DataLoader(Data(7), batch_sampler=BatchSampler(RandomSampler(range(7)), 3, drop_last=True))",
    "without batches": "DataLoader(Data(4), batch_size=None, shuffle=True)",
    "iterable": "DataLoader(Stream(), batch_size=2)",
    "iterable, which counts": "DataLoader(Counting(), batch_size=2)",
}
LOOPS = {
    "epochs": "for e in range(2):\n    for x in loader: show(x)",
    "enumerate": "for e in range(2):\n    for i, x in enumerate(loader): show(x, x + i)",
    "bar": "for e in range(2):\n    for i, x in enumerate(Bar(loader)): show(x, x + i)",
    "zip": "for e in range(2):\n    for x, y in zip(loader, loader): show(x, y)",
    "by hand": "it = iter(loader)\nfor i in range(6):\n    try:\n        x = next(it)\n    except StopIteration:\n        it = iter(loader)\n        x = next(it)\n    show(x)",
    "generator": "def batches():\n    for e in range(2):\n        for x in loader: yield x * 2\nfor x in batches(): show(x)",
    "function": "def epoch(loader):\n    for x in loader: show(x)\ndef evaluate():\n    with torch.no_grad():\n        for x in loader: show(x)\nfor e in range(2):\n    evaluate()\n    epoch(loader)",
    "stopped early": "for e in range(3):\n    for i, x in enumerate(loader):\n        if i == 2: break\n        show(x)",
}


def training(
    loops: Loops, namespace: dict[str, Any], rank: int = 0, world_size: int = 1, say: Callable[[str], None] = lambda _: None
) -> AbstractContextManager[Any]:
    """Return what an engine does around a cell; what it tells the user goes to `say`."""
    return DataParallelTraining(
        rank=rank,
        world_size=world_size,
        objects=models_in(namespace),
        semantics=Semantics(global_draws=True),
        control=Control(StoreChannel(dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=60))),  # type: ignore[attr-defined]
        observer=Observer(rank),
        timing=Timing(0, torch.device("cpu")),
        notes=Notices(lambda message: say(message.text) if isinstance(message, Notice) else None, rank=0),
        cursor_log=loops,
    ).installed()


def check(setup: str, program: str, step: int = 1) -> None:
    expected = plain(setup, program).namespace["trace"]
    seen = watched(setup, program, around=training)
    assert seen.namespace["trace"] == expected
    assert not [place for place in seen.places if place.startswith("no: ")]
    for index in range(0, len(seen.places), step):
        killed = watched(setup, program, index, training)
        assert killed.snapshot is not None
        again = resumed(setup, program, killed.snapshot, training)
        assert again.namespace["trace"] == expected, f"after {killed.places[index]}"


@pytest.mark.parametrize("step", one_of(2, [2, 1]))
@pytest.mark.parametrize(("loader", "loop"), in_turn([name for name in LOADERS if name != "with workers"], LOOPS))
def test_at_every_batch(loader, loop, step):
    check(f"{SETUP}loader = {LOADERS[loader]}\n", LOOPS[loop], step)


@pytest.mark.parametrize("loop", one_of(2, ["bar", "epochs"]))
def test_with_workers(loop):
    check(f"{SETUP}loader = {LOADERS['with workers']}\n", LOOPS[loop], step=4)


@pytest.mark.parametrize("more", one_of(2, ["", ", persistent_workers=True"]))
@pytest.mark.parametrize("data", one_of(2, ["Augmented(7)", "Data(7)"]))
def test_what_workers_draw_where_nothing_is_split(data, more):
    loader = f"DataLoader({data}, batch_size=2, shuffle=True, num_workers=2, multiprocessing_context='fork'{more})"
    check(f"{SETUP}loader = {loader}\n", "for e in range(3):\n    for x in loader: show(x)", step=4)


COUNTED = """
import multiprocessing
counts, read = torch.zeros(8, dtype=torch.long).share_memory_(), multiprocessing.Value("i", 0)
level = torch.zeros(1).share_memory_()  # set by the program, read by workers
class Counted(Data):
    def __getitem__(self, i):
        counts[i] += 1
        with read.get_lock():
            read.value += 1
        return torch.tensor([i + level[0] * 0])
class CountedStream(IterableDataset):
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        for i in range(get_worker_info().id, self.n, 2):
            counts[i] += 1
            with read.get_lock():
                read.value += 1
            yield torch.tensor([i + level[0] * 0])
"""
COUNTED_LOOP = """
for e in range(2):
    for x in loader:
        show(x)
        level += 1
    trace.append((counts.tolist(), read.value, level.item()))
"""


def counted(data: str, more: str) -> str:
    return f"{SETUP}{COUNTED}loader = DataLoader({data}, batch_size=2, num_workers=2, multiprocessing_context='fork'{more})\n"


@pytest.mark.parametrize(
    ("data", "more"),
    [
        ("Counted(7)", ", shuffle=True"),
        ("Counted(7)", ", persistent_workers=True"),
        ("CountedStream(8)", ""),
        ("CountedStream(8)", ", persistent_workers=True"),
    ],
)
def test_what_workers_count_in_shared_memory(data, more):
    check(counted(data, more), COUNTED_LOOP, step=3)


@pytest.mark.parametrize("loop", one_of(2, ["for x in Bar(loader): show(x)", "for i, x in enumerate(loader): show(x)"]))
def test_no_sample_is_loaded_twice(loop):
    setup = f"{SETUP}loader = DataLoader(Data(20_000), batch_size=2, shuffle=True)\nshow = lambda x: None\n"
    killed = watched(setup, loop, 9_990, training)
    assert killed.snapshot is not None
    before = len(killed.namespace["loaded"])
    begun = time.process_time()
    again = resumed(setup, loop, killed.snapshot, training)
    assert time.process_time() - begun < 5  # seconds of the processor, most of which is the run itself
    assert before == 19_980
    assert sorted(again.namespace["loaded"]) == list(range(20_000))


@pytest.mark.parametrize(
    "loop",
    [
        "for e in range(2):\n    for i, x in enumerate(tqdm(loader, file=sink)): show(x)",
        "bar = tqdm(loader, file=sink)\nfor x in bar:\n    show(x)\n    bar.set_postfix(a=1)",
        "def fit():\n    with tqdm(total=4, file=sink) as bar:\n        for x in loader:\n            show(x)\n            bar.update()\n    trace.append(bar.n)\nfit()",
    ],
)
def test_progress_bars(loop):
    pytest.importorskip("tqdm")
    check(f"{SETUP}import io\nfrom tqdm import tqdm\nsink = io.StringIO()\nloader = {LOADERS['shuffled']}\n", loop)


def on_a_rank(run: Any, setup: str, program: str, index: int | None) -> Any:
    """Do what `check` does on one of several ranks; return what the program saw, where it was ended, and what it loaded."""

    def around(loops: Loops, namespace: dict[str, Any]) -> AbstractContextManager[Any]:
        return training(loops, namespace, run.rank, run.world_size)

    if index is None:
        seen = watched(setup, program, around=around)
        return seen.namespace["trace"], seen.places, len(seen.namespace["loaded"])
    killed = watched(setup, program, index, around)
    assert killed.snapshot is not None
    again = resumed(setup, program, killed.snapshot, around)
    return again.namespace["trace"], killed.snapshot.position, len(again.namespace["loaded"])


EPOCHS = "for e in range(2):\n    for x in loader: step(x)"
MODEL = """
from torch import nn
model = nn.Linear(1, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(x):
    loss = (model(x.double()) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    trace.append((x.flatten().tolist(), round(loss.item(), 9), random.random(), torch.rand(1).item()))
"""


COUNTING = """
class Counting:
    count = 0
    def __call__(self, items):
        self.count += 1
        return torch.stack(items) / self.count
noise = torch.Generator().manual_seed(3)
def noisy(items):
    return torch.stack(items) + torch.randn(len(items), 1, generator=noise)
"""


COLLATES = [
    "",
    ", collate_fn=Counting()",
    ", collate_fn=noisy",
    ", collate_fn=lambda items: torch.stack(items)",
    ", collate_fn=lambda items: torch.stack(items).flip(0)",
]
WALKS = ["for e in range(2):\n    for i, x in enumerate(loader): step(x)", "for e in range(2):\n    for x in Bar(loader): step(x)"]


@pytest.mark.parametrize(
    ("collate", "loop"),
    [*in_turn(COLLATES[:3], WALKS), *(pytest.param(*pair, marks=pytest.mark.long) for pair in itertools.product(COLLATES[3:], WALKS))],
)
def test_on_two_ranks(ranks, loop, collate):
    setup = f"{SETUP}{MODEL}{COUNTING}loader = DataLoader(Data(7), batch_size=3, shuffle=True{collate})\n"
    expected = plain(setup, loop).namespace["trace"]
    whole = ranks.call(2, on_a_rank, setup, loop, None)
    assert [trace for trace, *_ in whole] == [expected, expected]
    places = whole[0][1]
    assert len(places) == 11 and whole[1][1] == places
    for index in (1, 3, 4, 7):
        (trace, position, loaded), (other, other_position, other_loaded) = ranks.call(2, on_a_rank, setup, loop, index)
        assert position == other_position
        assert trace == other == expected, f"after {places[index]}"
        if not collate:
            assert loaded + other_loaded == sum(num_loaded for *_, num_loaded in whole)  # no batch was loaded again


@pytest.mark.parametrize("more", ["", ", num_workers=2, multiprocessing_context='fork'"])
def test_augmented_samples(more):
    check(f"{SETUP}{MODEL}loader = DataLoader(Augmented(7), batch_size=3, shuffle=True{more})\n", EPOCHS, step=3)


@pytest.mark.parametrize(
    "more",
    [
        "",
        pytest.param(", num_workers=2, multiprocessing_context='fork'", marks=pytest.mark.long),
        ", num_workers=2, multiprocessing_context='fork', persistent_workers=True",
        pytest.param(", collate_fn=lambda items: torch.stack(items)", marks=pytest.mark.long),
        pytest.param(
            ", collate_fn=lambda items: torch.stack(items), num_workers=1, multiprocessing_context='fork'", marks=pytest.mark.long
        ),
    ],
)
def test_augmented_samples_on_two_ranks(ranks, more):
    setup = f"{SETUP}{MODEL}loader = DataLoader(Augmented(7), batch_size=3, shuffle=True{more})\n"
    expected = plain(setup, EPOCHS).namespace["trace"]
    whole = ranks.call(2, on_a_rank, setup, EPOCHS, None)
    assert [trace for trace, *_ in whole] == [expected, expected]
    for index in (1, 3, 7):
        for trace, *_ in ranks.call(2, on_a_rank, setup, EPOCHS, index):
            assert trace == expected, f"after {whole[0][1][index]}"


@pytest.mark.parametrize("more", one_of(2, ["", ", persistent_workers=True"]))
def test_what_workers_keep_of_earlier_samples(more):
    mixed = """
class Mixed(Data):
    before = 0.0
    def __getitem__(self, i):
        mixed, self.before = super().__getitem__(i) + self.before, float(i)
        return mixed
"""
    loader = f"DataLoader(Mixed(7), batch_size=2, shuffle=True, num_workers=2, multiprocessing_context='fork'{more})"
    check(f"{SETUP}{MODEL}{mixed}loader = {loader}\n", EPOCHS, step=3)


@pytest.mark.parametrize("data", ["Counted(7)", "CountedStream(8)"])
def test_what_workers_count_on_two_ranks(ranks, data):
    setup, loop = counted(data, "") + MODEL, COUNTED_LOOP.replace("show", "step")
    expected = plain(setup, loop).namespace["trace"]
    for index in (None, 1, 3, 6):
        for trace, *_ in ranks.call(2, on_a_rank, setup, loop, index):
            assert trace == expected, f"after place {index}"
