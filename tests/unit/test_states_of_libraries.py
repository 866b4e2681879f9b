"""What a library keeps in its classes and modules is the notebook's in a cell, comes home from it, and leaves nothing on an engine."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import pytest
import torch

from jupyter_dtrain.serialization.library_state import left_as_it_was
from tests.unit.test_copy_restore import Case, comparable

LIBRARY = '''
import collections
import math
import threading

import torch

_FLOATX = "float32"
_LIMIT: int = 5  # of something
_HOOKS = []
_counts = collections.defaultdict(int)
_local = threading.local()
_initialized = False
_block_size = 8
PRESETS = {"small": 4, "large": 16}  # by name
TABLE = {
    "scale": 1.0,
    "names": ["x"],
}

BASE = 32
RATE = 1e-3 * 2
WIDTH = BASE * 4  # wide
EPSILON = float("1e-8")
ROOT = math.sqrt(2)
LARGEST = 1 << 20
SHAPE = (3, BASE // 2)
NAMES = ["a", "b" + "c"]
SIZES = {"a": 1 / 3, "b": BASE}
LONG = (
    1e-3
    * 2
)
SAME = BASE
IS_WIDE = BASE > 16
IS_NARROW = not IS_WIDE and BASE != 8
LOWEST = -math.inf
TITLE = "a" "b"
LABEL = f"{TITLE}-{BASE:04d}"  # of both
PARTS = "a,b".split(",")
OPTIONS = dict(
    rate=1e-3,
    parts=PARTS,
)
DTYPE = torch.float32
SHARE: float = 1 / 2
CHOSEN = 3 if BASE else 4


def configure(**values):
    globals().update(values)


class State:
    """All objects of it share their attributes."""

    _shared_state = {}
    verbose = False
    is_wide = 3 > 2
    highest = -math.inf
    count = 0
    rate = 1e-3 * 2
    decay = rate / 10
    _kinds = ["a", "b"]

    def __init__(self, **values):
        self.__dict__ = self._shared_state
        self.__dict__.update(values)

    @classmethod
    def set_rate(cls, value):
        cls.rate = cls.decay = value

    @property
    def known(self):
        return bool(self._shared_state)


class Part:
    def __init__(self, state=None):
        self.state = state or State()


class Registry:
    _makers = {}


def set_block_size(value):
    global _block_size
    _block_size = value


def block_size():
    return _block_size


def set_floatx(value):
    global _FLOATX
    _FLOATX = value


def floatx():
    return _FLOATX


def hooks():
    return _HOOKS


def set_local(value):
    _local.value = value


def local():
    return getattr(_local, "value", None)


def reset():
    configure(BASE=32, RATE=1e-3 * 2, WIDTH=128, EPSILON=1e-8, ROOT=math.sqrt(2), LARGEST=1 << 20, SHAPE=(3, 16), NAMES=["a", "bc"])
    configure(SIZES={"a": 1 / 3, "b": 32}, LONG=1e-3 * 2, SAME=32, SHARE=0.5, CHOSEN=3)
    configure(IS_WIDE=True, IS_NARROW=False, LOWEST=-math.inf, TITLE="ab", LABEL="ab-0032", PARTS=["a", "b"], DTYPE=torch.float32)
    configure(OPTIONS={"rate": 1e-3, "parts": ["a", "b"]})
    State.is_wide, State.highest = True, -math.inf
    State.rate, State.decay = 1e-3 * 2, 1e-3 * 2 / 10
    global _FLOATX, _LIMIT, _initialized, _block_size
    _FLOATX, _LIMIT, _initialized, _block_size = "float32", 5, False, 8
    PRESETS.clear()
    PRESETS.update(small=4, large=16)
    TABLE.update(scale=1.0, names=["x"])
    Registry._makers.clear()
    _counts.clear()
    State._kinds[:] = ["a", "b"]
    State._shared_state.clear()
    State.verbose, State.count = False, 0
    _HOOKS.clear()
    _local.__dict__.clear()
'''
SETUP = "import statelib\nfrom statelib import State, Part\nstatelib.reset()\n"
CASES = {
    "made before": Case(
        SETUP + "part = Part(State(n=2, found=[1]))",
        "k = part.state.n, State().n, State().known; State().n += 1; part.state.found.append(2)",
        "k, part.state.n, State().n, State().found, vars(part.state) is State._shared_state",
    ),
    "several objects share": Case(
        SETUP + "a, b = Part(State(sync=True)), Part()",
        "a.state.sync = False; k = b.state.sync, State().sync",
        "k, b.state.sync, State().sync",
    ),
    "made in the cell": Case(
        SETUP, "part = Part(State(n=1)); State().n += 1", "part.state.n, State().n, vars(part.state) is State._shared_state"
    ),
    "class alone": Case(SETUP + "State(n=3)", "k = State().n; State(m=4)", "k, State().n, State().m"),
    "value of a module": Case(
        SETUP + "statelib.set_floatx('float64')", "k = statelib.floatx(); statelib.set_floatx('float16')", "k, statelib.floatx()"
    ),
    "value set back in the cell": Case(
        SETUP + "statelib.set_floatx('float64'); State.count = 3",
        "statelib.set_floatx('float32'); State.count = 0",
        "statelib.floatx(), State.count",
    ),
    "value of a class": Case(
        SETUP + "State.verbose = True; State.count = 7", "k = State.verbose, State.count; State.count += 1", "k, State.count, State.verbose"
    ),
    "list of a module": Case(
        SETUP + "statelib.hooks().append('a')", "k = list(statelib.hooks()); statelib.hooks().append('b')", "k, statelib.hooks()"
    ),
    "value whose name says what else it might be": Case(
        SETUP + "statelib.set_block_size(4)", "k = statelib.block_size(); statelib.set_block_size(2)", "k, statelib.block_size()"
    ),
    "filled containers": Case(
        SETUP + "statelib.PRESETS['small'] = 6; del statelib.PRESETS['large']; statelib.TABLE['names'].append('y'); State._kinds.pop()",
        "k = dict(statelib.PRESETS), str(statelib.TABLE), list(State._kinds); statelib.PRESETS['new'] = 1; statelib.TABLE['scale'] = 2.0",
        "k, statelib.PRESETS, statelib.TABLE, State._kinds",
    ),
    "callbacks and entries of a registry": Case(
        SETUP + "said = []\ndef note(v): said.append(v)\nstatelib.hooks().extend([note, said.append, Part])\n"
        "statelib.Registry._makers['n'] = note",
        "statelib.hooks()[0](1); statelib.hooks()[1](2); statelib.Registry._makers['n'](3)",
        "said, statelib.hooks()[0] is note, statelib.Registry._makers['n'] is note, statelib.hooks()[2] is Part",
    ),
    "made by a call": Case(
        SETUP + "statelib._counts['n'] += 3", "k = statelib._counts['n']; statelib._counts['n'] += 1", "k, dict(statelib._counts)"
    ),
    "thread-local": Case(
        SETUP + "statelib.set_local('pandas')", "k = statelib.local(); statelib.set_local('polars')", "k, statelib.local()"
    ),
    "expressions": Case(
        SETUP
        + "names = 'RATE WIDTH EPSILON ROOT LARGEST SHAPE NAMES SIZES LONG SAME SHARE CHOSEN'.split()\n"
        + "statelib.configure(**{name: [name, 5] if name in ('NAMES', 'SHAPE') else 5 for name in names}); State.set_rate(7)",
        "k = [getattr(statelib, name) for name in names], State.rate, State.decay\n"
        "statelib.configure(RATE=6, SHAPE=(1,), LONG=4.0); State.set_rate(8)",
        "k, [getattr(statelib, name) for name in names], State.rate, State.decay",
    ),
    "comparisons, texts and types": Case(
        SETUP
        + "names = 'IS_WIDE IS_NARROW LOWEST TITLE LABEL PARTS OPTIONS DTYPE'.split()\n"
        + "statelib.configure(IS_WIDE=False, IS_NARROW=True, LOWEST=0.0, TITLE='c', LABEL='d', PARTS=['c'], DTYPE=statelib.torch.float64)\n"
        + "statelib.OPTIONS['rate'] = 5; State.is_wide, State.highest = False, 1.0",
        "k = [getattr(statelib, name) for name in names], State.is_wide, State.highest\n"
        "statelib.configure(IS_WIDE=2, TITLE='e', DTYPE=statelib.torch.float16); State.highest = 2.0",
        "k, [getattr(statelib, name) for name in names], State.is_wide, State.highest",
    ),
    "annotated": Case(SETUP + "statelib._LIMIT = 6", "k = statelib._LIMIT", "k"),
    "by an import in the cell": Case(SETUP + "statelib.set_floatx('float64')", "from statelib import floatx\nk = floatx()", "k"),
}


REGISTERED = """
from torch import distributions, zeros
from torch.utils import _pytree
class Mine(distributions.Normal):
    pass
class Pair:
    def __init__(self, *parts): self.parts = parts
@distributions.register_kl(Mine, Mine)
def kl(p, q): return p.loc + 40
_pytree.register_pytree_node(Pair, lambda pair: (list(pair.parts), None), lambda parts, _: Pair(*parts))
mine = Mine(zeros(1) + 2, zeros(1) + 1)
"""


def test_what_the_notebook_has_registered_with_pytorch_is_there(notebook):
    notebook.plain(REGISTERED)
    for _ in range(2):
        notebook.distribute(
            "mixed = distributions.kl_divergence(mine, distributions.Normal(0.0, 1.0)).item()\n"
            "k = distributions.kl_divergence(mine, mine).item(), mixed > 9\n"
            "pair = _pytree.tree_map(lambda part: part * 2, Pair(1, 2)).parts"
        )
        assert notebook.names["k"] == (42.0, False)
        assert notebook.names["pair"] == (2, 4)


@pytest.fixture
def library(tmp_path_factory, monkeypatch):
    """A library that is installed."""
    folder = tmp_path_factory.getbasetemp() / "installed"
    folder.mkdir(exist_ok=True)
    (folder / "statelib.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    yield
    if "statelib" in sys.modules:
        sys.modules["statelib"].reset()


@pytest.mark.parametrize("name", CASES)
def test_a_librarys_state_is_the_notebooks(name, library, notebook, other_notebook):
    case = CASES[name]
    other_notebook.plain(case.setup)
    other_notebook.plain(case.cell)
    expected = comparable(other_notebook.plain(case.probe))
    notebook.plain(case.setup)
    notebook.distribute(case.cell)
    assert comparable(notebook.plain(case.probe)) == expected
    assert notebook.not_returned == {}
    notebook.plain("statelib.reset()")
    notebook.distribute(
        "import statelib\nleft = statelib.floatx(), statelib.State.count, dict(statelib.State._shared_state), statelib.local()\n"
        "computed = statelib.RATE, statelib.SHAPE, statelib.NAMES, statelib.LONG, statelib.State.rate\n"
        "others = statelib.IS_WIDE, statelib.LOWEST, statelib.LABEL, statelib.OPTIONS, statelib.DTYPE, statelib.State.highest\n"
        "filled = statelib.block_size(), dict(statelib.PRESETS), dict(statelib.TABLE)"
    )
    assert notebook.names["left"] == ("float32", 0, {}, None)
    assert notebook.names["computed"] == (1e-3 * 2, (3, 16), ["a", "bc"], 1e-3 * 2, 1e-3 * 2)
    others = (True, -math.inf, "ab-0032", {"rate": 1e-3, "parts": ["a", "b"]}, torch.float32, -math.inf)
    assert notebook.names["others"] == others
    assert notebook.names["filled"] == (8, {"small": 4, "large": 16}, {"scale": 1.0, "names": ["x"]})


def test_what_a_process_has_done_is_not_told_to_another(library, notebook):
    notebook.plain(SETUP + "statelib._initialized = True")
    notebook.distribute("import statelib\nk = statelib._initialized, statelib.floatx()")
    assert notebook.names["k"] == (False, "float32")


def test_a_state_that_cannot_be_sent_is_left_out_and_the_cell_runs(library, notebook):
    notebook.plain(SETUP + "State(rows=(row for row in ())); statelib.set_floatx('float64')")
    notebook.distribute("k = statelib.floatx(), State().known")
    assert notebook.names["k"] == ("float64", False)


PROBING = """
HAS_NUMPY = False
RATE = 1e-3 * 2
try:
    import numpy

    HAS_NUMPY = True
except ImportError:
    pass
"""


def test_what_a_library_finds_out_while_it_is_imported_stays(tmp_path, monkeypatch):
    (tmp_path / "probing.py").write_text(PROBING)
    monkeypatch.syspath_prepend(tmp_path)
    probing: Any = importlib.import_module("probing")
    with left_as_it_was() as tell:
        tell([probing])
        probing.RATE = 1.0
    assert (probing.HAS_NUMPY, probing.RATE) == (True, 1e-3 * 2)


SYMBOLS = """
class Symbol(int):
    known = {}

    def __new__(cls, name, number=None):
        number = hash(name) if number is None else number
        found = cls.known.get(name)
        if found is None:
            found = cls.known[name] = int.__new__(cls, number)
            found.name = name
        elif found != number:
            raise TypeError(f"there is another {name}")
        return found

    def __reduce__(self):
        return Symbol, (self.name, int(self))


CANCEL = Symbol("CANCEL")
options = {"when": CANCEL}
"""


def test_a_registry_of_symbols_that_each_process_makes_stays_there(notebook, tmp_path, monkeypatch):
    (tmp_path / "symbollib.py").write_text(SYMBOLS)
    monkeypatch.syspath_prepend(tmp_path)
    notebook.plain("import symbollib")
    notebook.distribute("k = symbollib.CANCEL.name, symbollib.options['when'] is symbollib.CANCEL, list(symbollib.Symbol.known)")
    assert notebook.names["k"] == ("CANCEL", True, ["CANCEL"])
    notebook.plain("import sys; del symbollib, sys.modules['symbollib']")


def test_a_cell_uses_sqlalchemy(notebook):
    pytest.importorskip("sqlalchemy")
    notebook.plain("import sqlalchemy as sa\ntable = sa.Table('t', sa.MetaData(), sa.Column('a', sa.Integer))")
    notebook.distribute(
        "engine = sa.create_engine('sqlite://')\n"
        "with engine.connect() as line:\n"
        "    k = line.execute(sa.text('select 1')).scalar(), str(sa.select(table)).split()\n"
        "del engine, line"
    )
    assert notebook.names["k"] == (1, ["SELECT", "t.a", "FROM", "t"])
