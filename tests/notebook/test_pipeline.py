"""``--strategy pipeline`` as a user comes to it: what comes home is whole, and that of `auto`."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import difference
from tests.notebook.test_zero3 import (
    CELL,
    SETUP,
    check_a_loop_and_a_checkpoint_of_it,
    check_an_error,
    run,
    run_cell_after_cell,
)

LINE = "%%distribute --engines 2 --strategy pipeline"


def test_cell_after_cell_in_any_strategy(notebook):
    kept, _ = run_cell_after_cell(notebook, "pipeline")
    assert (128, 128) in kept[0]
    assert (0, 128) in kept[0] or (0, 6) in kept[0]


def test_a_loop_that_takes_snapshots_and_a_checkpoint_of_it(notebook):
    check_a_loop_and_a_checkpoint_of_it(notebook, "pipeline")


@pytest.mark.parametrize("where", ["True", pytest.param("rank == 0", marks=pytest.mark.long), "rank == 1"])
def test_an_error_of_all_ranks_or_of_one(notebook, where):
    """Whether they have left or not."""
    check_an_error(notebook, "pipeline", where)


BLOCK = """
class Fails(nn.Module):
    def __init__(self): super().__init__(); self.layer = nn.Linear(128, 128)
    def forward(self, x):
        if len(losses) == 4: raise ValueError("in a block")
        return self.layer(x)
model[4] = Fails()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""


def test_an_error_in_a_block_is_raised_where_the_cell_is(notebook):
    notebook.run(SETUP + BLOCK)
    cell = notebook.fail(LINE + CELL)
    assert cell.error == ("ValueError", "in a block")


def test_what_is_not_handed_on_is_said_in_one_line(notebook):
    notebook.run(SETUP + "model.insert(1, nn.BatchNorm1d(128))\n")
    cell = notebook.run(LINE + CELL)
    assert cell.stderr.count("`--strategy pipeline` sends no activations of `Sequential`,") == 1
    assert "takes statistics over the batch (BatchNorm)" in cell.stderr
    _, (cell,) = run(notebook, LINE + " --semantics local")
    assert "`--strategy pipeline` cuts models for engines that compute on CPUs, with global semantics." in cell.stderr


def test_gradients_of_gradients_are_not_handed_on_from_the_first_step(notebook):
    cell = CELL.replace("loss.backward()", "loss.backward(create_graph=len(losses) == 3)")
    expected, _ = run(notebook, "%%distribute --engines 2", cell=cell)
    found, (shown,) = run(notebook, LINE, cell=cell)
    assert difference(found, expected) is None
    assert "sends no activations, and each engine fetches the blocks of models: the cell has `create_graph`." in shown.stderr


@pytest.mark.parametrize("strategy", ["pipeline", pytest.param("zero3", marks=pytest.mark.long)])
def test_a_model_whose_first_call_is_in_a_transform(notebook, strategy):
    """Whatever ranks do with its parameters then is no part of what is transformed."""
    cell = "\nfrom torch.func import jacrev, vmap\nkept.append(vmap(jacrev(model))(inputs[:8]).detach())" + CELL
    expected, _ = run(notebook, "%%distribute --engines 2", cell=cell)
    found, _ = run(notebook, f"%%distribute --engines 2 --strategy {strategy}", cell=cell)
    assert difference(found, expected) is None


@pytest.mark.parametrize("option", ["--checkpoint-activations", "--verify first"])
def test_an_option_that_it_does_not_support_is_refused(notebook, option):
    cell = notebook.fail(f"{LINE} {option}{CELL}")
    assert cell.error[0] == "UsageError"
    assert cell.error[1].count("which --strategy pipeline does not have: leave out one of the two.") == 1


FAULTS = """
import jupyter_dtrain, resource
model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(8192, 256), torch.randn(8192, 256)), batch_size=8192)
faults = []
"""


def test_a_step_of_stages_finds_the_memory_of_the_one_before(notebook):
    """Each engine computes a half of 8192 rows at a time, of which each activation takes a thousand pages."""
    notebook.run(FAULTS)
    notebook.run(
        LINE
        + """
for epoch in range(12):
    for x, y in loader:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
faults = jupyter_dtrain.gather(faults)
"""
    )
    for of_engine in notebook.value("faults"):
        assert sorted(of_engine[4:])[4] < 1000
