"""Linear layers computed by columns: what cells do with them comes to what one process comes to, on 2, 3 and 4 ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import pytest

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm.batch_ranks import BatchRanks
from jupyter_dtrain.engine.comm.process_group import shared_memory
from jupyter_dtrain.engine.comm.shared_memory import SharedMemory
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.strategies.tensor_parallel.layer_parameter import LayerParameter
from jupyter_dtrain.engine.strategies.tensor_parallel.layer_training import LayerTraining
from jupyter_dtrain.engine.strategies.tensor_parallel.replicated_training import ReplicatedTraining
from jupyter_dtrain.shard_patterns import ShardPattern
from tests.engine.ranks import RankError, Run
from tests.engine.test_zero3 import CLOSE, READERS, distance, run_connected
from tests.engine.zero3_cells import IDIOMS, LOOP, MODELS, MORE, STATE


def run_divided(run: Run, setup: str, cell: str, compare: str, patterns: Sequence[str] = ()) -> dict[str, Any]:
    """Run `setup` as it is and `cell` as the rank's part of a run with its linear layers divided; plain on one rank."""
    shapes: list[Any] = []
    fetched: list[Any] = []

    def connect(training: DataParallelTraining, memory: SharedMemory) -> LayerTraining:
        divided = LayerTraining(
            training, memory, say=run.notes.append, least=1 << 20 if patterns else 0, patterns=[*map(ShardPattern.parse, patterns)]
        )
        divided.store.named.check()
        for shard in divided.store.shards():
            shapes.append((shard.shape, tuple(shard.rows.shape)))
            shard.fetch = noted(shard, fetched)  # type: ignore[method-assign]
        return divided

    compared, divided = run_connected(run, setup, cell, compare, connect, ReplicatedTraining)
    return {"compared": compared, "shapes": shapes, "fetched": fetched, "notes": run.notes if divided is not None else []}


def noted(shard: Any, fetched: list[Any]) -> Any:
    def fetch() -> None:
        fetched.append(shard.shape)
        LayerParameter.fetch(shard)

    return fetch


def check(ranks, num_ranks: int, setup: str, cell: str, compare: str = STATE) -> list[dict[str, Any]]:
    """Check that the ranks come to what one process comes to; return what came out on each."""
    (one,) = ranks.call(1, run_divided, setup, cell, compare)
    found: list[dict[str, Any]] = ranks.call(num_ranks, run_divided, setup, cell, compare)
    for of_rank in found:
        assert of_rank["shapes"]
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
    return found


def some(short: Collection[Any], *values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test: all combinations of `values`, of which those that are not in `short` are for long runs."""
    return [pytest.param(*one, marks=() if one in short else pytest.mark.long) for one in product(*values)]


SHORT = [("MLP", 3), ("transformer", 2), ("encoder-decoder", 2), ("CNN", 4)]


@pytest.mark.parametrize(("model", "num_ranks"), some(SHORT, MODELS, (2, 3, 4)))
def test_training_with_divided_layers(ranks, model, num_ranks):
    """With rows that do not divide evenly, tied weights, dropout, BatchNorm, attention and recurrent layers beside the linear ones."""
    for of_rank in check(ranks, num_ranks, MODELS[model], LOOP):
        assert all(prod(whole) > prod(rows) for whole, rows in of_rank["shapes"])


def test_layers_are_computed_without_their_weights(ranks):
    for of_rank in ranks.call(2, run_divided, MODELS["MLP"], LOOP, STATE):
        assert not of_rank["fetched"]


EVERYDAY = [("clip_grad_norm_",), ("LBFGS all",), ("grad penalty",), ("inputs=",), ("retain_graph",), ("load_state_dict mid",)]


@pytest.mark.parametrize("name", some(EVERYDAY, [*IDIOMS, *MORE]))
def test_cell_with_divided_layers(ranks, name):
    check(ranks, 2, MODELS["MLP"], {**IDIOMS, **MORE}[name])


@pytest.mark.long
@pytest.mark.parametrize(("name", "model"), [*product(IDIOMS, ["transformer", "encoder-decoder"])])
def test_cell_with_divided_layers_of_other_models(ranks, name, model):
    check(ranks, 3, MODELS[model], IDIOMS[name])


def test_whoever_reads_a_parameter_in_the_cell_reads_all_of_it(ranks):
    check(ranks, 2, MODELS["MLP"], LOOP + READERS)


OWN_GRADIENT = "for p in model.parameters(): p.grad = torch.ones_like(p)\n        loss.backward()"
AGAIN = "checkpoint(model, x * 1, use_reentrant=len(losses) % 2 == 0)"
COUNTED = """
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter: model(X)
losses.append(counter.get_total_flops())
"""
CELLS = {
    "gradients of gradients": LOOP.replace("backward()", "backward(create_graph=True)"),
    "activations computed again": "from torch.utils.checkpoint import checkpoint\nX.requires_grad_()\n" + LOOP.replace("model(x)", AGAIN),
    "lower precision": LOOP.replace("out = model(x)", "with torch.autocast('cpu', torch.bfloat16): out = model(x).double()"),
    "a gradient of one's own": LOOP.replace("loss.backward()", OWN_GRADIENT),
    "hooks of activations": "model[0].register_forward_hook(lambda m, i, o: losses.append(o.sum().item()) or o * 1.5)\n" + LOOP,
    "a layer of the cell": f"{LOOP}model[2] = nn.Linear(24, 24)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{LOOP}",
    "weights of two layers": "model[4].weight = model[2].weight\noptimizer = torch.optim.Adam(model.parameters())\n" + LOOP,
    "counted operations": LOOP + COUNTED,
}


@pytest.mark.parametrize("name", CELLS)
def test_cell_of_another_kind(ranks, name):
    check(ranks, 2, MODELS["MLP"], CELLS[name])


@pytest.mark.parametrize("change", ["with torch.no_grad(): model[2].weight.mul_(2)", "optimizer.step()"])
@pytest.mark.parametrize("asks", ["loss.backward()", "torch.autograd.grad(loss, [model[0].weight])"])
def test_weights_that_are_changed_before_the_backward_pass_are_an_error(ranks, change, asks):
    with pytest.raises(RankError, match="modified by an inplace operation"):
        ranks.call(2, run_divided, MODELS["MLP"], f"{LOOP}loss = model(X).sum()\n{change}\n{asks}\n", STATE)


def test_inputs_that_differ_between_ranks_are_an_error(ranks):
    cell = "import torch.distributed as dist\nmodel(X + dist.get_rank())\n"
    with pytest.raises(RankError, match="The engines have different inputs of `Sequential`"):
        ranks.call(2, run_divided, MODELS["MLP"], cell, STATE)


def test_losses_that_differ_between_ranks_are_an_error(ranks):
    cell = "import torch.distributed as dist\n(model(X).sum() * (1 + dist.get_rank())).backward()\n"
    with pytest.raises(RankError, match="The engines have different losses"):
        ranks.call(2, run_divided, MODELS["MLP"], cell, STATE)


@pytest.mark.parametrize(
    "cell",
    [
        "w = model[2].weight\n(model(X).sum() + (w * w.grad).sum()).backward()\n",
        "w = model[2].weight\ntorch.autograd.grad(model(X).sum() + (w * w.grad).sum(), [w])\n",
        "w = model[2].weight\ntorch.stack([(w * w.grad).sum(), model(X).sum()]).sum().backward()\n",
    ],
)
def test_a_loss_of_gradients_is_an_error(ranks, cell):
    """Each rank would have a part of it, and layers are computed of what all have."""
    with pytest.raises(RankError, match=r"The loss is computed from gradients \(`p\.grad`\)"):
        ranks.call(2, run_divided, MODELS["MLP"], LOOP + cell, STATE)


@pytest.mark.parametrize("number", ["norm()", "norm().item()", "abs().mean().item()"])
def test_a_number_of_gradients_may_be_in_a_loss(ranks, number):
    check(
        ranks,
        2,
        MODELS["MLP"],
        f"{LOOP}(model(X).sum() * model[2].weight.grad.{number}).backward()\n",
        STATE + ", [p.grad for p in model.parameters()]",
    )


def test_a_large_layer_with_fewer_rows_than_engines_is_named(ranks):
    found = check(ranks, 2, MODELS["MLP"].replace("nn.Linear(W, 10)", "nn.LayerNorm(W), nn.Linear(W, 1), nn.Linear(1, 10)"), LOOP)
    assert any("keeps `7.weight`" in note and "fewer rows than there are engines" in note for note in found[0]["notes"]), found[0]["notes"]


ALONE = (
    LOOP
    + "from jupyter_dtrain import is_main\nif is_main():\n    losses.append(model(X).sum().item() * 0)\nelse:\n    losses.append(0.0)\n"
)


def test_a_model_that_rank_0_alone_calls_is_computed_by_it_alone(ranks):
    check(ranks, 2, MODELS["MLP"], ALONE)


def hold(run: Run, kind: Any = ReplicatedTraining, batches: BatchRanks | None = None) -> dict[str, list[int]]:
    """Return the bytes that a rank has of parameters, gradients and moments after some steps."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell("W = 48\n" + MODELS["MLP"].split("\n", 1)[1], "setup", namespace)
    training = run.training(namespace["model"], namespace["optimizer"], kind=kind)
    memory = shared_memory()
    assert memory is not None
    divided = LayerTraining(training, memory, least=0, batches=batches)
    with training.installed(), divided.installed():
        run_cell(LOOP, "cell", namespace)
        shards = divided.store.shards()
        return {
            "all": [shard.nbytes for shard in shards],
            "parameters": [shard.rows.nbytes for shard in shards],
            "whole": [shard.nbytes for shard in shards if shard.full is not None],
            "gradients": [0 if shard.gradient is None else shard.gradient.nbytes for shard in shards],
            "moments": [rows.rows.nbytes for *_, rows, _ in divided.steps.sharded()],
        }


def test_each_rank_has_its_rows_alone(ranks):
    for of_rank in ranks.call(2, hold):
        assert not of_rank["whole"]
        assert 2 * sum(of_rank["parameters"]) == sum(of_rank["all"])
        assert of_rank["gradients"] == of_rank["parameters"]
        assert sum(of_rank["moments"]) == 2 * sum(of_rank["parameters"])
