"""Errors in `optimizer.step()` that the cell catches, of strategies that divide models: the rest of the cell is as on one process.

What was written before the error stays. Ranks come to it at different moments.
"""

from __future__ import annotations

from math import prod

import pytest

from tests.engine.divided_cells import STRATEGIES, run_divided_cell
from tests.engine.everyday_cells import HEAD
from tests.engine.ranks import RankError
from tests.engine.test_divided_models import check, marked

MODEL = (
    HEAD
    + """
import time, torch.distributed as dist
RANK = dist.get_rank() if dist.is_initialized() else 0
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5))
first, rest = [*model[:3].parameters()], [*model[3:].parameters()]
groups = [dict(params=first), dict(params=rest)]
class Slow(float):
    def __neg__(self):
        time.sleep(0.05 * RANK)
        return -float(self)
class Bad(float):
    def __neg__(self):
        time.sleep(0.05 * RANK)
        raise ValueError("bad")
class BadOnOne(float):
    def __neg__(self):
        if RANK == 1: raise ValueError("bad")
        return -float(self)
class BadSomewhere(float):
    asked = 0
    def __neg__(self):
        BadSomewhere.asked += 1
        if BadSomewhere.asked == 1 + RANK: raise ValueError("bad")
        return -float(self)
"""
)
SGD = MODEL + "optimizer = torch.optim.SGD(groups, lr=Slow(0.1), momentum=0.9)\n"
OWN = (
    MODEL
    + """
class Own(torch.optim.Optimizer):
    steps, fails_on = 0, None
    def __init__(self, params): super().__init__(params, dict(lr=0.1))
    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for number, p in enumerate(p for group in self.param_groups for p in group["params"]):
            self.state[p].setdefault("average", torch.zeros_like(p)).lerp_(p.grad, 0.5)
            time.sleep(0.01 * RANK)
            p.sub_(self.state[p]["average"], alpha=0.1)
            if number == 3 and self.steps % 2 and self.fails_on in (None, RANK): raise RuntimeError("own")
optimizer = Own(model.parameters())
"""
)
CELL = """
FIRST
for step, (x, y) in enumerate([*loader] * 2):
    BEFORE
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    try:
        optimizer.step(CLOSURE)
    except (ValueError, TypeError, RuntimeError) as error:
        losses.append(type(error).__name__)
    losses.append([[p.sum().item(), p.grad.sum().item()] for p in model.parameters()])
    losses.append(F.cross_entropy(model(X), Y).item())
    AFTER
"""


def failing(*, before: str = "", after: str = "", first: str = "", closure: str = "") -> str:
    """Return a cell that goes on after errors in steps, with lines of one's own."""
    lines = {"FIRST": first, "BEFORE": before or "pass", "AFTER": after or "pass", "CLOSURE": closure}
    cell = CELL
    for name, line in lines.items():
        cell = cell.replace(name, line)
    return cell


def with_lr(value: str) -> str:
    """Return the line that gives the second group a learning rate which is bad in every third step."""
    return f"optimizer.param_groups[1]['lr'] = {value} if step % 3 == 1 else 0.1"


HOOK = """
def hook(*_):
    for p in first:
        time.sleep(0.01 * RANK)
        with torch.no_grad(): p.mul_(0.99)
    losses.append(len(losses))
    if len(losses) % 4 == 1: raise RuntimeError("hook")
optimizer.register_step_WHEN_hook(hook)
"""
CLOSURE = """
asked = 0
def closure():
    global asked
    asked += 1
    if asked % 7 == 6: raise RuntimeError("closure")
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss
"""
FAILING = """
class Failing(torch.optim.SGD):
    steps = 0
    def step(self, closure=None):
        super().step(closure)
        self.steps += 1
        time.sleep(0.05 * RANK)
        if self.steps % 3 == 1: raise RuntimeError("late")
optimizer = Failing(groups, lr=0.1, momentum=0.9)
"""
READ_STATE = "losses.append([v.sum().item() for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)])"
ADAM = MODEL + "optimizer = torch.optim.Adam(groups, lr=0.01)\n"
LBFGS = MODEL + "optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)\n"
BAD_BETAS = "optimizer.param_groups[1]['betas'] = (0.9, 'no') if step % 3 == 1 else (0.9, 0.99)"
STATE = "losses, [p.detach().clone() for p in model.parameters()], [p.grad for p in model.parameters()], optimizer.state_dict()['state']"
CELLS = {
    "a bad learning rate": (SGD, failing(before=with_lr("Bad(0.1)"))),
    "state is read": (ADAM, failing(before=BAD_BETAS, after=READ_STATE)),
    "weights are held": (
        SGD,
        failing(before=with_lr("Bad(0.1)"), first="held = [*model.state_dict().values()]", after="losses.append(str(held))"),
    ),
    "state is held": (
        SGD,
        failing(
            before=with_lr("Bad(0.1)") + "; held = [v for s in optimizer.state.values() for v in s.values()]",
            after="losses.append([v.sum().item() for v in held])",
        ),
    ),
    "an optimizer of its own": (OWN, failing(after=READ_STATE)),
    "a hook before": (SGD, failing(first=HOOK.replace("WHEN", "pre"))),
    "a hook after": (SGD, failing(first=HOOK.replace("WHEN", "post"), after=READ_STATE)),
    "a hook before one of its own": (OWN, failing(first=HOOK.replace("WHEN", "pre"))),
    "a hook after one of its own": (OWN, failing(first=HOOK.replace("WHEN", "post"))),
    "a closure": (SGD, failing(first=CLOSURE, closure="closure")),
    "a closure that is called often": (LBFGS, failing(first=CLOSURE, closure="closure")),
    "a step around PyTorch's": (MODEL + FAILING, failing(after=READ_STATE)),
}
ON_ONE = {
    "a bad learning rate": (SGD, failing(before=with_lr("BadOnOne(0.1)"))),
    "at different places": (SGD, failing(before=with_lr("BadSomewhere(0.1)"))),
    "an optimizer of its own": (OWN, failing(first="optimizer.fails_on = 1")),
}
WAYS = ["zero3 2", "pipeline 2", "tensor 2", "zero3 2x2"]
EACH_TIME = [("a bad learning rate", "zero3 2"), ("state is read", "zero3 2x2"), ("a bad learning rate", "pipeline 2")]


@pytest.mark.parametrize(("name", "strategy"), marked([(name, strategy) for name in CELLS for strategy in WAYS], EACH_TIME))
def test_an_error_that_all_ranks_raise(ranks, name, strategy):
    assert check(ranks, strategy, *CELLS[name], STATE)


@pytest.mark.parametrize(
    ("name", "strategy"), marked([(name, strategy) for name in ON_ONE for strategy in WAYS], [("a bad learning rate", "zero3 2")])
)
def test_an_error_of_one_rank_is_said(ranks, name, strategy):
    """Also if the cell catches it. What the ranks have then is no process's."""
    setup, cell = ON_ONE[name]
    found = "have failed at different places" if setup == SGD else "are at different lines"
    for text, expected in (
        (cell, f"The ranks {found} of the cell"),
        (cell.replace("(ValueError, TypeError, RuntimeError)", "KeyError"), ""),
    ):
        with pytest.raises(RankError) as failed:
            ranks.call(prod(STRATEGIES[strategy].values()), run_divided_cell, strategy, setup, text, STATE)
        assert expected in str(failed.value)
        assert expected or "Error: bad" in str(failed.value) or "Error: own" in str(failed.value)


NOW_WHOLE = """
import gc
from jupyter_dtrain.engine.strategies.zero3.parameter_store import ParameterStore
losses.append([len(store.now_whole()) for store in gc.get_objects() if type(store) is ParameterStore])
"""


def test_parameters_are_not_whole_after_an_error(ranks):
    """They would stay so on each rank."""
    for of_rank in ranks.call(2, run_divided_cell, "zero3 2", OWN, failing() + NOW_WHOLE, "losses[-1]"):
        assert of_rank["compared"][0] == [0]
