"""A scheduler tracks its optimizer's steps in whatever process both are, and one that PyTorch lets track none tracks none."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest

SETUP = """
import torch
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import LambdaLR, StepLR, ReduceLROnPlateau, OneCycleLR, SequentialLR, ConstantLR
p = torch.nn.Parameter(torch.ones(2))
p.grad = torch.ones(2)
"""
# The notebook has, the cell does, a later cell does, what is compared.
CASES = {
    "both made": ("", "o = SGD([p], 0.1); s = StepLR(o, 1); o.step(); s.step()", "o.step(); s.step()"),
    "both made, not stepped": ("", "o = SGD([p], 0.1); s = StepLR(o, 1)", "o.step(); s.step()"),
    "both made, only the optimizer stepped": ("", "o = SGD([p], 0.1); s = StepLR(o, 1); o.step()", "s.step()"),
    "in the wrong order": ("", "o = SGD([p], 0.1); s = StepLR(o, 1)", "s.step()"),
    "the scheduler made": ("o = Adam([p], 0.1)", "s = LambdaLR(o, lambda n: 0.5 ** n); o.step()", "s.step(); o.step()"),
    "of the notebook": ("o = SGD([p], 0.1); s = StepLR(o, 1)", "o.step()", "s.step()"),
    "of the notebook, stepped by both": ("o = SGD([p], 0.1); s = StepLR(o, 1); o.step()", "s.step(); o.step()", "o.step(); s.step()"),
    "of the notebook, in the wrong order": ("o = SGD([p], 0.1); s = StepLR(o, 1)", "s.step()", "o.step(); s.step()"),
    "a plateau of the notebook": (
        "o = SGD([p], 0.1); s = ReduceLROnPlateau(o, patience=0)",
        "o.step(); s.step(1.0); s.step(2.0)",
        "o.step()",
    ),
    "a plateau made": ("", "o = SGD([p], 0.1); s = ReduceLROnPlateau(o); o.step(); s.step(1.0)", "o.step(); s.step(2.0)"),
    "a plateau, then another": (
        "o = SGD([p], 0.1); s = ReduceLROnPlateau(o)",
        "t = StepLR(o, 1); o.step(); t.step()",
        "o.step(); t.step()",
    ),
    "a cycle": ("o = SGD([p], 0.1)", "s = OneCycleLR(o, 0.1, total_steps=9); o.step(); s.step()", "o.step(); s.step()"),
    "one after the other": (
        "o = SGD([p], 0.1)",
        "s = SequentialLR(o, [ConstantLR(o), StepLR(o, 1)], [2]); o.step(); s.step()",
        "o.step(); s.step(); o.step(); s.step()",
    ),
    "only the optimizer used": ("o = SGD([p], 0.1); s = StepLR(o, 1)", "o.step()", "s.step()"),
    "only the optimizer returned": ("", "o = SGD([p], 0.1); StepLR(o, 1)", "o.step()"),
    "a step kept": ("o = SGD([p], 0.1)", "s = StepLR(o, 1); f = o.step; f()", "f(); s.step(); q = f is o.step"),
    "a subclass": (
        "class Mine(SGD):\n    n = 0\n    def step(self, closure=None):\n        self.n += 1\n        return super().step(closure)",
        "o = Mine([p], 0.1); s = StepLR(o, 1); o.step()",
        "s.step(); o.step()",
    ),
    "a step of one's own": ("o = SGD([p], 0.1); n = []\no.step = lambda: n.append(1)", "o.step()", "o.step()"),
}
COMPARED = """(p.tolist(), o.param_groups[0]['lr'], getattr(o, '_opt_called', None), hasattr(o.step, '_wrapped_by_lr_sched'),
    sorted(vars(o)), globals().get('q'), globals().get('n'))"""


def outcome(one, cell, *, engine=False):
    """Return the warnings of schedulers in a cell, and what is compared after it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one.distribute(cell) if engine else one.plain(cell)
    return [str(one.message)[:60] for one in caught if "lr_scheduler" in str(one.message)], one.plain(COMPARED)


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step.*")
@pytest.mark.parametrize("name", CASES)
def test_steps_are_tracked_as_in_one_process(name, notebook, other_notebook):
    setup, cell, later = CASES[name]
    for one in (notebook, other_notebook):
        one.plain(SETUP + setup)
    _, expected = outcome(other_notebook, cell)
    _, found = outcome(notebook, cell, engine=True)
    assert found == expected
    assert outcome(notebook, later) == outcome(other_notebook, later)
    assert outcome(notebook, "o.step()", engine=True)[1] == outcome(other_notebook, "o.step()")[1]


def test_the_optimizer_ends_when_nothing_refers_to_it(notebook):
    notebook.plain(SETUP)
    notebook.distribute("o = SGD([p], 0.1); s = StepLR(o, 1); del s")
    alive = weakref.ref(notebook.names["o"])
    gc.disable()
    try:
        notebook.plain("del o")
        notebook.sent = notebook.returned = None
        assert alive() is None
    finally:
        gc.enable()
