"""Cells of the corpus come to the same plain and on ranks.

What `tests/notebook/test_corpus.py` has of kernels and engines is left out here: how a cell is sent, what comes home, and what is made
once more where the first batches have shown too little.
"""

from __future__ import annotations

import pytest

from tests.conftest import in_turn
from tests.engine.ranks import Ranks, run_notebook, run_plain
from tests.notebook.corpus_cells import AGAIN, CELLS, WITH_A_KERNEL, apart, text_apart

OPTIONS = {"global_draws": True, "global_batchnorm": True}
# fmt: off
WITHOUT = {
    "batches_by_generator", "data_sets_that_remember", "domain_adversarial", "draws_by_name", "folders_made_anew", "held_functions",
    "imported_names", "label_missing_late", "lazy_and_saved", "modules_beside", "patched_libraries", "printing_tensors",
    "running_statistics", "shared_memory", "state_in_attributes", "torchmetrics_objects",
}
# fmt: on
"""These need more of an engine than such a rank is: a `__main__` whose classes can be pickled, modules beside it, another try."""
BY_NAME = {cell.name: cell for cell in CELLS if cell.name not in WITHOUT}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(most=3) as ranks:
        yield ranks


def test_what_is_left_out_is_tried_with_a_kernel():
    assert {cell.name for cell in CELLS} > WITH_A_KERNEL | AGAIN >= WITHOUT


@pytest.mark.parametrize(("name", "world_size"), in_turn([name for name in BY_NAME if name not in AGAIN], [2, 3]))
def test_a_cell_comes_to_the_same(ranks, tmp_path, name, world_size):
    assert_same(ranks, tmp_path, name, world_size)


@pytest.mark.long
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("name", [name for name in BY_NAME if name in AGAIN])
def test_another_cell_comes_to_the_same(ranks, tmp_path, name, world_size):
    assert_same(ranks, tmp_path, name, world_size)


def assert_same(ranks, folder, name, world_size):
    cell = BY_NAME[name]
    setup = cell.setup_in(folder)
    (plain,) = ranks.call(1, run_plain, setup, cell.cell, cell.compare)
    first, *_ = ranks.call(world_size, run_notebook, setup, cell.cell, cell.compare, OPTIONS)
    for what in ("compared", "random"):
        assert apart(plain[what], first[what], cell.tolerance, what) is None
    assert text_apart(plain["printed"], first["printed"], cell.tolerance) is None
