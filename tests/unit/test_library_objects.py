"""What a library keeps in its objects is the notebook's in a cell, comes home from it, and leaves nothing on an engine."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import ast
import gc
import sys
import weakref
from pathlib import Path

import pytest

from jupyter_dtrain.analysis.names import find_names
from jupyter_dtrain.capture.bundle import pack
from jupyter_dtrain.integrations import registry
from jupyter_dtrain.integrations.registry import look
from tests.unit.test_copy_restore import Case, comparable

LIBRARY = '''
import contextlib
import dataclasses
import enum
import threading
from collections import OrderedDict, deque
from types import SimpleNamespace

import torch


class Mode(enum.Enum):
    FAST = 1
    EXACT = 2


@dataclasses.dataclass
class Optim:
    lr: float = 0.1
    betas: tuple = (0.9, 0.99)


@dataclasses.dataclass
class Settings:
    gain: float = 1.0
    mode: Mode = Mode.FAST
    dtype: torch.dtype = torch.float32
    optim: Optim = dataclasses.field(default_factory=Optim)
    tags: list = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("scale", "names")

    def __init__(self):
        self.scale, self.names = 2.0, ["a"]


class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Guarded:
    """It has a lock, a logger, and a setter that counts."""

    def __init__(self):
        self._lock = threading.Lock()
        self._value = 1.0
        self.count = 0

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, new):
        with self._lock:
            self._value = new
            self.count += 1


class Registry:
    def __init__(self):
        self._made = {}

    def register(self, name):
        def keep(function):
            self._made[name] = function
            return function

        return keep

    def __getitem__(self, name):
        return self._made[name]


class Connection:
    def __init__(self):
        self.handle = None
        self.timeout = 1.0

    def open(self):
        self.handle = (line for line in ())


class Layer:
    defaults = Settings()
    table = {"a": Optim(), "b": Optim(0.2)}


settings = Settings()
same = settings
optim = settings.optim
space = SimpleNamespace(gain=1.0, inner=SimpleNamespace(scale=2.0))
config = Config(gain=1.0, inner=Config(scale=2.0))
modes = {Mode.FAST: 1.0, Mode.EXACT: 2.0}
slotted = Slotted()
guarded = Guarded()
registry = Registry()
connection = Connection()
several = [Optim(0.1), Optim(0.2)]
by_name = {}
by_name["a"] = Optim(0.3)
recent = deque([1.0, 2.0], maxlen=2)
order = OrderedDict(x=Optim(), y=2)
PLAIN = {"gain": 1.0}
settings_in_use = None
_stack = [Optim(0.5)]


def gain():
    return settings.gain


def configure(**values):
    for name, value in values.items():
        setattr(settings, name, value)


@contextlib.contextmanager
def override(**values):
    before = {name: getattr(settings, name) for name in values}
    configure(**values)
    try:
        yield
    finally:
        configure(**before)


def everything():
    return (
        (settings.gain, settings.mode.name, str(settings.dtype), settings.optim.lr, settings.optim.betas, [*settings.tags]),
        (same is settings, optim is settings.optim, optim.lr, getattr(space, 'gain', None), space.inner.scale, config.gain, config.inner.scale),
        ([(mode.name, value) for mode, value in modes.items()], slotted.scale, [*slotted.names], guarded.value, guarded.count),
        ([part.lr for part in several], by_name["a"].lr, list(recent), recent.maxlen, list(order), order["x"].lr, PLAIN["gain"]),
        (Layer.defaults.gain, Layer.table["b"].lr, sorted(registry._made), connection.timeout, _stack[-1].lr),
    )
'''
SETUP = "import sys\nsys.modules.pop('objlib', None)\nimport objlib\n"
CASES = {
    "attribute": Case("objlib.settings.gain = .5", "k = objlib.gain()", "k"),
    "by a function": Case(
        "objlib.configure(gain=.5, mode=objlib.Mode.EXACT)", "k = objlib.gain(), objlib.settings.mode is objlib.Mode.EXACT", "k"
    ),
    "in the cell": Case("", "objlib.settings.gain = .25; k = objlib.gain()", "k, objlib.gain()"),
    "by a function in the cell": Case("objlib.configure(gain=.5)", "objlib.configure(gain=objlib.gain() / 2)", "objlib.gain()"),
    "name of the object": Case(
        "from objlib import settings",
        "settings.gain = .5; k = objlib.gain(), settings is objlib.same",
        "k, settings is objlib.settings, objlib.gain()",
    ),
    "function of the library alone": Case(
        "from objlib import gain, configure; configure(gain=.5)", "k = gain(); configure(gain=.25)", "k, gain()"
    ),
    "within a function of the notebook": Case(
        "objlib.settings.gain = .5\nclass Net:\n    def forward(self): return objlib.gain() * 2\nnet = Net()", "k = net.forward()", "k"
    ),
    "imported in the cell": Case("objlib.settings.gain = .5\ndel objlib", "from objlib import gain\nk = gain()", "k"),
    "object in an object": Case(
        "objlib.settings.optim.lr = 3.0; objlib.optim.betas = (0, 1)",
        "k = objlib.optim.lr, objlib.settings.optim.betas; objlib.optim.lr = 4.0",
        "k, objlib.settings.optim.lr, objlib.optim is objlib.settings.optim",
    ),
    "object in an object was replaced": Case(
        "objlib.settings.optim = objlib.Optim(7.0)",
        "k = objlib.optim.lr, objlib.settings.optim.lr; objlib.settings.optim.lr = 8.0",
        "k, objlib.optim.lr, objlib.settings.optim.lr",
    ),
    "object was replaced": Case(
        "objlib.settings = objlib.Settings(gain=7.0)",
        "k = objlib.same.gain, objlib.gain(); objlib.settings.gain = 8.0",
        "k, objlib.same.gain, objlib.gain()",
    ),
    "object was replaced in the cell": Case(
        "", "objlib.settings = objlib.Settings(gain=7.0); k = objlib.gain(), objlib.same.gain", "k, objlib.same.gain, objlib.gain()"
    ),
    "namespaces": Case(
        "objlib.space.gain = .5; objlib.space.inner.scale = 3; objlib.space.new = [1]",
        "k = objlib.space; objlib.space.new.append(2); del objlib.space.gain",
        "k is objlib.space, vars(k), k.inner.scale",
    ),
    "dict with attributes": Case(
        "objlib.config.gain = .5; objlib.config['inner']['scale'] = 4.0; objlib.config['new'] = 1",
        "k = objlib.config.gain, objlib.config.inner.scale, list(objlib.config); objlib.config.gain = 6.0",
        "k, dict(objlib.config)",
    ),
    "by members of an enum": Case(
        "objlib.modes[objlib.Mode.FAST] = 5.0",
        "k = objlib.modes[objlib.Mode.FAST]; objlib.modes[objlib.Mode.EXACT] = 6.0",
        "k, objlib.everything()[2]",
    ),
    "slots": Case(
        "objlib.slotted.scale = 5.0; objlib.slotted.names.append('b')",
        "k = objlib.slotted.scale, list(objlib.slotted.names); objlib.slotted.scale = 6.0",
        "k, objlib.slotted.scale",
    ),
    "lock and property": Case(
        "objlib.guarded.value = 5.0",
        "k = objlib.guarded.value; objlib.guarded.value = 6.0",
        "k, objlib.guarded.value, objlib.guarded.count",
    ),
    "registry": Case(
        "@objlib.registry.register('twice')\ndef twice(x): return 2 * x",
        "k = objlib.registry['twice'](4)\n@objlib.registry.register('thrice')\ndef thrice(x): return 3 * x",
        "k, objlib.registry['thrice'](3), objlib.registry['twice'] is twice",
    ),
    "objects in a list": Case(
        "objlib.several[1].lr = 5.0; objlib.several.append(objlib.Optim(6.0))",
        "k = [part.lr for part in objlib.several]; objlib.several[2].lr = 7.0; objlib.several.pop(0)",
        "k, [part.lr for part in objlib.several]",
    ),
    "objects in a dict": Case(
        "objlib.by_name['a'].lr = 5.0; objlib.by_name['b'] = objlib.by_name['a']",
        "k = objlib.by_name['b'].lr, objlib.by_name['a'] is objlib.by_name['b']; objlib.by_name['b'].lr = 6.0",
        "k, objlib.by_name['a'].lr",
    ),
    "of a class": Case(
        "objlib.Layer.defaults.gain = 5.0; objlib.Layer.table['b'].lr = 6.0",
        "k = objlib.Layer.defaults.gain, objlib.Layer.table['b'].lr; objlib.Layer.defaults.gain = 7.0",
        "k, objlib.Layer.defaults.gain",
    ),
    "deque and ordered dict": Case(
        "objlib.recent.append(3.0); objlib.order.move_to_end('x'); objlib.order['x'].lr = 5.0",
        "k = list(objlib.recent), list(objlib.order), objlib.order['x'].lr; objlib.recent.append(4.0)",
        "k, list(objlib.recent), objlib.recent.maxlen",
    ),
    "context manager over cells": Case("held = objlib.override(gain=.5); held.__enter__()", "k = objlib.gain()", "k"),
    "context manager in the cell": Case(
        "objlib.configure(gain=.5)", "with objlib.override(gain=3.0): k = objlib.gain()", "k, objlib.gain()"
    ),
    "dict of a module by its name": Case(
        "from objlib import PLAIN; PLAIN['gain'] = 2.0",
        "k = objlib.PLAIN['gain']; PLAIN['gain'] = 3.0; kk = objlib.PLAIN['gain'], PLAIN is objlib.PLAIN",
        "k, kk, objlib.PLAIN['gain'], PLAIN is objlib.PLAIN",
    ),
    "tensor": Case(
        "objlib.settings.weight = objlib.torch.tensor([1.0, 2.0]); w = objlib.settings.weight",
        "k = objlib.settings.weight.sum().item(), w is objlib.settings.weight; w += 1",
        "k, objlib.settings.weight.tolist(), w is objlib.settings.weight",
    ),
    "the notebook's model": Case(
        "from torch import nn; model = nn.Linear(1, 1); objlib.settings.model = model",
        "k = model is objlib.settings.model; objlib.settings.model.bias.data.fill_(5.0)",
        "k, model.bias.item(), model is objlib.settings.model",
    ),
    "function of the notebook": Case(
        "def double(x): return 2 * x\nobjlib.settings.hook = double",
        "k = objlib.settings.hook(4), objlib.settings.hook is double",
        "k, objlib.settings.hook is double",
    ),
    "tags": Case(
        "objlib.settings.tags.append('a'); tags = objlib.settings.tags",
        "k = list(objlib.settings.tags), tags is objlib.same.tags; tags.append('b')",
        "k, objlib.settings.tags, tags is objlib.settings.tags",
    ),
    "circle": Case(
        "objlib.settings.owner = objlib.space; objlib.space.parts = [objlib.settings, objlib.space]",
        "k = objlib.space.parts[0].owner is objlib.space.parts[1]; objlib.space.parts[0].gain = 9.0",
        "k, objlib.gain()",
    ),
    "removed": Case("del objlib.space.gain; objlib.modes.clear()", "k = hasattr(objlib.space, 'gain'), objlib.modes", "k"),
    "nothing of it": Case("objlib.settings.gain = .5; n = 1", "k = n + 1", "k, objlib.gain()"),
}


@pytest.fixture
def library(tmp_path_factory, monkeypatch):
    """A library that is installed."""
    folder = tmp_path_factory.getbasetemp() / "installed-objects"
    folder.mkdir(exist_ok=True)
    (folder / "objlib.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield
    sys.modules.pop("objlib", None)


@pytest.mark.parametrize("name", CASES)
def test_what_a_library_keeps_in_objects_is_the_notebooks(name, library, notebook, other_notebook):
    case = CASES[name]
    other_notebook.plain(SETUP + case.setup)
    other_notebook.plain(case.cell)
    other_notebook.plain("import objlib")
    expected = comparable(other_notebook.plain(f"({case.probe}), objlib.everything()"))
    notebook.plain(SETUP + "first = objlib.everything()\n" + case.setup)
    notebook.distribute(case.cell)
    assert notebook.not_returned == {}
    notebook.plain("import objlib")
    assert comparable(notebook.plain(f"({case.probe}), objlib.everything()")) == expected
    notebook.plain("import sys; del objlib, sys.modules['objlib']")
    notebook.plain("held = settings = space = model = w = tags = PLAIN = gain = configure = net = None")
    notebook.distribute("import objlib\nleft = objlib.everything()")
    assert comparable(notebook.names["left"]) == comparable(notebook.names["first"])


CELL = "import objlib\nobjlib.settings.gain = .5; objlib.optim.lr = 3.0; objlib.several.append(objlib.Optim(4.0)); objlib.space.inner.scale = 9.0"


def test_what_a_cell_sets_in_a_library_that_it_imports_itself_comes_home(library, notebook):
    notebook.plain("import objlib\nfirst = objlib.everything()\nimport sys\ndel objlib, sys.modules['objlib']")
    notebook.distribute(CELL)
    assert notebook.plain("objlib.gain(), objlib.settings.optim.lr, objlib.several[-1].lr, objlib.space.inner.scale") == (
        0.5,
        3.0,
        4.0,
        9.0,
    )
    notebook.distribute("k = objlib.gain(), objlib.optim.lr, [part.lr for part in objlib.several]; objlib.settings.gain = .25")
    assert comparable(notebook.names["k"]) == [0.5, 3.0, [0.1, 0.2, 4.0]]
    assert notebook.plain("objlib.gain()") == 0.25
    notebook.plain("import sys; del objlib, sys.modules['objlib']")
    notebook.distribute("import objlib\nleft = objlib.everything()")
    assert comparable(notebook.names["left"]) == comparable(notebook.names["first"])


def test_an_object_that_cannot_be_sent_is_told_of_and_the_cell_runs(library, notebook):
    notebook.plain(
        SETUP
        + "class Own:\n    def __reduce__(self): raise TypeError('stays')\nobjlib.space.own = Own(); objlib.space.gain = 2.0; objlib.settings.gain = .5"
    )
    notebook.distribute("from jupyter_dtrain.serialization import library_placing\nk = objlib.gain(), library_placing.said(on_engine=True)")
    gain, (line,) = notebook.names["k"]
    assert gain == 0.5
    assert "`objlib.space` is on the engines as its library makes it" in line


def test_an_object_in_another_phase_of_its_life_is_told_of(library, notebook):
    notebook.plain(SETUP + "objlib.connection.open(); objlib.connection.timeout = 2.0")
    notebook.distribute(
        "from jupyter_dtrain.serialization import library_placing\nk = objlib.connection.timeout, library_placing.said(on_engine=True)"
    )
    timeout, (line,) = notebook.names["k"]
    assert timeout == 1.0
    assert "`objlib.connection`" in line
    assert "timeout" in line
    assert "handle" in line


def test_a_module_beside_the_notebook_keeps_settings_in_objects_too(notebook, monkeypatch):
    Path("besidelib.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(Path.cwd())
    notebook.plain("import besidelib\nbesidelib.settings.gain = .5; besidelib.optim.lr = 3.0")
    notebook.distribute("k = besidelib.gain(), besidelib.settings.optim.lr; besidelib.settings.gain = .25; besidelib.several[0].lr = 9.0")
    assert notebook.names["k"] == (0.5, 3.0)
    assert notebook.plain("besidelib.gain(), besidelib.several[0].lr") == (0.25, 9.0)
    monkeypatch.delitem(sys.modules, "besidelib")


INTEGRATION = """
from jupyter_dtrain.integrations.base import Integration


class Objlib(Integration):
    objects_go_along = {}


INTEGRATION = Objlib()
"""


@pytest.mark.parametrize(("goes_along", "gain"), [(False, 1.0), (True, 0.5)])
def test_of_a_library_with_an_integration_its_word_goes_first(goes_along, gain, library, notebook, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_is_told", False)  # by a test before, which makes settings here
    name = f"objlib_{goes_along}".lower()
    (tmp_path / f"{name}.py").write_text(INTEGRATION.format(goes_along))
    information = tmp_path / "objlib_dtrain-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: objlib-dtrain\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[jupyter_dtrain.integrations]\nobjlib = {name}:INTEGRATION\n")
    monkeypatch.syspath_prepend(tmp_path)
    notebook.plain(SETUP + "objlib.settings.gain = .5")
    notebook.distribute("k = objlib.gain()")
    assert notebook.names["k"] == gain
    information.joinpath("entry_points.txt").unlink()
    look()


def test_nothing_that_was_packed_is_kept(library, notebook):
    """Not until Python looks for circles: what cells are sent is large."""
    notebook.plain(SETUP + "objlib.settings.gain = .5\nclass Data: pass")
    gc.collect()
    gc.disable()
    try:
        data = weakref.ref(notebook.plain("data = Data()\nobjlib.settings.data = data\ndata"))
        pack(find_names(ast.parse("k = data, objlib.gain()")), notebook.names)
        notebook.plain("del data, objlib.settings.data")
        assert data() is None
    finally:
        gc.enable()
