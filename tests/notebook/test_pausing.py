"""Pause, going on, and Checkpoint now, from the sidebar: answered at once, and nothing in what the cell comes to is changed by them."""

from __future__ import annotations

import itertools
import os
import signal
import textwrap
import time

import psutil
import pytest

from jupyter_dtrain.protocol import COMMAND_TARGET, TELEMETRY_TARGET
from jupyter_dtrain.runs.store import RunStore
from tests.conftest import one_of
from tests.notebook.kernel import difference

SETUP = """
import pathlib, time
torch.manual_seed(1)
inputs = torch.randn(45, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
losses = []
places = pathlib.Path(f"{pathlib.Path.cwd()}-made")  # not the notebook's folder, where rank 0 alone writes
places.unlink(missing_ok=True)
seen = places.with_name(f"{places.name}-seen")  # there when the test has seen what it wants to
seen.unlink(missing_ok=True)
"""
TRAIN = """
for epoch in range(60):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with open(places, "ab") as file:
            file.write(b".")
        time.sleep(0.01)
"""
TOLD = f"""
try:{textwrap.indent(TRAIN, "    ")}
        print("epoch", epoch)
finally:
    print("through")
"""
STATE = "(model.state_dict(), optimizer.state_dict(), losses, torch.rand(2))"


class Run:
    """A cell on two engines, and the sidebar."""

    def __init__(self, notebook, options: str = "", cell: str = TRAIN) -> None:
        self.notebook = notebook
        self.comms = self.telemetry, self.commands = [notebook.open_comm(target) for target in (TELEMETRY_TARGET, COMMAND_TARGET)]
        self.steps = notebook.folder.with_name(f"{notebook.folder.name}-made")
        notebook.run("%distribute start -n 2 --device cpu")
        self.pids = notebook.engines()
        notebook.run(SETUP)
        self.cell = notebook.start(f"%%distribute --engines 2 {options}{cell}")

    def close(self) -> None:
        for comm in self.comms:
            self.notebook.close_comm(comm)

    @property
    def num_steps(self) -> int:
        """Steps that the ranks have made, all together."""
        return self.steps.stat().st_size if self.steps.exists() else 0

    def messages(self, kind: str) -> list[dict]:
        return [message for data in self.notebook.heard(self.telemetry) for message in data["messages"] if message["type"] == kind]

    def engines(self) -> list[int]:
        """Return the engines that the sidebar was told of last."""
        updates = self.messages("cluster_update")
        return [engine["pid"] for engine in updates[-1]["engines"]] if updates else []

    def wait(self, condition, what: str) -> None:
        self.notebook.wait(lambda: condition() or not self.cell.running, what, self.cell)
        assert self.cell.running, self.cell

    def wait_for_steps(self) -> None:
        before = self.num_steps
        self.wait(lambda: self.num_steps > before + 20, "more steps")

    def wait_for_phase(self, phase: str) -> None:
        self.wait(lambda: (updates := self.messages("run_update")) and updates[-1]["phase"] == phase, phase)

    def command(self, name: str, **options: object) -> tuple[bool, str]:
        reply = self.notebook.command(self.commands, name, **options)
        return reply["ok"], reply["message"]

    def pause(self) -> int:
        """Pause, and return the steps that were made."""
        self.wait_for_steps()
        assert self.command("pause_run") == (True, "Pausing after this step.")
        self.wait_for_phase("paused")
        return self.num_steps

    def assert_idle(self, steps: int) -> None:
        """Wait for some reports of the engines' devices in which they do nothing: who looked all the time would never have such."""
        self.wait(self.waits_quietly, "ranks that wait and do not look")
        assert self.num_steps == steps

    def waits_quietly(self) -> bool:
        """Return whether no engine is busy for half of the time in which some reports come."""
        before, began = len(self.messages("device_use")), time.monotonic()
        cpu = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids]
        self.wait(lambda: len(self.messages("device_use")) > before + 8, "reports of engines that wait")
        spent = [sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids]
        return max(b - a for a, b in zip(cpu, spent, strict=True)) < 0.5 * (time.monotonic() - began)

    def go_on(self) -> None:
        assert self.command("resume_run") == (True, "Training continues.")
        self.wait_for_phase("running")

    def finish(self) -> None:
        self.notebook.finish(self.cell)
        assert self.cell.ok, self.cell


@pytest.fixture(scope="module")
def expected(shared_notebook):
    shared_notebook.run(SETUP)
    shared_notebook.run(TRAIN.replace("time.sleep(0.01)", "pass"))
    return shared_notebook.value(STATE)


@pytest.fixture
def start(notebook):
    runs = []

    def begin(*args, **options) -> Run:
        runs.append(Run(notebook, *args, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def test_a_pause_lasts_until_the_run_is_to_go_on_and_changes_nothing(start, expected):
    run = start()
    for look in (True, False):
        steps = run.pause()
        assert steps % 2 == 0, "all ranks have made as many"
        if look:
            run.assert_idle(steps)
        assert run.command("pause_run") == (False, "The run is paused already.")
        run.go_on()
    assert run.command("resume_run") == (False, "The run is not paused.")
    run.finish()
    assert difference(run.notebook.value(STATE), expected) is None
    for name in ("pause_run", "resume_run", "checkpoint_now"):
        assert run.command(name) == (False, "No cell is running.")


@pytest.mark.long
def test_a_pause_survives_the_death_of_an_engine(start, expected):
    run = start()
    steps, reports = run.pause(), len(run.messages("device_use"))
    os.kill(run.pids[1], signal.SIGKILL)
    run.wait(lambda: "Lost rank 1" in run.cell.stderr, "the loss")
    run.wait(lambda: run.engines() not in ([], run.pids), "another engine")
    run.pids = run.engines()
    run.wait(lambda: len(run.messages("device_use")) > reports + 4, "a report of it")
    run.assert_idle(steps)
    run.go_on()
    run.finish()
    assert difference(run.notebook.value(STATE), expected) is None


@pytest.mark.long
@pytest.mark.parametrize("rank", one_of(2, [0, 1]))
def test_an_engine_is_restarted_and_changes_nothing(start, expected, rank):
    run = start()
    for _ in range(3):  # as often as it is asked for, also where the run has come no further
        run.wait_for_steps()
        before = run.engines() or run.pids
        assert run.command("restart_engine", rank=rank) == (True, f"The engine of rank {rank} is restarting.")
        run.wait(lambda before=before: run.engines() not in ([], before), "another engine")
    assert run.command("restart_engine", rank=7) == (False, "Rank 7 takes no part in this run: restart its engine after it.")
    assert run.engines()[1 - rank] == run.pids[1 - rank]
    run.finish()
    assert run.cell.stderr.count(f"Restarting rank {rank}: resuming from ") == 3
    assert difference(run.notebook.value(STATE), expected) is None

    # Between cells too, and the next one runs on it.
    before = run.notebook.engines()
    assert run.command("restart_engine", rank=rank)[0]
    run.notebook.wait(lambda: run.engines() not in ([], before), "another engine")
    after = run.notebook.run("%%distribute --engines 2\nimport os\nos.getpid()")
    assert after.result == str(run.engines()[0])
    assert run.notebook.engines() == run.engines() != before
    assert run.command("restart_engine", rank=99) == (False, "There is no rank 99.")
    assert run.command("restart_engine") == (False, "Which engine? The command names no rank.")
    run.notebook.run("%distribute stop")
    assert run.command("restart_engine", rank=0) == (False, "No engines are running.")


@pytest.mark.long
def test_a_restart_in_the_last_moment_of_a_run_is_done_behind_it(start, expected, notebook):
    # That moment, from the last look after the ranks to the end, is here as long as the run.
    last = "from jupyter_dtrain.elastic.agent import Agent; look, Agent._look_after = Agent._look_after, print"
    with notebook.changed(last, "Agent._look_after = look"):
        run = start()
        run.wait_for_steps()
        assert run.command("restart_engine", rank=1) == (True, "The engine of rank 1 is restarting.")
        run.finish()
    assert difference(notebook.value(STATE), expected) is None
    assert "The run has ended before the engine of rank 1 was restarted: that is done now." in run.cell.stderr

    # The next cell waits for it.
    after = notebook.run("%%distribute --engines 2\npass")
    assert "Lost" not in after.stderr
    assert notebook.engines()[0] == run.pids[0]
    assert notebook.engines()[1] != run.pids[1]


@pytest.mark.long
@pytest.mark.parametrize("how", ["stop_run", "interrupt"])
def test_a_paused_run_can_be_stopped(start, how):
    run = start()
    steps = run.pause()
    if how == "interrupt":
        run.notebook.interrupt()
    else:
        assert run.command("stop_run")[0]
    run.notebook.finish(run.cell)
    assert run.cell.ok if how == "stop_run" else run.cell.error[0] == "KeyboardInterrupt"
    assert len(run.notebook.value("losses")) == steps / 2
    assert run.notebook.run("%%distribute --engines 2\n1 + 1").result == "2"
    assert run.notebook.engines() == run.pids


@pytest.mark.parametrize("paused", one_of(2, [True, False]))
def test_a_checkpoint_now_is_kept_and_the_run_can_go_on_from_it(start, expected, paused):
    run = start(f"--name now{paused}")
    if paused:
        run.pause()
    else:
        run.wait_for_steps()
    assert run.command("checkpoint_now") == (True, "A checkpoint will be written at the next point from which the cell can resume.")
    run.wait(lambda: any("A checkpoint of step " in notice["text"] for notice in run.messages("notice")), "the checkpoint")
    if paused:
        run.go_on()
    run.finish()
    (folder,) = run.notebook.folder.glob(f"dtrain-runs/*now{str(paused).lower()}*/checkpoints/step-*")
    assert f"A checkpoint of step {int(folder.name[5:])} is on disk" in run.cell.stderr
    again = run.notebook.run(f"%distribute resume now{paused}")
    assert f"resuming from step {int(folder.name[5:])}." in again.stderr
    assert difference(run.notebook.value(STATE), expected) is None


def test_a_cell_that_distributes_itself_is_left_alone(start):
    run = start("--strategy none", cell="\nprint('begun')\nwhile True:\n    time.sleep(0.01)\n")
    run.notebook.wait_for_stdout(run.cell, "begun")
    assert run.command("pause_run") == (False, "Pausing needs steps at whose end all engines wait, which --strategy none does not have.")
    assert run.command("checkpoint_now") == (
        False,
        "Keeping a checkpoint needs snapshots of the cell, which --strategy none does not have.",
    )
    run.notebook.interrupt()
    run.notebook.finish(run.cell)


def run_id(run):
    run.notebook.wait(lambda: run.messages("run_update"), "word of the run")
    return run.messages("run_update")[-1]["run_id"]


def ask(run, name, **options):
    return run.notebook.command(run.commands, name, run_id=run_id(run), **options)


def steps_on_disk(run):
    return [info["step"] for info in ask(run, "list_checkpoints")["checkpoints"]]


def told_steps(run):
    """Return the steps that the front end was told of."""
    return [update["step"] for update in run.messages("run_update")]


@pytest.mark.parametrize("paused", one_of(2, [True, False]))
def test_a_run_goes_back_to_a_checkpoint_and_on_from_it(start, expected, paused):
    # Its checkpoint is seen before its end, and the way back is told.
    slowly = TOLD.replace("time.sleep(0.01)", "time.sleep(0.0 if seen.exists() else 0.06)")
    run = start("--checkpoint-every 40 --keep-checkpoints 9 --name back", cell=slowly)
    run.wait_for_steps()
    run.wait(lambda: 40 in steps_on_disk(run), "a checkpoint")
    run.wait(lambda: run.num_steps > 2 * 60, "more steps")
    if paused:
        run.pause()
    assert ask(run, "roll_back", step=7)["message"].startswith(f"{run_id(run)} has no checkpoint of step 7; ")
    assert ask(run, "roll_back", step=40)["message"] == "Going back to step 40."
    run.wait(lambda: "Going back to step 40." in run.cell.stderr, "the way back")
    if paused:
        run.wait(lambda: told_steps(run)[-1] == 40, "the step that it is back at")
        run.go_on()
    run.wait(lambda: any(40 <= after < before for before, after in itertools.pairwise(told_steps(run))), "a step that goes down")
    run.steps.with_name(f"{run.steps.name}-seen").touch()
    run.finish()
    assert difference(run.notebook.value(STATE), expected) is None
    assert run.num_steps > 2 * (60 * 6 + 10), "some steps were made twice"
    assert run.cell.stdout == "".join(f"epoch {epoch}\n" for epoch in range(60)) + "through\n", "each line once, and none lost"
    store = RunStore(run.notebook.folder / "dtrain-runs")
    assert store.points(run_id(run), "loss").step == list(range(1, 361))
    store.close()
    assert ask(run, "roll_back", step=40)["message"] == (
        f"That run is not running. `%distribute resume {run_id(run)}@40` in a cell continues it from there."
    )


@pytest.mark.long
def test_what_can_be_done_with_the_checkpoints_of_a_run_that_has_ended(start, expected):
    run = start("--checkpoint-every 120 --keep-checkpoints 9 --name shelf", cell=TRAIN)
    run.finish()
    run.notebook.wait(lambda: (updates := run.messages("run_update")) and updates[-1]["phase"] == "finished", "the end")
    found = ask(run, "list_checkpoints")
    assert [info["step"] for info in found["checkpoints"]] == [360, 240, 120]
    assert found["free_bytes"] > 0
    info = found["checkpoints"][-1]
    losses = run.notebook.value("losses")
    assert info["loss"] == pytest.approx(losses[119], abs=1e-9)
    assert 19 < info["epoch"] <= 20
    assert (info["run_id"], info["world_size"], info["pinned"]) == (run_id(run), 2, False)
    assert info["num_bytes"] > 0
    assert ask(run, "pin_checkpoint", step=120, pinned=True)["message"] == "The checkpoint of step 120 is kept until it is deleted."
    assert ask(run, "delete_checkpoint", step=240)["ok"]
    assert [(info["step"], info["pinned"]) for info in ask(run, "list_checkpoints")["checkpoints"]][-1] == (120, True)
    assert 240 not in steps_on_disk(run)
    exported = ask(run, "export_checkpoint", step=120)
    assert exported["ok"], exported
    run.notebook.run(f"from safetensors.torch import load_file\nfile = load_file({exported['paths'][0]!r})")
    run.notebook.run("import jupyter_dtrain as dtrain\nsaved = dtrain.load_checkpoint('shelf', 120, model=model)")
    assert run.notebook.value("set(file) == set(model.state_dict())")
    assert run.notebook.value("all(torch.equal(file[name], value) for name, value in model.state_dict().items())")
    assert run.notebook.value("len(saved['losses']) == 120 and saved['losses'] == losses[:120]")
    assert run.notebook.fail("dtrain.load_checkpoint('shelf', 120, net=model)").error == (
        "CheckpointError",
        "The checkpoint has no 'net' with a state_dict; it has these: model, optimizer.",
    )
    again = run.notebook.run("%distribute resume shelf@120 -n 3")
    assert "shelf: resuming from step 120." in again.stderr
    assert difference(run.notebook.value(STATE), expected) is None


@pytest.mark.long
def test_a_run_that_somebody_else_has_written_is_refused_and_runs_nothing(new_notebook, start, tmp_path):
    run = start("--checkpoint-every 120 --name foreign")
    run.finish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
        other = new_notebook(run.notebook.folder)
    other.run("%load_ext jupyter_dtrain\nimport pickle\ndef fail(*args, **options): raise AssertionError('unpickled')\npickle.loads = fail")
    for line in ("%distribute resume foreign", "import jupyter_dtrain\njupyter_dtrain.load_checkpoint('foreign')"):
        cell = other.fail(line)
        assert cell.error[0] == "CheckpointError"
        assert "was not written by you here, or has been changed since" in cell.error[1]
    other.run("import importlib\nimportlib.reload(pickle)")
    assert "resuming from step 360." in other.run("%distribute resume foreign@360 --trust").stderr
