"""``--strategy zero1``: each rank keeps a part of what optimizers keep, and what comes out is that of `auto`, to the last bit."""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.optim import Optimizer

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm import collectives
from jupyter_dtrain.engine.strategies.zero1.partition import has_step_of, original_step
from jupyter_dtrain.engine.strategies.zero1.sharded_optimizer import ShardedOptimizerStates
from jupyter_dtrain.serialization.scheduler_steps import tracked_step
from tests.conftest import in_turn
from tests.engine.ranks import RankError, Run, double_precision, models_in

SETUP = """
import copy, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
inputs = torch.randn(52, 6)
targets = torch.randint(0, 3, (52,))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
# The second layer's weight is one of those whose numbers go another way than the rest.
model = nn.Sequential(nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 128), nn.LayerNorm(128), nn.Linear(128, 3))
frozen = model[3].bias
frozen.requires_grad_(False)
weights = [p for p in model.parameters() if p.dim() > 1]
others = [p for p in model.parameters() if p.dim() < 2]
seen = []
def train(epochs, step):
    for epoch in range(epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            step()
            seen.append(loss.item())
"""
CELL = "train(2, optimizer.step)"
STATE = "seen, [p.detach() for p in model.parameters()], optimizer.state_dict()"


@double_precision()
def run_it(run: Run, setup: str, cell: str, compare: str, shared: bool) -> dict[str, Any]:
    """Run `setup` as it is and `cell` as the rank's part of a run. Return what is compared, and what the rank kept."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(setup, "setup", namespace)
    optimizers = [value for value in namespace.values() if isinstance(value, Optimizer)]
    for optimizer in optimizers:
        if "step" in vars(optimizer):  # a scheduler's, which is made again where an optimizer arrives
            optimizer.step = tracked_step(optimizer)  # type: ignore[method-assign]
    training = run.training(*models_in(namespace), *optimizers)
    of_rank: dict[str, Any] = {"rank": run.rank, "world_size": run.world_size, "say": run.notes.append}
    states = ShardedOptimizerStates(**of_rank, models=training.models.known.all) if shared else None
    if states is not None:
        states.register(optimizers)
    with training.installed(), nullcontext() if states is None else states.installed():
        run_cell(cell, "cell", namespace)
        kept = [len(vars(value)["state"]) for value in namespace.values() if isinstance(value, Optimizer)]
        with nullcontext() if states is None else states.gathered():
            training.materialize(None, namespace)
    found = eval(compare, namespace) if run.rank == 0 else None
    parameters = [p.detach() for model in models_in(namespace) for p in model.parameters()]
    return {"compared": found, "parameters": parameters, "kept": kept, "notes": run.notes, "said": namespace.get("said")}


def both(ranks, num_ranks: int, setup: str, cell: str, compare: str = STATE) -> list[dict[str, Any]]:
    """Check that both strategies come to the same; return what came out with the states shared out."""
    auto = ranks.call(num_ranks, run_it, setup, cell, compare, False)
    zero1: list[dict[str, Any]] = ranks.call(num_ranks, run_it, setup, cell, compare, True)
    assert differs(auto[0]["compared"], zero1[0]["compared"]) is None
    for one in zero1:
        assert differs(auto[0]["parameters"], one["parameters"]) is None
        assert differs(auto[0]["said"], one["said"]) is None
    return zero1


def differs(one: Any, other: Any, path: str = "") -> str | None:
    """Return where two values are not the same to the last bit, ``None`` if nowhere."""
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        return None if same else path
    if type(one) is not type(other):
        return path
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{path}: {list(one)}, {list(other)}"
        return next((found for key in one if (found := differs(one[key], other[key], f"{path}.{key}")) is not None), None)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return path
        pairs = enumerate(zip(one, other, strict=True))
        return next((found for index, pair in pairs if (found := differs(*pair, f"{path}.{index}")) is not None), None)
    return None if one == other else path


OPTIMIZERS = {
    "Adam": "torch.optim.Adam(model.parameters(), lr=1e-2)",
    "Adam, foreach": "torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True, amsgrad=True)",
    "Adam, fused": "torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)",
    "AdamW, groups": "torch.optim.AdamW([{'params': weights, 'weight_decay': 0.1}, {'params': others, 'lr': 1e-3}], lr=1e-2)",
    "AdamW, a tensor": "torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-2))",
    "SGD": "torch.optim.SGD(model.parameters(), lr=1e-2)",
    "SGD, momentum": "torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True)",
    "SGD, two of them": "torch.optim.SGD([{'params': weights}, {'params': others, 'momentum': 0.5}], lr=1e-2, maximize=True)",
    "RMSprop": "torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.5, centered=True)",
    "Adagrad": "torch.optim.Adagrad(model.parameters(), lr=1e-2)",
    "Adadelta": "torch.optim.Adadelta(model.parameters())",
    "Adamax": "torch.optim.Adamax(model.parameters())",
    "NAdam": "torch.optim.NAdam(model.parameters())",
    "RAdam": "torch.optim.RAdam(model.parameters())",
    "ASGD": "torch.optim.ASGD(model.parameters())",
    "Rprop": "torch.optim.Rprop(model.parameters())",
    "Adafactor": "torch.optim.Adafactor(model.parameters())",
    "Muon": "torch.optim.Muon(weights)",
}


@pytest.mark.parametrize(("kind", "num_ranks"), in_turn(OPTIMIZERS, [2, 3]))
def test_an_optimizer_comes_to_the_same(ranks, kind, num_ranks):
    setup = SETUP + "optimizer = " + OPTIMIZERS[kind]
    found = both(ranks, num_ranks, setup, CELL)
    if kind != "SGD":  # which keeps nothing
        kept = [one["kept"][0] for one in found]
        assert sum(kept) == len(found[0]["compared"][2]["state"])
    assert found[0]["notes"] == []


def test_made_in_the_cell_with_a_schedule(ranks):
    cell = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=20)
def step():
    optimizer.step()
    scheduler.step()
train(2, step)
"""
    both(ranks, 3, SETUP, cell, STATE + ", scheduler.state_dict()")


def test_a_schedule_of_an_earlier_cell(ranks):
    setup = SETUP + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
    setup += "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)\n"
    found = both(ranks, 2, setup, "train(2, lambda: (optimizer.step(), scheduler.step()))")
    assert sum(one["kept"][0] for one in found) == 7


AS_IT_COMES = SETUP + "optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)\n" + CELL + "\nbefore = optimizer.state_dict()\n"


def test_a_state_that_comes_with_it(ranks):
    found = both(ranks, 3, AS_IT_COMES, CELL, STATE + ", before")
    assert sum(one["kept"][0] for one in found) == 7


def test_a_cell_that_makes_no_step_leaves_the_state_alone(ranks):
    both(ranks, 2, AS_IT_COMES, "evaluated = F.cross_entropy(model(inputs), targets).item()", STATE + ", before, evaluated")


def test_parameters_that_get_their_state_later(ranks):
    """Their state comes after that of the others, as in one process, and what loops over it prints the same."""
    cell = """
for layer in (0, 2): model[layer].requires_grad_(False)
train(1, optimizer.step)
model[2].requires_grad_(True)
train(1, optimizer.step)
said = [kept["exp_avg"].norm().item() for kept in optimizer.state.values()]
model[0].requires_grad_(True)
del optimizer.state[model[4].bias]
train(1, optimizer.step)
"""
    both(ranks, 3, SETUP + "optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)\n", cell)


READS = {
    "state_dict": "said = copy.deepcopy(optimizer.state_dict())",
    "one of a parameter": "said = [optimizer.state[p]['exp_avg'].norm().item() for p in model.parameters() if p.requires_grad]",
    "all of them": "said = [(len(optimizer.state), copy.deepcopy(kept)) for kept in optimizer.state.values()]",
    "how many": "said = len(optimizer.state)",
    "a copy": "said = copy.deepcopy(optimizer).state_dict()",
}


@pytest.mark.parametrize("read", READS)
def test_the_cell_reads_all_of_it(ranks, read):
    found = both(ranks, 3, AS_IT_COMES, f"{CELL}\n{READS[read]}\n{CELL}")
    assert sum(one["kept"][0] for one in found) == 7, "and goes on with its part"


WRITES = {
    "a moment": "optimizer.state[weights[0]]['exp_avg'].zero_()",
    "all moments": "for kept in optimizer.state.values(): kept['exp_avg_sq'].mul_(2)",
    "one removed": "del optimizer.state[weights[1]]",
    "all removed": "optimizer.state.clear()",
    "another one": "import collections\noptimizer.state = collections.defaultdict(dict)",
    "loaded": "optimizer.load_state_dict(before)",
    "a group more": "new = nn.Parameter(torch.ones(3))\nmodel.register_parameter('new', new)\n"
    "optimizer.add_param_group({'params': [new]})\nfrozen.requires_grad_(True)",
}


@pytest.mark.parametrize("write", WRITES)
def test_the_cell_changes_it(ranks, write):
    both(ranks, 3, AS_IT_COMES + "before = copy.deepcopy(before)\n", f"{CELL}\n{WRITES[write]}\n{CELL}")


def test_a_state_that_the_cell_keeps_is_of_its_moment(ranks):
    plain = ranks.call(2, run_it, AS_IT_COMES, f"{CELL}\nkept = copy.deepcopy(optimizer.state_dict())\n{CELL}", "kept", False)
    found = ranks.call(2, run_it, AS_IT_COMES, f"{CELL}\nkept = optimizer.state_dict()\n{CELL}", "kept", True)
    assert differs(plain[0]["compared"], found[0]["compared"]) is None


OF_THE_NOTEBOOK = """
class Scaled(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
    @torch.no_grad()
    def step(self):
        all_of_them = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in all_of_them]).norm()
        for p in all_of_them:
            kept = self.state[p]
            kept["sum"] = kept.get("sum", 0) + p.grad / norm
            p -= 0.1 * kept["sum"]
class OwnNorm(torch.optim.Adam):
    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.1)
        return super().step(closure)
class Defaults(torch.optim.Adam):
    def __init__(self, params):
        super().__init__(params, lr=1e-2)
"""


@pytest.mark.parametrize("kind", ["Scaled", "OwnNorm", "torch.optim.LBFGS"])
def test_one_that_looks_at_all_parameters_keeps_everything_and_it_is_said(ranks, kind):
    cell = CELL
    if kind == "torch.optim.LBFGS":
        cell = """
def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    return loss
optimizer.step(closure)
"""
    found = both(ranks, 2, SETUP + OF_THE_NOTEBOOK + f"optimizer = {kind}(model.parameters())", cell)
    assert found[0]["kept"] == found[1]["kept"] != [0]
    (said,) = {note for note in found[0]["notes"] if "zero1" in note}
    assert said.startswith(f"The state of `{kind.rpartition('.')[2]}` is not sharded")


def test_a_class_that_gives_its_own_defaults_is_shared_out(ranks):
    found = both(
        ranks,
        2,
        SETUP + "torch.optim.Adam([nn.Parameter(torch.ones(1))])\n" + OF_THE_NOTEBOOK,
        "optimizer = Defaults(model.parameters())\n" + CELL,
    )
    assert sum(one["kept"][0] for one in found) == 7


def test_closures_hooks_clipping_and_accumulation(ranks):
    cell = """
before, after = [], []
optimizer.register_step_pre_hook(lambda o, *_: before.append(sum(p.grad is not None for g in o.param_groups for p in g["params"])))
optimizer.register_step_post_hook(lambda o, *_: [p.data.clamp_(-0.5, 0.5) for g in o.param_groups for p in g["params"]])
for x, y in loader:
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss
    seen.append(optimizer.step(closure).item())
for number, (x, y) in enumerate(loader):
    F.cross_entropy(model(x), y).backward()
    if number % 2:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
said = before
"""
    both(ranks, 3, SETUP + "optimizer = torch.optim.Adam(model.parameters())", cell)


def test_several_optimizers_a_scaler_and_parameters_without_a_gradient(ranks):
    setup = (
        SETUP
        + """
other = nn.ModuleList([nn.Linear(6, 3), nn.Linear(3, 3), nn.Linear(3, 3)])
optimizer = torch.optim.Adam(model.parameters())
second = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
"""
    )
    cell = """
for number, (x, y) in enumerate(loader):
    optimizer.zero_grad(); second.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y) + other[number % 2](other[0](x)[:, :3] if number % 2 else x).pow(2).mean()).backward()
    scaler.step(optimizer); scaler.step(second); scaler.update()
"""
    both(ranks, 3, setup, cell, STATE + ", second.state_dict(), [p.detach() for p in other.parameters()], scaler.state_dict()")


def test_sparse_gradients_and_numbers_in_another_order(ranks):
    setup = (
        SETUP
        + """
words = nn.Embedding(50, 300, sparse=True)
image = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
index = DataLoader(TensorDataset(torch.randint(0, 50, (20, 4)), torch.randn(20, 3, 5, 5)), batch_size=8)
sparse, optimizer = torch.optim.SparseAdam(words.parameters()), torch.optim.Adagrad([*words.parameters(), *image.parameters()])
"""
    )
    cell = """
for x, y in index:
    for one in (sparse, optimizer):
        loss = words(x).pow(2).mean() + image(y).pow(2).mean()
        words.zero_grad(); image.zero_grad()
        loss.backward()
        one.step()
"""
    compare = (
        "[p.detach() for m in (words, image) for p in m.parameters()], sparse.state_dict(), optimizer.state_dict(), image.weight.stride()"
    )
    both(ranks, 2, setup, cell, compare)


def test_parameters_that_share_memory_are_updated_on_one_rank(ranks):
    setup = (
        SETUP
        + """
whole = torch.randn(40)
parts = [nn.Parameter(whole[:30]), nn.Parameter(whole[10:])]
optimizer = torch.optim.SGD(parts, lr=0.1, momentum=0.9)
"""
    )
    cell = "for _ in range(3):\n    optimizer.zero_grad()\n    sum(p.pow(2).sum() for p in parts).backward()\n    optimizer.step()"
    found = both(ranks, 2, setup, cell, "whole, optimizer.state_dict()")
    assert sorted(one["kept"][0] for one in found) == [0, 2]


def test_steps_within_a_backward_pass(ranks):
    cell = """
of = {p: torch.optim.Adam([p], lr=1e-2) for p in model.parameters() if p.requires_grad}
def update(p):
    of[p].step()
    of[p].zero_grad()
for p in of:
    p.register_post_accumulate_grad_hook(update)
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    seen.append(loss.item())
"""
    both(ranks, 2, SETUP, cell, "seen, [p.detach() for p in model.parameters()], [o.state_dict() for o in of.values()]")


def test_narrow_numbers_and_complex_ones(ranks):
    setup = (
        SETUP
        + """
narrow = [nn.Parameter(torch.randn(7, dtype=kind)) for kind in (torch.bfloat16, torch.complex64, torch.float32)]
narrow.append(nn.Parameter(torch.randn(())))
optimizer = torch.optim.Adam(narrow, lr=0.1)
"""
    )
    cell = "for _ in range(3):\n    optimizer.zero_grad()\n    sum(p.abs().pow(2).sum() for p in narrow).backward()\n    optimizer.step()"
    both(ranks, 3, setup, cell, "[p.detach() for p in narrow], optimizer.state_dict()")


def by_network(run: Run, *args: Any) -> dict[str, Any]:
    """Run it as where the ranks share no memory."""
    with mock.patch.multiple(collectives, batch_memory=lambda: None, memory_of=lambda _: None):
        return run_it(run, *args)


def test_over_a_network(ranks):
    expected, *_ = ranks.call(3, run_it, AS_IT_COMES, CELL, STATE + ", before", False)
    first, *others = ranks.call(3, by_network, AS_IT_COMES, f"{CELL}\nkept = optimizer.state_dict()", STATE + ", before", True)
    assert differs(expected["compared"], first["compared"]) is None
    assert all(differs(expected["parameters"], one["parameters"]) is None for one in others)


def test_parameters_that_are_no_plain_tensors_any_more(ranks):
    """The state comes back to all ranks."""
    cell = f"""{CELL}
optimizer.add_param_group({{"params": [torch.zeros(3, requires_grad=True)], "differentiable": True}})
{CELL}
"""
    found = both(ranks, 2, AS_IT_COMES, cell)
    assert [one["kept"][0] for one in found] == [7, 7]
    (said,) = set(found[0]["notes"])
    assert said.startswith("The state of `Adam` is not sharded by `--strategy zero1`: some of its parameters are not ")


def test_reading_it_where_rank_0_comes_alone_is_an_error(ranks):
    cell = f"""from jupyter_dtrain import is_main
{CELL}
try:
    if is_main():
        optimizer.state_dict()
except RuntimeError as error:
    said = str(error)
"""
    first, second = ranks.call(2, run_it, AS_IT_COMES, cell, "1", True)
    assert first["said"].startswith("Line 5 needs all engines")
    assert second["said"] is None


def test_adamw_steps_as_adam_does_where_it_has_no_step_of_its_own(monkeypatch):
    """PyTorch gives it one with its first object, unless there was one of Adam's before."""
    original_step(torch.optim.Adam)
    if "step" in vars(torch.optim.AdamW):
        monkeypatch.delattr(torch.optim.AdamW, "step")
    optimizer = torch.optim.AdamW([torch.zeros(2, requires_grad=True)])
    assert "step" not in vars(torch.optim.AdamW)
    assert has_step_of(optimizer, {torch.optim.Adam})
    assert not has_step_of(optimizer, {torch.optim.SGD})


FAILING = """
class Bad(float):
    def __neg__(self): raise ValueError("bad")
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.param_groups[1]["lr"] = Bad(0.1) if len(seen) == 2 else 0.1
    try:
        optimizer.step()
    except WHAT as error:
        seen.append(str(error))
    seen.append(0)
"""


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_an_error_in_a_step_that_the_cell_catches_is_said(ranks, num_ranks):
    """What each rank had updated before it is no process's."""
    setup = SETUP + "optimizer = torch.optim.SGD([dict(params=others), dict(params=weights[:1])], lr=0.1, momentum=0.9)\n"
    for what, said in {
        "ValueError": "cannot go on after an error in a step",
        "Exception": "cannot go on after",
        "KeyError": "ValueError: bad",
    }.items():
        with pytest.raises(RankError, match=said):
            ranks.call(num_ranks, run_it, setup, FAILING.replace("WHAT", what), STATE, True)
