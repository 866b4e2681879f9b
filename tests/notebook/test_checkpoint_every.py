"""``--checkpoint-every N``: a checkpoint at each multiple of N steps, however fast they are and however late the kernel hears of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.disturbed import wait_long

SETUP = """
import os, time

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,))), batch_size=6, shuffle=True)

def step(x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()

def count(path="counted"):
    with open(path, "ab") as file:
        file.write(b".")
"""
FAST = """
for epoch in range(4):
    for x, y in loader:
        step(x, y)
"""
UNSEEN = """
for epoch in range(4):
    [step(x, y) for x, y in loader]
"""
STOPPED = """
for epoch in range(4):
    for x, y in loader:
        step(x, y)
        count()
        while epoch == 0 and not os.path.exists("go"):
            time.sleep(0.05)
"""


@pytest.fixture
def notebook(shared_notebook):
    shared_notebook.run(SETUP)
    return shared_notebook


def steps_on_disk(folder: Path) -> list[int]:
    """Return the steps of the last run that checkpoints are there of."""
    last = max(folder.glob("dtrain-runs/*/checkpoints"), key=lambda path: path.stat().st_mtime)
    return sorted(int(path.name.removeprefix("step-")) for path in last.glob("step-*"))


@pytest.mark.parametrize(
    ("line", "cell", "steps"),
    [
        pytest.param("--checkpoint-every 5 --keep-checkpoints 9", FAST, [5, 10, 15, 20, 25, 30, 35, 40], marks=pytest.mark.long),
        ("--checkpoint-every 5", FAST, [35, 40]),
        pytest.param("--checkpoint-every 15 --keep-checkpoints 9", FAST, [15, 30], marks=pytest.mark.long),
        # The loop of a comprehension is none that a run goes on in: they are taken behind it.
        ("--checkpoint-every 7 --keep-checkpoints 9", UNSEEN, [10, 20, 30, 40]),
    ],
)
def test_each_multiple_has_one(notebook, line, cell, steps):
    notebook.run(f"%%distribute --engines 2 {line}{cell}")
    assert steps_on_disk(notebook.folder) == steps


@pytest.mark.long
def test_a_kernel_that_hears_of_all_of_them_at_once(notebook):
    kernel = notebook.process
    cell = notebook.start(f"%%distribute --engines 2 --checkpoint-every 5 --keep-checkpoints 9{STOPPED}")
    counted = notebook.folder / "counted"
    number = lambda: counted.stat().st_size if counted.exists() else 0  # noqa: E731
    notebook.wait(lambda: number() or not cell.running, "the first step", cell)
    kernel.suspend()
    try:
        (notebook.folder / "go").touch()
        wait_long(lambda: number() >= 40, "the last step")
    finally:
        kernel.resume()
    notebook.finish(cell)
    assert cell.ok
    assert steps_on_disk(notebook.folder) == [5, 10, 15, 20, 25, 30, 35, 40]
