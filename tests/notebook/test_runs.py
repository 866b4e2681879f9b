"""Every run is recorded beside the notebook: its cell, its end, and its curves over the whole batches."""

from __future__ import annotations

import json
import time

import pytest

from jupyter_dtrain.runs.store import RunStore

SETUP = """
torch.manual_seed(1)
inputs = torch.randn(45, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)  # the last batch has 5
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
losses = []
"""
TRAIN = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    scheduler.step()
"""


@pytest.fixture
def store(notebook):
    store = RunStore(notebook.folder / "dtrain-runs")
    yield store
    store.close()


@pytest.mark.parametrize("engines", [1, 3])
def test_a_run_and_its_curves_are_recorded(notebook, store, engines):
    notebook.run(SETUP)
    notebook.run(TRAIN.replace("loss.backward()", "losses.append(loss.item()); loss.backward()"))
    losses = notebook.value("losses")
    notebook.run(SETUP)
    began = time.time()
    notebook.run(f"%%distribute --engines {engines} --name digits{engines}{TRAIN}")
    run = store.list_runs()[-1]
    assert (run.name, run.phase, run.world_size, run.error) == (f"digits{engines}", "finished", engines, None)
    assert began <= run.started <= run.ended <= time.time()
    curve = store.points(run.run_id, "loss")
    assert list(curve.step) == list(range(1, 13))
    assert list(curve.value) == [pytest.approx(loss, abs=1e-9) for loss in losses]
    assert list(curve.time) == sorted(curve.time)
    assert list(store.points(run.run_id, "learning_rate").value) == [0.1] * 6 + [0.05] * 6
    folder = notebook.folder / "dtrain-runs" / run.run_id
    assert (folder / "cell.py").read_text().strip() == TRAIN.strip()
    about = json.loads((folder / "run.json").read_text())
    assert about["environment"]["packages"]["torch"] == notebook.value("torch.__version__")
    assert about["arguments"]["engines"] == engines
    assert (notebook.folder / "dtrain-runs").stat().st_mode & 0o777 == 0o700


def test_how_a_run_ended_is_recorded(notebook, store):
    before = len(store.list_runs())
    notebook.run(SETUP)
    notebook.fail(f"%%distribute --engines 2\n{TRAIN}raise ValueError('enough')")
    running = notebook.start("%%distribute --engines 2\nprint('asleep')\nimport time\ntime.sleep(600)")
    notebook.wait_for_stdout(running, "asleep")
    assert [run.phase for run in store.list_runs()[before:]] == ["failed", "running"]
    notebook.interrupt()
    notebook.finish(running)
    failed, stopped = store.list_runs()[before:]
    assert (failed.phase, failed.error, len(store.points(failed.run_id, "loss").step)) == ("failed", "ValueError: enough", 12)
    assert (stopped.phase, stopped.error) == ("stopped", None)


def test_the_last_run_is_told_by_status(notebook):
    notebook.run(SETUP)
    notebook.run(f"%%distribute --engines 2 --name status{TRAIN}")
    last = notebook.run("%distribute status").stdout.splitlines()[-1]
    loss = notebook.value("loss.item()")
    assert last.startswith("Run status: finished, 12 steps in ")
    assert last.endswith(f", loss {loss:.4g}")


def test_a_cell_that_cannot_be_sent_is_no_run(notebook, store):
    before = len(store.list_runs())
    notebook.run("import threading\nlock = threading.Lock()")
    notebook.fail("%%distribute --engines 2\nlock")
    assert len(store.list_runs()) == before
