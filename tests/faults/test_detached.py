"""Detached runs: the kernel is killed or restarted in the middle, and the run goes on to the same weights, for another to take."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from jupyter_dtrain.runs.detached_index import HOST, going, waiting
from jupyter_dtrain.runs.record import RunRecord
from jupyter_dtrain.runs.store import RunStore
from tests.faults.disturbed import CELL, ROUNDED, SETUP, SLOW_UNTIL_ALL, STATE, STEPS, NoNewEngines, wait_long
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, Notebook, difference
from tests.processes import find_processes

AFTERWARDS = "import random, numpy as np, torch\ntorch.set_default_dtype(torch.float64)"
LINE = f"%%distribute --engines 2 --device cpu --name digits --detach{CELL}"
SLOW = """
def pace():
    import time
    with open("steps", "ab") as file:
        file.write(b".")
    time.sleep(0.1)  # long enough for another kernel to start meanwhile
"""
ENDLESS = """%%distribute --engines 2 --device cpu --name digits --detach
rounds = 0
while True:
    loss = train_one_epoch(model, loader, pace)
    rounds += 1
    print("epoch", rounds)
"""
DEAF = """    while rounds == 1:
        try:
            __import__("time").sleep(600)
        except:
            pass
"""


class Detached:
    """A run that was begun with ``--detach`` in a notebook, and everything that runs for it."""

    def __init__(self, notebook: Notebook, cell: str = LINE, *, pace: str = "") -> None:
        notebook.run(IMPORTS + SETUP + pace)
        notebook.run("make()")
        self.notebook, self.runs = notebook, notebook.folder / "dtrain-runs"
        self.cell = notebook.start(cell)
        notebook.wait(lambda: self.is_going or not self.cell.running, "the run", self.cell)
        assert self.cell.running, self.cell
        self.host = psutil.Process(json.loads(next(self.runs.glob(f"*/{HOST}")).read_text())["pid"])
        self.processes = [self.host, *self.host.children(recursive=True)]

    @property
    def is_going(self) -> bool:
        return bool(going(self.runs))

    @property
    def record(self) -> RunRecord:
        with self._store() as store:
            return store.list_runs()[-1]

    @property
    def recorded_steps(self) -> list[int]:
        with self._store() as store:
            return store.points(self.record.run_id, "loss").step

    def _store(self) -> closing[RunStore]:
        return closing(RunStore(self.runs))

    def wait_for_step(self, step: int) -> None:
        path = self.notebook.folder / "steps"
        wait_long(lambda: (path.exists() and path.stat().st_size >= step) or not self.is_going, f"step {step}")
        assert self.is_going

    def kill_kernel(self) -> None:
        kernel = psutil.Process(pid_of(self.notebook))
        kernel.kill()
        kernel.wait()

    def kill_an_engine(self, number: int = signal.SIGKILL) -> None:
        forked = find_processes(self.host.children(recursive=True), "jupyter_dtrain.cluster.forkserver")
        _, *engines = sorted(forked, key=lambda process: process.create_time())
        self.processes += engines
        engines[0].send_signal(number)

    def wait_for_end(self) -> None:
        """Wait until it has ended, with nothing left running."""
        wait_long(lambda: not self.is_going, "the end of the run")
        _, alive = psutil.wait_procs(self.processes, timeout=60)
        assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def pid_of(notebook: Notebook) -> int:
    provisioner = notebook.manager.provisioner
    assert isinstance(provisioner, LocalProvisioner)
    assert provisioner.pid is not None
    return provisioner.pid


def opened(new_notebook, folder: Path):
    """Return a new notebook beside the first, and what loading the extension says."""
    notebook = new_notebook(folder)
    return notebook, notebook.run("%load_ext jupyter_dtrain").stdout


@pytest.mark.long
def test_followed_to_its_end_by_its_own_kernel(two, new_notebook):
    run = Detached(new_notebook())
    run.notebook.finish(run.cell)
    assert run.cell.ok, run.cell
    assert (run.cell.stdout, run.cell.stderr) == (two.printed, "")
    assert run.cell.run_views[-1]["text/plain"].startswith(f"digits: finished, {STEPS} steps in ")
    assert run.notebook.value(STATE) == two.expected
    run.wait_for_end()
    assert run.record.phase == "finished"
    assert waiting(run.runs) == []
    assert list(run.record.folder.glob("results*")) == [], "the notebook has them"
    message = run.notebook.fail("%distribute attach digits").error[1]
    assert "has ended (finished)and left no results here: they went to the cell that ran it." in message
    assert run.notebook.run("%%distribute --engines 2 --device cpu\n1 + 1").result == "2"


@pytest.mark.slow
def test_the_kernel_killed_and_then_an_engine_and_the_results_taken_by_another(two, new_notebook):
    run = Detached(new_notebook())
    run.wait_for_step(40)
    run.kill_kernel()
    run.wait_for_step(70)
    run.kill_an_engine()
    run.wait_for_end()
    assert (run.record.phase, run.record.error) == ("finished", None)
    assert run.recorded_steps == list(range(1, STEPS + 1))
    second, said = opened(new_notebook, run.notebook.folder)
    assert f"{run.record.run_id} finished without a kernel" in said
    assert f"`%distribute attach {run.record.run_id}` returns its results" in second.run("%distribute status").stdout
    cell = second.run("%distribute attach")
    assert cell.stdout == two.printed
    assert cell.run_views[-1]["text/plain"].startswith(f"digits: finished, {STEPS} steps in ")
    assert "Lost rank 0" in cell.stderr or "Lost rank 1" in cell.stderr
    second.run(AFTERWARDS)
    assert second.value(STATE) == two.expected
    second.run(f"session = {SESSION}.get(); session.drain(); told = session.snapshot()")
    assert second.value("told.run.phase") == "finished"
    assert second.value("next(curve.step for curve in told.points if curve.name == 'loss')") == list(range(1, STEPS + 1))
    third, said = opened(new_notebook, run.notebook.folder)
    assert said == "", "they were taken"
    assert third.run("%distribute status").stdout.startswith("No engines are running.")
    third.run("%distribute attach digits")  # and are there as long as the run


@pytest.mark.long
@pytest.mark.slow
def test_followed_by_another_kernel_with_its_controls(two, new_notebook):
    run = Detached(new_notebook(), pace=SLOW)
    run.wait_for_step(30)
    run.kill_kernel()
    second, said = opened(new_notebook, run.notebook.folder)
    assert f"{run.record.run_id} is still running detached" in said
    assert "`%distribute attach digits` follows it" in second.fail("%distribute resume digits").error[1]
    cell = second.start("%distribute attach")
    second.wait(lambda: "epoch 0" in cell.stdout or not cell.running, "what it has shown", cell)
    commands, telemetry = second.open_comm("jupyter_dtrain:commands"), second.open_comm("jupyter_dtrain:telemetry")
    assert second.command(commands, "pause_run")["ok"]
    told = lambda: [m for data in second.heard(telemetry) for m in data["messages"]]  # noqa: E731
    second.wait(lambda: any(m.get("phase") == "paused" for m in told()), "the pause", cell)
    third, _ = opened(new_notebook, run.notebook.folder)
    name, message = third.fail("%distribute attach digits").error
    assert name == "UsageError"
    assert f"Another kernel (process {pid_of(second)}) is already attached to this run" in message
    assert second.command(commands, "checkpoint_now")["ok"]
    assert second.command(commands, "resume_run")["ok"]
    second.finish(cell)
    assert cell.ok, cell
    assert cell.stdout == two.printed
    assert "Traceback" not in cell.stderr
    assert cell.run_views[-1]["text/plain"].startswith(f"digits: finished, {STEPS} steps in ")
    assert list(run.record.folder.glob("checkpoints/step-*"))
    second.wait(lambda: any(m.get("phase") == "finished" for m in told()), "the last news")
    curves = next(m for m in told() if m["type"] == "snapshot")["points"] + [m for m in told() if m["type"] == "points"]
    assert sorted({step for curve in curves if curve["name"] == "loss" for step in curve["step"]}) == list(range(1, STEPS + 1))
    second.run(AFTERWARDS)
    assert second.value(STATE) == two.expected
    run.wait_for_end()


@pytest.mark.long
@pytest.mark.slow
def test_an_engine_that_hangs_while_no_kernel_is_there(two, new_notebook):
    run = Detached(new_notebook())
    run.wait_for_step(40)
    run.kill_kernel()
    run.kill_an_engine(signal.SIGSTOP)
    run.wait_for_end()
    assert (run.record.phase, run.record.error) == ("finished", None)
    second, _ = opened(new_notebook, run.notebook.folder)
    cell = second.run("%distribute attach")
    assert "Lost rank 0" in cell.stderr
    second.run(AFTERWARDS)
    assert second.value(STATE) == two.expected


@pytest.mark.long
@pytest.mark.slow
def test_fewer_engines_and_then_as_many_again_while_no_kernel_is_there(two, new_notebook):
    two.go()
    expected = two.notebook.value(ROUNDED)
    run = Detached(new_notebook(), LINE.replace("--engines 2", "--elastic 1:2"), pace=SLOW_UNTIL_ALL)
    (guard,) = find_processes(run.processes, "cluster/guard.py")
    with NoNewEngines(guard.pid, [process.pid for process in run.processes]):
        run.wait_for_step(20)
        run.kill_kernel()
        run.kill_an_engine()
        run.wait_for_step(STEPS // 2)
    second, _ = opened(new_notebook, run.notebook.folder)
    cell = second.start("%distribute attach")
    second.wait(lambda: "with 2 engines." in cell.stderr or not cell.running, "all engines again", cell)
    (run.notebook.folder / "all").touch()
    second.finish(cell)
    assert cell.ok, cell
    assert cell.stderr.index("continuing on 1 engine, and") < cell.stderr.index("A new engine is up: resuming from step ")
    second.run(AFTERWARDS)
    assert difference(second.value(ROUNDED), expected) is None
    run.wait_for_end()


@pytest.mark.long
def test_what_it_logs_is_kept_without_the_kernel_and_the_engine_that_began(new_notebook):
    """With Weights & Biases, in whose service each run is."""
    begin = "import wandb\nwandb.init(project='p', mode='offline')\nlog = lambda: (pace(), wandb.log({'step': len(used)}))\n"
    line = LINE.replace("--detach", "--detach --checkpoint-every 20").replace(CELL, "\n")
    run = Detached(new_notebook(), line + begin + CELL.replace("pace)", "log)") + "wandb.finish()")
    wait_long(lambda: list(run.record.folder.glob("checkpoints/step-*")) or not run.is_going, "a checkpoint")
    assert run.is_going
    run.kill_kernel()
    run.kill_an_engine()
    run.wait_for_end()
    assert (run.record.phase, run.record.error) == ("finished", None)
    (folder,) = (run.notebook.folder / "wandb").glob("offline-run-*")
    (file,) = folder.glob("*.wandb")
    assert file.stat().st_size > 100 * STEPS


def attached_and_interrupted(notebook, shown):
    """Follow the run until it has shown this, and interrupt it; return the cell that followed it."""
    cell = notebook.start("%distribute attach digits")
    notebook.wait_for_stdout(cell, shown)
    notebook.interrupt()
    return notebook.finish(cell)


@pytest.mark.long
def test_one_whose_cell_hears_no_interrupt_is_stopped_with_all_of_its_steps(new_notebook):
    run = Detached(new_notebook(), ENDLESS + DEAF)
    run.kill_kernel()
    second, _ = opened(new_notebook, run.notebook.folder)
    cell = attached_and_interrupted(second, "epoch 1\n")
    assert cell.error[0] == "KeyboardInterrupt"
    assert "had to be ended" in cell.traceback
    assert second.value("rounds, len(used)") == (1, 25)
    run.wait_for_end()
    assert run.record.phase == "stopped"


@pytest.mark.long
def test_stopped_from_another_kernel(new_notebook):
    run = Detached(new_notebook(), ENDLESS)
    run.wait_for_step(30)
    run.kill_kernel()
    second, _ = opened(new_notebook, run.notebook.folder)
    cell = attached_and_interrupted(second, "epoch 2\n")
    assert cell.error[0] in ("KeyboardInterrupt", "CellInterrupted")
    assert second.value("rounds") >= 2
    assert second.value("model[0].weight.shape") == (96, 12)
    run.wait_for_end()
    assert run.record.phase == "stopped"


@pytest.mark.long
def test_stopped_in_its_own_kernel(new_notebook):
    run = Detached(new_notebook(), ENDLESS)
    run.notebook.wait_for_stdout(run.cell, "epoch 1\n")
    run.notebook.interrupt()
    run.notebook.finish(run.cell)
    assert "Stopped after step" in run.cell.traceback
    assert run.notebook.value("rounds") >= 1
    run.wait_for_end()
    assert run.record.phase == "stopped"


@pytest.mark.long
def test_an_error_of_the_cell_is_told_to_who_attaches(new_notebook):
    waits = "import pathlib, time\nwhile not pathlib.Path('alone').exists(): time.sleep(0.01)"
    run = Detached(new_notebook(), f"%%distribute --engines 2 --device cpu --detach\n{waits}\nhere = 1\n1 / 0")
    run.kill_kernel()
    (run.notebook.folder / "alone").touch()
    run.wait_for_end()
    assert (run.record.phase, run.record.error) == ("failed", "ZeroDivisionError: division by zero")
    second, said = opened(new_notebook, run.notebook.folder)
    assert "finished without a kernel" in said
    cell = second.fail("%distribute attach")
    assert cell.error == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in cell.traceback
    assert second.value("here") == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_kernel_that_is_restarted_leaves_it_going(two, new_notebook):
    """Though Jupyter interrupts a kernel before it restarts it or shuts it down."""
    run = Detached(new_notebook(), pace=SLOW)
    run.wait_for_step(30)
    run.notebook.manager.restart_kernel()
    assert run.is_going
    run.wait_for_end()
    assert run.record.phase == "finished"
    second, _ = opened(new_notebook, run.notebook.folder)
    second.run("%distribute attach")
    second.run(AFTERWARDS)
    assert second.value(STATE) == two.expected


@pytest.mark.long
def test_its_process_killed(two, new_notebook):
    run = Detached(new_notebook(), LINE.replace("--detach", "--detach --checkpoint-every 1s"))
    checkpoint = lambda: list(run.record.folder.glob("checkpoints/step-*"))  # noqa: E731
    run.notebook.wait(lambda: checkpoint() or not run.cell.running, "a checkpoint", run.cell)
    os.kill(run.host.pid, signal.SIGKILL)
    run.notebook.finish(run.cell)
    name, message = run.cell.error
    assert name == "ClusterError"
    assert f"`%distribute resume {run.record.run_id}` continues from step " in message
    run.wait_for_end()
    run.notebook.run("%distribute resume digits")
    assert run.notebook.value(STATE) == two.expected


@pytest.mark.long
def test_interrupted_while_it_starts(new_notebook):
    notebook = new_notebook()
    notebook.run(IMPORTS)
    cell = notebook.start("%%distribute --engines 2 --device cpu --detach\n1 + 1")
    shown = lambda: [c["data"]["text/plain"] for c in cell.contents("update_display_data")]  # noqa: E731
    notebook.wait(lambda: "starting 2 engines" in shown() or not cell.running, "the start of the engines", cell)
    (host,) = find_processes(psutil.Process(pid_of(notebook)).children(), "jupyter_dtrain.host_app")
    processes = [host, *host.children(recursive=True)]
    notebook.interrupt()
    notebook.finish(cell)
    assert cell.error[0] == "KeyboardInterrupt"
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert alive == []
    assert notebook.run("%%distribute --engines 2 --device cpu --detach --strategy none\n1 + 1").result == "2"


@pytest.mark.long
def test_a_run_that_ended_detached_goes_on_from_a_checkpoint(two, new_notebook):
    run = Detached(new_notebook(), LINE.replace("--detach", "--detach --checkpoint-every 50"))
    run.kill_kernel()
    run.wait_for_end()
    assert waiting(run.runs) == [run.record.run_id]
    second, _ = opened(new_notebook, run.notebook.folder)
    second.run("%distribute resume digits@100")
    second.run(AFTERWARDS)
    assert second.value(STATE) == two.expected
    assert waiting(run.runs) == [], "these were of an end that is none"


@pytest.mark.long
def test_settings_in_objects_of_a_library_outlast_the_kernel_an_engine_and_the_run(new_notebook, tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    (folder / "kept_lib.py").write_text(
        "from types import SimpleNamespace\nsettings = SimpleNamespace(gain=1.0, steps=0, epochs=[])\n"
        "def count(number=1):\n    settings.steps += number\n    settings.gain *= 0.99\n"
    )
    installed = f"import sys\nsys.path.insert(0, {str(folder)!r})\nimport kept_lib"
    counts = f"{installed}\nkept_lib.settings.gain = 3.0\nslowly = pace\ndef pace():\n    kept_lib.count()\n    slowly()"
    cell = CELL + "    kept_lib.settings.epochs.append((kept_lib.settings.steps, kept_lib.settings.gain))\n"
    run = Detached(new_notebook(), LINE.replace("--detach", "--detach --checkpoint-every 50").replace(CELL, cell), pace=SLOW + counts)
    run.wait_for_step(40)
    run.kill_kernel()
    run.wait_for_step(70)
    run.kill_an_engine()
    run.wait_for_end()
    gains, expected = 3.0, []
    for step in range(1, STEPS + 1):
        gains *= 0.99
        if step % 25 == 0:
            expected.append((step, gains))
    for line in ("%distribute attach", "%distribute resume digits@100"):
        other, _ = opened(new_notebook, run.notebook.folder)
        other.run(installed)
        other.run(line)
        assert other.value("kept_lib.settings.epochs, kept_lib.settings.steps") == (expected, STEPS)


def test_there_is_nothing_to_attach_to(new_notebook):
    notebook = new_notebook()
    notebook.run("%load_ext jupyter_dtrain")
    message = "There is no detached run to attach to in this folder."
    assert notebook.fail("%distribute attach").error == ("CheckpointError", message)
    assert notebook.fail("%distribute attach nobody").error == ("CheckpointError", "There is no run 'nobody' here.")
    assert notebook.fail("%%distribute --detach --engines 2 --device cuda\n1").error[0] == "UsageError"
