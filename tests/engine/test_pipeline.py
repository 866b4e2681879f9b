"""Models cut into stages: what cells do with them comes to what one process comes to, on 2 and 3 ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import product
from typing import Any

import pytest
from torch import nn

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm.mesh import Mesh
from jupyter_dtrain.engine.comm.process_group import shared_memory
from jupyter_dtrain.engine.comm.shared_memory import SharedMemory
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.strategies.pipeline.staged_training import PipelineTraining
from jupyter_dtrain.planning.model_cut import cut, cut_into_stages, groups_of, owners_of, work_of
from tests.engine import pipeline_cells
from tests.engine.ranks import RankError, Run
from tests.engine.test_zero3 import CLOSE, distance, run_connected
from tests.engine.zero3_cells import IDIOMS, LOOP, MODELS, MORE, STATE


def run_staged(run: Run, setup: str, cell: str, compare: str, degrees: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Run `setup` as it is and `cell` as the rank's part of a run with its models cut into stages; plain on one rank."""
    owners: list[Any] = []

    def connect(training: DataParallelTraining, memory: SharedMemory) -> PipelineTraining:
        mesh = None if degrees is None else Mesh(run.rank, degrees)
        staged = PipelineTraining(training, memory, mesh=mesh, say=run.notes.append, steps_done=lambda: training._observer.step)
        owners.extend(getattr(shard, "owner", None) for shard in staged.store.shards())
        return staged

    compared, staged = run_connected(run, setup, cell, compare, connect)
    if not isinstance(staged, PipelineTraining):
        return {"compared": compared}
    calls = staged.calls
    return {
        "compared": compared,
        "owners": owners,
        "calls": calls.num_calls,
        "pieces": len(calls.pieces),
        "bytes": calls.requests.num_bytes,
        "notes": run.notes,
    }


def check(
    ranks, num_ranks: int, setup: str, cell: str, *, num_stages: int | None = None, degrees: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Check that the ranks come to what one process comes to; return what came out on each. Each has a stage, if there are as many."""
    (one,) = ranks.call(1, run_staged, setup, cell, STATE)
    found: list[dict[str, Any]] = ranks.call(num_ranks, run_staged, setup, cell, STATE, degrees)
    for of_rank in found:
        assert set(of_rank["owners"]) == set(range(num_stages or num_ranks))
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
    return found


def some(short: Collection[Any], *values: Iterable[Any]) -> list[Any]:
    """Return parameters of a test: all combinations of `values`, of which those that are not in `short` are for long runs."""
    return [pytest.param(*one, marks=() if one in short else pytest.mark.long) for one in product(*values)]


@pytest.mark.parametrize(("model", "num_ranks"), some([("MLP", 3), ("transformer", 2), ("LSTM", 2)], MODELS, (2, 3, 4)))
def test_staged_training(ranks, model, num_ranks):
    """With tied weights on several stages, parameters of the model's own code, and what models that are not handed on have."""
    why = {"CNN": "takes statistics over the batch", "LSTM": "has recurrent layers"}.get(model)
    for of_rank in check(ranks, num_ranks, MODELS[model], LOOP, num_stages=min(num_ranks, 3) if model == "LSTM" else num_ranks):
        assert (of_rank["calls"] > 0) == (of_rank["bytes"] > 0) == (why is None)
        assert [why in note for note in of_rank["notes"] if why] == [True] * (why is not None)


@pytest.mark.parametrize(
    ("sizes", "num_parts", "parts"),
    [
        ([4, 4, 4, 4], 2, [0, 0, 1, 1]),
        ([9, 1, 1, 1], 2, [0, 1, 1, 1]),
        ([1, 1, 1, 9], 3, [0, 0, 1, 2]),
        ([1, 9, 1, 1], 4, [0, 1, 2, 3]),
        ([5, 5], 4, [0, 1]),
        ([0, 0, 3], 2, [0, 0, 1]),
        ([50, 4, 4, 4, 4, 4, 4, 1], 3, [0, 1, 1, 1, 2, 2, 2, 2]),
        ([4, 4, 4, 4, 40, 1], 4, [0, 0, 1, 1, 2, 3]),
    ],
)
def test_cut_makes_the_largest_stage_as_small_as_it_can_be_and_the_others_alike(sizes, num_parts, parts):
    assert cut(sizes, num_parts) == parts


@pytest.mark.parametrize(
    ("sizes", "work", "num_stages", "stages"),
    [
        ([4, 4, 4, 4], [4, 4, 4, 4], 2, [0, 0, 1, 1]),
        ([8, 2, 2, 2, 2, 2, 2], [0, 2, 2, 2, 2, 2, 2], 2, [0, 0, 0, 1, 1, 1, 1]),  # 12 of 20 bytes, as 12.5 are allowed
        ([2, 4, 4, 4, 4, 2], [0, 4, 4, 4, 4, 2], 2, [0, 0, 0, 1, 1, 1]),  # by bytes it is the same
        ([100, 2, 2, 2, 2], [0, 2, 2, 2, 2], 2, [0, 0, 0, 1, 1]),
        ([40, 6, 6, 6], [0, 6, 6, 6], 3, [0, 0, 1, 2]),
        ([9, 9], [0, 0], 2, [0, 1]),
        ([9, 1, 1], [0, 1, 1], 4, [0, 1, 2]),
    ],
)
def test_stages_are_of_similar_work_where_that_takes_few_more_bytes(sizes, work, num_stages, stages):
    assert cut_into_stages(sizes, work, num_stages) == stages


def test_a_look_up_table_is_no_work_unless_a_layer_multiplies_by_it():
    table, blocks, head = nn.Embedding(64, 8), [nn.Sequential(nn.Linear(8, 8)) for _ in range(8)], nn.Linear(8, 64, bias=False)
    model = nn.Sequential(table, *blocks, head)
    groups = groups_of(model)
    assert work_of(model, groups) == [0, *[4 * (64 + 8)] * 8, 4 * 512]
    assert [owners_of(model, 2)[id(block[0].weight)] for block in blocks] == [0] * 6 + [1] * 2
    head.weight = table.weight
    assert work_of(model, groups_of(model)) == [4 * 512, *[4 * (64 + 8)] * 8]


SHORT = [
    "plain",
    "autograd.grad hand",
    "hooks on params",
    "closure",
    "LBFGS",
    "print norms",
]


@pytest.mark.parametrize("name", some([(name,) for name in SHORT], [*IDIOMS, *MORE]))
def test_cell_with_staged_models(ranks, name):
    for of_rank in check(ranks, 2, MODELS["MLP"], {**IDIOMS, **MORE}[name]):
        assert of_rank["calls"] > 0 or of_rank["notes"] or "LBFGS" in name


KINDS = [
    ("frozen stages", "dropout", 2),
    ("two losses, one graph kept", "encoder", 3),
    ("two calls whose graphs meet, one that is dropped", "skips", 3),
]


@pytest.mark.parametrize(("name", "model", "num_ranks"), some(KINDS, pipeline_cells.CELLS, pipeline_cells.MODELS, (2, 3, 4)))
def test_models_of_several_kinds(ranks, name, model, num_ranks):
    """Dropout of the global batch, blocks with words for arguments, one that writes to what it is given, one that is called three times."""
    for of_rank in check(ranks, num_ranks, pipeline_cells.MODELS[model], pipeline_cells.CELLS[name]):
        assert of_rank["calls"] > 0
        assert of_rank["bytes"] > 0
        assert not of_rank["notes"]


@pytest.mark.parametrize(
    ("name", "num_ranks"),
    some(
        [(name, 2) for name in ("what the first has made", "a view", "an object", "what numbers of Python's choose")],
        pipeline_cells.BODIES,
        (2, 3),
    ),
)
def test_blocks_that_return_what_others_have_made(ranks, name, num_ranks):
    """A bias that blocks hand on stays one tensor; where one result looks into another, each rank fetches the block."""
    for of_rank in check(ranks, num_ranks, pipeline_cells.BIASED.format(body=pipeline_cells.BODIES[name]), LOOP):
        assert of_rank["calls"] > 0


@pytest.mark.parametrize("body", pipeline_cells.RECORDS)
def test_blocks_that_write_to_containers_that_they_are_given(ranks, body):
    """Those that another rank gets are not the model's: each rank fetches the block."""
    assert all(of_rank["calls"] for of_rank in check(ranks, 2, pipeline_cells.RECORDED.format(body=body), LOOP))


@pytest.mark.parametrize("model", some([("dropout",)], pipeline_cells.MODELS))
def test_graphs_without_a_backward_pass_leave_no_pieces(ranks, model):
    """Of those of the last call's, which the cell holds still, at the most."""
    few, many = (
        ranks.call(2, run_staged, pipeline_cells.MODELS[model], pipeline_cells.DROPPED.format(times=times), STATE) for times in (1, 4)
    )
    assert [of_rank["pieces"] for of_rank in few] == [of_rank["pieces"] for of_rank in many]
    assert any(of_rank["pieces"] for of_rank in few)


def test_two_models_of_which_one_is_called_on_the_other(ranks):
    (one,) = ranks.call(1, run_staged, pipeline_cells.GAN, pipeline_cells.GAN_CELL, pipeline_cells.GAN_STATE)
    for of_rank in ranks.call(2, run_staged, pipeline_cells.GAN, pipeline_cells.GAN_CELL, pipeline_cells.GAN_STATE):
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
        assert of_rank["bytes"] > 0


def hold(run: Run, degrees: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the bytes that a rank has of parameters, gradients, moments and buffers after some steps, the first two not handed on."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(pipeline_cells.DROPOUT, "setup", namespace)
    training = run.training(namespace["model"], namespace["optimizer"], global_draws=True)
    memory = shared_memory()
    assert memory is not None
    mesh = None if degrees is None else Mesh(run.rank, degrees)
    staged = PipelineTraining(training, memory, mesh=mesh, steps_done=lambda: training._observer.step)
    with training.installed(), staged.installed():
        run_cell(LOOP, "cell", namespace)
        assert staged.calls.num_calls
        shards = staged.store.shards()
        moments = [v for _, _, _, kept, rows, _ in staged.steps.sharded() for v in (rows.rows,)]
        return {
            "parameters": [shard.rows.nbytes for shard in shards],
            "whole": [shard.nbytes for shard in shards if shard.full is not None],
            "gradients": [0 if shard.gradient is None else shard.gradient.nbytes for shard in shards],
            "moments": [moment.nbytes for moment in moments],
            "buffers": staged.store.buffered,
        }


def test_each_rank_has_its_stage_alone(ranks):
    found = ranks.call(2, hold)
    size = sum(sum(of_rank["parameters"]) for of_rank in found)
    for of_rank in found:
        assert not of_rank["whole"]
        assert not of_rank["buffers"], "those of the first steps are given back"
        assert 0.3 * size < sum(of_rank["parameters"]) < 0.7 * size
        assert of_rank["gradients"] == of_rank["parameters"]
        assert sum(of_rank["moments"]) == 2 * sum(of_rank["parameters"])
    assert all(bool(one) != bool(other) for one, other in zip(*(of_rank["parameters"] for of_rank in found), strict=True))


def test_gradients_that_are_kept_and_added_to_are_read_by_all_ranks(ranks):
    """What a rank has read of one is old as soon as the rank of the stage adds to it."""
    read = "kept = kept or [p.grad for p in model.parameters()]\n        losses.append([g.norm().item() for g in kept])\n"
    cell = "kept = []\n" + LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)") + f"        {read}"
    check(ranks, 2, MODELS["MLP"], cell)


def test_gradients_that_are_asked_for_too_late_are_an_error(ranks):
    cell = LOOP + "torch.autograd.grad(model(X[:16]).sum() + model(x).sum(), list(model.parameters()))\n"
    with pytest.raises(RankError, match=r"has handed activations on from stage to stage, and `torch\.autograd\.grad` goes another way"):
        ranks.call(2, run_staged, MODELS["MLP"], cell, STATE)


def test_an_input_that_is_written_to_before_the_backward_pass_is_an_error(ranks):
    """Another rank has a copy of it, and in one process the pass goes by what was written."""
    cell = LOOP.replace("loss.backward()", "x.data.mul_(2)\n        loss.backward()")
    with pytest.raises(RankError, match="The cell wrote to a model's input between its call and the backward pass"):
        ranks.call(2, run_staged, MODELS["MLP"], cell, STATE)


LATE = "loss = F.cross_entropy(model(x), y)\n"


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (f"{LATE}for p in model.parameters(): p.register_hook(lambda g: g)\nloss.backward()", "a parameter got a hook after its model was"),
        (f"{LATE}loss.backward(); loss.backward()", "Trying to backward through the graph a second time"),
        (f"{LATE}loss.backward(create_graph=True)", "has handed activations on from stage to stage, and `create_graph` goes another way"),
    ],
    ids=["hooks", "a second pass", "a graph of gradients"],
)
def test_a_pass_that_comes_too_late_for_stages_is_an_error(ranks, end, says):
    cell = LOOP + f"for x, y in loader:\n    {end.replace(chr(10), chr(10) + '    ')}\n"
    with pytest.raises(RankError, match=says):
        ranks.call(2, run_staged, MODELS["MLP"], cell, STATE)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "if len(losses) > 4:\n            with torch.no_grad(): x.mul_(0.5)",
            "cannot follow a change in a module's code path: they write to what they are given",
        ),
        ("if len(losses) > 4: self.count.add_(1)", "a block has begun to write to its buffers after its first call"),
    ],
    ids=["inputs", "buffers"],
)
def test_a_block_that_begins_to_write_is_an_error(ranks, line, says):
    setup = pipeline_cells.RECORDED.format(body="pass").replace("x = x + torch", f"{line}\n        x = x + torch")
    setup = setup.replace("        self.rows =", "        self.register_buffer('count', torch.zeros(()))\n        self.rows =")
    with pytest.raises(RankError, match=says):
        ranks.call(2, run_staged, setup, LOOP, STATE)
