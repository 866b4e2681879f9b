"""Ranks that step by themselves: every number that a cell reads is the same on all of them, and so are parameters, whatever it does."""

from __future__ import annotations

import contextlib
import copy
import random
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm import meeting_place
from jupyter_dtrain.engine.strategies.less_communication.local_steps import LocalSteps
from tests.conftest import one_of
from tests.engine.local_cells import CELLS, COMPARE, COMPARE_KEPT, LOOP, MODELS, SETUP, STEP, looped
from tests.engine.ranks import RankError, Run, double_precision, models_in
from tests.notebook.kernel import difference

COMMON = ("by hand", "clipped", "gradients asked for", "lbfgs", "own optimizer", "own step", "tensor")
"""Cells that never step on a rank's own gradient."""
OTHER_WAYS = (
    "adversary",
    "adversary of noise",
    "functional",
    "optimizer copied",
    "optimizer read",
    "optimizer reset",
    "gradients with a graph",
    "passes that fail",
    "penalty alone",
    "saved",
    "steps that fail",
)
"""Cells that reach code which no other one reaches."""
SAVING = (
    "accumulation",
    "adversary",
    "caught",
    "closure",
    "evaluation",
    "losses",
    "plain",
    "plateau",
    "scheduler",
    "two optimizers",
    "zeros kept",
)
NET = SETUP.replace("lr=0.05, momentum=0.9", "lr=0.05")
THREAD = """
import threading
def look():
    try:
        model[0].weight.sum()
    except RuntimeError as error:
        seen.append(str(error))
"""
ADAM = SETUP + MODELS["adam"]


@double_precision()
def trained(run: Run, setup: str, cell: str, compare: str, every: int) -> dict[str, Any]:
    """Return what `compare` comes to on this rank, the bytes exchanged, and what was said."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(setup, "setup", namespace)
    count, meet = 0, meeting_place.MeetingPlace._meet

    def counted(self, num_bytes, *rest):
        nonlocal count
        count += num_bytes
        return meet(self, num_bytes, *rest)

    optimizers = [value for value in namespace.values() if isinstance(value, torch.optim.Optimizer)]
    training = run.training(*models_in(namespace), *optimizers, global_batchnorm=True, global_draws=True)
    steps = LocalSteps(every, training) if every > 1 else None
    with (
        training.installed(),
        steps.installed() if steps is not None else contextlib.nullcontext(),
        mock.patch.object(meeting_place.MeetingPlace, "_meet", counted),
    ):
        run_cell(cell, "cell", namespace)
        if steps is not None:
            steps.finish()
        training.materialize(None, namespace)
        in_cell = count
    assert all(type(parameter) is nn.Parameter for model in models_in(namespace) for parameter in model.parameters())
    return {"compared": eval(compare, namespace), "bytes": in_cell, "notes": run.notes}


def same(found: list[dict[str, Any]]) -> list[str]:
    return [apart for other in found[1:] if (apart := difference(other["compared"], found[0]["compared"])) is not None]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, marks=() if size == 2 and (index % 3 == 0 or name in OTHER_WAYS) else pytest.mark.long)
        for index, name in enumerate(CELLS)
        for size in (2, 3)
    ],
)
def test_all_ranks_read_the_same_and_end_with_the_same(ranks, name, size):
    found = ranks.call(size, trained, ADAM, CELLS[name], f"({COMPARE}, {COMPARE_KEPT})", 4)
    assert same(found) == []


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("name", ["losses", pytest.param("clipped", marks=pytest.mark.long), "evaluation within"])
def test_models_of_other_kinds(ranks, model, name):
    cell = CELLS[name]
    if model == "own loss":
        cell = cell.replace("F.mse_loss(model(x), y)", "model(x, y)").replace("F.mse_loss(model(held), truth)", "model(held, truth)")
    assert same(ranks.call(2, trained, SETUP + MODELS[model], cell, f"({COMPARE}, {COMPARE_KEPT})", 4)) == []


def by_hand(every: int, num_ranks: int) -> list[torch.Tensor]:
    """Return what local SGD comes to, written out."""
    with double_precision():
        torch.manual_seed(0)
        namespace: dict[str, Any] = {}
        exec(NET.replace("torch.randn(52, 6)", "torch.randn(48, 6)"), namespace)
        models = [copy.deepcopy(namespace["model"]) for _ in range(num_ranks)]
        optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
        count = 0
        for _ in range(4):
            for x, y in namespace["loader"]:
                count += 1
                for model, optimizer, own_x, own_y in zip(models, optimizers, x.chunk(num_ranks), y.chunk(num_ranks), strict=True):
                    optimizer.zero_grad()
                    F.mse_loss(model(own_x), own_y).backward()
                    optimizer.step()
                if count % every == 0:
                    with torch.no_grad():
                        for parameters in zip(*(model.parameters() for model in models), strict=True):
                            mean = sum(parameter.clone() for parameter in parameters) / num_ranks
                            for parameter in parameters:
                                parameter.copy_(mean)
        return [sum(p.detach() for p in parameters) / num_ranks for parameters in zip(*(m.parameters() for m in models), strict=True)]


@pytest.mark.parametrize(("every", "size"), [(5, 2), (4, 4)])
def test_it_is_local_sgd(ranks, every, size):
    setup = ADAM.replace("torch.randn(52, 6)", "torch.randn(48, 6)")
    found = ranks.call(size, trained, setup, LOOP, "[p.detach() for p in model.parameters()]", every)
    assert difference(found[0]["compared"], by_hand(every, size)) is None


RESUMED = (
    ADAM
    + """
parts = [DataLoader(TensorDataset(inputs[own], targets[own]), batch_size=8) for own in (slice(32), slice(32, None))]
"""
)
FIRST = """
for x, y in parts[0]:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
model[2].bias.grad = torch.zeros(1)
F.mse_loss(model(x), y).backward()
"""
REST = """
for x, y in parts[1]:
    F.mse_loss(model(x), y).backward()
    optimizer.step()
"""


@double_precision()
def resumed(run: Run, parts: list[str]) -> list[torch.Tensor]:
    """Return what a cell comes to that is stopped after each of its `parts` but the last, and resumed by another one."""
    torch.manual_seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(RESUMED, "setup", namespace)
    state: dict[str, Any] = {}
    for part in parts:
        model, optimizer = namespace["model"], namespace["optimizer"]
        training = run.training(model, optimizer, global_batchnorm=True, global_draws=True)
        steps = LocalSteps(4, training)
        with training.installed(), steps.installed():
            steps.load_state_dict(state)
            run_cell(part, "cell", namespace)
            assert steps.is_ahead == (part is parts[-1])
            with steps.as_it_is():
                state, namespace["model"], namespace["optimizer"] = copy.deepcopy((steps.state_dict(), model, optimizer))
                for copied, parameter in zip(namespace["model"].parameters(), model.parameters(), strict=True):
                    copied.grad = copy.deepcopy(parameter.grad)
            steps.finish()
            training.materialize(None, namespace)
    return [value.detach() for p in model.parameters() for value in (p, p.grad)]


def test_a_cell_that_is_resumed_goes_on_with_what_each_rank_has_of_its_own(ranks):
    expected = ranks.call(2, resumed, [FIRST + REST])
    found = ranks.call(2, resumed, [FIRST, REST])
    assert difference(expected[0], expected[1]) is None
    assert difference(found, expected) is None


@pytest.mark.parametrize("name", COMMON)
def test_what_no_engine_can_do_by_itself_is_that_of_one_process(ranks, name):
    plain = ranks.call(1, trained, NET, CELLS[name], COMPARE, 1)
    assert difference(ranks.call(2, trained, NET, CELLS[name], COMPARE, 4)[0]["compared"], plain[0]["compared"]) is None


def test_sgd_whose_parameters_are_looked_at_in_each_step_is_that_of_one_process(ranks):
    cell = looped("seen.append(sum(p.sum().item() for p in model.parameters()))")
    plain = ranks.call(1, trained, NET, cell, COMPARE, 1)
    found = ranks.call(2, trained, NET, cell, COMPARE, 4)
    assert difference(found[0]["compared"], plain[0]["compared"]) is None
    assert [line for line in found[0]["notes"] if "averages parameters where the cell reads them (line " in line], found[0]["notes"]


@pytest.mark.parametrize("name", one_of(3, SAVING))
def test_bytes_are_saved_where_nothing_is_looked_at_in_each_step(ranks, name):
    cell, wide = CELLS[name].replace("range(4)", "range(8)"), ADAM.replace("16", "400")
    plain, found = (ranks.call(2, trained, wide, cell, "None", every)[0]["bytes"] for every in (1, 8))
    assert found < 0.35 * plain


def test_bytes_of_every_sixteenth_step_are_less_than_a_fifteenth(ranks):
    wide = ADAM.replace("16", "400")
    cell = looped("seen.append(loss.item())")
    quarter, found = (
        ranks.call(2, trained, wide, cell.replace("range(4)", f"range({epochs})"), "None", every)[0]["bytes"]
        for epochs, every in ((40, 1), (160, 16))
    )
    assert found <= 4 * quarter / 15, "each step exchanges as much"


@pytest.mark.parametrize("name", ["held state", "held data", "held array"])
def test_numbers_that_something_else_has_are_averaged_in_each_step(ranks, name):
    notes = ranks.call(2, trained, ADAM, CELLS[name], "None", 4)[0]["notes"]
    assert any("parameters in every step, because other tensors share their memory" in line for line in notes)


def test_a_model_that_is_averaged_before_each_call_is_told_of(ranks):
    notes = ranks.call(2, trained, ADAM, CELLS["penalty in between"], "None", 4)[0]["notes"]
    assert [line for line in notes if "averages parameters in every step, as the cell reads them between a model's call" in line], notes


def test_a_look_in_between_that_comes_late_is_an_error_of_pytorchs(ranks):
    """The graph has what was before the average; a cell that looks there from the first step on has it averaged before each call."""
    cell = looped(
        step=STEP.replace(
            "        optimizer.zero_grad()",
            "        if epoch == 2:\n            seen.append(model[2].weight.sum().item())\n        optimizer.zero_grad()",
        )
    )
    with pytest.raises(RankError, match="has been modified by an inplace operation"):
        ranks.call(2, trained, ADAM, cell, "None", 4)


def test_a_thread_that_looks_at_parameters_is_an_error(ranks):
    cell = looped("thread = threading.Thread(target=look)\nthread.start()\nthread.join()", before=THREAD, after="assert not seen, seen[0]")
    with pytest.raises(RankError, match="A thread reads parameters, which differ between engines"):
        ranks.call(2, trained, ADAM, cell, "None", 4)


def test_an_error_of_one_rank_in_a_step_is_said(ranks):
    """Also where the cell catches it."""
    bad = "import torch.distributed as dist\n        if dist.get_rank() == 1: raise ValueError('bad')\n        return -float(self)"
    cell = CELLS["steps that fail"].replace('raise ValueError("bad")', f"\n        {bad}").replace("except ValueError", "except Exception")
    with pytest.raises(
        RankError, match=r"Rank 1 had raised ValueError at line \d+ \(bad\), which the cell caught\. The others did not raise"
    ):
        ranks.call(2, trained, ADAM, cell, COMPARE, 4)
