"""What reduces itself to an archive shares its parameters with its optimizer all the same."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from jupyter_dtrain.analysis.names import CellNames
from jupyter_dtrain.capture.bundle import pack, unpack
from jupyter_dtrain.engine.arrival.rebuilt import Rebuilt
from jupyter_dtrain.serialization.pickler import Packed, Unpacker
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
    exec(GENERATING, names)
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
