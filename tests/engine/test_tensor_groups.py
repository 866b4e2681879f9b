"""Groups of ranks beside each other that divide linear layers: what cells do comes to what one process comes to, on 2 × 2 ranks."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import pytest

from jupyter_dtrain.engine.comm.batch_ranks import BatchRanks
from jupyter_dtrain.engine.comm.mesh import Mesh
from jupyter_dtrain.engine.comm.process_group import shared_memory_among
from jupyter_dtrain.engine.comm.shared_memory import SharedMemory
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.strategies.tensor_parallel.groups import GroupTraining
from jupyter_dtrain.engine.strategies.tensor_parallel.layer_training import LayerTraining
from tests.conftest import one_of
from tests.engine import pipeline_cells
from tests.engine.ranks import RankError, Run
from tests.engine.test_tensor_parallel import ALONE, CELLS, hold, noted, some
from tests.engine.test_zero3 import CLOSE, READERS, distance, run_connected
from tests.engine.zero3_cells import IDIOMS, LOOP, MODELS, MORE, STATE

GROUPS = {"dp": 2, "tp": 2}


def batches_of(run: Run) -> BatchRanks:
    mesh = Mesh(run.rank, GROUPS)
    return BatchRanks(shared_memory_among(mesh.ranks_along("dp")), shared_memory_among(mesh.ranks_along("tp")))


def run_grouped(run: Run, setup: str, cell: str, compare: str = STATE) -> dict[str, Any]:
    """Run `setup` as it is and `cell` as the rank's part of a run of groups that divide linear layers; plain on one rank."""
    found: dict[str, Any] = {"shapes": [], "fetched": []}
    batches = batches_of(run) if run.world_size > 1 else None

    def connect(training: DataParallelTraining, memory: SharedMemory) -> LayerTraining:
        divided = LayerTraining(training, memory, batches=batches, say=run.notes.append, least=0)
        for shard in divided.store.shards():
            found["shapes"].append((shard.shape, tuple(shard.rows.shape)))
            shard.fetch = noted(shard, found["fetched"])  # type: ignore[method-assign]
        return divided

    kind: Any = DataParallelTraining if batches is None else partial(GroupTraining, batches=batches)
    compared, divided = run_connected(run, setup, cell, compare, connect, kind)
    return {**found, "compared": compared, "notes": run.notes if divided is not None else []}


def check(ranks, setup: str, cell: str, compare: str = STATE) -> list[dict[str, Any]]:
    """Check that the ranks come to what one process comes to; return what came out on each."""
    (one,) = ranks.call(1, run_grouped, setup, cell, compare)
    found: list[dict[str, Any]] = ranks.call(4, run_grouped, setup, cell, compare)
    for of_rank in found:
        assert of_rank["shapes"]
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
    return found


@pytest.mark.parametrize("model", some([("MLP",), ("transformer",), ("CNN",)], MODELS))
def test_groups_that_divide_layers(ranks, model):
    """With rows that do not divide evenly, tied weights, dropout, BatchNorm, attention and recurrent layers beside the linear ones."""
    for of_rank in check(ranks, MODELS[model], LOOP):
        assert all(prod(whole) > 2 * prod(rows) for whole, rows in of_rank["shapes"])


def test_layers_are_computed_without_their_weights(ranks):
    for of_rank in ranks.call(4, run_grouped, MODELS["MLP"], LOOP):
        assert not of_rank["fetched"]


EVERYDAY = [("clip_grad_norm_",), ("grad penalty",)]


@pytest.mark.parametrize("name", some(EVERYDAY, [*IDIOMS, *MORE]))
def test_cell_with_groups(ranks, name):
    check(ranks, MODELS["MLP"], {**IDIOMS, **MORE}[name])


@pytest.mark.long
@pytest.mark.parametrize(("name", "model"), some([], IDIOMS, [model for model in MODELS if model != "MLP"]))
def test_cell_with_groups_of_other_models(ranks, name, model):
    if (name, model) == ("L2 in loss", "encoder-decoder"):
        pytest.skip("Adam makes steps of 1e-4 of the rounding of a gradient that is zero (the bias of keys), under any strategy")
    check(ranks, MODELS[model], IDIOMS[name])


@pytest.mark.parametrize(
    ("name", "model"), some([("evaluation, its best state, metrics", "dropout")], pipeline_cells.CELLS, pipeline_cells.MODELS)
)
def test_models_of_several_kinds_with_groups(ranks, name, model):
    check(ranks, pipeline_cells.MODELS[model], pipeline_cells.CELLS[name])


@pytest.mark.long
def test_whoever_reads_a_parameter_in_the_cell_reads_all_of_it(ranks):
    check(ranks, MODELS["MLP"], LOOP + READERS)


@pytest.mark.parametrize("name", some([("a gradient of one's own",)], CELLS))
def test_cell_of_another_kind(ranks, name):
    check(ranks, MODELS["MLP"], CELLS[name])


GRADIENTS = [
    "w = model[2].weight\n(model(x).sum() + (w * w.grad).sum()).backward()\n",
    "w = model[2].weight\nlosses.append(torch.autograd.grad(model(x).sum() + (w * w.grad).sum(), [w])[0].sum().item())\n",
    "(model(x).sum() * model[2].weight.grad.norm()).backward()\n",
    "for p in model.parameters(): p.grad.data.clamp_(-0.01, 0.01); p.grad *= 2\noptimizer.step()\n",
    "kept = [p.grad for p in model.parameters()]\noptimizer.zero_grad()\nmodel(x).sum().backward()\nlosses += [g.sum() for g in kept]\n",
    "losses.append((x.sum() * model[2].weight.grad.mean()).item())\nlosses += [len(p.grad) for p in model.parameters()]\n",
    # Of five rows the third rank has two, and the others one.
    "w = nn.Linear(x.shape[-1], 5).weight\nF.linear(x, w).sum().backward()\nnn.utils.clip_grad_value_([w], 0.1)\nlosses.append(w.grad)\n",
]


@pytest.mark.parametrize("cell", some([(GRADIENTS[0],), (GRADIENTS[3],), (GRADIENTS[-1],)], GRADIENTS))
def test_gradients_are_those_of_one_process_whatever_is_computed_of_them(ranks, cell):
    check(ranks, MODELS["MLP"], LOOP + cell, STATE + ", [p.grad for p in model.parameters()]")


def test_what_is_derived_by_a_gradient_is_refused(ranks):
    cell = LOOP + "g = model[2].weight.grad.requires_grad_()\n(g * 2).sum().backward()\n"
    with pytest.raises(RankError, match="The cell differentiates through gradients"):
        ranks.call(4, run_grouped, MODELS["MLP"], cell)


@pytest.mark.parametrize("change", one_of(2, ["optimizer.step()", "with torch.no_grad(): model[2].weight.mul_(2)"]))
def test_weights_that_are_changed_before_the_backward_pass_are_an_error(ranks, change):
    with pytest.raises(RankError, match="modified by an inplace operation"):
        ranks.call(4, run_grouped, MODELS["MLP"], f"{LOOP}loss = model(x).sum()\n{change}\nloss.backward()\n")


@pytest.mark.parametrize(
    ("cell", "what"),
    [("model(X + dist.get_rank())", "inputs of `Sequential`"), ("(model(x).sum() * (1 + dist.get_rank())).backward()", "losses")],
)
def test_what_differs_within_a_group_is_an_error(ranks, cell, what):
    with pytest.raises(RankError, match=f"The engines have different {what}"):
        ranks.call(4, run_grouped, MODELS["MLP"], f"{LOOP}import torch.distributed as dist\n{cell}\n")


def test_what_the_cell_gathers_comes_from_all_ranks(ranks):
    cell = LOOP + "from jupyter_dtrain import gather\nlosses.append(len(gather(1)) if torch.distributed.get_world_size() > 1 else 4)\n"
    check(ranks, MODELS["MLP"], cell)


@pytest.mark.long
def test_a_model_that_rank_0_alone_calls_is_computed_by_it_alone(ranks):
    check(ranks, MODELS["MLP"], ALONE)


def hold_grouped(run: Run) -> dict[str, list[int]]:
    batches = batches_of(run)
    return hold(run, partial(GroupTraining, batches=batches), batches)


def test_each_rank_has_its_rows_alone(ranks):
    found = ranks.call(4, hold_grouped)
    for of_rank in found:
        assert not of_rank["whole"]
        assert of_rank["gradients"] == of_rank["parameters"]
        assert sum(of_rank["moments"]) == 2 * sum(of_rank["parameters"])
    for parts in zip(*(of_rank["parameters"] for of_rank in found), strict=True):
        assert max(parts) < 0.4 * sum(parts)
    assert sum(sum(of_rank["parameters"]) for of_rank in found) == sum(found[0]["all"])
