"""What functions take where they are given nothing is the notebook's in a cell, and what a cell sets of it is there afterwards."""

from __future__ import annotations

import sys

import pytest

from tests.unit.test_copy_restore import Case, comparable

LIBRARY = """
N = 3


def compute():
    return N * 2


def f(x, n=compute()):
    return x + n


def g(x, *, n=compute()):
    return x + n


class Net:
    def __init__(self, width=compute()):
        self.width = width

    def forward(self, x, scale=compute()):
        return x * scale
"""
SETUP = "import sys\nsys.modules.pop('defaultslib', None)\nimport defaultslib\n"
OWN = "def compute(): return 4\ndef f(x, n=compute()): return x + n\ndef g(x, *, n=compute()): return x + n\ndef compute(): return 9\n"
CASES = {
    "value of a call": Case(OWN, "k = f(1), g(1)", "k"),
    "mutable": Case("def f(x, xs=[]):\n    xs.append(x); return list(xs)\nf(1)", "k = f(2)", "k, f(3)"),
    "shared": Case("import torch\nw = torch.ones(2)\ndef f(w=w): return w.sum().item()", "w += 1; k = f()", "k, f()"),
    "set": Case(OWN + "f.__defaults__ = (5,); g.__kwdefaults__ = {'n': 7}", "k = f(1), g(1)", "k"),
    "set in the cell": Case(OWN, "f.__defaults__ = (6,); g.__kwdefaults__['n'] = 7; k = f(1), g(1)", "k, f(1), g(1)"),
    "all set in the cell": Case(OWN, "f.__defaults__ = None; g.__kwdefaults__ = {'n': 7}; f.note = 1", "f.__defaults__, f.note, g(1)"),
    "of a method set in the cell": Case(
        "class A:\n    def f(self, n=1): return n\na = A()", "A.f.__defaults__ = (3,); k = a.f()", "k, a.f(), A().f()"
    ),
    "library's": Case(SETUP + "defaultslib.N = 10", "k = defaultslib.f(1), defaultslib.compute()", "k"),
    "library's set": Case(SETUP + "defaultslib.f.__defaults__ = (50,)", "k = defaultslib.f(1)", "k, defaultslib.f(1)"),
    "library's set by a name": Case(SETUP + "from defaultslib import f\nf.__defaults__ = (50,)", "k = f(1), f is defaultslib.f", "k"),
    "library's by keyword": Case(SETUP + "defaultslib.g.__kwdefaults__['n'] = 50", "k = defaultslib.g(1)", "k"),
    "library's dict by keyword": Case(SETUP + "defaultslib.g.__kwdefaults__ = {'n': 50}", "k = defaultslib.g(1)", "k"),
    "library's constructor": Case(SETUP + "defaultslib.Net.__init__.__defaults__ = (99,)", "k = defaultslib.Net().width", "k"),
    "library's method": Case(
        SETUP + "net = defaultslib.Net()\ndefaultslib.Net.forward.__defaults__ = (7,)", "k = net.forward(1), net.width", "k"
    ),
    "library's attribute": Case(SETUP + "defaultslib.f.calls = 3", "k = defaultslib.f.calls", "k"),
    "library's by setattr": Case(SETUP + "setattr(defaultslib.f, '__defaults__', (50,))", "k = defaultslib.f(1)", "k"),
}


@pytest.fixture
def library(tmp_path_factory, monkeypatch):
    """A library that is installed."""
    folder = tmp_path_factory.getbasetemp() / "installed-defaults"
    folder.mkdir(exist_ok=True)
    (folder / "defaultslib.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("defaultslib", None)


@pytest.mark.parametrize("name", CASES)
def test_a_default_is_the_notebooks(name, library, notebook, other_notebook):
    case = CASES[name]
    other_notebook.plain(case.setup)
    other_notebook.plain(case.cell)
    expected = comparable(other_notebook.plain(case.probe))
    notebook.names["In"] = ["", case.setup]
    notebook.plain(case.setup)
    notebook.distribute(case.cell)
    assert comparable(notebook.plain(case.probe)) == expected
    notebook.plain("f = g = net = None\nimport sys\nsys.modules.pop('defaultslib', None)")
    notebook.names["In"] = [""]
    notebook.distribute(
        "import defaultslib\nleft = defaultslib.f(1), defaultslib.g(1), defaultslib.Net().width, defaultslib.Net().forward(1)"
    )
    assert notebook.names["left"] == (7, 7, 6, 6)
    notebook.plain("del defaultslib, left")
