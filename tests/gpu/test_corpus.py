"""Cells of the corpus come to the same on the card as plain: in float64, with deterministic operations, to 1e-9."""

from __future__ import annotations

import pytest

from tests.notebook.corpus_cells import CELLS

pytestmark = pytest.mark.gpu(on_cpu=True)

_NAMES = """accumulate autoencoder batchnorm class_weights contrastive counting_models custom_losses dropout_in_a_model early_stopping
ema_and_swa forward_hooks_and_penalty gradient_hooks ignored_labels input_gradients kept_gradients knowledge_distillation lbfgs
loop_in_the_cell mixture_of_experts multi_task own_backward quickstart_functions reading_losses resnet step_functions
transfer_learning transformer_lm vae_reparameterized"""
NAMES = frozenset(_NAMES.split())
MOVED = """
def _moved(value):
    if isinstance(value, _torch.nn.Module):
        value.to({device!r})
    elif isinstance(value, _torch.utils.data.TensorDataset):
        value.tensors = tuple(tensor.to({device!r}) for tensor in value.tensors)
    elif isinstance(value, _torch.utils.data.DataLoader):
        _moved(value.dataset)
    elif isinstance(value, _torch.utils.data.Subset):
        _moved(value.dataset)
for _name, _value in list(globals().items()):
    if not _name.startswith("_"):
        _moved(_value)
        if isinstance(_value, _torch.Tensor) and not _value.requires_grad:
            globals()[_name] = _value.to({device!r})
"""
"""Behind a setup: what the cell uses is on the card."""
ran: list[str] = []


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in NAMES], ids=lambda cell: cell.name)
def test_a_cell_comes_to_the_same(card, cell):
    setup = cell.setup + MOVED.format(device=card.device)
    try:
        card.run(setup, cell.cell, cell.compare)
    except AssertionError as error:
        if "same device" in str(error) or "cpu" in str(error):
            pytest.skip("the cell itself mixes devices")
        raise
    card.assert_same(setup, cell.cell, cell.compare, tolerance=cell.tolerance)
    ran.append(cell.name)


def test_most_of_them_were_run(request):
    there = [item for item in request.session.items if item.originalname == "test_a_cell_comes_to_the_same" and "tests/gpu" in item.nodeid]
    assert len(ran) >= len(there) // 2, ran
