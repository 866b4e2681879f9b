"""Dask in a notebook: a cell computes collections on the cluster that the notebook has a client of."""

from __future__ import annotations

import psutil
import pytest

from tests.notebook.conftest import IMPORTS

SETUP = """
import dask.array as da
from dask.distributed import Client, LocalCluster
client = Client(LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None))
data = da.random.default_rng(0).normal(size=(48, 5), chunks=(12, 5)).persist()
size = client.submit(len, "abc")
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """
losses = []
for block in data.blocks:
    rows = torch.from_numpy(block.compute())
    for x, y in DataLoader(TensorDataset(rows[:, :4], rows[:, 4:]), batch_size=4):
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
mean = client.submit(sum, losses)
print(len(losses), size.result(), data.sum().compute())
"""
END = "client.cluster.close()\nclient.close()"


@pytest.fixture
def with_client(notebook):
    """The shared notebook with a client of a cluster of processes."""
    notebook.run(IMPORTS + SETUP)
    yield notebook
    notebook.run(END)


def test_collections_and_futures_of_the_notebooks_cluster(with_client):
    notebook = with_client
    notebook.run("import copy\nbefore = copy.deepcopy(model.state_dict())")
    plain = notebook.run(TRAIN)
    expected = notebook.value("(losses, model.state_dict())")
    notebook.run("model.load_state_dict(before)")
    cell = notebook.run("%%distribute --engines 2\n" + TRAIN)
    assert (cell.stdout, cell.stderr) == (plain.stdout, "")
    losses, state = notebook.value("(losses, model.state_dict())")
    assert losses == pytest.approx(expected[0], rel=1e-12)
    assert state["weight"].tolist() == [pytest.approx(row, rel=1e-12) for row in expected[1]["weight"].tolist()]
    assert notebook.value("mean.result()") == pytest.approx(sum(losses))  # a future that the cell has made


SLOW = """
import time
from jupyter_dtrain.integrations import dask as integration
original = integration._future

def slow(*args):
    time.sleep(1)
    return original(*args)

integration._future = slow
"""


@pytest.mark.long
def test_a_future_of_the_cell_is_there_when_the_notebook_reads_it_late(with_client):
    notebook = with_client
    notebook.run(SLOW)
    try:
        notebook.run(f"%%distribute --engines 2\n{TRAIN}total = client.submit(sum, [len(losses), 5])")
    finally:
        notebook.run("integration._future = original")
    assert notebook.value("total.result(timeout=30)") == 17
    forgotten = notebook.value("total.key")
    notebook.run("del total")
    wanted = f"{forgotten!r} in client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.tasks))"
    notebook.wait(lambda: not notebook.value(wanted), "the scheduler's forgetting it")


ROWS = """
import numpy as np, pandas as pd, dask.dataframe as dd
from jupyter_dtrain import data as tables
frame = pd.DataFrame({"a": np.arange(60.0) / 60, "y": np.arange(60) % 7 / 7})
rows = tables.from_dask(dd.from_pandas(frame, npartitions=4), features=["a"], target=["y"], seed=1)
def make():
    global net, steps
    torch.manual_seed(0)
    net, steps = nn.Linear(1, 1), []
    return rows.loader(batch_size=8), torch.optim.SGD(net.parameters(), lr=0.1)
"""
ON_ROWS = """
for x, y in loader:
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps.append(loss.item())
"""


def test_partitions_are_computed_by_the_notebooks_cluster(with_client):
    notebook = with_client
    notebook.run(f"{ROWS}\nloader, optimizer = make()\n{ON_ROWS}")
    expected = notebook.value("steps")
    notebook.run("loader, optimizer = make()")
    assert notebook.run(f"%%distribute --engines 2\n{ON_ROWS}").stderr == ""
    assert notebook.value("steps") == pytest.approx(expected, rel=1e-12)
    persisted = notebook.fail('tables.from_dask(dd.from_pandas(frame, npartitions=2).persist(), features="a")')
    assert "from before `persist()`" in persisted.error[1]


def test_a_cluster_that_no_other_process_reaches_is_named(notebook):
    notebook.run("from dask.distributed import Client\ninside = Client(processes=False, dashboard_address=None, set_as_default=False)")
    cell = notebook.fail("%%distribute --engines 2\nprint(inside.submit(len, 'ab').result())")
    name, message = cell.error
    assert name == "CaptureError"
    assert "'inside' (a Client), which cannot be sent to the engines" in message
    assert "processes=True makes one that others reach" in message
    notebook.run("inside.close()")
    made = "own = Client(n_workers=1, threads_per_worker=1, dashboard_address=None)\nprint(own.submit(len, 'ab').result())"
    cell = notebook.run("%%distribute --engines 2\n" + made)
    assert cell.stdout == "2\n"
    assert "own" in cell.stderr
    assert "its cluster ends with the cell" in cell.stderr


BESIDE = """
import os, numpy as np, pandas as pd, dask.array as da, dask.bag as db, dask.dataframe as dd
from distributed import default_client
from jupyter_dtrain import data as tables
def noted(part):
    with open("computed-by", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return part
frame = dd.from_pandas(pd.DataFrame({"a": np.arange(60.0) / 60, "y": np.arange(60) % 7 / 7}), npartitions=4)
inputs = da.from_array(np.arange(60.0)[:, None] / 60, chunks=(13, 1))
targets = da.from_array(np.arange(60.0)[:, None] % 7 / 7, chunks=(13, 1))
bag = db.from_sequence([(row / 60, row % 7 / 7) for row in range(60)], npartitions=4)
as_tensors = lambda item: (torch.tensor(item[:1]), torch.tensor(item[1:]))
COLLECTIONS = {
    "frame": lambda: tables.from_dask(frame.map_partitions(noted, meta=frame._meta), features=["a"], target=["y"], seed=1),
    "array": lambda: tables.from_dask(inputs.map_blocks(noted, meta=inputs._meta), target=targets, seed=1),
    "bag": lambda: tables.from_dask(bag.map_partitions(noted), transform=as_tensors, seed=1),
}
def make():
    global net, steps
    torch.manual_seed(0)
    net, steps = nn.Linear(1, 1), []
    return torch.optim.SGD(net.parameters(), lr=0.1)
"""


@pytest.mark.long
def test_workers_beside_the_engines_compute_partitions_and_end_with_them(module_notebook):
    notebook = module_notebook()
    notebook.run(IMPORTS + BESIDE)
    notebook.run("%distribute start -n 2 --device cpu --dask-workers 2")
    workers = "list(default_client().run(os.getpid).values())"
    pids = set(notebook.value(workers))
    assert len(pids) == 2
    notebook.run("%distribute start -n 2 --dask-workers 2")  # there they are
    assert set(notebook.value(workers)) == pids
    assert "`%distribute stop` ends them" in notebook.fail("%distribute start -n 2 --dask-workers 3").error[1]
    for kind in ("frame", "array", "bag"):
        notebook.run(f"rows = COLLECTIONS[{kind!r}]()\nloader, optimizer = rows.loader(batch_size=8), make()\n{ON_ROWS}")
        expected = notebook.value("steps")
        notebook.run("loader, optimizer = rows.loader(batch_size=8), make()\nopen('computed-by', 'w').close()")
        assert notebook.run(f"%%distribute --engines 2\n{ON_ROWS}").stderr == ""
        assert notebook.value("steps") == pytest.approx(expected, rel=1e-9)
        computed_by = {int(pid) for pid in (notebook.folder / "computed-by").read_text().split()}
        assert computed_by and computed_by <= pids
    processes = psutil.Process(notebook.manager.provisioner.pid).children(recursive=True)
    below = {one.pid for one in processes if "dask" in str(one.cmdline())} | pids
    assert len(below) >= 4  # with the scheduler, and what watches over the workers
    notebook.run("%distribute stop")
    assert not any(psutil.pid_exists(pid) for pid in below)
    assert notebook.fail("default_client()").error[0] == "ValueError"
    notebook.run("loader, optimizer = rows.loader(batch_size=8), make()")
    notebook.run(f"%%distribute --engines 2 --device cpu\n{ON_ROWS}")  # each engine computes by itself
    assert notebook.value("steps") == pytest.approx(expected, rel=1e-9)
