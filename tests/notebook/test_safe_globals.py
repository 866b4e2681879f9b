"""What a cell has allowed `torch.load` to read, the next one may read as well, in the notebook or on engines."""

from __future__ import annotations

CELL = "%%distribute --engines 2\n"
SAVED = """
import argparse, pathlib
class Conf:
    def __init__(self, width): self.width = width
torch.save({"conf": Conf(3), "args": argparse.Namespace(depth=2)}, "both.pt")
def width(): return torch.load("both.pt")["conf"].width
def listed(): return sorted(kind.__name__ for kind in torch.serialization.get_safe_globals() if kind in (Conf, argparse.Namespace))
"""


def test_the_notebooks_entries_are_there_in_a_cell(notebook):
    notebook.run(SAVED)
    assert "Unsupported global" in notebook.fail(f"{CELL}width()").error[1]
    notebook.run("torch.serialization.add_safe_globals([Conf, argparse.Namespace])")
    assert notebook.run(f"{CELL}both = torch.load('both.pt')\n(width(), type(both['conf']) is Conf, listed())").result == (
        "(3, True, ['Conf', 'Namespace'])"
    )
    assert notebook.value("(both['conf'].width, type(both['conf']) is Conf, both['args'].depth)") == (3, True, 2)
    notebook.run("torch.serialization.clear_safe_globals()")
    assert "Unsupported global" in notebook.fail(f"{CELL}width()").error[1]
    assert notebook.value("listed()") == []


def test_entries_of_a_cell_are_there_in_the_notebook_and_in_the_next_cell(notebook):
    notebook.run(SAVED)
    notebook.run(f"{CELL}torch.serialization.add_safe_globals([Conf, argparse.Namespace])\nwidth()")
    assert notebook.value("(width(), listed())") == (3, ["Conf", "Namespace"])
    assert notebook.run(f"{CELL}width()").result == "3"
    notebook.run(f"{CELL}with torch.serialization.safe_globals([pathlib.PurePath]):\n    pass\ntorch.serialization.clear_safe_globals()")
    assert notebook.value("listed()") == []
    assert "Unsupported global" in notebook.fail("width()").error[1]
