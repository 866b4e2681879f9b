"""A module beside the notebook that a cell is the first to import is the cell's in the notebook, and not executed again."""

import importlib
import inspect
import pickle
import sys

import pytest
import torch

CODE = """
import enum, threading
from dataclasses import dataclass
import torch
from torch import nn
print("loading")
with open("loaded", "a") as file: file.write("x")
W = torch.rand(2)
STATE = {"n": 0}
LOCK = threading.Lock()
class Kind(enum.Enum): A = 1
class Net(nn.Linear): kind = Kind.A
@dataclass
class Item: n: int
nn.Module.marked_by_m = lambda self: type(self).__name__
def bump():
    global last
    STATE["n"] += 1
    last = STATE["n"]
    return last
def of_m(): return bump() * 10
"""
PACKAGE = {
    "pack/__init__.py": "print('pack')\nALL = []\n",
    "pack/part.py": "from . import ALL\nALL.append('part')\ndef add(x): ALL.append(x)\n",
}
OURS = ("m", "pack", "others", "held", "caches", "named")


@pytest.fixture
def folder(notebook, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path / "notebook"))
    before = set(sys.modules)
    (tmp_path / "notebook" / "m.py").write_text(CODE)
    (tmp_path / "notebook" / "pack").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "notebook" / name).write_text(text)
    yield tmp_path / "notebook"
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in OURS:
            del sys.modules[name]
    if hasattr(torch.nn.Module, "marked_by_m"):
        del torch.nn.Module.marked_by_m
    notebook.names.clear()
    notebook.distribute(f"import sys\nfor name in list(sys.modules):\n    if name.partition('.')[0] in {OURS}: del sys.modules[name]")


def test_it_has_the_state_that_the_cell_has_left(notebook, folder, capsys):
    torch.manual_seed(3)
    expected = torch.rand(5)
    torch.manual_seed(3)
    notebook.distribute("""
    import m
    from m import bump, Net as N, Item
    bump(); n = m.of_m(); w = m.W.clone(); net = N(2, 1); item = Item(m.bump())
    """)
    m = notebook.names["m"]
    assert capsys.readouterr().out == ""
    assert (folder / "loaded").read_text() == "x"
    assert sys.modules["m"] is m is importlib.import_module("m")
    assert (m.STATE, m.last, notebook.names["n"], notebook.names["item"]) == ({"n": 3}, 3, 20, m.Item(3))
    assert torch.equal(m.W, expected[:2])
    assert torch.equal(m.W, notebook.names["w"])
    assert m.bump is notebook.names["bump"]
    assert m.Net is notebook.names["N"] is type(notebook.names["net"])
    assert m.bump.__globals__ is vars(m)
    assert notebook.plain("bump(); m.STATE['n'], m.last") == (4, 4)
    assert "STATE" in inspect.getsource(m.bump)
    assert pickle.loads(pickle.dumps([m.Item(2), m.bump, m.Kind.A])) == [m.Item(2), m.bump, m.Kind.A]
    assert notebook.names["net"].marked_by_m() == "Net"  # what it has set in a library
    notebook.distribute("import m; m.bump(); m.W += 1; net.bias")
    assert m.STATE == {"n": 5}
    assert torch.equal(m.W, notebook.names["w"] + 1)
    assert (folder / "loaded").read_text() == "x"
    assert importlib.reload(m).STATE == {"n": 0}  # as long as nobody says so


def test_random_numbers_go_on_from_the_cells(notebook, folder):
    torch.manual_seed(3)
    notebook.distribute("import torch, m; b = torch.rand(1)")
    after = torch.rand(1)
    torch.manual_seed(3)
    found = torch.rand(2), torch.rand(1), torch.rand(1)
    assert (notebook.names["m"].W.tolist(), notebook.names["b"].item(), after.item()) == (
        found[0].tolist(),
        found[1].item(),
        found[2].item(),
    )


@pytest.mark.parametrize(
    "cell",
    [
        "from m import bump; bump()",
        "def f():\n    import m; m.bump()\nf()",
        "import importlib; importlib.import_module('m').bump()",
        "import m as other; other.bump(); del other",
        "from m import *; bump()",
    ],
)
def test_however_it_is_imported(cell, notebook, folder, capsys):
    notebook.distribute(cell)
    assert notebook.plain("import m; m.STATE.copy(), m.bump()") == ({"n": 1}, 2)
    assert (folder / "loaded").read_text() == "x"
    assert capsys.readouterr().out == ""


def test_a_package_with_its_parts(notebook, folder, capsys):
    notebook.distribute("import pack.part as p; p.add(1); from pack import ALL")
    assert notebook.plain("import pack; pack.part is p, pack.ALL is ALL is p.ALL, ALL") == (True, True, ["part", 1])
    (folder / "pack" / "later.py").write_text("from .part import ALL\n")
    importlib.invalidate_caches()
    assert notebook.plain("import pack.later; pack.later.ALL is ALL") is True
    assert capsys.readouterr().out == ""


def test_a_part_of_a_package_that_the_notebook_has(notebook, folder):
    notebook.plain("import pack; pack.ALL.append('mine')")
    notebook.distribute("import pack.part; pack.part.add(2)")
    assert notebook.plain("pack.ALL, pack.part.ALL is pack.ALL") == (["mine", "part", 2], True)


def test_one_that_cannot_come_is_imported_and_spoken_of(notebook, folder, capsys):
    (folder / "held.py").write_text("import sys, torch\nprint('held'); torch.rand(3)\nFRAME = sys._getframe()\nN = []\n")
    torch.manual_seed(5)
    notebook.distribute("import held; held.N.append(1); import torch; b = torch.rand(1)")
    after = torch.rand(1)
    assert list(notebook.not_returned) == ["held.__dict__"]
    assert notebook.names["held"].N == []
    assert capsys.readouterr().out == ""
    torch.manual_seed(5)
    assert (notebook.names["b"].item(), after.item()) == tuple(torch.rand(5)[3:].tolist())


def test_a_file_that_is_edited_is_imported_again(notebook, folder):
    (folder / "others.py").write_text("VALUE = 1\n")
    notebook.distribute("import others; n = others.VALUE")
    others = notebook.names["others"]
    (folder / "others.py").write_text("VALUE = 1000\n")
    notebook.distribute("import others; n = others.VALUE")
    assert (notebook.names["n"], notebook.names["others"].VALUE) == (1000, 1000)
    assert others is notebook.names["others"] is sys.modules["others"]


def test_cached_functions_of_a_module_come_with_their_cache(notebook, folder):
    (folder / "caches.py").write_text("import functools\ncalls = []\n@functools.lru_cache\ndef size(n): calls.append(n); return n * 2\n")
    notebook.distribute("import caches\ncaches.size(3), caches.size(3)")
    assert notebook.plain("caches.size(3), caches.calls, caches.size.cache_info()[:2]") == (6, [3], (2, 1))
    notebook.distribute("import caches\ncaches.size(3), caches.size(4)")  # and go to the engines as well
    assert notebook.plain("caches.calls, caches.size.cache_info()[:2]") == ([3, 4], (3, 2))
    assert notebook.unread == notebook.not_returned == {}


def test_one_with_what_is_pickled_by_its_name_is_imported_and_spoken_of(notebook, folder, capsys):
    code = "print('named')\nN = []\nclass Mark:\n    def __reduce__(self): return 'MARK'\nMARK = Mark()\n"
    (folder / "named.py").write_text(code + "from typing import NewType\nKey = NewType('Key', int)\n")
    notebook.distribute("import named; key = named.Key(4); named.N.append(1)")
    assert notebook.unread == {}
    assert notebook.names["named"].N in ([], [1])
    assert (notebook.names["named"].N == []) == bool(notebook.not_returned)
    assert capsys.readouterr().out == ""
