"""Tables in files and collections feed a cell: the batches, weights and rows of one process, on any number of engines."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import difference

TABLE = """
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
import dask.dataframe as dd
from jupyter_dtrain import data
if not Path("taxi").exists():
    Path("taxi").mkdir()
    rng = np.random.default_rng(0)
    for part in range(3):
        x = rng.normal(size=(211, 4))
        table = pa.table({f"x{i}": x[:, i] for i in range(4)} | {
            "fare": x.sum(1) + 0.1 * rng.normal(size=211),
            "row": np.arange(211) + 211 * part,
            "place": [f"place {number % 7}" for number in range(211)],
        })
        pq.write_table(table, f"taxi/{part}.parquet", row_group_size=50)
        table.to_pandas().to_csv(f"taxi/{part}.csv", index=False)

def some(rows):
    return torch.utils.data.random_split(rows, [600, 33])[0]

def stack(rows):
    return [torch.stack(part) for part in zip(*rows)]

def make():
    global model, optimizer, used, losses
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    used, losses = [], []
"""
TRAIN = """
for epoch in range(2):
    for x, target in loader:
        fare, row = target[:, :1], target[:, 1]
        loss = F.mse_loss(model(x), fare)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        used.append(row.tolist())
        losses.append(loss.item())
"""
STATE = "(used, losses, [p.detach() for p in model.parameters()], torch.rand(2).tolist())"
FEATURES = 'features=["x0", "x1", "x2", "x3"], target=["fare", "row"]'
LOADERS = {
    "parquet": f'data.parquet("taxi/*.parquet", {FEATURES}).loader(batch_size=48)',
    "a stream of its own": f'data.parquet("taxi", {FEATURES}, seed=5, window=2).loader(batch_size=50, drop_last=True)',
    "sampler": f'(lambda rows: DataLoader(rows, batch_size=48, sampler=rows.sampler))(data.parquet("taxi", {FEATURES}))',
    "in the files' order": f'data.parquet("taxi", {FEATURES}, shuffle=False).loader(batch_size=48)',
    "a small cache": f'data.parquet("taxi", {FEATURES}, cache_bytes=5000).loader(batch_size=48)',
    "workers": f'data.parquet("taxi", {FEATURES}).loader(batch_size=48, num_workers=2)',
    "a transform that draws": f'data.parquet("taxi", {FEATURES}, transform=lambda x: x + 0.1 * torch.randn(4)).loader(batch_size=48)',
    "split in two": f'DataLoader(some(data.parquet("taxi", {FEATURES})), batch_size=48, shuffle=True)',
    "PyTorch's own order": f'DataLoader(data.parquet("taxi", {FEATURES}), batch_size=48, shuffle=True)',
    "csv": f'data.csv("taxi/*.csv", {FEATURES}, block_bytes=5000).loader(batch_size=48)',
    "dask": f'data.from_dask(dd.read_parquet("taxi"), {FEATURES}).loader(batch_size=48)',
    "a collate function": f'data.parquet("taxi", {FEATURES}).loader(batch_size=48, collate_fn=stack)',
}


@pytest.fixture(scope="module")
def with_table(shared_notebook):
    shared_notebook.run(IMPORTS + TABLE)
    return shared_notebook


ONE_MORE = ("parquet",)
"""Which are tried on one and two engines each time: the others on three, and with `pytest -m long`."""
RARE = ("in the files' order", "a small cache", "a collate function")
"""Which differ from others in what `tests/unit` has of them: `pytest -m long` tries them."""


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        *((name, (1, 2, 3) if name in ONE_MORE else (3,)) for name in LOADERS if name not in RARE),
        *(pytest.param(name, (3,), marks=pytest.mark.long) for name in RARE),
        *(pytest.param(name, (1, 2), marks=pytest.mark.long) for name in LOADERS if name not in ONE_MORE),
    ],
)
def test_loader_on_one_two_and_three_engines(with_table, name, numbers):
    loader = LOADERS[name]
    notebook = with_table
    notebook.run(f"make()\nloader = {loader}")
    notebook.run(TRAIN)
    expected = notebook.value(STATE)
    per_epoch = len(expected[0]) // 2
    for epoch in range(2):
        rows = [row for batch in expected[0][epoch * per_epoch :][:per_epoch] for row in batch]
        assert len(rows) == len(set(rows)) in (600, 633)
    for engines in numbers:
        notebook.run(f"make()\nloader = {loader}")
        cell = notebook.run(f"%%distribute --engines {engines}\n{TRAIN}")
        assert cell.stderr == ""
        assert difference(notebook.value(STATE), expected) is None


def test_loader_that_the_cell_makes(with_table):
    notebook = with_table
    cell = f"loader = {LOADERS['parquet']}\n{TRAIN}"
    notebook.run(f"make()\n{cell}")
    expected = notebook.value(STATE)
    notebook.run("make()")
    assert notebook.run(f"%%distribute --engines 2\n{cell}").stderr == ""
    assert difference(notebook.value(STATE), expected) is None


PREDICT = """
model.eval()
rows, scores = [], []
with data.to_parquet("preds", part_rows=200) as preds, torch.no_grad():
    for x, target in loader:
        score = model(x)
        rows.append(target[:, 1])
        scores.append(score)
        preds.append(row=target[:, 1], score=score, text=[f"row {row:.0f}" for row in target[:, 1]])
"""
FOUND = (
    '(pq.read_table("preds").to_pydict(), [path.name for path in sorted(Path("preds").iterdir())], len(preds), '
    "torch.cat(rows), torch.cat(scores))"
)


def test_predictions_come_in_the_order_of_the_loader(with_table):
    notebook = with_table
    notebook.run(f'make()\nloader = data.parquet("taxi", {FEATURES}, seed=3).loader(batch_size=48)\n{PREDICT}')
    expected = notebook.value(FOUND)
    assert sorted(expected[0]["row"]) == list(range(633)) and expected[0]["row"] == expected[3].tolist()
    assert expected[1] == [f"part-{number:06}.parquet" for number in range(3)]
    for engines, options in ((3, "--split-eval"), (2, "")):
        notebook.run(f'loader = data.parquet("taxi", {FEATURES}, seed=3).loader(batch_size=48)')
        notebook.run(f"%%distribute --engines {engines} {options}\n{PREDICT}")
        assert difference(notebook.value(FOUND), expected) is None


OPEN = """
def write(folder, rows):
    preds = data.to_parquet(folder, part_rows=200)
    for row in rows.split(7):
        preds.append(row)
    return preds
"""
VALUES = '[pq.read_table(folder)["value"].to_pylist() for folder in ("kept", "left")]'


def test_predictions_that_nobody_closes_are_whole_at_the_end_of_the_cell(with_table):
    """Those of a writer that comes home, to which the next cell adds, and of one that a function has let go."""
    notebook = with_table
    notebook.run(OPEN)
    cell = 'preds = write("kept", torch.arange(500))\nwrite("left", torch.arange(300))\nprint(len(preds))'
    for engines in (2, 3):
        assert notebook.run(f"%%distribute --engines {engines}\n{cell}").stderr == ""
        assert notebook.value(VALUES) == [list(range(500)), list(range(300))]
        assert notebook.run("%%distribute --engines 2\npreds.append(torch.arange(500, 503))").stderr == ""
        assert notebook.run("preds.append(torch.arange(503, 610))").stderr == ""
        assert notebook.value(VALUES)[0] == list(range(610))
        assert notebook.value('len(list(Path("kept").iterdir()))') == 3
    cell = notebook.fail(f"%%distribute --engines 2\n{cell}\nraise ZeroDivisionError")
    assert notebook.value(VALUES) == [list(range(500)), list(range(300))]


def test_file_that_vanishes_is_named_and_the_notebook_goes_on(with_table):
    notebook = with_table
    notebook.run(f"make()\nloader = {LOADERS['parquet']}\nPath('taxi/1.parquet').rename('away')")
    cell = notebook.fail(f"%%distribute --engines 2\n{TRAIN}")
    assert cell.error[0] == "DataError"
    assert "taxi/1.parquet cannot be read: the file is not there any more" in cell.error[1]
    notebook.run("Path('away').rename('taxi/1.parquet')")
    assert notebook.run("%%distribute --engines 2\n1 + 1").result == "2"


WORKERS = """
class Numbers(torch.utils.data.{kind}):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.full((3,), float(index)) + {noise}, torch.ones(1)
    def __iter__(self):
        return (self[index] for index in range(12))

torch.manual_seed(2)
loader = DataLoader(Numbers(), batch_size=4, {shuffle}num_workers=2, persistent_workers=True, multiprocessing_context="fork")
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
seen = []
"""
EPOCH = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append((x.sum().item(), loss.item(), torch.rand(1).item()))
"""


@pytest.mark.parametrize(
    ("kind", "shuffle", "noise", "order"),
    [
        ("Dataset", "shuffle=True, ", "0", "pddp"),  # p: an ordinary cell, d: a distributed one
        ("Dataset", "shuffle=True, ", "torch.rand(3)", "ddpp"),
        ("IterableDataset", "", "0", "pddp"),
    ],
)
def test_persistent_workers_of_ordinary_and_distributed_cells(notebook, kind, shuffle, noise, order):
    """A seed is drawn for workers once, and they go on drawing from the states of those before."""
    found = []
    for with_engines in (False, True):
        notebook.run(WORKERS.format(kind=kind, shuffle=shuffle, noise=noise))
        for cell in order:
            notebook.run(("%%distribute --engines 2\n" if with_engines and cell == "d" else "") + EPOCH)
        found.append(notebook.value("seen"))
    notebook.run("del loader")
    assert found[1] == [pytest.approx(values, rel=1e-9) for values in found[0]]


def test_persistent_workers_that_have_drawn_in_an_ordinary_cell_begin_anew_and_a_line_says_so(notebook):
    notebook.run(WORKERS.format(kind="Dataset", shuffle="", noise="torch.rand(3)"))
    notebook.run(EPOCH)
    cell = notebook.run("%%distribute --engines 2\n" + EPOCH)
    assert cell.stderr.count("Those of this cell started anew") == 1
    notebook.run("del loader")
