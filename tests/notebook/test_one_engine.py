"""Cells that shard nothing: one engine runs them, as fast as the notebook would, and what they come to is the same."""

from __future__ import annotations

import os
import signal

import pytest

from tests.notebook.kernel import SESSION, difference

SETUP = """
torch.set_default_dtype(torch.float64)
torch.manual_seed(3)
inputs = torch.randn(40, 6)
targets = inputs.sin().sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
weights = torch.zeros(6, 1, requires_grad=True)
losses, steps, pace = [], 12, 0.0
"""
AT_ONCE = """
import time
for step in range(steps):
    optimizer.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    time.sleep(pace)
threads = torch.get_num_threads()
"""
BY_HAND = """
for step in range(steps):
    loss = ((inputs @ weights - targets) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        weights -= 0.1 * weights.grad
        weights.grad.zero_()
    losses.append(loss.item())
"""
STATE = "(model.state_dict(), optimizer.state_dict(), weights, losses, torch.rand(2))"
CHECKPOINTS = "dtrain-runs/*/checkpoints/step-*"
RANKS = f"{SESSION}.telemetry.views.snapshot().run.world_size"
NOTE = "This cell shards nothing (it draws no batches from a DataLoader), so one engine runs it."
ADVICE = " `--split-inputs` shards model inputs along dim 0."


def expected(notebook, cell):
    notebook.run(SETUP)
    notebook.run(cell)
    return notebook.value(STATE)


@pytest.mark.parametrize(("cell", "reason"), [(AT_ONCE, NOTE + ADVICE), (BY_HAND, NOTE)], ids=["all data at once", "by hand"])
def test_one_engine_runs_it_and_comes_to_the_same(notebook, cell, reason):
    plain = expected(notebook, cell)
    for option, ranks in (("", 1), ("--replicate", 2), ("--output all", 2)):
        notebook.run(SETUP)
        ran = notebook.run(f"%%distribute --engines 2 {option}\n{cell}")
        assert difference(notebook.value(STATE), plain) is None
        assert notebook.value(RANKS) == ranks
        assert ran.stderr.splitlines()[:1] == [reason] if ranks == 1 else NOTE not in ran.stderr


def test_a_cell_with_a_loader_after_it_is_sharded(notebook):
    notebook.run(SETUP + "loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)")
    batches = "%%distribute --engines 2\nfor x, y in loader:\n    F.mse_loss(model(x), y).backward()"
    for cell, ranks in (
        (f"%%distribute --engines 2\n{AT_ONCE}", 1),
        (batches, 2),
        (f"%%distribute --engines 2\n{AT_ONCE}", 1),
        (batches, 2),
    ):
        assert "shards nothing" in notebook.run(cell).stderr or ranks == 2
        assert notebook.value(RANKS) == ranks


def test_it_has_the_notebooks_threads_and_leaves_the_engines_theirs(notebook):
    notebook.run(SETUP + "before = torch.get_num_threads(); torch.set_num_threads(3)")
    own = f"{SESSION}.get().cluster.view.apply_sync(lambda: __import__('torch').get_num_threads())"
    engines = notebook.value(own)
    notebook.run(f"%%distribute --engines 2\n{AT_ONCE}")
    notebook.run("torch.set_num_threads(before)")
    assert notebook.value("threads") == 3
    assert notebook.value(own) == engines


def test_its_engine_is_killed(notebook):
    plain = expected(notebook, AT_ONCE)
    notebook.run("%%distribute --engines 2\n1")
    notebook.run(SETUP + "pace = 0.25")
    first, *_ = notebook.engines()
    before = set(notebook.folder.glob(CHECKPOINTS))
    running = notebook.start(f"%%distribute --engines 2 --checkpoint-every 1\n{AT_ONCE}")
    notebook.wait(lambda: set(notebook.folder.glob(CHECKPOINTS)) - before or not running.running, "a checkpoint", running)
    os.kill(first, signal.SIGKILL)
    notebook.finish(running)
    assert running.ok, running
    assert "Lost rank 0 (its process has ended): resuming from " in running.stderr
    assert difference(notebook.value(STATE), plain) is None
    assert notebook.run("%%distribute --engines 2\n2").result == "2"


def test_a_name_that_the_cell_deletes_without_its_value_is_gone(notebook):
    notebook.run("gone, deleted, kept = 5, 6, 7")
    notebook.run(
        "%%distribute --engines 2\n"
        "try: 1 / 0\nexcept ZeroDivisionError as gone: pass\n"
        "deleted = 1; del deleted\n"
        "try: pass\nexcept ZeroDivisionError as kept: pass"
    )
    assert notebook.value("{name: name in globals() for name in ('gone', 'deleted', 'kept')}") == {
        "gone": False,
        "deleted": False,
        "kept": True,
    }
    assert notebook.value("kept") == 7


def test_layers_that_ask_for_a_process_group_find_none_of_an_earlier_cell(notebook):
    notebook.run("model = nn.SyncBatchNorm(3)\nx = torch.randn(8, 3)")
    notebook.run("%%distribute --engines 2\nmean = model(x).mean()")
    notebook.run("%%distribute --engines 1\nmean = model(x).mean()")
    assert abs(notebook.value("mean.item()")) < 1e-6
