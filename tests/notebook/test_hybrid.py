"""``--mesh`` as a user comes to it: groups of engines beside each other, each with all of the model. What comes home is that of `auto`."""

from __future__ import annotations

import pytest

from tests.conftest import in_turn, one_of
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import difference
from tests.notebook.test_zero3 import (
    CELL,
    NOTING,
    SETUP,
    STATE,
    check_a_loop_and_a_checkpoint_of_it,
    check_an_error,
    run,
    run_cell_after_cell,
)

STAGES, COLUMNS, ROWS = "--mesh dp=2,pp=2", "--mesh dp=2,tp=2", "--mesh dp=2,dp_shard=2"


@pytest.fixture(scope="module")
def notebook(module_notebook):
    """One with four engines running: the shared one's would be stopped for them, and started again."""
    notebook = module_notebook()
    notebook.run(f"{IMPORTS}%distribute start -n 4 --device cpu")
    return notebook


def test_cell_after_cell_in_any_strategy(notebook):
    kept, _ = run_cell_after_cell(notebook, STAGES)
    assert (64, 128) in kept[0]
    assert (0, 128) in kept[0] or (0, 6) in kept[0]


def test_cell_after_cell_with_columns_of_layers(notebook):
    kept, _ = run_cell_after_cell(notebook, COLUMNS)
    assert (32, 128) in kept[0]
    assert (32, 128) not in kept[2]


def test_cell_after_cell_with_rows_in_each_group(notebook):
    kept, _ = run_cell_after_cell(notebook, ROWS)
    assert (32, 128) in kept[0]


@pytest.mark.long
def test_a_loop_and_a_checkpoint_of_it_on_other_meshes(notebook):
    check_a_loop_and_a_checkpoint_of_it(
        notebook, STAGES, "", "--strategy auto -n 3", "--mesh pp=2", "--mesh dp_shard=4", "--mesh dp=2,pp=2", name="stages"
    )
    check_a_loop_and_a_checkpoint_of_it(notebook, ROWS, "", "--strategy auto -n 3", "--mesh pp=2", STAGES, ROWS, name="rows")
    said = "--mesh dp=2,pp=2 is dp=2 × pp=2 = 4 engines, and there are to be 3: give degrees whose product is 3."
    assert notebook.fail("%distribute resume stages@6 -n 3").error == ("UsageError", said)


@pytest.mark.long
def test_a_loop_with_columns_of_layers_and_a_checkpoint_of_it_on_other_meshes(notebook):
    meshes = ("", "--strategy auto -n 3", "--mesh tp=2", "--mesh dp_shard=4", "--mesh dp=2,pp=2", "--mesh dp=2,tp=2")
    check_a_loop_and_a_checkpoint_of_it(notebook, COLUMNS, *meshes, name="columns")
    check_a_loop_and_a_checkpoint_of_it(notebook, STAGES, COLUMNS, name="to_columns")


@pytest.mark.parametrize(
    ("where", "mesh"),
    [
        *in_turn(["True", "rank == 3"], [STAGES, COLUMNS, ROWS]),
        *(pytest.param(where, mesh, marks=pytest.mark.long) for where in ("rank == 0", "rank == 1") for mesh in (STAGES, COLUMNS, ROWS)),
    ],
)
def test_an_error_of_all_ranks_or_of_one(notebook, where, mesh):
    """Whether they have left or not."""
    check_an_error(notebook, mesh, where)


@pytest.mark.parametrize("mesh", one_of(2, [STAGES, COLUMNS, ROWS]))
def test_what_the_cell_looks_at_is_that_of_one_process(notebook, mesh):
    looks = """
    losses += [[p.norm().item(), p.grad.abs().max().item()] for p in model.parameters()]
    losses += [state["exp_avg"].sum().item() for state in optimizer.state_dict()["state"].values()]
    losses.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
"""
    cell = CELL.replace("    optimizer.step()\n", looks[1:] + "    optimizer.step()\n")
    notebook.run(SETUP + cell)
    expected = notebook.value(STATE)
    found, _ = run(notebook, f"%%distribute {mesh}", cell=cell)
    assert difference(found, expected) is None


def test_a_mesh_of_one_axis_is_its_strategy(notebook):
    expected, _ = run(notebook, "%%distribute --engines 2 --strategy tensor")
    found, _ = run(notebook, "%%distribute --mesh tp=2")
    assert difference(found, expected) is None
    notebook.run(f"%%distribute --mesh tp=2{CELL}{NOTING}")
    assert (64, 128) in notebook.value("kept")[-1]


REFUSED = ["--verify first", "--elastic 2:4", "--engines 3"]


@pytest.mark.parametrize(
    ("mesh", "option"),
    [
        *((mesh, option) for mesh in (STAGES, COLUMNS) for option in ("--checkpoint-activations", *REFUSED, "--strategy zero3")),
        *((ROWS, option) for option in (*REFUSED, "--strategy tensor")),
    ],
)
def test_what_cannot_be_had_on_a_mesh_is_refused_before_the_first_step(notebook, option, mesh):
    notebook.run(SETUP)
    cell = notebook.fail(f"%%distribute {mesh} {option}{CELL}")
    assert cell.error[0] == "UsageError"
    assert notebook.value("losses") == []
