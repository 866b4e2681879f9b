"""Threads of a cell: one after the other they are as on one process; two at a time would mix up what ranks exchange, and are an error."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from jupyter_dtrain.engine.tensor import thread_guard
from tests.engine.ranks import RankError, Run, run_notebook, run_plain

SETUP = """
import queue, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(48, 3), torch.randn(48, 1)), batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []

def train(batches):
    for x, y in batches:
        loss = (model(x) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())

def mean(batch):
    return model(batch[0]).mean().item()
"""
FINE = {
    "one after the other": """
for _ in range(3):
    thread = threading.Thread(target=train, args=(loader,))
    thread.start()
    thread.join()
train(loader)
""",
    "a pool that gets one thing to do at a time": """
with ThreadPoolExecutor(4) as pool:
    for batch in loader:
        train([batch])
        seen.append(pool.submit(mean, batch).result())
""",
    "a thread that loads ahead": """
def loading():
    for batch in loader:
        loaded.put(batch)
    loaded.put(None)

loaded = queue.Queue(3)
thread = threading.Thread(target=loading)
thread.start()
train(iter(loaded.get, None))
thread.join()
""",
    "a thread for what has been read": """
with ThreadPoolExecutor(2) as pool:
    for x, y in loader:
        train([(x, y)])
        pool.submit(seen.append, seen[-1] * 2).result()
""",
    "a thread that does something else all the time": """
ended = threading.Event()

def count():
    while not ended.is_set():
        sum(range(100))

counter = threading.Thread(target=count)
counter.start()
with ThreadPoolExecutor(2) as pool:
    for batch in loader:
        train([batch])
        seen.append(pool.submit(mean, batch).result())
ended.set()
counter.join()
""",
    "a thread that waits until the cell waits for it": """
batches = list(loader)
thread = threading.Thread(target=lambda: seen.append(mean(batches[0])))
thread.start()
total = sum(range(10**6))
thread.join()
train(loader)
""",
    "a thread that the cell looks at from time to time": """
done = threading.Event()

def evaluate():
    seen.append(mean(next(iter(loader))))
    done.set()

threading.Thread(target=evaluate).start()
while not done.is_set():
    time.sleep(0.02)
train(loader)
""",
}
MIXED = {
    "two that ask once": """
both = threading.Barrier(2)

def evaluate(batch):
    both.wait()
    return mean(batch)

with ThreadPoolExecutor(2) as pool:
    seen += pool.map(evaluate, list(loader)[:2])
""",
    "the cell and one that asks once": """
both = threading.Barrier(2)

def evaluate():
    both.wait()
    seen.append(mean(next(iter(loader))))

thread = threading.Thread(target=evaluate)
thread.start()
evaluate()
thread.join()
""",
    "threads that tell nobody": """
threads = [threading.Thread(target=train, args=(loader,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
""",
    "a pool that evaluates": """
with ThreadPoolExecutor(2) as pool:
    seen += pool.map(mean, list(loader))
""",
    "training while another evaluates": """
stop = threading.Event()

def evaluate():
    while not stop.is_set():
        mean(next(iter(loader)))

thread = threading.Thread(target=evaluate)
thread.start()
try:
    for _ in range(1000):
        train(loader)
finally:
    stop.set()
    thread.join()
""",
}


def run_impatiently(run: Run, setup: str, cell: str, compare: str) -> dict[str, Any]:
    """Run the cell where one thread waits a second for another that does something else."""
    with mock.patch.object(thread_guard, "_LONGEST", 1.0):
        return run_notebook(run, setup, cell, compare)


@pytest.mark.parametrize("cell", FINE.values(), ids=FINE)
def test_threads_that_take_turns(ranks, cell):
    (plain,) = ranks.call(1, run_plain, SETUP, cell, "(seen, model.weight.tolist())")
    first, _ = ranks.call(2, run_impatiently, SETUP, cell, "(seen, model.weight.tolist())")
    (seen, weight), (expected, expected_weight) = first["compared"], plain["compared"]
    assert seen == pytest.approx(expected, rel=1e-4)
    assert weight[0] == pytest.approx(expected_weight[0], rel=1e-4)


@pytest.mark.parametrize("cell", MIXED.values(), ids=MIXED)
def test_threads_at_the_same_time_are_an_error(ranks, cell):
    with pytest.raises(RankError) as failed:
        ranks.call(2, run_notebook, SETUP, cell, "seen")
    assert "Two threads of the cell" in str(failed.value)
