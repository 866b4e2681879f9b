"""``--strategy tensor`` as a user comes to it: what comes home is whole, and that of `auto`."""

from __future__ import annotations

import pytest

from tests.notebook.test_zero3 import (
    CELL,
    SETUP,
    check_a_loop_and_a_checkpoint_of_it,
    check_an_error,
    run_cell_after_cell,
)

LINE = "%%distribute --engines 2 --strategy tensor"


def test_cell_after_cell_in_any_strategy(notebook):
    kept, _ = run_cell_after_cell(notebook, "tensor")
    assert (64, 128) in kept[0]
    assert (64, 128) not in kept[2]


def test_a_loop_that_takes_snapshots_and_a_checkpoint_of_it(notebook):
    check_a_loop_and_a_checkpoint_of_it(notebook, "tensor")


@pytest.mark.parametrize("where", ["True", pytest.param("rank == 0", marks=pytest.mark.long), "rank == 1"])
def test_an_error_of_all_ranks_or_of_one(notebook, where):
    """Whether they have left or not."""
    check_an_error(notebook, "tensor", where)


def test_batches_that_differ_between_engines_are_an_error(notebook):
    notebook.run("import torch.distributed as dist\n" + SETUP)
    cell = notebook.fail(LINE + CELL.replace("model(x)", "model(x + dist.get_rank())"))
    assert cell.error[0] == "UsageError"
    assert cell.error[1].startswith("The engines have different inputs of `Sequential`, and `--strategy tensor` needs the same")


def test_what_is_not_divided_is_said_in_one_line(notebook):
    notebook.run(
        SETUP + "model.insert(0, nn.Unflatten(1, (6, 1)))\nmodel.insert(1, nn.Conv1d(6, 3000, 1))\nmodel.insert(2, nn.Flatten())\n"
    )
    notebook.run("model[3] = nn.Linear(3000, 128)\noptimizer = torch.optim.Adam(model.parameters(), lr=0.01)")
    cell = notebook.run(LINE + CELL)
    assert cell.stderr.count("`--strategy tensor` keeps `1.weight` of `Sequential` on every engine: only linear layers are divided.") == 1


def test_a_model_without_a_large_layer_is_said_to_be_whole(notebook):
    notebook.run(SETUP + "model = nn.Linear(6, 1)\noptimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n")
    cell = notebook.run(LINE + CELL.replace("    scheduler.step()\n", ""))
    assert cell.stderr.count("`--strategy tensor` shards no layer: none has a weight of 64.0 KiB or more.") == 1


@pytest.mark.parametrize("option", ["--checkpoint-activations", "--verify first", "--semantics local", "--rng per-rank", "--split inputs"])
def test_an_option_that_it_does_not_support_is_refused(notebook, option):
    cell = notebook.fail(f"{LINE} {option}{CELL}")
    assert cell.error[0] == "UsageError"
    assert cell.error[1].count("which --strategy tensor does not have: leave out one of the two.") == 1
