"""Cells that distribute themselves, disturbed: they take no snapshots, and what can be had of them all the same comes home."""

from __future__ import annotations

import os
import re
import signal

import pytest

from jupyter_dtrain.protocol import COMMAND_TARGET
from tests.conftest import one_of
from tests.notebook.kernel import SESSION

PROGRAM = """%%distribute --engines 2 --strategy none
import os, pathlib, time
import torch.distributed as dist
dist.init_process_group("gloo")
for step in range(1, STEPS + 1):
    part = torch.ones(2)
    dist.all_reduce(part)
    total += part
    pathlib.Path(f"step-{dist.get_rank()}").write_text(str(step))
    time.sleep(0.02)
"""
LONG = 100_000


@pytest.fixture(scope="module")
def notebook(two):
    with two.lent() as notebook:
        yield notebook


@pytest.fixture
def begun(notebook):
    """Return a function that begins a program of so many steps and waits until it has done some."""

    def begin(steps):
        notebook.run("%distribute start -n 2 --device cpu\ntotal, step = torch.zeros(2), 0")
        ranks = {f"engine-{rank}": pid for rank, pid in enumerate(notebook.engines())}  # whose ids are others where some have been replaced
        notebook.pids = {**notebook.value(f"{SESSION}.get().cluster.pids()"), **ranks}
        for file in notebook.folder.glob("step-*"):
            file.unlink()
        cell = notebook.start(PROGRAM.replace("STEPS", str(steps)))
        wait_for_step(notebook, cell, 10)
        return cell

    return begin


def wait_for_step(notebook, cell, step):
    files = [notebook.folder / f"step-{rank}" for rank in (0, 1)]
    done = lambda: all(file.exists() and int(file.read_text() or "0") >= step for file in files)  # noqa: E731
    notebook.wait(lambda: not cell.running or done(), f"step {step}", cell)
    assert cell.running


def kill(notebook, name):
    os.kill(notebook.pids[name], signal.SIGKILL)


def assert_usable(notebook):
    assert notebook.run("%%distribute --engines 2\n1 + 1").result == "2"


@pytest.mark.long
def test_it_goes_on_without_a_controller(notebook, begun):
    cell = begun(200)
    kill(notebook, "controller")
    notebook.finish(cell)
    assert cell.ok, cell
    assert cell.stderr.startswith("The controller of the engines has ended. The cell continues on the engines")
    assert notebook.value("(step, total.tolist())") == (200, [400.0, 400.0])
    assert_usable(notebook)


@pytest.mark.parametrize("lost", one_of(3, ["engine-1", "engine-0", "guard"]))
def test_what_is_said_where_more_dies(notebook, begun, lost):
    cell = begun(LONG)
    if lost != "guard":
        kill(notebook, "controller")
        notebook.wait(lambda: "The cell continues on the engines" in cell.stderr, "word of it", cell)
    kill(notebook, lost)
    notebook.finish(cell)
    assert cell.error[0] == "ClusterError"
    which = "process that watches over the engines" if lost == "guard" else "controller of the engines"
    how = "" if lost == "guard" else ", by SIGKILL"
    assert f"The engines cannot be reached any more: the {which} has ended{how}. " in cell.traceback
    assert "Run the cell again: it starts a new cluster." in cell.traceback
    steps = notebook.value("int(total[0]) // 2")
    if lost == "engine-1":
        assert "The notebook holds what rank 0 had at that moment." in cell.traceback
        assert steps >= 10
    else:
        assert "The notebook's objects are as they were before the cell." in cell.traceback
        assert steps == 0
    assert_usable(notebook)


@pytest.fixture
def steps_are_waited_for(notebook):
    """An interrupt that waited for the end of a step would wait for an hour."""
    notebook.run("from datetime import timedelta\nfrom jupyter_dtrain.elastic import generation\nasked = generation.ASKED")
    notebook.run("generation.ASKED = type(asked)(first=timedelta(hours=1), then=asked.then)")
    yield
    notebook.end_running()
    notebook.run("generation.ASKED = asked")


@pytest.mark.usefixtures("steps_are_waited_for")
@pytest.mark.parametrize("controller", one_of(2, [True, False]))
def test_an_interrupt_waits_for_no_step(notebook, begun, controller):
    cell = begun(LONG)
    if not controller:
        kill(notebook, "controller")
        notebook.wait(lambda: "The cell continues on the engines" in cell.stderr, "word of it", cell)
    notebook.interrupt()
    notebook.finish(cell)
    assert cell.error[0] == "KeyboardInterrupt"
    assert "Interrupted: the cell leaves where it is, on all engines. Interrupt again to abort now." in cell.stderr
    assert notebook.value("(step - 1 <= int(total[0]) // 2 <= step, step >= 10)") == (True, True)
    assert_usable(notebook)


def test_stop_interrupts_it(notebook, begun):
    commands = notebook.open_comm(COMMAND_TARGET)
    cell = begun(LONG)
    reply = notebook.command(commands, "stop_run")
    assert (reply["ok"], reply["message"]) == (True, "Interrupting the cell, which distributes itself.")
    notebook.finish(cell)
    assert cell.error[0] == "KeyboardInterrupt"
    assert re.search(r"Cell In\[\d+\], line \d+", cell.traceback)
    assert notebook.value("step") >= 10
    assert notebook.value(f"{SESSION}.telemetry.views.snapshot().run.phase") == "stopped"
    assert_usable(notebook)
