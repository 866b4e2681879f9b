"""Every run is recorded beside the notebook: its cell, its end, and its curves over the whole batches."""

from __future__ import annotations

import json
import time
from importlib.metadata import version

import pytest

from jupyter_dtrain.protocol import COMMAND_TARGET, TELEMETRY_TARGET
from jupyter_dtrain.runs.comparison import compare
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
    assert about["environment"]["packages"]["torch"] == version("torch")
    assert about["arguments"]["engines"] == engines
    assert (notebook.folder / "dtrain-runs").stat().st_mode & 0o777 == 0o700


def test_gradients_accumulated_for_an_optimizer_made_in_the_cell_are_steps_of_that_optimizer(notebook, store):
    notebook.run(SETUP)
    notebook.run("""%%distribute --engines 2
adam = torch.optim.Adam(model.parameters())
for number, (x, y) in enumerate(loader, 1):
    (F.mse_loss(model(x), y) / 3).backward()
    if number % 3 == 0:
        adam.step()
        adam.zero_grad()
""")
    assert list(store.points(store.list_runs()[-1].run_id, "loss").step) == [1, 2]


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


def test_the_sidebar_is_told_of_the_loss_while_the_cell_runs(notebook):
    telemetry, commands = (notebook.open_comm(target) for target in (TELEMETRY_TARGET, COMMAND_TARGET))
    notebook.run("import jupyter_dtrain" + SETUP)
    cell = notebook.start("%%distribute --engines 2 --name live" + TRAIN.replace("range(2)", "range(100_000)"))

    def messages(kind):
        return [message for data in notebook.heard(telemetry) for message in data["messages"] if message["type"] == kind]

    def values(name):
        return [value for points in messages("points") if points["name"] == name for value in points["value"]]

    def updates():
        return [message for message in messages("run_update") if message["name"] == "live"]

    notebook.wait(lambda: len(values("loss")) >= 20 and updates() and updates()[-1]["batches"], "twenty losses", cell)
    assert cell.running
    update = updates()[-1]
    assert (update["phase"], update["world_size"], update["batches"]) == ("running", 2, 6)
    assert {message["rank"] for message in messages("device_use")} == {0, 1}
    refused = notebook.command(commands, "stop_cluster")
    assert (refused["ok"], refused["message"]) == (False, "A cell is running on the engines: stop it first.")
    assert notebook.command(commands, "stop_run")["ok"]
    notebook.finish(cell)
    notebook.wait(lambda: messages("run_update")[-1]["phase"] == "stopped", "the end of the run")
    shown = values("loss")
    told = {points["name"] for points in messages("points")}
    recorded = notebook.value(f"{{name: jupyter_dtrain.find_run('live').points(name)['value'] for name in {sorted(told)}}}")
    assert {name: [*map(float.hex, values(name))] for name in told} == {name: [*map(float.hex, all_)] for name, all_ in recorded.items()}
    run_id = messages("run_update")[-1]["run_id"]
    (table,) = notebook.value(f"(lambda t: t[t.run_id == {run_id!r}].to_dict('records'))(jupyter_dtrain.runs())")
    assert (table["loss"].hex(), table["optimizer.lr"]) == (shown[-1].hex(), 0.1)
    past = notebook.command(commands, "get_curves", run_id=run_id)["points"]
    history = notebook.value(
        "list(jupyter_dtrain.find_run('live').history()[['curve', 'step', 'time', 'value']].itertuples(index=False, name=None))"
    )
    assert [(one["name"], *point) for one in past for point in zip(one["step"], one["time"], one["value"], strict=True)] == history
    notebook.run(SETUP)
    notebook.run(TRAIN.replace("loss.backward()", "losses.append(loss.item()); loss.backward()"))
    assert shown[:12] == [pytest.approx(loss, abs=1e-9) for loss in notebook.value("losses")]
    for comm in (telemetry, commands):
        notebook.close_comm(comm)


def test_the_line_of_the_cell_that_takes_long_is_told(notebook):
    telemetry = notebook.open_comm(TELEMETRY_TARGET)
    notebook.run("import jupyter_dtrain, time" + SETUP)
    slow = TRAIN.replace("range(2)", "range(100_000)").replace("optimizer.step()\n", "optimizer.step()\n        time.sleep(0.03)\n")
    cell = notebook.start("%%distribute --engines 2 --name slow" + slow)

    def lines():
        told = [message for data in notebook.heard(telemetry) for message in data["messages"] if message["type"] == "time_split"]
        return {(one["rank"], one["busiest_line"], one["busiest_code"]) for one in told if one["busiest_line"]}

    notebook.wait(lambda: {rank for rank, *_ in lines()} == {0, 1}, "a line of each rank", cell)
    notebook.interrupt()
    notebook.finish(cell)
    assert {told[1:] for told in lines()} == {(8, "time.sleep(0.03)")}
    notebook.close_comm(telemetry)


def test_the_last_run_is_told_by_status(notebook):
    notebook.run(SETUP)
    notebook.run(f"%%distribute --engines 2 --name status{TRAIN}")
    last = notebook.run("%distribute status").stdout.splitlines()[-1]
    loss = notebook.value("loss.item()")
    assert last.startswith("status: finished, 12 steps in ")
    assert last.endswith(f", loss {loss:.4g}")


def test_a_cell_that_cannot_be_sent_is_no_run(notebook, store):
    before = len(store.list_runs())
    notebook.run("import threading\nlock = threading.Lock(); lock.acquire()")
    notebook.fail("%%distribute --engines 2\nlock")
    assert len(store.list_runs()) == before


MADE_IN_THE_CELL = """%%distribute --engines 2
torch.manual_seed(4)
net = Net()
adam = torch.optim.Adam(net.parameters(), lr={lr})
decay = torch.optim.lr_scheduler.ExponentialLR(adam, gamma=0.5)
for x, y in DataLoader(loader.dataset, batch_size={batch}, shuffle=True):
    adam.zero_grad()
    step(net, x, y)
    adam.step()
decay.step()
jupyter_dtrain.config(note="mine", warm=True)
"""
FUNCTIONS = """
import jupyter_dtrain
def step(net, x, y):
    loss = F.mse_loss(net(x), y)
    loss.backward()

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        return self.layer(x)
"""


def test_hyperparameters_are_recorded_without_a_word_and_compare_names_them(notebook, store):
    notebook.run(SETUP)
    notebook.run(FUNCTIONS)
    notebook.run("%%distribute --engines 2 --name sgd" + TRAIN)
    values = store.list_runs()[-1].hyperparameters
    expected = {
        "seed": 1,
        "optimizer": "SGD",
        "optimizer.lr": 0.1,
        "optimizer.momentum": 0,
        "optimizer.dampening": 0,
        "optimizer.weight_decay": 0,
        "model": "Sequential",
        "model.parameters": 65,
        "batch_size": 8,
        "dataset": "TensorDataset",
        "dataset.size": 45,
        "shuffle": True,
        "scheduler": "StepLR",
        "scheduler.step_size": 1,
        "scheduler.gamma": 0.5,
    }
    assert values == expected

    def run(lr=0.01, batch=16):
        notebook.run(SETUP)
        notebook.run(MADE_IN_THE_CELL.format(lr=lr, batch=batch))
        return store.list_runs()[-1]

    def changed(before, after):
        comparison = compare(before, after)
        return (
            {change.name for change in comparison.hyperparameters},
            {change.name for change in comparison.changes},
            [function.name for function in comparison.functions],
        )

    first = run()
    assert {name: first.hyperparameters[name] for name in ("seed", "optimizer", "optimizer.lr", "scheduler", "note", "warm")} == {
        "seed": 4,
        "optimizer": "Adam",
        "optimizer.lr": 0.01,
        "scheduler": "ExponentialLR",
        "note": "mine",
        "warm": True,
    }
    sgd = store.list_runs()[-2]
    assert {"optimizer", "optimizer.lr", "batch_size"} <= changed(sgd, first)[0]
    assert (first.hyperparameters["model"], first.hyperparameters["model.parameters"]) == ("Net", 7)
    assert set(first.functions()) == {"Net", "step"}
    assert changed(first, run()) == (set(), set(), [])
    assert changed(first, run(lr=0.02))[0] == {"optimizer.lr"}
    assert changed(first, run(batch=32))[0] == {"batch_size"}
    notebook.run(FUNCTIONS.replace("loss.backward()", "(2 * loss).backward()"))
    assert changed(first, run()) == (set(), set(), ["step"])
    notebook.run("torch.manual_seed(2)")
    notebook.run("%%distribute --engines 2 --name sgd" + TRAIN)
    hyperparameters, changes, _ = changed(next(one for one in store.list_runs() if one.name == "sgd"), store.list_runs()[-1])
    assert hyperparameters == {"seed"}
    assert changes == {"random state"}


def test_a_program_that_distributes_itself_has_hyperparameters_too(notebook, store):
    notebook.run(SETUP)
    notebook.run("""%%distribute --engines 2 --strategy none
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
wrapped = DistributedDataParallel(model)
for x, y in loader:
    F.mse_loss(wrapped(x), y).backward()
    optimizer.step()
""")
    values = store.list_runs()[-1].hyperparameters
    names = ("optimizer", "optimizer.lr", "model", "model.parameters", "batch_size")
    assert [values[name] for name in names] == ["SGD", 0.1, "Sequential", 65, 8]
