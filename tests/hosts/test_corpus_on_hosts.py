"""Cells of the corpus come to the same on two and three hosts as plain: by the network, and not by shared memory."""

from __future__ import annotations

import pytest

from tests.notebook.corpus_cells import CELLS
from tests.notebook.test_corpus import DRAW_WHEN_IMPORTED, assert_same

ON_RANK_0 = ("folders_made_anew",)
"""These compare files, which stay on the host of rank 0 here."""
ON_ONE_HOST = ("library_settings",)
"""These import a library that the other hosts do not have."""


@pytest.fixture(scope="module")
def on_three_hosts(notebook):
    notebook.run("%distribute start --hosts h1:1,h2:1,h3:1")
    return notebook


@pytest.fixture
def for_every_cell(on_three_hosts):
    on_three_hosts.run(DRAW_WHEN_IMPORTED)
    return on_three_hosts


@pytest.mark.long
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name not in ON_RANK_0 + ON_ONE_HOST], ids=lambda cell: cell.name)
def test_every_cell_of_the_corpus_comes_to_the_same(for_every_cell, cell):
    assert_same(for_every_cell, cell, [2, 3])
