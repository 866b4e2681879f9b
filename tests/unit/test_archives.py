"""What reduces itself to an archive shares its parameters with its optimizer all the same."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from jupyter_dtrain.analysis.code_objects import installed_folders
from jupyter_dtrain.analysis.names import CellNames
from jupyter_dtrain.capture.bundle import pack, unpack
from jupyter_dtrain.engine.arrival.rebuilt import Rebuilt
from jupyter_dtrain.serialization.pickler import Packed
from jupyter_dtrain.serialization.unpickler import Unpacker
from tests.unit.test_copy_restore import MODEL, STEP, Case, comparable

ARCHIVE = (
    MODEL
    + """
import io
class Archived(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(3, 1).double()
    def forward(self, x): return self.l(x)
    def __reduce__(self):
        data = io.BytesIO(); torch.save(self.l.state_dict(), data)
        return unarchived, (data.getvalue(),)
def unarchived(data):
    model = Archived(); model.l.load_state_dict(torch.load(io.BytesIO(data)))
    return model
def sgd(): return torch.optim.SGD(model.parameters(), lr=0.1)
"""
)
MODEL_IS_ONE = ARCHIVE + "model = Archived(); optimizer = sgd()\n"
BOX = (
    MODEL_IS_ONE
    + """
class Box:
    def __init__(self, model, optimizer): self.parts = {'model': model, 'optimizers': [optimizer]}; self.n = 0
    def __getstate__(self):
        data = io.BytesIO(); torch.save([self.parts['model'].state_dict(), self.n], data)
        return {'data': data.getvalue()}
    def __setstate__(self, state):
        values, self.n = torch.load(io.BytesIO(state['data']))
        model = Archived(); model.load_state_dict(values)
        self.parts = {'model': model, 'optimizers': [torch.optim.SGD(model.parameters(), lr=0.1)]}
    def step(self):
        self.n += 1
        optimizer, = self.parts['optimizers']
        optimizer.zero_grad(); self.parts['model'](x).pow(2).mean().backward(); optimizer.step()
box = Box(model, optimizer)
"""
)
CASES = {
    "model": Case(MODEL_IS_ONE, STEP, "[p.tolist() for p in model.parameters()]"),
    "layer of a model": Case(
        ARCHIVE + "model = nn.Sequential(nn.Linear(3, 3).double(), Archived()); optimizer = sgd()",
        STEP,
        "[p.tolist() for p in model.parameters()]",
    ),
    "model in a dict": Case(
        ARCHIVE + "d = {'m': Archived()}; model = d['m']; optimizer = sgd()",
        STEP.replace("model(x)", "d['m'](x)"),
        "[p.tolist() for p in model.parameters()], d['m'] is model",
    ),
    "attributes and buffers": Case(
        MODEL_IS_ONE + "model.notes = []; model.register_buffer('n', torch.zeros(1))",
        STEP + "model.notes.append(1); model.n += 1",
        "model.notes, model.n",
    ),
    "made in the cell": Case(
        ARCHIVE,
        "model = Archived(); optimizer = sgd()" + STEP,
        "[p.tolist() for p in model.parameters()], optimizer.param_groups[0]['params'][0] is model.l.weight",
    ),
    "not to be pickled": Case(
        ARCHIVE
        + "class Model(Archived):\n    def __reduce_ex__(self, protocol): raise TypeError('use save()')\nmodel = Model(); optimizer = sgd()",
        STEP,
        "[p.tolist() for p in model.parameters()]",
    ),
    "object of __getstate__": Case(
        BOX,
        "for _ in range(3): box.step()",
        "[p.tolist() for p in model.parameters()], box.parts['model'] is model, box.parts['optimizers'][0] is optimizer, box.n",
    ),
    "optimizer": Case(
        ARCHIVE
        + "class Own(torch.optim.SGD):\n    def __reduce__(self): return Own, ([torch.zeros(1, requires_grad=True)], 0.5)\noptimizer = Own(model.parameters(), lr=0.1, momentum=0.9)",
        STEP,
        "[p.tolist() for p in model.parameters()], [s['momentum_buffer'].tolist() for s in optimizer.state.values()]",
    ),
    "scheduler": Case(
        ARCHIVE
        + "class Steps(torch.optim.lr_scheduler.StepLR):\n    def __reduce__(self): return Steps, (torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1), 2)\noptimizer = sgd(); scheduler = Steps(optimizer, 2, gamma=0.5)",
        STEP + "scheduler.step(); scheduler.step()",
        "scheduler.last_epoch, optimizer.param_groups[0]['lr'], scheduler.optimizer is optimizer",
    ),
    "state without a lock": Case(
        ARCHIVE
        + "import threading\nclass Model(Archived):\n    def __init__(self): super().__init__(); self.lock = threading.Lock()\n    __reduce__ = object.__reduce__\n    def __getstate__(self): return {k: v for k, v in vars(self).items() if k != 'lock'}\nmodel = Model(); optimizer = sgd()",
        STEP,
        "[p.tolist() for p in model.parameters()]",
    ),
    "traced by torch.fx": Case(
        ARCHIVE + "import torch.fx\nmodel = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 1), nn.Tanh()).double()); optimizer = sgd()",
        STEP,
        "[p.tolist() for p in model.parameters()]",
    ),
}


OWN = """
class Own:
    n = 0
    def __init__(self): self.kept, self.history, self.cache, self.count = 1, [0.5], {'a': 1}, 3
    def add(self): self.history.append(len(self.history)); self.cache[len(self.cache)] = self; self.count += 1; return self.count
    def all(self): return self.kept, self.history, [str(k) for k in self.cache], self.count, self.cache.get(1) is self
"""
KEPT = "    def __getstate__(self): return {'kept': self.kept}\n"
ANEW = "    def __setstate__(self, state): self.__init__(); self.history, self.cache, self.count = [], {}, 0; self.kept = state['kept']\n"
ADDED = "got = [a.add(), a.add()], list(a.history)"
ALL = "got, a.all(), a.add()"
LEAVING_OUT = {
    "attributes": OWN + KEPT + ANEW + "a = Own()",
    "attributes that are missing then": OWN + KEPT + "a = Own()",
    "emptied in the state": OWN + "    def __getstate__(self): return {**vars(self), 'cache': {}, 'history': [], 'count': 0}\na = Own()",
    "emptied by __setstate__ alone": OWN
    + "    def __setstate__(self, s): vars(self).update(s); self.count = 0; self.history = []\na = Own()",
    "__reduce__": OWN + "    def __reduce__(self): return Own, ()\na = Own()",
    "__reduce_ex__": OWN + "    def __reduce_ex__(self, protocol): return Own, ()\na = Own()",
    "the name of a global": OWN + "    def __reduce__(self): return 'a'\na = Own()",
    "copyreg": OWN + "import copyreg\na = Own(); copyreg.pickle(Own, lambda own: (Own, ()))",
    "refuses to be pickled": OWN + "    def __reduce__(self): raise TypeError('no')\na = Own()",
    "slots": OWN.replace("    n = 0\n", "    __slots__ = ('kept', 'history', 'cache', 'count')\n") + KEPT + ANEW + "a = Own()",
    "slots with weak references": OWN.replace("    n = 0\n", "    __slots__ = ('kept', 'history', 'cache', 'count', '__weakref__')\n")
    + KEPT
    + ANEW
    + "a = Own()",
    "dict": OWN.replace("class Own:", "class Own(dict):").replace("self.kept,", "self['x'] = 1; self.kept,", 1)
    + "    def __reduce__(self): return Own, ()\na = Own(); a['y'] = a",
    "list": OWN.replace("class Own:", "class Own(list):") + KEPT + ANEW + "a = Own(); list.append(a, 5)",
    "tuple": OWN.replace("class Own:", "class Own(tuple):").replace("__init__(self):", "__init__(self, *_):")
    + KEPT
    + ANEW
    + "a = Own((1, 2))",
    "exception": OWN.replace("class Own:", "class Own(Exception):") + "    def __reduce__(self): return Own, ()\na = Own()",
    "layer": OWN.replace("class Own:", "from torch import nn\nclass Own(nn.Module):").replace(
        "    def __init__(self): ", "    def __init__(self): super().__init__(); "
    )
    + "    def __getstate__(self): return {k: v for k, v in vars(self).items() if k not in ('history', 'cache', 'count')}\n"
    + "    def __setstate__(self, s): super().__setstate__(s); self.history, self.cache, self.count = [], {}, 0\na = Own()",
    "optimizer": OWN.replace("class Own:", "import torch\nclass Own(torch.optim.SGD):").replace(
        "    def __init__(self): ", "    def __init__(self): super().__init__([torch.zeros(1, requires_grad=True)], lr=0.1); "
    )
    + "    def __getstate__(self): return {k: v for k, v in vars(self).items() if k not in ('history', 'cache', 'count')}\n"
    + "    def __setstate__(self, s): super().__setstate__(s); self.history, self.cache, self.count = [], {}, 0\na = Own()",
    "loader": OWN.replace("class Own:", "import torch\nclass Own(torch.utils.data.DataLoader):").replace(
        "    def __init__(self): ", "    def __init__(self): super().__init__([1, 2, 3]); "
    )
    + "    def __reduce__(self): return Own, ()\na = Own()",
    "a lock that is held": OWN
    + KEPT
    + "    def __setstate__(self, s): vars(self).update(s); self.gone = 'anew'\na = Own(); import threading; a.gone = threading.Lock(); a.gone.acquire()",
    "a generator": OWN + KEPT + "    def __setstate__(self, s): vars(self).update(s)\na = Own(); a.gone = (i for i in range(3))",
    "a generator, by __reduce__": OWN + "    def __reduce__(self): return Own, ()\na = Own(); a.gone = (i for i in range(3))",
    "a generator deep inside": OWN
    + KEPT
    + ANEW
    + "a = Own(); a.inner = Own(); a.inner.gone = (i for i in range(3)); a.inner.up = a; a.inner.add()",
    "a generator in a dict": OWN.replace("class Own:", "class Own(dict):")
    + KEPT
    + ANEW
    + "a = Own(); a[1] = 2; a.gone = (i for i in range(3))",
    "a generator and slots": OWN.replace("    n = 0\n", "    __slots__ = ('kept', 'history', 'cache', 'count', 'gone')\n")
    + KEPT
    + "    def __setstate__(self, s): self.kept = s['kept']\na = Own(); a.gone = (i for i in range(3)); a.cache = {}; a.add()",
    "a generator and a parent": OWN
    + KEPT
    + ANEW
    + "class Up(Own): pass\na = Up(); b = a.b = Own(); b.up = a; b.gone = (i for i in range(3))",
    "open to be read": OWN.replace("n = 0", "is_open = False")
    + "    def __getstate__(self): return {'kept': self.kept, 'is_open': False}\n"
    + "    def __setstate__(self, s): vars(self).update(s)\n    def add(self):\n        if not self.is_open: self.file = open('/proc/self/status'); self.is_open = True\n        return Own.grow(self, self.file.readable())\n"
    + "    def grow(self, n): self.history.append(n); self.count += 1; return self.count\na = Own(); a.add()",
    "a number that is a file": OWN
    + "    def __getstate__(self): return {k: v for k, v in vars(self).items() if k != 'fd'}\n"
    + "    def __setstate__(self, s): vars(self).update(s); self.open()\n"
    + "    def open(self): self.fd = os.open('/proc/self/status', os.O_RDONLY)\n"
    + "    def add(self): self.history.append(len(os.pread(self.fd, 4, 0))); self.count += 1; return self.count\nimport os\na = Own(); keep = os.open('/proc/self/comm', os.O_RDONLY); a.open(); ",
    "its state is given to it whole": OWN
    + "    def __getstate__(self): return {**vars(self), 'history': []}\n    def __setstate__(self, s): self.__dict__ = s\na = Own()",
    "takes away from itself": OWN + "    def __getstate__(self): self.history = []; return vars(self)\na = Own()",
    "made from nothing but attributes": OWN + "    def __getstate__(self): return None\na = Own()",
    "of an object in a list": OWN + KEPT + ANEW + "things = [Own(), Own()]; a = things[0]; a.other = things[1]; things[1].other = a",
    "found by a registry": OWN
    + "    names = {}\n    @classmethod\n    def named(cls, name): return cls.names.setdefault(name, cls())\n"
    + "    def __reduce__(self): return Own.named, ('x',)\na = Own.named('x')",
}


@pytest.mark.parametrize("name", LEAVING_OUT)
def test_what_a_class_leaves_out_of_the_pickle_goes_along_and_comes_back(name, notebook, other_notebook):
    for one in (other_notebook, notebook):
        one.plain(LEAVING_OUT[name] + "\nkept, cache = a.history, a.__class__")
    other_notebook.plain(ADDED)
    notebook.distribute(ADDED)
    probe = f"{ALL}, a.history is kept, type(a) is cache, len(a) if hasattr(a, '__len__') else 0"
    assert comparable(notebook.plain(probe)) == comparable(other_notebook.plain(probe))
    assert notebook.not_returned == {}


@pytest.mark.parametrize("name", LEAVING_OUT)
def test_what_a_class_leaves_out_of_the_pickle_is_returned_with_what_a_cell_makes(name, notebook, other_notebook):
    other_notebook.plain(LEAVING_OUT[name] + "\n" + ADDED)
    notebook.distribute(LEAVING_OUT[name] + "\n" + ADDED)
    assert comparable(notebook.plain("got, a.all()")) == comparable(other_notebook.plain("got, a.all()"))
    assert notebook.not_returned == {}


@pytest.mark.parametrize("name", CASES)
def test_what_makes_an_archive_of_itself_is_trained(name, notebook, other_notebook):
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
        other_notebook.plain(case.setup)
        other_notebook.plain(case.cell)
        expected = comparable(other_notebook.plain(case.probe))
        notebook.plain(case.setup)
        notebook.distribute(case.cell)
    assert comparable(notebook.plain(case.probe)) == expected
    assert notebook.not_returned == {}


GENERATING = MODEL_IS_ONE.replace("super().__init__(); self.l =", "super().__init__(); self.rows = (row for row in ()); self.l =")


def test_what_can_be_sent_as_an_archive_alone_is_told_when_it_was_trained():
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(GENERATING, f"{installed_folders()[0]}archived.py", "exec"), names)  # what a library says of its class
    sent = pack(CellNames(needed=dict.fromkeys(["model", "optimizer", "x"], 1), maybe={}), names).packed
    own = [memoryview(bytearray(buffer)) for buffer in sent.buffers]
    values, tracked = unpack(Unpacker(Packed(sent.stream, sent.leaves, own), namespace=dict(names)))
    rebuilt = Rebuilt(tracked)
    model = values["model"]
    with torch.no_grad():
        model(values["x"])
    assert rebuilt.trained(values) is None
    model(values["x"]).mean().backward()
    assert "'model' stays on the engines" in str(rebuilt.trained(values))


def test_what_shares_its_parameters_with_the_notebook_is_not_told_of():
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(MODEL_IS_ONE, names)
    sent = pack(CellNames(needed=dict.fromkeys(["model", "optimizer", "x"], 1), maybe={}), names).packed
    own = [memoryview(bytearray(buffer)) for buffer in sent.buffers]
    values, tracked = unpack(Unpacker(Packed(sent.stream, sent.leaves, own), namespace=dict(names)))
    rebuilt = Rebuilt(tracked)
    values["model"](values["x"]).mean().backward()
    assert rebuilt.trained(values) is None
