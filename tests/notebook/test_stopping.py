"""Stop and ■ in the middle of a cell: the notebook has what was trained so far, and the next cell works."""

from __future__ import annotations

import pathlib
import re
import time
from textwrap import indent

import pytest

from jupyter_dtrain.protocol import COMMAND_TARGET
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
rates, num_epochs, limit = [], 100_000, 10**9
places = pathlib.Path(f"{pathlib.Path.cwd()}-steps")  # not the notebook's folder, where rank 0 alone writes
places.mkdir(exist_ok=True)
"""
TRAIN = """
import torch.distributed as dist
rank, step = dist.get_rank() if dist.group.WORLD is not None else 0, 0
for epoch in range(num_epochs):
    for x, y in loader:
        if step == limit:
            break
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        step += 1
        rates.append(step / 2)
        (places / f"step-{rank}").write_text(str(step))
        if step == 3:
            print("three steps")
print("the end")
"""
FULL_BATCH = """
import torch.distributed as dist
rank, step = dist.get_rank() if dist.group.WORLD is not None else 0, 0
while step < limit:
    optimizer.zero_grad()
    F.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    step += 1
    rates.append(step / 2)
    (places / f"step-{rank}").write_text(str(step))
    if step == 3:
        print("three steps")
print("the end")
"""
STATE = "model.state_dict(), optimizer.state_dict(), rates, step"


def assert_same_as_that_many_steps(notebook, cell):
    """Compare what the notebook holds with what as many steps of the plain cell leave; return their number."""
    found = notebook.value(f"({STATE})")
    steps = found[3]
    assert steps >= 3
    notebook.run(SETUP + f"num_epochs, limit = {steps // 6 + 1}, {steps}")
    notebook.run(cell)
    assert difference(found, notebook.value(f"({STATE})")) is None
    return steps


def assert_usable(notebook, engines):
    """The same engines run the next cell."""
    assert notebook.run("%%distribute --engines 2\nlimit = 3\nlimit").result == "3"
    assert notebook.engines() == engines


@pytest.mark.parametrize("cell", [TRAIN, FULL_BATCH], ids=["with a loader", "a full batch"])
def test_stop_ends_the_cell_at_one_step_on_all_ranks(notebook, cell):
    commands = notebook.open_comm(COMMAND_TARGET)
    notebook.run("%%distribute --engines 2\n1")
    engines = notebook.engines()
    notebook.run(SETUP)
    running = notebook.start("%%distribute --engines 2\n" + cell)
    notebook.wait_for_stdout(running, "three steps")
    reply = notebook.command(commands, "stop_run")
    assert (reply["ok"], reply["message"]) == (True, "Stopping after this step.")
    assert notebook.finish(running).ok
    assert "the end" not in running.stdout
    steps = [int(pathlib.Path(f"{notebook.folder}-steps", f"step-{rank}").read_text()) for rank in (0, 1)]
    assert running.stderr.splitlines()[-1] == f"Stopped after step {steps[0]}; the notebook has the weights trained so far."
    assert assert_same_as_that_many_steps(notebook, cell) == steps[0] == steps[1]
    assert_usable(notebook, engines)


@pytest.mark.parametrize("by", ["the sidebar", "an interrupt"])
def test_what_handlers_show_is_shown_at_once(notebook, by):
    commands = notebook.open_comm(COMMAND_TARGET)
    notebook.run(SETUP)
    handlers = "print('saving')\nwhile not (places / 'read').exists(): time.sleep(0.01)\nprint('saved')"
    handled = f"try:{indent(TRAIN, '    ')}finally:\n{indent(handlers, '    ')}"
    running = notebook.start("%%distribute --engines 2\n" + handled)
    notebook.wait_for_stdout(running, "three steps")
    if by == "the sidebar":
        assert notebook.command(commands, "stop_run")["ok"]
    else:
        notebook.interrupt()
    notebook.wait_for_stdout(running, "saving")
    pathlib.Path(f"{notebook.folder}-steps", "read").touch()
    notebook.finish(running)
    pathlib.Path(f"{notebook.folder}-steps", "read").unlink()
    assert running.stdout == "three steps\nsaving\nsaved\n"


def test_stop_while_no_cell_runs_says_so(notebook):
    commands = notebook.open_comm(COMMAND_TARGET)
    reply = notebook.command(commands, "stop_run")
    assert (reply["ok"], reply["message"]) == (False, "No cell is running.")


@pytest.mark.parametrize("cell", [TRAIN, FULL_BATCH], ids=["with a loader", "a full batch"])
@pytest.mark.parametrize("engines", [1, 2])
def test_an_interrupt_leaves_the_steps_that_were_done(notebook, cell, engines):
    notebook.run(f"%%distribute --engines {engines}\n1")
    pids = notebook.engines()
    notebook.run(SETUP)
    running = notebook.start(f"%%distribute --engines {engines}\n" + cell)
    notebook.wait_for_stdout(running, "three steps")
    notebook.interrupt()
    notebook.finish(running)
    assert running.error == ("KeyboardInterrupt", "")
    assert "jupyter_dtrain" not in running.traceback
    assert "Interrupted: stopping after this step." in running.stderr
    assert_same_as_that_many_steps(notebook, cell)
    assert_usable(notebook, pids)


SLEEP = """%%distribute --engines 2
import pathlib, time
import torch.distributed as dist
print("asleep")
time.sleep(600)
"""
ONE_WAITS = SLEEP.replace("time.sleep(600)", "time.sleep(600) if dist.get_rank() == 1 else dist.barrier()")
EVALUATE = """%%distribute --engines 2
model.eval()
print("asleep")
with torch.no_grad():
    for x, y in loader:
        time.sleep(60)
        model(x)
"""


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(SLEEP, id="all sleep", marks=pytest.mark.long),
        pytest.param(ONE_WAITS, id="one sleeps and one waits for it"),
        pytest.param(EVALUATE, id="evaluation"),
    ],
)
def test_an_interrupt_of_a_cell_that_takes_no_steps(notebook, cell):
    notebook.run(SETUP)
    notebook.run("%%distribute --engines 2\n1")
    pids = notebook.engines()
    running = notebook.start(cell)
    notebook.wait_for_stdout(running, "asleep")
    notebook.interrupt()
    notebook.finish(running)
    assert running.error[0] == "KeyboardInterrupt"
    assert "jupyter_dtrain" not in running.traceback
    assert_usable(notebook, pids)


def test_a_second_interrupt_does_not_wait_for_the_end_of_the_step(notebook):
    notebook.run("%%distribute --engines 2\n1")
    pids = notebook.engines()
    running = notebook.start(SLEEP)
    notebook.wait_for_stdout(running, "asleep")
    notebook.interrupt()
    notebook.wait(lambda: "Interrupt again to abort now" in running.stderr, "the hint", running)
    notebook.interrupt()
    notebook.finish(running)
    assert running.error[0] == "KeyboardInterrupt"
    assert_usable(notebook, pids)


def test_pressing_interrupt_again_and_again_breaks_nothing(notebook):
    notebook.run("%%distribute --engines 2\n1")
    pids = notebook.engines()
    for _ in range(3):
        running = notebook.start(SLEEP)
        notebook.wait_for_stdout(running, "asleep")
        for _ in range(5):
            notebook.interrupt()
        notebook.finish(running)
        assert running.error[0] == "KeyboardInterrupt"
        assert "jupyter_dtrain" not in running.traceback
    assert_usable(notebook, pids)


def test_an_impatient_user_does_not_kill_an_engine_that_is_about_to_leave(notebook):
    notebook.run("%%distribute --engines 2\n1")
    pids = notebook.engines()
    running = notebook.start(SLEEP.replace("time.sleep(600)", "try:\n    time.sleep(600)\nfinally:\n    time.sleep(0.5)\n"))
    notebook.wait_for_stdout(running, "asleep")
    for _ in range(6):
        notebook.interrupt()
        time.sleep(0.03)  # as fast as one can press
    notebook.finish(running)
    assert running.error[0] == "KeyboardInterrupt"
    assert_usable(notebook, pids)


def test_names_assigned_before_an_interrupt_are_there(notebook):
    running = notebook.start("%%distribute --engines 2\nimport time\nfound = [1, 2]\nprint('asleep')\ntime.sleep(600)\nfound = None")
    notebook.wait_for_stdout(running, "asleep")
    notebook.interrupt()
    notebook.finish(running)
    assert re.search(r"KeyboardInterrupt", running.traceback)
    assert notebook.value("found") == [1, 2]


def test_an_interrupt_that_comes_when_the_results_are_on_their_way_costs_none(notebook):
    notebook.run("""
import os, signal

class Late:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGINT)
        return (str, ("arrived",))
""")
    assert notebook.run("%%distribute --engines 2\nfound = 'packed'\nLate()").result == "'arrived'"
    assert notebook.value("found") == "packed"


def test_an_interrupt_while_the_results_are_put_into_the_notebook_waits_until_they_are(notebook):
    notebook.run("""
import os, signal

def press():
    os.kill(os.getpid(), signal.SIGINT)
    return "there"

class Pressing:
    def __reduce__(self):
        return press, ()

weights = torch.zeros(3)
""")
    cell = notebook.fail("%%distribute --engines 2\nweights += 1\nfirst = Pressing()\nlast = 'here'")
    assert cell.error[0] == "KeyboardInterrupt"
    assert notebook.value("(first, last, weights.tolist())") == ("there", "here", [1.0, 1.0, 1.0])


# -- ranks that do not leave ---------------------------------------------------------------------------------------------

PROMPT = 5.0
"""Seconds after an interrupt in which the prompt is back, whatever the cell does."""
BUSY = 4
"""What may be added where other tests run beside this one."""
SNAPSHOT = "from the last snapshot"
HERE = "(places / 'stuck').touch()"
DEAF_LOOP = f"while True:\n    try:\n        {HERE}\n        time.sleep(600)\n    except:\n        pass"
NO_THREADS = f"{HERE}\nsum(range(10**13))"
DEAF = {
    "it ignores the signal": f"signal.signal(signal.SIGINT, signal.SIG_IGN)\n{HERE}\ntime.sleep(600)",
    "it catches every interrupt": DEAF_LOOP,
    "one does, another waits for it": f"{DEAF_LOOP.replace('True', 'rank == 1')}\ndist.barrier()",
    "rank 0 lets no other thread run": f"if rank == 0:\n{indent(NO_THREADS, '    ')}\ndist.barrier()",
}


def stuck_at(step: int, code: str) -> str:
    """Return the training cell that does not go on after a step."""
    stuck = f"time.sleep(0.01)\nif step == {step}:\n" + indent(f"{code}\n", "    ")
    return "import signal\n" + TRAIN.replace("        if step == 3:\n", indent(stuck, " " * 8) + "        if step == 3:\n")


def interrupt_and_wait(notebook, cell: str):
    """Run a cell until it is stuck, interrupt it once, and see that the prompt comes in time."""
    stuck = pathlib.Path(f"{notebook.folder}-steps", "stuck")
    stuck.unlink(missing_ok=True)
    running = notebook.start("%%distribute --engines 2\n" + cell)
    notebook.wait(lambda: stuck.exists() or not running.running, "the place where it is stuck", running)
    begun = time.monotonic()
    notebook.interrupt()
    notebook.finish(running)
    assert time.monotonic() - begun < PROMPT * BUSY
    assert running.error[0] == "KeyboardInterrupt"
    return running


def assert_others_took_over(notebook, before):
    """Other engines run the next cell, beside the third, which had no part in it."""
    assert notebook.run("%%distribute --engines 2\nlimit = 3\nlimit").result == "3"
    after = notebook.engines()
    assert after[2] == before[2]
    assert after[:2] != before[:2]


@pytest.mark.long
@pytest.mark.parametrize("why", one_of(2, DEAF))
def test_ranks_that_do_not_hear_an_interrupt_lose_no_step(notebook, why):
    notebook.run(SETUP + "\n%distribute start -n 3 --device cpu")
    before = notebook.engines()
    running = interrupt_and_wait(notebook, stuck_at(20, DEAF[why]))
    assert "had to be ended: other engines take over" in running.traceback
    assert "jupyter_dtrain" not in running.traceback
    assert SNAPSHOT not in running.traceback
    assert assert_same_as_that_many_steps(notebook, TRAIN) == 20
    assert_others_took_over(notebook, before)


@pytest.mark.long
def test_a_rank_whose_cell_lets_no_other_thread_run_leaves_its_last_snapshot(notebook):
    notebook.run(SETUP + "\n%distribute start -n 3 --device cpu")
    before = notebook.engines()
    running = interrupt_and_wait(notebook, stuck_at(250, NO_THREADS))
    told = re.search(r"state of step (\d+), " + SNAPSHOT, running.traceback)
    assert told is not None, running.traceback
    assert assert_same_as_that_many_steps(notebook, TRAIN) == int(told[1]) > 20
    assert_others_took_over(notebook, before)
