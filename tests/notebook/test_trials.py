"""``--vary``: many experiments side by side, each as if the cell had been run with its values here."""

from __future__ import annotations

import re

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, difference

SETUP = """
torch.manual_seed(0)
x = torch.randn(96, 4)
y = x.sin().sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
lr, width = 0.5, 4
kept = [1]
"""
CELL = """
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for epoch in range(3):
    for a, b in loader:
        loss = F.mse_loss(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    print("epoch", epoch)
final = loss.item()
kept.append(final)
"""
STATE = "([p.detach() for p in model.parameters()], optimizer.state_dict(), lr, width, final, kept, torch.rand(3).tolist())"


@pytest.fixture(scope="module")
def trying(module_notebook):
    notebook = module_notebook()
    notebook.run(IMPORTS)
    return notebook


def rows(cell):
    """Return the table of a cell's trials, the first of them its head."""
    return cell.run_views[-1]["text/plain"].splitlines()[:-1]


def note(cell):
    """Return the line below the table."""
    return cell.run_views[-1]["text/plain"].splitlines()[-1]


def test_the_notebook_has_what_the_best_trial_has_made(trying):
    trying.run(SETUP)
    plain = {}
    for lr in (0.001, 0.1, 0.01):
        trying.run(SETUP + f"lr = {lr}" + CELL)
        plain[lr] = trying.value(STATE)
    best = min(plain, key=lambda lr: plain[lr][4])
    trying.run(SETUP)
    cell = trying.run("%%distribute --engines 2 --vary lr=0.001,0.1,0.01 --best final" + CELL)
    assert difference(trying.value(STATE), plain[best]) is None
    assert note(cell) == f"Best trial: lr={best}. Its model and variables are now in the notebook."
    assert cell.stderr == ""
    assert sorted(cell.stdout.splitlines()) == sorted(f"[lr={lr}] epoch {epoch}" for lr in plain for epoch in range(3))


def test_every_combination_is_a_run_of_its_own(trying):
    trying.run(SETUP)
    cell = trying.run("%%distribute --engines 2 --name grid --vary lr=0.1,0.01 --vary width=2,3 --best final:max" + CELL)
    head, *lines = rows(cell)
    assert head.split() == ["lr", "width", "step", "loss", "final", "(max)", "time"]
    assert [line.replace("★", " ").split()[:4] for line in lines] == [
        [lr, width, "finished", "18"] for lr in ("0.1", "0.01") for width in "23"
    ]
    assert sum("★" in line for line in lines) == 1
    found = trying.value(f"[r.hyperparameters for r in {SESSION}.get()._store.list_runs()[-4:]]")
    assert sorted((one["lr"], one["width"]) for one in found) == [(0.01, 2), (0.01, 3), (0.1, 2), (0.1, 3)]
    runs = trying.value(f"[(r.name, r.arguments['vary'], r.world_size) for r in {SESSION}.get()._store.list_runs()[-4:]]")
    assert sorted(runs) == sorted((f"grid lr={lr} width={width}", f"lr={lr} width={width}", 1) for lr in ("0.1", "0.01") for width in "23")


def test_the_better_end_of_the_metric_is_the_users(trying):
    trying.run(SETUP)
    trying.run("%%distribute --engines 2 --vary lr=0.1,0.0001 --best final:max" + CELL)
    assert trying.value("lr") == 0.0001


def test_names_that_functions_of_the_notebook_read(trying):
    trying.run("def score():\n    return scale * 2\nscale = 1")
    trying.run("%%distribute --engines 2 --vary scale=3,5 --best value:max\nvalue = score()")
    assert trying.value("(value, scale)") == (10, 5)


def test_parts_of_a_configuration(trying):
    trying.run("from types import SimpleNamespace\nconfig = SimpleNamespace(lr=0.5, net={'width': 4, 'depth': 1}); same = config")
    trying.run(
        "%%distribute --engines 2 --vary config.lr=0.1,0.2 --vary config.net['width']=8,16 --best value:max\n"
        "value = config.lr * config.net['width'] * config.net['depth']; config.seen = value"
    )
    assert trying.value("(value, vars(config), same is config)") == (3.2, {"lr": 0.2, "net": {"width": 16, "depth": 1}, "seen": 3.2}, True)
    trying.run("%%distribute --engines 2 --vary config.lr=7,8\nvalue = config.lr")
    assert trying.value("(config.lr, value)") == (0.2, 3.2), "without --best all is as before"
    cell = trying.fail("%%distribute --engines 2 --vary config.missing=7,8\nvalue = config.lr")
    assert "--vary config.missing: the notebook has nothing there, AttributeError" in cell.traceback


def test_objects_of_the_notebook_as_values(trying):
    trying.run("one, two = nn.Linear(1, 1), nn.Linear(1, 1); net = None")
    before = trying.value("[p.detach().clone() for p in one.parameters()]")
    trying.run(
        "%%distribute --engines 2 --vary net=one,two --best value:max\n"
        "with torch.no_grad(): net.weight.fill_(2.0)\n"
        "value = 1.0 if net.bias is None else float(net is not None)"
    )
    assert trying.value("net is one"), "the first of equals"
    assert trying.value("float(one.weight)") == 2.0
    assert difference(trying.value("[one.bias.detach()]"), before[1:]) is None
    assert trying.value("float(two.weight) != 2.0")


def test_an_open_file_of_the_notebook_gets_what_the_best_has_written(trying):
    trying.run("log = open('log.txt', 'w'); k = 0")
    trying.run("%%distribute --engines 2 --vary k=1,2,3 --best z:max\nfor i in range(3):\n    print(k, i, file=log)\nz = k % 3")
    trying.run("log.close()")
    assert trying.value("open('log.txt').read()") == "2 0\n2 1\n2 2\n"


def test_without_a_metric_the_notebook_is_as_before(trying):
    trying.run(SETUP + "model = optimizer = final = None")
    cell = trying.run("%%distribute --engines 2 --vary lr=0.1,0.01" + CELL)
    assert trying.value("(lr, model, optimizer, final, kept)") == (0.5, None, None, None, [1])
    assert (
        note(cell)
        == "The notebook's objects are as they were before the cell. Add --best METRIC to bring the best trial's results into the notebook."
    )
    assert [line.split()[:2] for line in rows(cell)[1:]] == [["0.1", "finished"], ["0.01", "finished"]]


def test_a_metric_that_no_trial_has(trying):
    trying.run(SETUP)
    cell = trying.run("%%distribute --engines 2 --vary lr=0.1,0.01 --best accuracy:max" + CELL)
    assert "no trial has a finite value of 'accuracy'" in note(cell)
    assert trying.value("lr") == 0.5


def test_what_is_logged_last_counts(trying):
    trying.run("import jupyter_dtrain as dtrain\nlevel = 0")
    trying.run("%%distribute --engines 2 --vary level=1,2 --best score:max\nfor v in (9 * level, 3 - level):\n    dtrain.log(score=v)")
    assert trying.value("level") == 1


def test_a_trial_that_fails_is_named_and_the_others_go_on(trying):
    trying.run(SETUP)
    cell = trying.run("%%distribute --engines 2 --vary width=2,'wide',3 --best final" + CELL)
    assert "[width=wide] TypeError: " in cell.stderr
    assert "line 3)" in cell.stderr
    assert trying.value("width") in (2, 3)
    assert [line.replace("★", " ").split()[1] for line in rows(cell)[1:]] == ["finished", "failed:", "finished"]


def test_an_error_in_all_trials_is_shown_once(trying):
    trying.run(SETUP)
    cell = trying.fail("%%distribute --engines 2 --vary width='a','b' --best final" + CELL)
    name, _ = cell.error
    assert name == "TypeError"
    assert "---->   3 model = nn.Sequential" in cell.traceback
    assert "all 2 trials; this is the error of width=a" in cell.traceback
    assert trying.run("%%distribute --engines 2 --vary lr=1,2 --best z\nz = lr").ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--vary depth=1,2", "neither the cell nor a function that it calls uses 'depth'"),
        ("--vary model=1,2", "line 3 of the cell sets 'model' itself"),
        ("--vary lr", "expected NAME=VALUE"),
        ("--vary lr=1,2 --engines-per-trial 3 --engines 2", "exceeds the number of engines, 2."),
        ("--vary lr=1,2 --detach", "--vary and --detach cannot be combined yet"),
        ("--engines-per-trial 2", "omit it, or use --engines"),
    ],
)
def test_what_cannot_be_tried(trying, options, message):
    trying.run(SETUP)
    cell = trying.fail(f"%%distribute {options}" + CELL)
    assert cell.error[0] == "UsageError"
    assert message in cell.error[1]


def test_interrupted_trials_stop_at_a_step_and_the_engines_stay(trying):
    trying.run(SETUP)
    cell = trying.start("%%distribute --engines 2 --vary lr=0.1,0.01,0.001 --best loss" + CELL.replace("range(3)", "range(10**6)"))
    trying.wait(lambda: all(f"[lr={lr}] epoch 3" in cell.stdout for lr in (0.1, 0.01)), "both first trials at work", cell)
    trying.interrupt()
    trying.finish(cell)
    assert cell.error[0] == "KeyboardInterrupt"
    assert [line.replace("★", " ").split()[1] for line in rows(cell)[1:]] == ["stopped", "stopped", "pending"]
    assert re.search(
        r"^Best trial: lr=0\.0?1\. .* It was stopped after step \d+, before its end: its value is that of this step\.$", note(cell)
    )
    assert trying.run("%%distribute --engines 2 --vary lr=1,2 --best z\nz = lr").ok


def test_what_several_trials_need_is_stored_once(trying):
    trying.run("import os, pathlib\nlarge = torch.zeros(4_000_000)\nk = 0")
    trying.run("%%distribute --engines 2 --vary k=1,2 --best z\nz = float(large.sum()) + k")
    stored = trying.value(
        f"[(e.stat().st_ino, e.stat().st_size) for lane in {SESSION}.get()._lanes for e in os.scandir(lane.folder) if e.is_file()]"
    )
    of_large = [inode for inode, size in stored if size == 32_000_000]
    assert len(of_large) == 2
    assert len(set(of_large)) == 1


@pytest.mark.long
def test_a_trial_of_several_engines_gives_the_same(trying):
    trying.run(SETUP + "lr = 0.1" + CELL)
    plain = trying.value(STATE)
    trying.run(SETUP)
    trying.run("%%distribute --engines 4 --engines-per-trial 2 --vary lr=0.1,0.0001 --best final" + CELL)
    assert difference(trying.value(STATE), plain) is None


@pytest.mark.long
def test_cells_with_and_without_trials_in_turn(trying):
    trying.run(SETUP)
    trying.run("%%distribute --engines 2" + CELL)
    trying.run("%%distribute --engines 2 --vary lr=0.1,0.01 --best final" + CELL)
    trying.run("%%distribute --engines 2" + CELL)
    assert trying.value("len(kept)") == 4
    assert "2 engines" in trying.run("%distribute status").stdout


@pytest.mark.long
def test_debug_looks_at_the_trial_that_was_the_last_on_its_engine(trying):
    trying.run(SETUP)
    failing = "found = 10 * lr\nif {condition}:\n    raise ValueError(f'{{lr}} is bad')"
    trying.fail("%%distribute --engines 2 --vary lr=0.1,0.2,0.3\n" + failing.format(condition="True"))
    cell = trying.start("%debug")
    shown = trying.type(cell, "p ('found', lr, found)", "('found'")
    ((told,),) = [re.findall(r"Post-mortem of rank 0 in the trial lr=(0\.[123]): ValueError: (?:0\.[123]) is bad\. q leaves", cell.stdout)]
    ((lr, found),) = re.findall(r"\('found', (\S+), (\S+)\)", shown)
    assert (lr, float(found)) == (told, 10 * float(told))
    trying.type(cell, "q")
    assert trying.finish(cell).ok
    # Its engine has gone on to another trial since.
    trying.run("%%distribute --engines 2 --vary lr=0.1,0.2,0.3,0.4\n" + failing.format(condition="lr == 0.1"))
    assert "only of those that were the last on their engines" in trying.fail("%distribute debug").error[1]
