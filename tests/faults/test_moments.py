"""Engines, controller and kernel killed at random moments, the same ones each time: ``--kills N`` says at how many.

Whatever is killed, the cell ends with the same weights, to the last bit, has used each sample once in the history that counts, and
leaves behind neither a process nor a half-written checkpoint.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import psutil

from jupyter_dtrain.system.resources import OVERFLOW
from tests.faults.disturbed import (
    CELL,
    SETUP,
    STATE,
    STEPS,
    STUCK,
    Disturbed,
    check_checkpoints,
    checkpoints,
    kill_kernel,
    wait_closely,
)
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, Cell, Notebook

STEP = 0.03
"""Seconds that a step takes, more or less: kills are spread over it."""


def wait_for_moment(run: Disturbed, cell: Cell, draw: random.Random) -> None:
    run.wait_for_step(draw.randrange(STEPS - 10), cell)
    time.sleep(draw.uniform(0, STEP))


def wait_for_writing(notebook: Notebook, draw: random.Random) -> None:
    """Wait until a checkpoint is being written, or has been this moment."""
    before = set(checkpoints(notebook))
    half = lambda: next(notebook.folder.glob("dtrain-runs/*/checkpoints/.part-*"), None)  # noqa: E731
    wait_closely(lambda: half() or set(checkpoints(notebook)) - before, "the writing of a checkpoint")
    time.sleep(draw.uniform(0, 0.01))


def kill(pids: list[int]) -> Callable[[], None]:
    """Return a check that all of them are gone."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return lambda: gone(pids)


def gone(pids: list[int]) -> None:
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def an_engine(run: Disturbed, draw: random.Random) -> None:
    cell = run.start()
    wait_for_moment(run, cell, draw)
    rank = draw.randrange(run.engines)
    check = kill([run.pids[rank]])
    assert f"Lost rank {rank} (its process has ended): resuming from " in run.finish(cell)
    check()


def two_engines(run: Disturbed, draw: random.Random) -> None:
    cell = run.start()
    wait_for_moment(run, cell, draw)
    check = kill(draw.sample(run.pids, 2))
    assert "resuming from " in run.finish(cell)
    check()


def an_engine_while_a_checkpoint_is_written(run: Disturbed, draw: random.Random) -> None:
    cell = run.start("--checkpoint-every 1s")
    wait_for_writing(run.notebook, draw)
    check = kill([draw.choice(run.pids)])
    assert "resuming from step " in run.finish(cell)
    check()
    assert checkpoints(run.notebook)


def an_engine_while_a_snapshot_is_taken(run: Disturbed, draw: random.Random) -> None:
    cell = run.start()
    wait_closely(lambda: list(run.memory.glob(".*/*.blobs")), "the taking of a snapshot")
    time.sleep(draw.uniform(0, 0.01))
    check = kill([draw.choice(run.pids)])
    assert "resuming from " in run.finish(cell)
    check()


def a_stopped_engine(run: Disturbed, draw: random.Random) -> None:
    cell = run.start()
    wait_for_moment(run, cell, draw)
    rank = draw.randrange(run.engines)
    os.kill(run.pids[rank], signal.SIGSTOP)
    assert f"Lost rank {rank} ({STUCK}): resuming from " in run.finish(cell)
    gone([run.pids[rank]])


def a_process_that_serves(name: str) -> Callable[[Disturbed, random.Random], None]:
    def disturb(run: Disturbed, draw: random.Random) -> None:
        run.notebook.run("%distribute stop")  # an earlier kill may have left none of that name
        cell = run.start("--checkpoint-every 1s")
        wait_for_moment(run, cell, draw)
        check = kill([run.processes[name]])
        said = run.finish(cell)
        check()
        if name != "template":
            assert "resuming from " in said
            gone(run.pids)
        if name == "guard":  # in the place of a controller comes another one, and the rest stays
            gone([pid for other, pid in run.processes.items() if other != "template"])
            # That is the next guard, unless it was still importing.
            pids = run.notebook.value(f"{SESSION}.get().cluster.pids()")
            assert pids["guard"] == run.processes["template"] or not psutil.pid_exists(run.processes["template"])
            assert not run.memory.exists()

    return disturb


def the_template_and_an_engine(run: Disturbed, draw: random.Random) -> None:
    run.notebook.run("%distribute stop")  # an earlier kill may have left no template
    cell = run.start()
    wait_for_moment(run, cell, draw)
    check = kill([run.processes["template"], draw.choice(run.pids)])
    assert "resuming from " in run.finish(cell)
    check()


OF_TWO = {
    "an engine": an_engine,
    "an engine while a checkpoint is written": an_engine_while_a_checkpoint_is_written,
    "an engine while a snapshot is taken": an_engine_while_a_snapshot_is_taken,
    "both engines": two_engines,
    "a stopped engine": a_stopped_engine,
    "the controller": a_process_that_serves("controller"),
    "the guard": a_process_that_serves("guard"),
    "the template": a_process_that_serves("template"),
    "the template and an engine": the_template_and_an_engine,
}
OF_FOUR = {
    "an engine of four": an_engine,
    "two engines of four": two_engines,
    "a stopped engine of four": a_stopped_engine,
    "an engine of four while a checkpoint is written": an_engine_while_a_checkpoint_is_written,
}
KERNEL = ("the kernel", "the kernel while a checkpoint is written")
# The first few are what everybody runs.
KINDS = [
    "an engine",
    "both engines",
    "an engine while a checkpoint is written",
    "the kernel while a checkpoint is written",
    "the controller",
    "a stopped engine",
    "an engine of four",
    "two engines of four",
    "the kernel",
    "an engine while a snapshot is taken",
    "the guard",
    "an engine of four while a checkpoint is written",
    "the template and an engine",
    "a stopped engine of four",
    "the template",
]


def pytest_generate_tests(metafunc):
    seeds = range(metafunc.config.getoption("--kills"))
    metafunc.parametrize("seed", seeds, ids=[f"{seed} {KINDS[seed % len(KINDS)]}" for seed in seeds])


def test_killed_at_any_moment(request, new_notebook, seed):
    draw, kind = random.Random(seed), KINDS[seed % len(KINDS)]
    if kind in KERNEL:
        kill_and_resume(new_notebook, request.getfixturevalue("two").expected, draw, writing=kind != KERNEL[0])
        return
    run = request.getfixturevalue("two" if kind in OF_TWO else "four")
    (OF_TWO | OF_FOUR)[kind](run, draw)
    check_checkpoints(run.notebook, finished=True)
    memory = run.notebook.value(f"{SESSION}.get().cluster.blob_dir")
    assert [path for path in memory.glob(".*") if path.name != OVERFLOW] == [], "snapshots that nobody needs"


def kill_and_resume(new_notebook, expected, draw: random.Random, *, writing: bool) -> None:
    first = new_notebook()
    first.run(IMPORTS + SETUP)
    first.run("%distribute start -n 2 --device cpu\nmake()")
    memory = first.value(f"{SESSION}.get().cluster.blob_dir")
    cell = first.start(f"%%distribute --engines 2 --checkpoint-every 1s --name digits{CELL}")
    if writing:
        for _ in range(draw.randrange(1, 3)):
            wait_for_writing(first, draw)
    else:
        step = draw.randrange(STEPS - 10)
        first.wait(lambda: not cell.running or steps_of(first) >= step, f"step {step}", cell)
        time.sleep(draw.uniform(0, STEP))
    assert cell.running
    kill_kernel(first)
    assert not memory.exists()
    check_checkpoints(first, finished=False)
    second = new_notebook(first.folder)
    second.run("%load_ext jupyter_dtrain")
    if checkpoints(first):
        assert "digits: resuming from step " in second.run("%distribute resume").stderr
        check_checkpoints(first, finished=True)
        second.run("import random, numpy as np, torch\ntorch.set_default_dtype(torch.float64)")
        assert second.value(STATE) == expected
        assert second.value(f"{SESSION}.telemetry.views.snapshot().run.phase") == "finished"
    else:
        assert second.fail("%distribute resume").error[0] == "CheckpointError"
    second.close()


def steps_of(notebook: Notebook) -> int:
    path = notebook.folder / "steps"
    return path.stat().st_size if path.exists() else 0
