"""What a run replaces of libraries is the libraries' own again: after a cell that succeeds, that fails, that is interrupted.

All of their functions, classes and descriptors are compared, among them each of the table of `jupyter_dtrain.system.patches`.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.notebook.kernel import SESSION

SETUP = """
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 1)), batch_size=6, shuffle=True)
import time
pace = 0.0
"""
CELL = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item())
    time.sleep(pace)
    {last}
"""


@pytest.fixture(scope="module")
def notebook(shared_notebook):
    opened = shared_notebook
    opened.run(SETUP + "from tests.notebook.entry_points import listed, look, remember, replace, put_back")
    opened.run("%%distribute\n" + CELL.format(last=""))  # imports what it imports
    assert min(on_two(opened, "remember")) > 10_000
    return opened


def on_two(notebook, function: str) -> Any:
    """Return what a function returns on the first engine and on another: all of the others do the same, and each takes a second."""
    return notebook.value(f"(lambda cluster: cluster.client[cluster.engine_ids[:2]].apply_sync({function}))({SESSION}.get().cluster)")


def replaced(notebook) -> list[list[str]]:
    found: list[list[str]] = on_two(notebook, "look")
    return found


def test_each_of_the_table_is_among_them(notebook):
    for count, absent in on_two(notebook, "listed"):
        assert count > 250
        assert not absent, absent


def test_they_are_seen_where_one_is_replaced(notebook):
    on_two(notebook, "replace")
    assert replaced(notebook) == [["builtins.open"]] * 2
    on_two(notebook, "put_back")
    assert replaced(notebook) == [[]] * 2


def test_they_are_pickled_in_a_cell_as_in_a_notebook(notebook):
    notebook.run("from tests.notebook.entry_points import unpicklable\ndef reads(path):\n    return open(path).read()")
    notebook.run("import cloudpickle\nfound, sent = unpicklable(), len(cloudpickle.dumps(reads))")
    plain = notebook.value("found")
    notebook.run("%%distribute\nfound, sent = unpicklable(), len(cloudpickle.dumps(reads))")
    assert set(notebook.value("found")) <= set(plain)  # a part of NumPy cannot be in either
    assert notebook.value("sent") > 0


def test_a_file_is_written_once_by_other_names_of_open(notebook):
    notebook.run("import builtins, io\nwrites, adds = builtins.open, io.open")
    notebook.run(
        "%%distribute\nwith adds('both', 'a') as file:\n    file.write('once')\nwith writes('both', 'a') as file:\n    file.write(' each')"
    )
    assert (notebook.folder / "both").read_text() == "once each"


@pytest.mark.parametrize("options", ["", "--strategy zero1", "--semantics local", "--checkpoint-activations", "--rng per-rank"])
def test_after_a_cell(notebook, options):
    notebook.run(f"%%distribute {options}\n" + CELL.format(last=""))
    assert replaced(notebook) == [[]] * 2


def test_after_an_error(notebook):
    cell = notebook.fail("%%distribute\n" + CELL.format(last="raise KeyError('of the cell')"))
    assert cell.error[0] == "KeyError"
    assert replaced(notebook) == [[]] * 2


def test_after_an_interrupt(notebook):
    notebook.run("pace = 0.5")
    cell = notebook.start("%%distribute\n" + CELL.format(last=""))
    notebook.wait_for_stdout(cell, ".")
    notebook.interrupt()
    notebook.finish(cell)
    notebook.run("pace = 0.0")
    assert cell.error[0] in {"KeyboardInterrupt", "CellInterrupted"}
    assert replaced(notebook) == [[]] * 2
