"""Cells that leave for the engine and come home: what is sent, what is not, and what is said about it."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import ast
import gc
import importlib
import os
import sys
import textwrap
import weakref
from types import ModuleType
from typing import Any

import pytest
import torch

from jupyter_dtrain.analysis.imports import modules_beside
from jupyter_dtrain.analysis.names import find_names
from jupyter_dtrain.capture.bundle import pack
from jupyter_dtrain.capture.random_state import RandomState
from jupyter_dtrain.errors import CaptureError
from tests.unit.other_side import CellFailed

# -- what cannot be sent ---------------------------------------------------------------------------------------------

# A notebook, a cell that uses `x`, and what the message says of the way to the culprit.
CULPRITS = {
    "global of a method": ("import zlib; z = zlib.compressobj()\nclass A:\n    def f(self): return z\nx = [A()]", "x[0].f()", "its [0] class A.f global 'z' is a Compress (TypeError"),
    "compressor": ("import zlib; x = zlib.compressobj()", "x.locked()", "line 1 uses 'x' (a Compress), which cannot be sent to the engines: TypeError"),
    "generator": ("x = (i for i in 'ab')", "list(x)", "'x' (a generator)"),
    "file": ("x = open('f.txt', 'w+')", "\n\nx.write('a')", "line 3 uses 'x' (a TextIOWrapper)"),
    "attribute": ("import zlib\nclass A: pass\nx = A(); x.a = A(); x.a.b = [1, {'k': zlib.compressobj()}]", "x", "its .a.b[1]['k'] is a Compress (TypeError: cannot pickle 'zlib.Compress'"),
    "list": ("import zlib; x = [1, (2, zlib.compressobj())]", "x[0]", "its [1][1] is a Compress"),
    "slot": ("import zlib\nclass A: __slots__ = ('gate',)\nx = A(); x.gate = zlib.compressobj()", "x", "its .gate is a Compress"),
    "closure": ("import zlib\ndef make():\n    gate = zlib.compressobj()\n    def f(): return gate\n    return f\nx = make()", "x()", "its variable 'gate' is a Compress"),
    "global": ("import zlib\ngate = zlib.compressobj()\ndef x(): return gate", "x()", "its global 'gate' is a Compress"),
    "global of a function that it calls": ("import zlib\ngate = zlib.compressobj()\ndef g(): return gate\ndef x(): return g()", "x()", "its global 'g' global 'gate' is a Compress"),
    "default": ("import zlib\ndef x(gate=zlib.compressobj()): return gate", "x()", "its default is a Compress"),
    "method": ("import zlib\ngate = zlib.compressobj()\nclass A:\n    def f(self): return gate\nx = A()", "x.f()", "Compress"),
    "class attribute": ("import zlib\nclass x: gate = zlib.compressobj()", "x.gate", "its .gate is a Compress"),
    "partial": ("import zlib\nfrom functools import partial\nx = partial(print, sep=zlib.compressobj())", "x()", "its .keywords['sep'] is a Compress"),
    "bound method": ("import zlib\nclass A:\n    def __init__(self): self.gate = zlib.compressobj()\n    def f(self): return 1\nx = A().f", "x()", "its .__self__.gate is a Compress"),
    "module": ("import torch, zlib\nx = torch.nn.Sequential(torch.nn.Linear(1, 1)); x[0].gate = zlib.compressobj()", "x", "its ._modules['0'].gate is a Compress"),
    "socket": ("import socket; x = socket.socket()", "x", "'x' (a socket)"),
    "database": ("import sqlite3; x = {'db': sqlite3.connect(':memory:')}", "x", "its ['db'] is a Connection"),
}  # fmt: skip


@pytest.mark.parametrize("name", CULPRITS)
def test_an_error_names_the_value_and_the_way_to_the_culprit(name, notebook):
    setup, cell, message = CULPRITS[name]
    notebook.plain(setup)
    with pytest.raises(CaptureError) as caught:
        notebook.distribute(cell)
    assert caught.value.name == "x"
    assert message in str(caught.value)
    assert "Make 'x' inside the cell instead" in str(caught.value)
    assert notebook.distribute("1 + 1") == 2, "the next cell runs"
    for culprit in (notebook.names["x"], *(notebook.names["x"].values() if name == "database" else ())):
        if name in ("file", "socket", "database") and hasattr(culprit, "close"):
            culprit.close()


def test_a_culprit_that_may_not_be_needed_is_left_out(notebook):
    notebook.plain("import zlib; loss = zlib.compressobj(); k = 2")
    assert notebook.distribute("for i in range(2):\n    loss = k\nprint(loss)\nloss") == 2
    assert notebook.sent.left_out.keys() == {"loss"}
    assert "cannot pickle 'zlib.Compress' object" in notebook.sent.left_out["loss"]
    assert notebook.names["loss"] == 2


def test_what_the_cell_assigns_first_stays_at_home(notebook):
    notebook.plain("import zlib; loss = zlib.compressobj()")
    assert notebook.distribute("loss = 1\nloss") == 1
    assert notebook.sent.left_out == {}
    assert notebook.names["loss"] == 1


def test_a_name_that_does_not_exist_is_the_cells_own_error(notebook):
    with pytest.raises(CellFailed, match="NameError: name 'nothing' is not defined"):
        notebook.distribute("\nnothing")


def test_a_loss_of_another_cell_has_no_graph_here(notebook):
    notebook.plain("import torch; w = torch.ones(1, requires_grad=True); loss = (w * 2).sum()")
    assert notebook.distribute("loss.item()") == 2.0
    with pytest.raises(CellFailed, match="This tensor's autograd graph is not available here"):
        notebook.distribute("loss.backward()")
    notebook.plain("loss.backward()")
    assert notebook.names["w"].grad.tolist() == [2.0], "the notebook's own graph is whole"


# -- what cannot come back -------------------------------------------------------------------------------------------


def test_what_cannot_come_back_is_named_and_the_rest_is_there(notebook):
    notebook.plain("import zlib; log = [1]; kept = [1]; class_ = type('C', (), {})\nobj = class_(); obj.n = 0")
    notebook.distribute(
        """
        gate = zlib.compressobj()
        number = 5
        log.append(zlib.compressobj())
        kept.append(2)
        obj.n = 1
        obj.gate = zlib.compressobj()
        """
    )
    assert notebook.not_returned.keys() == {"gate", "log", "obj.gate"}
    assert all("cannot pickle 'zlib.Compress' object" in reason for reason in notebook.not_returned.values())
    names = notebook.names
    assert (names["number"], names["log"], names["kept"], names["obj"].n) == (5, [1], [1, 2], 1)
    assert "gate" not in names
    assert not hasattr(names["obj"], "gate")


# -- how much is sent ------------------------------------------------------------------------------------------------


def test_what_did_not_change_costs_no_bytes(notebook):
    notebook.plain(
        """
        import torch, numpy as np, pandas as pd
        data = torch.zeros(1_000_000); array = np.zeros(1_000_000); frame = pd.DataFrame({"a": array})
        model = torch.nn.Linear(1000, 1000).requires_grad_(False)
        items = [[i] for i in range(1000)]
        """
    )
    total = notebook.distribute("float(data.sum() + array.sum() + frame['a'].sum() + model.bias.sum() * 0 + len(items))")
    assert total == 1000
    assert sum(buffer.nbytes for buffer in notebook.sent.packed.buffers) > 20_000_000
    assert notebook.num_returned_bytes() == 0
    assert len(notebook.returned.stream) < 1000


def test_what_changed_costs_its_own_bytes(notebook):
    notebook.plain("import torch, numpy as np; data = torch.zeros(1_000_000); small = torch.zeros(10); array = np.zeros(1000)")
    notebook.distribute("small += data[0] + 1; array[3] = 1; new = torch.ones(5)")
    assert notebook.num_returned_bytes() == 10 * 4 + 1000 * 8 + 5 * 4
    assert notebook.names["new"].tolist() == [1.0] * 5


LOOKED_UP = {
    "in the cell": ("", "globals()['k'] + eval('len(a)')"),
    "in a function": ("def f(name): return globals()[f'{name}'] + len(globals()['a'])", "f('k')"),
    "in a function within one": ("def f(name):\n    return [eval(text) for text in [name]][0]", "f('k + len(a)')"),
    "in the notebook as a module": ("", "import __main__\n__main__.k + len(vars(__main__)['a'])"),
    "in a module by its name": ("import sys\ndef f(name): return getattr(sys.modules[__name__], name)", "f('k') + len(f('a'))"),
    "in a method of an object in a list": (
        "class A:\n    def get(self, n): return eval(n)\nlearners = [A()]",
        "learners[0].get('k + len(a)')",
    ),
}


@pytest.mark.parametrize("name", LOOKED_UP)
def test_names_that_are_looked_up_by_a_text_are_sent(name, notebook):
    setup, cell = LOOKED_UP[name]
    notebook.plain(f"import zlib\na = [1]; k = 3; gate = zlib.compressobj()\n{setup}")
    assert notebook.distribute(cell) == 4
    assert notebook.sent.left_out.keys() == {"gate"}


def test_eval_of_the_notebooks_own_or_of_a_model_looks_up_nothing(notebook):
    notebook.plain(
        "import torch\na = [1]; model = torch.nn.Linear(1, 1)\ndef eval(model): return model.eval()\ndef f(): return eval(model)"
    )
    notebook.distribute("f()")
    assert all(obj is not notebook.names["a"] for obj in notebook.sent.tracked)


def test_only_what_the_cell_reads_is_sent(notebook):
    notebook.plain("a = [1]; b = [2]; k = 3\ndef f(): return g() + k\ndef g(): return 1")
    notebook.distribute("f() + len(a)")
    sent = notebook.sent.tracked
    names = notebook.names
    assert any(obj is names["a"] for obj in sent)
    assert any(obj is names["g"] for obj in sent)
    assert not any(obj is names["b"] for obj in sent)


# -- thirty cells ----------------------------------------------------------------------------------------------------


def test_cell_after_cell(notebook, other_notebook):
    """A notebook's life: objects go out and come home many times and are still the same ones."""
    setup = """
        import torch
        from torch import nn
        torch.manual_seed(0)
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 1).double()
                self.seen = []
            def forward(self, x):
                self.seen.append(len(x))
                return self.layer(x)
        model = Net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        history = {"loss": []}
        def step():
            x = torch.randn(4, 3, dtype=torch.float64)
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.item()
        """
    cells = ["loss = step(); history['loss'].append(loss); scheduler.step()", "best = min(history['loss']); copy = model"]
    probe = (
        "model.layer.weight.tolist(), optimizer.param_groups[0]['lr'], history, best, copy is model, model.seen, "
        "isinstance(model, Net), optimizer.param_groups[0]['params'][0] is model.layer.weight, torch.rand(1).item()"
    )
    notebook.plain(setup)
    other_notebook.plain(setup)
    random_state = RandomState.now()
    for _ in range(4):
        for cell in cells:
            notebook.distribute(cell)
        notebook.plain("step()")
    found = notebook.plain(probe)
    random_state.set()
    for _ in range(4):
        for cell in cells:
            other_notebook.plain(cell)
        other_notebook.plain("step()")
    assert found == other_notebook.plain(probe)
    assert len(found[2]["loss"]) == 4


def test_a_class_that_is_defined_again(notebook):
    notebook.plain("class A:\n    def f(self): return 1\na = A()")
    assert notebook.distribute("a.f()") == 1
    notebook.plain("class A:\n    def f(self): return 2\nb = A()")
    assert notebook.distribute("a.f(), b.f(), A().f(), type(a) is A, type(b) is A") == (1, 2, 2, False, True)
    notebook.distribute("made = A(); a.note = 'x'")
    assert type(notebook.names["made"]) is notebook.names["A"]
    assert notebook.names["a"].note == "x"


def test_a_function_that_is_defined_again(notebook):
    notebook.plain("def f(): return k\nk = 1\ndef g(): return f()")
    assert notebook.distribute("g()") == 1
    notebook.plain("def f(): return k * 10")
    assert notebook.distribute("g()") == 10
    notebook.plain("k = 2")
    assert notebook.distribute("k = 3\ng()") == 30
    assert notebook.plain("g()") == 30


# -- modules beside the notebook -------------------------------------------------------------------------------------


@pytest.fixture
def beside(notebook, tmp_path, monkeypatch):
    """Return a function that writes a module beside the notebook."""
    folder = tmp_path / "notebook"
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


def test_a_module_beside_the_notebook_goes_by_value(notebook, beside):
    beside(
        "nets.py",
        """
        import torch
        WIDTH = 3
        made = []
        class Net(torch.nn.Linear):
            def __init__(self):
                super().__init__(WIDTH, 1)
                made.append(self)
        def make():
            return Net()
        """,
    )
    notebook.plain("import nets; from nets import make, Net; first = make()")
    cell = "second = make(); third = nets.Net(); nets.WIDTH, isinstance(second, Net), type(third) is Net, len(nets.made), isinstance(first, Net)"
    assert notebook.distribute(cell.replace("; nets.WIDTH", "\nnets.WIDTH")) == (3, True, True, 3, True)
    names = notebook.names
    assert type(names["second"]) is sys.modules["nets"].Net
    assert [id(m) for m in sys.modules["nets"].made] == [id(names[n]) for n in ("first", "second", "third")]


def test_a_modules_globals_are_those_of_its_functions(notebook, beside):
    beside("config.py", "lr = 1.0\ncalls = 0\ndef rate():\n    global calls\n    calls += 1\n    return lr\n")
    beside("train.py", "import config\ndef scaled():\n    return config.rate() * 2\n")
    notebook.plain("import config, train; from config import rate")
    assert notebook.distribute("config.lr = 0.5\nrate(), train.scaled(), config.calls, train.config is config") == (0.5, 1.0, 2, True)
    assert notebook.plain("config.lr, config.calls, rate(), config.calls") == (0.5, 2, 0.5, 3)


def test_an_edited_module_is_seen_afresh(notebook, beside):
    beside("helper.py", "def f():\n    return 'old'\n")
    notebook.plain("import helper")
    assert notebook.distribute("helper.f()") == "old"
    beside("helper.py", "def f():\n    return 'newer'\n")
    notebook.plain("import importlib; importlib.reload(helper)")
    assert notebook.distribute("helper.f()") == "newer"


def test_a_module_that_the_cell_imports_itself_is_read_again_when_it_was_edited(notebook, beside, tmp_path):
    beside("first.py", "value = 'old'\ncount = []\n")
    beside("second.py", "from first import value, count\n")
    cell = "import second\nsecond.count.append(1)\nseen = second.value, len(second.count)"
    for expected in (("old", 1), ("old", 2)):
        notebook.distribute(cell + "\ndel second")
        assert notebook.names["seen"] == expected, "not read again for nothing"
    beside("first.py", "value = 'newer'\ncount = []\n")
    notebook.distribute(cell + "\ndel second")
    assert notebook.names["seen"] == ("newer", 1)
    beside("third.py", "value = 3\n")
    assert notebook.distribute("import third\nthird.value") == 3
    beside("third.py", "value = 10 * 3\n")
    assert notebook.distribute("from third import value\nvalue") == 30
    beside("third.py", "value = 4\n")
    os.utime(tmp_path / "notebook" / "third.py", (0, 0))  # an older file in its place, or a clock that goes by fits and starts
    assert notebook.distribute("from third import value\nvalue") == 4


def test_a_function_brings_only_what_it_uses_of_its_module(notebook, beside):
    beside("tools.py", "import zlib\ngate = zlib.compressobj()\nk = 4\ndef f():\n    return k\ndef guarded():\n    return gate\n")
    notebook.plain("from tools import f, guarded; import tools")
    assert notebook.distribute("f()") == 4
    with pytest.raises(CaptureError, match=r"'guarded' .* its global 'gate' is a Compress"):
        notebook.distribute("guarded()")
    with pytest.raises(CaptureError, match=r"'tools' \(a module\).* its .gate is a Compress"):
        notebook.distribute("tools.k")


def test_a_package_beside_the_notebook(notebook, beside):
    beside("pack/__init__.py", "from .part import value\n")
    beside("pack/part.py", "value = [7]\ndef get():\n    return value\n")
    notebook.plain("import pack; from pack.part import get")
    assert notebook.distribute("get().append(8)\nget(), pack.value, pack.part.get() is pack.value") == ([7, 8], [7, 8], True)
    assert notebook.plain("pack.part.value") == [7, 8]


def test_what_a_function_sets_in_its_module_is_there_afterwards(notebook, beside):
    beside("counter.py", "count = 0\ndef step():\n    global count\n    count += 1\n    return count\n")
    notebook.plain("import counter; from counter import step; step()")
    assert notebook.distribute("step()") == 2
    assert notebook.plain("counter.count, step()") == (2, 3)


ALL = {"setup", "pkg", "pkg.deep", "pkg.other"}  # a package has its modules in it, and what their functions import goes with them
IMPORTS = {
    "import setup": {"setup"},
    "import pkg.deep as d": ALL,
    "from pkg import deep, nothing": ALL,
    "def f():\n    from pkg.deep import value\n    import os\nx = 1": ALL,
    "within()": {"setup"},
    "relative()": ALL,
    "reads()": set(),
    "sets()": ALL,
}


@pytest.mark.parametrize("cell", IMPORTS)
def test_modules_that_a_cell_imports_again_go_along(notebook, beside, cell):
    beside("setup.py", "lr = 1\ndef rate():\n    return lr\n")
    beside("pkg/__init__.py", "")
    beside("pkg/deep.py", "value = 3\n")
    beside(
        "pkg/other.py",
        "seen = 0\ndef within():\n    def f():\n        import setup\n    return f\ndef relative():\n    from . import deep\n"
        "def reads():\n    return seen\ndef sets():\n    global seen\n    seen = 1\n",
    )
    notebook.plain("import setup, pkg.deep; from pkg.other import within, relative, reads, sets")
    tracked = pack(find_names(ast.parse(cell)), notebook.names).tracked
    assert {obj.__name__ for obj in tracked if isinstance(obj, ModuleType)} == IMPORTS[cell]


def test_a_module_that_the_cell_imports_and_that_cannot_be_sent_is_left_out(notebook, beside):
    beside("gated.py", "import zlib\ngate = zlib.compressobj()\n")
    notebook.plain("import gated; x = [1]")
    found = pack(find_names(ast.parse("import gated; x.append(2)")), notebook.names)
    assert "gate is a Compress" in found.left_out["gated"]
    assert [1] in found.tracked and not any(isinstance(obj, ModuleType) for obj in found.tracked)


def test_modules_that_others_import_meanwhile(monkeypatch, tmp_path):
    class Growing(dict[str, Any]):
        """A dict in which walking finds a new name, as where a thread imports."""

        def items(self):
            for name, module in super().items():
                self[f"new{len(self)}"] = module
                yield name, module

    monkeypatch.setattr(sys, "modules", Growing(sys.modules))
    assert modules_beside(tmp_path) == []


def test_which_modules_are_beside(notebook, beside, tmp_path, monkeypatch):
    beside("here.py", "")
    beside("site-packages/installed.py", "")
    monkeypatch.syspath_prepend(str(tmp_path / "notebook" / "site-packages"))
    notebook.plain("import here, installed, json, numpy, torch")
    assert [module.__name__ for module in modules_beside(tmp_path / "notebook")] == ["here"]
    assert modules_beside(tmp_path / "blobs") == []
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "notebook")
    assert [module.__name__ for module in modules_beside(link)] == ["here"], "by another path to the same folder"
    beside("there.py", "")
    monkeypatch.syspath_prepend(str(link))
    notebook.plain("import there")
    assert sys.modules["there"].__file__ == str(link / "there.py")
    assert [module.__name__ for module in modules_beside(tmp_path / "notebook")] == ["here", "there"]


def test_modules_are_by_value_for_the_cell_alone(notebook, beside):
    import cloudpickle

    beside("once.py", "def f():\n    return 1\n")
    notebook.plain("import once")
    notebook.distribute("once.f()")
    assert cloudpickle.list_registry_pickle_by_value() == set()


def test_builtins_are_left_as_they_are(notebook):
    import builtins

    notebook.names["__builtins__"] = builtins
    notebook.plain("def f(): return len('ab')")
    assert notebook.distribute("def g(): return f()\ng()") == 2
    assert notebook.names["__builtins__"] is builtins
    assert notebook.plain("g()") == 2


# -- small things ----------------------------------------------------------------------------------------------------


def test_values_are_packed_without_a_change_to_them():
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("import torch\nw = torch.ones(2, requires_grad=True)\n(w * 2).sum().backward()\nloss = (w * 3).sum()", names)
    before = (names["w"]._version, names["w"].grad, names["loss"].grad_fn)
    pack(find_names(ast.parse("w, loss")), names)
    assert (names["w"]._version, names["w"].grad, names["loss"].grad_fn) == before


def test_an_object_whose_pickling_fails_in_its_own_way():
    class Odd:
        def __reduce__(self):
            raise ValueError("not me")

    with pytest.raises(CaptureError, match=r"its \['k'\] is a Odd \(ValueError: not me\)") as caught:
        pack(find_names(ast.parse("x")), {"x": {"k": Odd()}})
    assert isinstance(caught.value.__cause__, ValueError)


BEGUN = {
    "it = iter(loader)": "it",
    "it = enumerate(loader)": "it",
    "it = iter(DataLoader(torch.arange(10.0), batch_size=3, num_workers=1))": "it",
    "from types import SimpleNamespace\nit = SimpleNamespace(batches=iter(loader))": r"it.*\.batches",
    "import itertools\nit = itertools.cycle(loader)\nnext(it)": "it",
}


@pytest.mark.parametrize("begun", BEGUN)
def test_an_iteration_over_a_loader_that_has_begun_is_told_of(begun, notebook):
    notebook.plain(f"import torch\nfrom torch.utils.data import DataLoader\nloader = DataLoader(torch.arange(10.0), batch_size=3)\n{begun}")
    says = rf"(?s)line 2 uses '{BEGUN[begun]}.*an iteration over a DataLoader stays .*`iter\(loader\)` inside the cell begins a new one"
    with pytest.raises(CaptureError, match=says):
        notebook.distribute("x = 1\nk = next(it)")
    notebook.plain("del it")


def test_nothing_is_kept_of_what_cannot_be_sent():
    """Not until Python looks for circles."""

    class Data:
        def __init__(self) -> None:
            self.line = (letter for letter in "line")

    names = {"x": Data()}
    data = weakref.ref(names["x"])
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(CaptureError):
            pack(find_names(ast.parse("x")), names)
        names.clear()
        assert data() is None
    finally:
        gc.enable()


def test_what_fails_only_together_is_an_error_too():
    calls = []

    class Shy:
        """Fails at the second look at any of them."""

        def __reduce__(self):
            calls.append(self)
            if len(calls) == 2:
                raise ValueError("too many")
            return int, ()

    with pytest.raises(CaptureError, match="the cell's values cannot be sent together: too many"):
        pack(find_names(ast.parse("x, y, z")), {"x": Shy(), "y": Shy(), "z": Shy()})


def test_the_random_streams_go_on(notebook):
    notebook.plain("import random, numpy as np, torch\nrandom.seed(1); np.random.seed(1); torch.manual_seed(1)")
    first = notebook.distribute("random.random(), np.random.rand(), torch.rand(1).item()")
    second = notebook.plain("random.random(), np.random.rand(), torch.rand(1).item()")
    notebook.plain("random.seed(1); np.random.seed(1); torch.manual_seed(1)")
    assert notebook.plain("random.random(), np.random.rand(), torch.rand(1).item()") == first
    assert notebook.plain("random.random(), np.random.rand(), torch.rand(1).item()") == second
    assert torch.is_grad_enabled()
