"""An optimizer has the options that it was made with, and no others, in whatever process it is."""

from __future__ import annotations

import pytest

SETUP = """
import torch
from torch.optim import SGD, Adam, LBFGS, Optimizer
p, q = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.zeros(2))
class Plain(Optimizer):
    def __init__(self, params, lr=0.1): super().__init__(params, {"lr": lr})
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]: p -= group["lr"] * p.grad
class OfSGD(SGD):
    def __init__(self, params, lr=0.1): Optimizer.__init__(self, params, {"lr": lr})
class WithState(Plain):
    def __setstate__(self, state):
        super().__setstate__(state)
        for group in self.param_groups: group.setdefault("made up", 1)
"""
MADE = {
    "by hand": "Plain([p])",
    "by hand, of groups": "Plain([{'params': [p], 'lr': 1.0, 'name': 'first'}, {'params': [q]}])",
    "of a class of PyTorch": "OfSGD([p])",
    "with a state of its own": "WithState([p])",
    "LBFGS": "LBFGS([p])",
    "SGD": "SGD([p], 0.1, momentum=0.9)",
    "Adam": "Adam([p, q], differentiable=True)",
    "a default removed": "Plain([p]); del o.defaults['lr']",
    "with differentiable": "Plain([p]); o.defaults['differentiable'] = True",
}
COMPARED = "o.defaults, [list(group) for group in o.param_groups], sorted(vars(o)), [type(o).__name__, o.param_groups[0]['params'][0] is p]"


@pytest.mark.parametrize("name", MADE)
def test_its_options_are_those_of_one_process(name, notebook, other_notebook):
    for one in (notebook, other_notebook):
        one.plain(SETUP)
    made = f"o = {MADE[name]}\no.param_groups[0]['lr'] = 0.5"
    other_notebook.plain(made)
    expected = other_notebook.plain(COMPARED)
    assert notebook.distribute(f"{made}\n{COMPARED}") == expected, "made in the cell"
    assert notebook.plain(COMPARED) == expected, "at home"
    assert notebook.distribute(COMPARED) == expected, "on the next engine"
    for one in (notebook, other_notebook):
        one.plain("o.add_param_group({'params': [torch.nn.Parameter(torch.ones(1))], 'lr': 2.0})")
    assert notebook.plain(COMPARED) == other_notebook.plain(COMPARED), "with another group"
