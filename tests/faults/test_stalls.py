"""Ranks that wait for each other for ever: the cell says who waits where for whom, and ■ ends it."""

from __future__ import annotations

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


def test_ranks_that_wait_for_ever_are_told_by_their_lines(new_notebook, monkeypatch):
    monkeypatch.setenv("JUPYTER_DTRAIN_STALL_AFTER", "1")
    notebook = new_notebook()
    notebook.run(IMPORTS)
    cell = notebook.start(STUCK)
    notebook.wait(lambda: "Nothing has happened for " in cell.stderr or not cell.running, "the lines", cell)
    assert "rank 0 waits for the others at line 4 of meet() `dist.barrier()`; rank 1 is at line " in cell.stderr
    assert "■ ends the cell." in cell.stderr
    notebook.interrupt()
    notebook.interrupt()
    notebook.finish(cell)
    assert cell.error[0] in ("KeyboardInterrupt", "CellInterrupted")
    assert notebook.run("%%distribute --engines 2\n1 + 1").result == "2"


@pytest.mark.parametrize("line", ["import time; time.sleep(5)", "sum(i * i for i in range(20_000_000))"])
def test_ranks_that_are_busy_are_left_alone(new_notebook, monkeypatch, line):
    monkeypatch.setenv("JUPYTER_DTRAIN_STALL_AFTER", "1")
    notebook = new_notebook()
    notebook.run(IMPORTS)
    assert notebook.run(f"%%distribute --engines 2\n{line}").stderr == ""
