"""A cell that has failed on the engines is looked at where it failed: `%debug`, as pdb has it, on the failed rank."""

from __future__ import annotations

import os
import signal

import pytest

from tests.notebook.kernel import SESSION

SETUP = """
import pathlib
class Marked:
    def __init__(self, rank): self.path = pathlib.Path(f"freed-{rank}").absolute()
    def __del__(self): self.path.touch()
def step_of(rank, failing):
    own = [rank] * 3
    marked = Marked(rank)
    if rank in failing:
        raise ValueError(f"rank {rank} has had enough")
    return own
"""
CELL = """%%distribute --engines 3
import torch.distributed as dist
rank = dist.get_rank()
found = step_of(rank, {failing})
dist.barrier()
"""


@pytest.fixture(autouse=True)
def _next_cell_runs(notebook):
    """After each: a cell runs, and nothing else does."""
    notebook.run(SETUP)
    yield
    notebook.end_running()
    assert notebook.run("%%distribute --engines 3\n1 + 1").result == "2"
    assert not notebook.value(f"{SESSION}.get().running")


def test_debug_looks_at_the_failed_rank_of_three(notebook):
    processes = set(notebook.cluster_processes())
    assert notebook.fail(CELL.format(failing=[1])).error == ("ValueError", "rank 1 has had enough")
    cell = notebook.start("%debug")
    where = notebook.type(cell, "where", "step_of")
    assert "Post-mortem of rank 1: ValueError: rank 1 has had enough. `%distribute debug --rank N` looks at ranks 0, 2." in cell.stdout
    assert "ipykernel_" in where
    assert '----> 9         raise ValueError(f"rank {rank} has had enough")' in where
    assert "----> 4 found = step_of(rank, [1])" in where or "      4 found = step_of(rank, [1])" in where
    assert "jupyter_dtrain" not in where
    assert "[1, 1, 1]\n" in notebook.type(cell, "p own", "]")
    assert "9         raise" in notebook.type(cell, "list", "raise")
    assert "'own': [1, 1, 1],\n" in notebook.type(cell, "pp locals()", "own")
    assert "(4)<module>()" in notebook.type(cell, "up", "<module>")
    assert "own" not in notebook.type(cell, "pp rank, failing", "NameError: name 'failing' is not defined")
    assert "(9)step_of()" in notebook.type(cell, "down", "step_of")
    assert not (notebook.folder / "freed-1").exists()
    notebook.type(cell, "q")
    assert notebook.finish(cell).ok
    notebook.wait((notebook.folder / "freed-1").exists, "the end of what the frames held")
    assert "The frames are gone: " in notebook.run("%debug").stdout
    assert set(notebook.cluster_processes()) == processes


def test_any_failed_rank_is_looked_at_until_the_next_cell(notebook):
    notebook.fail(CELL.format(failing=[0, 1, 2]))
    for name in notebook.folder.glob("freed-*"):
        name.unlink()
    for rank in (2, 0):
        cell = notebook.start(f"%distribute debug --rank {rank}")
        assert f"[{rank}, {rank}, {rank}]" in notebook.type(cell, "p own", "]")
        if rank:
            notebook.interrupt()
            assert "The frames are kept" in notebook.finish(cell).stdout
            notebook.prompts.clear()
        else:
            notebook.type(cell, "q")
            assert notebook.finish(cell).ok
    assert "the cell ran on 3 ranks" in notebook.fail("%distribute debug --rank 3").error[1]
    again = notebook.start("%distribute debug --rank 2")
    notebook.type(again, "p own", "[2, 2, 2]")
    notebook.interrupt()
    notebook.finish(again)
    notebook.prompts.clear()
    assert {path.name for path in notebook.folder.glob("freed-*")} == {"freed-0"}
    notebook.run("%%distribute --engines 3\n1 + 1")
    assert {path.name for path in notebook.folder.glob("freed-*")} == {"freed-0", "freed-1", "freed-2"}
    assert "There are no frames to look at." in notebook.fail("%distribute debug").error[1]
    assert notebook.fail("1 / 0").error[0] == "ZeroDivisionError"
    own = notebook.start("%debug")  # IPython's
    notebook.type(own, "p 6 * 7", "42")
    notebook.type(own, "q")
    assert "Post-mortem of rank" not in notebook.finish(own).stdout


def test_a_batch_is_not_shown_by_its_part_without_a_word(notebook):
    notebook.run(
        "model = nn.Linear(2, 1)\nloader = DataLoader(TensorDataset(torch.arange(24.0).view(12, 2)), batch_size=6)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
    notebook.fail(
        "%%distribute --engines 3\nimport torch.distributed as dist\nfor x, in loader:\n    loss = model(x).mean()\n    loss.backward()\n"
        "    optimizer.step()\n    if dist.get_rank() == 1:\n        x.missing"
    )
    cell = notebook.start("%debug")
    assert "torch.Size([6, 2])" in notebook.type(cell, "p x.shape", "Size")
    assert "<of all ranks; this one has 2:4 of the 6 along dim 0>" in notebook.type(cell, "pp locals()", "of all ranks")
    assert "the others have left" in notebook.type(cell, "p x.sum().item()", "***")
    local = notebook.type(cell, "local x", "along dim 0")
    assert "tensor([[4., 5.]," in local
    assert "(2:4 of the 6 along dim 0)" in local
    assert "torch.Size([1, 2])" in notebook.type(cell, "p model.weight.shape", "Size")
    notebook.type(cell, "q")
    assert notebook.finish(cell).ok


def test_a_line_that_takes_too_long_is_interrupted(notebook):
    notebook.fail(CELL.format(failing=[1]))
    cell = notebook.start("%debug")
    notebook.type(cell, "p own", "]")
    del notebook.prompts[0]
    notebook.client.input("pathlib.Path('began').touch(), __import__('time').sleep(600)")
    notebook.wait((notebook.folder / "began").exists, "the line on its engine", cell)
    notebook.interrupt()
    notebook.wait(lambda: notebook.prompts or not cell.running, "the next prompt", cell)
    notebook.type(cell, "p own", "[1, 1, 1]")
    assert "KeyboardInterrupt" in cell.stdout
    notebook.type(cell, "q")
    assert notebook.finish(cell).ok


def test_a_breakpoint_ends_the_cell_and_is_looked_at(notebook):
    failed = notebook.fail("%%distribute --engines 3\nimport torch.distributed as dist\nown = dist.get_rank() + 10\nbreakpoint()\nown = 0")
    assert failed.error[0] == "BdbQuit"
    assert "(Engines have no keyboard: a breakpoint ends the cell. `%debug` looks at the variables there, on each rank." in failed.traceback
    cell = notebook.start("%distribute debug --rank 2")
    assert "12\n" in notebook.type(cell, "p own", "12")
    assert "<module>" in notebook.type(cell, "where", "module")
    notebook.type(cell, "q")
    assert notebook.finish(cell).ok


def test_an_engine_that_dies_takes_its_frames_along(notebook):
    notebook.fail(CELL.format(failing=[1]))
    cell = notebook.start("%debug")
    notebook.type(cell, "p own", "]")
    pid = int(notebook.type(cell, "p pathlib.os.getpid()", "\n").split()[0])
    os.kill(pid, signal.SIGKILL)
    assert "The engine of rank 1 is gone, and the frames with it." in notebook.type(cell, "p own", "gone")
    assert notebook.finish(cell).ok
