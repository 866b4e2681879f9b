"""Ranks that wait for each other for ever: the cell says who waits where for whom, and ■ ends it."""

from __future__ import annotations

import re

import pytest

from tests.notebook.conftest import IMPORTS

STUCK = """%%distribute --engines 2
import torch.distributed as dist
def meet():
    dist.barrier()
print("begins")
if dist.get_rank() == 0:
    meet()
else:
    while True:
        pass
"""

LOADER = """
class Waits(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        if index == 7:
            import threading
            threading.Event().wait()  # a lock that another thread held when the worker was forked
        return torch.ones(1)
loader, model = DataLoader(Waits(), batch_size=8, num_workers=1, multiprocessing_context='fork'), nn.Linear(1, 1)
"""


@pytest.fixture(scope="module")
def notebook(module_notebook):
    """A notebook that waits for a second until it says so."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DTRAIN_STALL_AFTER", "1")
        opened = module_notebook()
    opened.run(IMPORTS + LOADER)
    return opened


@pytest.mark.long
def test_ranks_that_wait_for_ever_are_told_by_their_lines(notebook):
    cell = notebook.start(STUCK)
    notebook.wait(lambda: "Nothing has happened for " in cell.stderr or not cell.running, "the lines", cell)
    assert "rank 0 waits for the others at line 4 of meet() `dist.barrier()`; rank 1 is at line " in cell.stderr
    assert "■ ends the cell." in cell.stderr
    notebook.interrupt()
    notebook.interrupt()
    notebook.finish(cell)
    assert cell.error[0] in ("KeyboardInterrupt", "CellInterrupted")
    assert notebook.run("%%distribute --engines 2\n1 + 1").result == "2"


@pytest.mark.parametrize(
    "line", ["import time; time.sleep(5)", pytest.param("sum(i * i for i in range(20_000_000))", marks=pytest.mark.long)]
)
def test_ranks_that_are_busy_are_left_alone(notebook, line):
    assert notebook.run(f"%%distribute --engines 2\n{line}").stderr == ""


OUT_EARLY = """
import torch.distributed as dist
rank = dist.get_rank()
for step in range(5):
    dist.barrier()
    if rank == 1:
        break
"""


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        ("for x in loader:\n    model(x).sum().backward()", r"rank \d (waits for the others|is) at line 2 `for x in loader:`"),
        pytest.param(
            OUT_EARLY,
            r"rank 0 waits for the others at line 5 `dist.barrier\(\)`; rank 1 has come to the end of the cell",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "import threading\nthreading.Event().wait()",
            r"rank 0 is at line 3 `threading.Event\(\).wait\(\)`; rank 1 is at line 3 ",
            marks=pytest.mark.long,
        ),
    ],
    ids=["a worker of a loader", "one is out of the loop early", "all in a lock"],
)
def test_unusual_ways_to_wait_are_told_by_their_lines(notebook, cell, told):
    running = notebook.start(f"%%distribute --engines 2\n{cell}")
    notebook.wait(lambda: "Nothing has happened for " in running.stderr or not running.running, "the lines", running)
    assert re.search(told, running.stderr), running.stderr
    notebook.interrupt()
    notebook.finish(running)
    assert running.error[0] in ("KeyboardInterrupt", "CellInterrupted")
