"""Checkpoints of each strategy go on under each other, on other numbers of engines: what a run comes to is what it comes to undisturbed."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import Notebook, difference
from tests.notebook.test_zero3 import INNER, SETUP, STATE

pytestmark = pytest.mark.long

STRATEGIES = ("auto", "zero1", "zero3", "pipeline", "tensor")
LOOP = f"for epoch in range(3):{INNER}"
AFTER = 4
"""Steps: a pipeline hands activations on already."""


@pytest.fixture(scope="module")
def written(module_notebook) -> tuple[Notebook, object]:
    """Return a notebook with a run of each strategy, each on another number of engines, and what they come to."""
    notebook = module_notebook()
    notebook.run(IMPORTS + SETUP)
    notebook.run("%%distribute --engines 2\n" + LOOP)
    expected = notebook.value(STATE)
    for engines, strategy in enumerate(STRATEGIES, start=1):
        options = f"--strategy {strategy} --checkpoint-every {AFTER} --keep-checkpoints 9 --name {strategy}"
        notebook.run(SETUP)
        notebook.run(f"%%distribute --engines {engines} {options}\n{LOOP}")
        assert difference(notebook.value(STATE), expected) is None
    return notebook, expected


@pytest.mark.parametrize("after", STRATEGIES)
@pytest.mark.parametrize("before", STRATEGIES)
def test_a_run_goes_on_under_another_strategy_and_on_other_engines(written, before, after):
    notebook, expected = written
    engines = 1 + (STRATEGIES.index(before) + 2 * STRATEGIES.index(after) + 1) % 4
    notebook.run("del model, optimizer, losses")
    cell = notebook.run(f"%distribute resume {before}@{AFTER} --strategy {after} -n {engines}")
    assert f"{before}: resuming from step {AFTER}." in cell.stderr
    assert difference(notebook.value(STATE), expected) is None
    notebook.run("optimizer.step()")  # plain, with all of it


def test_a_strategy_without_snapshots_is_refused(written):
    notebook, _ = written
    assert notebook.fail("%distribute resume auto --strategy none").error == (
        "UsageError",
        "%distribute resume needs snapshots of the cell, which --strategy none does not have.",
    )
