"""Groups of ranks beside each other, each with all of a model: what cells do comes to what one process comes to, on 2 × 2 ranks."""

from __future__ import annotations

import pytest

from tests.engine import pipeline_cells
from tests.engine.ranks import RankError
from tests.engine.test_pipeline import check, hold, run_staged, some
from tests.engine.zero3_cells import IDIOMS, LOOP, MODELS, MORE, STATE

STAGES = {"dp": 2, "pp": 2}


@pytest.mark.parametrize("model", some([("transformer",)], MODELS))
def test_two_pipelines_beside_each_other(ranks, model):
    """A group hands on its own part of the batch, if the model can be, and the groups' gradients are added up."""
    for of_rank in check(ranks, 4, MODELS[model], LOOP, num_stages=2, degrees=STAGES):
        assert (of_rank["bytes"] > 0) == (model not in ("CNN", "LSTM"))


@pytest.mark.parametrize("name", some([("print norms",), ("closure",)], [*IDIOMS, *MORE]))
def test_cell_with_two_pipelines(ranks, name):
    check(ranks, 4, MODELS["MLP"], {**IDIOMS, **MORE}[name], num_stages=2, degrees=STAGES)


@pytest.mark.long
@pytest.mark.parametrize(("name", "model"), some([], IDIOMS, [model for model in MODELS if model != "MLP"]))
def test_cell_with_two_pipelines_of_other_models(ranks, name, model):
    if (name, model) == ("L2 in loss", "encoder-decoder"):
        pytest.skip("Adam makes steps of 1e-4 of the rounding of a gradient that is zero (the bias of keys), under any strategy")
    check(ranks, 4, MODELS[model], IDIOMS[name], num_stages=2, degrees=STAGES)


KINDS = [("evaluation, its best state, metrics", "dropout")]


@pytest.mark.parametrize(("name", "model"), some(KINDS, pipeline_cells.CELLS, pipeline_cells.MODELS))
def test_models_of_several_kinds_on_two_pipelines(ranks, name, model):
    for of_rank in check(ranks, 4, pipeline_cells.MODELS[model], pipeline_cells.CELLS[name], num_stages=2, degrees=STAGES):
        assert of_rank["bytes"] > 0
        assert not of_rank["notes"]


def test_each_rank_has_its_part_of_its_stage_alone(ranks):
    """Gradients and moments of a stage are shared out over the groups, as under `zero3`."""
    found = ranks.call(4, hold, STAGES)
    size = sum(sum(of_rank["parameters"]) for of_rank in found)
    for of_rank, same_stage in zip(found, found[2:] + found[:2], strict=True):
        assert not of_rank["whole"]
        assert of_rank["buffers"] <= sum(of_rank["parameters"]) + sum(same_stage["parameters"]), "of the stage alone"
        assert 0.15 * size < sum(of_rank["parameters"]) < 0.35 * size
        assert of_rank["gradients"] == of_rank["parameters"]
        assert sum(of_rank["moments"]) == 2 * sum(of_rank["parameters"])
        assert [bool(one) for one in of_rank["parameters"]] == [bool(one) for one in same_stage["parameters"]]


def test_gradients_that_are_asked_for_too_late_are_an_error_in_each_group(ranks):
    cell = LOOP + "torch.autograd.grad(model(X[:16]).sum() + model(x).sum(), list(model.parameters()))\n"
    with pytest.raises(RankError, match="has handed activations on from stage to stage"):
        ranks.call(4, run_staged, MODELS["MLP"], cell, STATE, STAGES)
