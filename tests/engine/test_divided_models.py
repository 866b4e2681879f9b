"""Strategies that divide models, with all parameters divided: cells come to what one process comes to, or are refused in a sentence.

Everyday cells of many shapes, what sets parameters before a step, and the corpus, each under `zero3`, `pipeline`, `tensor`, and meshes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any

import pytest

from tests.engine.divided_cells import STRATEGIES, run_divided_cell
from tests.engine.everyday_cells import CELLS as EVERYDAY
from tests.engine.everyday_cells import LOOP, MLP, OPTIMIZERS, SET_BEFORE_STEPS, STATE, in_step
from tests.engine.functional_cells import FORMS, functional_cell
from tests.engine.ranks import RankError
from tests.notebook.corpus_cells import CELLS, NEED_AN_ENGINE, TOLERANCE, apart, text_apart

EACH_TIME = [
    ("a GradScaler that skips steps", "pipeline 2"),
    ("a GradScaler that skips steps", "zero3 3"),
    ("backward passes of one's own that are not linear", "pipeline 2"),
    ("freezing between epochs", "zero3 3"),
    ("gradients of inputs", "zero3 2"),
    ("frozen parts in checkpoints", "zero3 2"),
    ("gradients of another model", "zero3 2"),
    ("jagged batches", "tensor 2"),
    ("kept gradients that are added to", "pipeline 2"),
    ("made and evaluated in inference mode", "zero3 2"),
    ("nested batches", "tensor 2"),
    ("parameters() is a list", "pipeline 2"),
    ("weights of float32 beside those of the model", "tensor 2"),
    ("weights of float32 beside those of the model", "zero3 2"),
    ("what has no gradient", "tensor 2x2"),
    ("what has no gradient", "zero3 3"),
    ("writes in inference mode", "tensor 2"),
    ("writes in inference mode", "zero3 2x2"),
]


def check(ranks, strategy: str, setup: str, cell: str, compare: str, *, tolerance: float = TOLERANCE) -> int:
    """Check that the ranks come to what one process comes to; return how many parameters were divided at the end."""
    (one,) = ranks.call(1, run_divided_cell, strategy, setup, cell, compare)
    found = ranks.call(prod(STRATEGIES[strategy].values()), run_divided_cell, strategy, setup, cell, compare)
    for of_rank in found:
        assert apart(one["compared"], of_rank["compared"], tolerance) is None
    assert text_apart(one["printed"], found[0]["printed"], tolerance) is None
    divided: int = found[0]["divided"]
    return divided


def marked(all_of_them: Iterable[tuple[str, ...]], short: Sequence[tuple[str, ...]]) -> list[Any]:
    return [pytest.param(*one, marks=() if one in short else pytest.mark.long) for one in all_of_them]


@pytest.mark.parametrize(("name", "strategy"), marked(product(EVERYDAY, STRATEGIES), EACH_TIME))
def test_everyday_cells(ranks, name, strategy):
    divided = check(ranks, strategy, *EVERYDAY[name])
    assert divided or name == "compiled"


@pytest.mark.parametrize("strategy", ["zero3 2", pytest.param("pipeline 2", marks=pytest.mark.long)])
def test_a_scaler_leaves_gradients_where_they_are(ranks, strategy):
    cell = in_step("scaler.unscale_(optimizer)", "scaler.update()", first="scaler = torch.amp.GradScaler('cpu')")
    cell = cell.replace("loss.backward()", "scaler.scale(loss).backward()").replace("optimizer.step()", "scaler.step(optimizer)")
    for of_rank in ranks.call(2, run_divided_cell, strategy, MLP, cell, STATE):
        assert of_rank["divided"]
        assert not of_rank["notes"]


COMPILED = ("model.compile(backend=backend); compiled = model", "compiled = torch.compile(model, backend=backend)")


@pytest.mark.parametrize(
    ("lines", "strategy"), marked(product(COMPILED, STRATEGIES), [(COMPILED[0], "tensor 2"), (COMPILED[1], "zero3 2")])
)
def test_what_a_cell_compiles_and_is_sharded_runs_as_it_is_written(ranks, lines, strategy):
    """Compiled code reads parameters in another order, and ranks differ in what they have compiled."""
    cell = f"""
made = []
def backend(graph, inputs):
    made.append(graph)
    return graph.forward
{lines}
{LOOP.replace("model(x)", "compiled(x)")}"""
    compare = f"{STATE}, len(made)"
    (one,) = ranks.call(1, run_divided_cell, strategy, MLP, cell, compare)
    *expected, _num_made = one["compared"][0]
    for of_rank in ranks.call(prod(STRATEGIES[strategy].values()), run_divided_cell, strategy, MLP, cell, compare):
        assert of_rank["divided"]
        assert apart([*expected, 0], [*of_rank["compared"][0]]) is None
        assert sum("not compiled" in note for note in of_rank["notes"]) == 1


CONVERTED = {
    "before training": "model.double()\n" + LOOP,
    "by its parameters": "for p in model.parameters(): p.data = p.data.double()\n" + LOOP,
    "and a layer": "model[0].to(torch.float64); model.to('cpu', torch.float64, non_blocking=True)\n" + LOOP,
    "after a step": LOOP.replace("model(x)", "model(x.float())") + "model.double()\n" + LOOP.replace("epoch in range(2)", "epoch in ()"),
    "to evaluate": "model.double()\n"
    + LOOP
    + "model.bfloat16(); losses.append(model.eval()(X.bfloat16()).argmax(1).tolist()); model.double()\n",
    "with its gradients": "model.double(); model(X).sum().backward(); model.float(); model.double(); optimizer.step()\n" + LOOP,
}


@pytest.mark.parametrize(
    ("how", "strategy"), marked(product(CONVERTED, STRATEGIES), [("before training", "tensor 2"), ("to evaluate", "zero3 2")])
)
def test_models_that_the_cell_converts(ranks, how, strategy):
    setup = MLP.replace("model = nn.Sequential(*blocks)", "model = nn.Sequential(*blocks).float()")
    tolerance = 1e-5 if how == "after a step" else TOLERANCE
    assert check(ranks, strategy, setup, CONVERTED[how], STATE, tolerance=tolerance)


@pytest.mark.parametrize(
    ("lines", "optimizer", "strategy"),
    marked(product(SET_BEFORE_STEPS, OPTIMIZERS, STRATEGIES), [("one", OPTIMIZERS[1], "zero3 2"), ("one", OPTIMIZERS[0], "pipeline 2")]),
)
def test_parameters_that_are_set_before_a_step(ranks, lines, optimizer, strategy):
    """What stays whole from there on is stepped on whole in that very step."""
    check(ranks, strategy, f"{MLP}optimizer = torch.optim.{optimizer}\n", in_step(SET_BEFORE_STEPS[lines]), STATE)


FORMS_REFUSED = {("gradients of samples", "model", "tensor 2"): "don't yet support saved tensor hooks"}
WRITTEN_OUT = [(form, place, strategy) for form in FORMS for place in ("model", "cell") for strategy in STRATEGIES]


@pytest.mark.parametrize(
    ("form", "place", "strategy"),
    marked(WRITTEN_OUT, [("linear of a jagged tensor", "model", "tensor 2"), ("linear of a jagged tensor", "cell", "zero3 2")]),
)
def test_functions_that_are_given_weights(ranks, form, place, strategy):
    setup, cell = functional_cell(form, in_model=place == "model")
    why = FORMS_REFUSED.get((form, place, strategy))
    if why is not None:
        with pytest.raises(RankError, match=why):
            check(ranks, strategy, setup, cell, STATE)
        return
    divided = check(ranks, strategy, setup, cell, STATE)
    assert divided


REFUSED = {
    ("gradients_with_a_graph", "tensor 2"): "The loss is computed from gradients",
    ("own_backward", "tensor 2"): "The loss is computed from gradients",
    ("starts_of_passes", "tensor 2"): "computes batched gradients",
    ("starts_of_passes", "tensor 2x2"): "computes batched gradients",
    **{
        ("compiled_in_checkpoints", strategy): "Recomputed values for the following tensors have different metadata"
        for strategy in ("tensor 2", "tensor 2x2")
    },
}
CORPUS = [cell for cell in CELLS if cell.name not in NEED_AN_ENGINE]


WITH_EACH = [*product(CORPUS, STRATEGIES)]
EVERY = 61  # of these, so many apart, run each time


@pytest.mark.parametrize(
    ("cell", "strategy"),
    [
        pytest.param(cell, strategy, id=f"{cell.name}-{strategy}", marks=pytest.mark.long if index % EVERY else ())
        for index, (cell, strategy) in enumerate(WITH_EACH)
    ],
)
def test_the_corpus(ranks, tmp_path, cell, strategy):
    """Each cell, on the numbers of ranks of each way."""
    setup = cell.setup_in(tmp_path)
    said = REFUSED.get((cell.name, strategy))
    if said is None:
        check(ranks, strategy, setup, cell.cell, cell.compare, tolerance=cell.tolerance)
        return
    with pytest.raises(RankError, match=said):
        ranks.call(prod(STRATEGIES[strategy].values()), run_divided_cell, strategy, setup, cell.cell, cell.compare)
