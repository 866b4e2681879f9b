"""Rows of files over a lost engine and over resumes in the middle of an epoch, on other numbers of engines: each is used once."""

from __future__ import annotations

import os
import signal

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import difference
from tests.notebook.test_data import FEATURES, TABLE, TRAIN

PACED = """
import os, time
def pace():
    with open("steps", "ab") as file:
        file.write(b".")
    stops = [stop for stop in (1, 2) if len(used) > stop * every and not os.path.exists(f"stop{stop}")]
    time.sleep(0.3 if stops else 0.02)
"""
CELL = TRAIN + "        pace()\n"
LOADER = f'data.parquet("taxi", {FEATURES}).loader(batch_size=48)'
STATE = "(used, losses, [p.detach() for p in model.parameters()])"


@pytest.fixture(scope="module")
def table(two):
    """A notebook with a table, and what training on it comes to in one process."""
    with two.lent() as notebook:
        notebook.run(TABLE + PACED)
        notebook.run(f"make()\nloader = {LOADER}\n{TRAIN}")
        expected = notebook.value(STATE)
        for epoch in range(2):
            assert sorted(row for batch in expected[0][14 * epoch :][:14] for row in batch) == list(range(633))
        yield notebook, expected


def lose_an_engine(notebook, cell_text, at_step):
    """Run a cell, kill rank 1 at a step, and let the cell go on to its end."""
    notebook.run("%distribute start -n 2 --device cpu")
    pids, steps = notebook.engines(), notebook.folder / "steps"
    steps.unlink(missing_ok=True)  # a plain cell has made them
    notebook.run(f"make()\nevery = 3\nloader = {LOADER}")
    cell = notebook.start(cell_text)
    notebook.wait(lambda: not cell.running or (steps.exists() and steps.stat().st_size >= at_step), f"step {at_step}", cell)
    os.kill(pids[1], signal.SIGKILL)
    for stop in (1, 2):
        (notebook.folder / f"stop{stop}").touch()
    notebook.finish(cell)
    assert cell.ok, cell
    assert "Lost rank 1" in cell.stderr
    for name in ("stop1", "stop2", "steps"):
        (notebook.folder / name).unlink()


def test_killed_engine(table):
    notebook, expected = table
    lose_an_engine(notebook, f"%%distribute --engines 2\n{CELL}", 6)
    assert difference(notebook.value(STATE), expected) is None


PREDICT = """
model.eval()
with data.to_parquet("preds", part_rows=100) as preds, torch.no_grad():
    for x, target in loader:
        preds.append(row=target[:, 1], score=model(x))
        used.append(len(preds))
        pace()
"""
PREDICTED = '(used, pq.read_table("preds").to_pydict(), [path.name for path in sorted(Path("preds").iterdir())])'


@pytest.mark.long
def test_killed_engine_that_writes_predictions(table):
    notebook, _ = table
    notebook.run(f"make()\nevery = 99\nloader = {LOADER}\n{PREDICT}")
    expected = notebook.value(PREDICTED)
    assert expected[2] == [f"part-{number:06}.parquet" for number in range(5)]
    lose_an_engine(notebook, f"%%distribute --engines 2 --split-eval\n{PREDICT}", 10)
    assert difference(notebook.value(PREDICTED), expected) is None


@pytest.mark.long
@pytest.mark.parametrize(("every", "sizes"), [(5, (2, 3, 1)), (4, (4, 2, 4))], ids=["2 to 3 to 1", "4 to 2 to 4"])
@pytest.mark.timeout(400)
def test_resumed_twice_in_an_epoch_on_other_numbers_of_engines(table, new_notebook, every, sizes):
    """As torchtitan#816 (4 to 2 and 2 to 4 ranks) and KempnerForge#57 (two resumes in an epoch)."""
    notebook, expected = table
    name = f"taxi{every}"
    notebook.run(f"make()\nevery = {every}\nloader = {LOADER}")
    cell = notebook.start(f"%%distribute --engines {sizes[0]} --checkpoint-every {every} --name {name}\n{CELL}")
    for stop, engines in enumerate(sizes[1:], 1):
        checkpoint = f"dtrain-runs/*{name}*/checkpoints/step-{stop * every:06}"
        stopped = lambda cell=cell, pattern=checkpoint: not cell.running or list(table[0].folder.glob(pattern))  # noqa: E731
        notebook.wait(stopped, "a checkpoint", cell)
        assert cell.running, cell
        notebook.interrupt()
        notebook.finish(cell)
        (notebook.folder / f"stop{stop}").touch()
        notebook = new_notebook(notebook.folder)
        notebook.run("%load_ext jupyter_dtrain")
        cell = notebook.start(f"%distribute resume {name} -n {engines}")
    notebook.finish(cell)
    assert cell.ok, cell
    assert f"{name}: resuming from step {2 * every}." in cell.stderr
    assert difference(notebook.value(STATE), expected) is None
    for left in ("stop1", "stop2"):
        (notebook.folder / left).unlink()


ENDS = """
from torchdata.stateful_dataloader import StatefulDataLoader
torch.manual_seed(0)
rows = torch.arange(40.0)[:, None].double()
loader = StatefulDataLoader(TensorDataset(rows), batch_size=8, shuffle=True)
model = nn.Linear(1, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
used = []
def pace(step):
    time.sleep(0.3 if step > 5 and not os.path.exists("stopped") else 0.02)
"""
EPOCHS = """
for epoch in range(3):
    for x, in loader:
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        used.append((epoch, x[:, 0].tolist()))
        pace(len(used))
"""


@pytest.mark.long
@pytest.mark.timeout(400)
def test_resumed_at_the_end_of_an_epoch(new_notebook):
    """As verl#7401, where the loader was restored as exhausted and the next epoch was left out."""
    notebook = new_notebook()
    notebook.run(f"{IMPORTS}import os, time\n{ENDS}open('stopped', 'w').close()\n{EPOCHS}os.remove('stopped')")
    expected = notebook.value("(used, [p.detach() for p in model.parameters()])")
    notebook.run(ENDS)
    cell = notebook.start(f"%%distribute --engines 2 --checkpoint-every 5 --name ends\n{EPOCHS}")
    checkpoint = "dtrain-runs/*/checkpoints/step-000005"
    notebook.wait(lambda: not cell.running or list(notebook.folder.glob(checkpoint)), "a checkpoint", cell)
    assert cell.running, cell
    notebook.interrupt()
    notebook.finish(cell)
    (notebook.folder / "stopped").touch()
    again = new_notebook(notebook.folder)
    cell = again.run("%load_ext jupyter_dtrain\n%distribute resume ends@5 -n 1")
    assert "ends: resuming from step 5." in cell.stderr
    assert difference(again.value("(used, [p.detach() for p in model.parameters()])"), expected) is None
