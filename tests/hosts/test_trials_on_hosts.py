"""``--vary`` on several hosts: each trial on engines of its own there, to what it comes to in the notebook, also where a host is lost."""

from __future__ import annotations

import pytest

from tests.hosts.test_several_hosts import hosts_of
from tests.notebook.kernel import SESSION, difference
from tests.notebook.test_trials import CELL, SETUP, STATE, note, rows

pytestmark = pytest.mark.long

SLOW = CELL.replace("loss.backward();", "loss.backward(); time.sleep(0.5);")
RATES = (0.001, 0.1, 0.01)
ENGINES = f"[(e.rank, e.host) for e in {SESSION}.telemetry.views.snapshot().cluster.engines]"


@pytest.fixture(scope="module")
def best(notebook):
    """What the best of the trials comes to in the notebook, and its rate."""
    notebook.run("import time")
    plain = {}
    for lr in RATES:
        notebook.run(SETUP + f"lr = {lr}" + CELL)
        plain[lr] = notebook.value(STATE)
    lr = min(plain, key=lambda one: plain[one][4])
    return lr, plain[lr]


def test_trials_are_on_engines_of_all_hosts(notebook, best):
    notebook.run("%distribute stop")
    notebook.run(SETUP)
    cell = notebook.run(f"%%distribute --hosts h1:2,h2:1 --vary lr={','.join(map(str, RATES))} --best final" + CELL)
    assert difference(notebook.value(STATE), best[1]) is None
    assert note(cell).startswith(f"Best trial: lr={best[0]}.")
    assert notebook.value(ENGINES) == [(0, "h1"), (1, "h1"), (2, "h2")]


def test_a_trial_may_have_engines_of_several(notebook, best):
    """As the cell before, on the same hosts: nobody asks for others."""
    notebook.run(SETUP)
    cell = notebook.run(f"%%distribute --vary lr={','.join(map(str, RATES))} --best final --engines-per-trial 3" + CELL)
    assert cell.notices == []
    assert difference(notebook.value(STATE), best[1]) is None
    assert notebook.value(ENGINES) == [(0, "h1"), (1, "h1"), (2, "h2")]
    notebook.run("%%distribute --replicate\nwhere = 1")
    assert hosts_of(notebook) == ["h1", "h1", "h2"]


def test_the_trial_of_a_host_that_is_lost_begins_anew_on_another(notebook, lab, best):
    notebook.run("%distribute stop")
    notebook.run(SETUP)
    cell = notebook.start(f"%%distribute --hosts h1:1,h2:1 --vary lr={','.join(map(str, RATES))} --best final" + SLOW)
    notebook.wait(lambda: all(f"[lr={lr}] epoch 0" in cell.stdout for lr in RATES[:2]) or not cell.running, "both at work", cell)
    lab[2].unplug()
    try:
        notebook.finish(cell)
    finally:
        lab[2].plug()
    assert cell.ok, cell.traceback
    assert "the host h2 is lost" in cell.stderr + " ".join(cell.notices)
    assert "The remaining trials use fewer engines." in cell.stderr + " ".join(cell.notices)
    assert [line.replace("★", " ").split()[1] for line in rows(cell)[1:]] == ["finished"] * 3
    assert difference(notebook.value(STATE), best[1]) is None


def test_hosts_have_to_say_how_many_engines_they_have(notebook):
    cell = notebook.fail("%%distribute --hosts h1,h2 --vary lr=1,2\nz = lr")
    assert "--vary: say how many engines each host is to have, as in --hosts a:2,b:2." in cell.error[1]
    cell = notebook.fail("%%distribute --hosts h1:1,h2:1 --vary lr=1,2 --engines-per-trial 3\nz = lr")
    assert "exceeds the number of engines, 2." in cell.error[1]
