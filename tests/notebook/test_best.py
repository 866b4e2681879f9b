"""``--best``: the checkpoint with the best value of a metric holds the weights that had it."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import difference

SETUP = """
import jupyter_dtrain as dtrain
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=8)
seen = {}
VALUES = [3.0, 2.0, 1.0, 4.0, 1.5]
"""
CELL = """
for epoch in range(5):
    val_loss = 0.0
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        val_loss += 0.1  # which passes better values on its way
    seen[epoch] = [p.detach().clone() for p in model.parameters()]
    MEASURE
"""
MEASURED = {
    "its own variable": "val_loss = VALUES[epoch]",
    "what it logs": "dtrain.log(loss_of_validation=VALUES[epoch])",
}


@pytest.mark.parametrize("measure", list(MEASURED))
def test_the_best_checkpoint_has_the_weights_that_were_measured(notebook, measure):
    notebook.run(SETUP)
    name, metric = measure.replace(" ", "-"), "val_loss" if "own" in measure else "loss_of_validation:min"
    cell = notebook.run(
        f"%%distribute --engines 2 --best {metric} --keep-checkpoints 1 --name {name}" + CELL.replace("MEASURE", MEASURED[measure])
    )
    assert cell.stderr == ""
    assert notebook.value(f"dtrain.load_checkpoint({name!r}, 'best')['epoch']") == 2
    found = notebook.value(f"[p.detach() for p in dtrain.load_checkpoint({name!r}, 'best')['model'].parameters()]")
    assert difference(found, notebook.value("seen[2]")) is None


def test_a_run_goes_on_from_its_best_checkpoint(notebook):
    notebook.run(SETUP)
    notebook.run("%%distribute --engines 2 --best val_loss --name again" + CELL.replace("MEASURE", MEASURED["its own variable"]))
    ended = notebook.value("[p.detach().clone() for p in model.parameters()]")
    notebook.run("del model, epoch")
    assert notebook.run("%distribute resume again@best").stderr == "again: resuming from step 24.\n", "three epochs of eight batches"
    assert notebook.value("epoch") == 4
    assert difference(notebook.value("[p.detach() for p in model.parameters()]"), ended) is None


def test_the_best_may_be_the_last(notebook):
    notebook.run(SETUP)
    notebook.run("%%distribute --engines 2 --best val_loss:max --name last" + CELL.replace("MEASURE", "val_loss = epoch"))
    found = notebook.value("[p.detach() for p in dtrain.load_checkpoint('last', 'best')['model'].parameters()]")
    assert difference(found, notebook.value("[p.detach() for p in model.parameters()]")) is None


def test_a_metric_that_the_cell_does_not_have(notebook):
    notebook.run(SETUP)
    cell = notebook.run("%%distribute --engines 2 --best accuracy:max --name none" + CELL.replace("MEASURE", "pass"))
    assert "No best checkpoint is kept: the cell has logged no 'accuracy'" in cell.stderr
    message = "none has no best checkpoint: add `--best val_loss:min` to %%distribute to keep one."
    assert notebook.fail("dtrain.load_checkpoint('none', 'best')").error == ("CheckpointError", message)
    assert notebook.fail("%distribute resume none@best").error == ("CheckpointError", message)


@pytest.mark.parametrize("text", ["val_loss:low", ":min"])
def test_what_is_no_metric(notebook, text):
    assert "as val_loss:min or accuracy:max" in notebook.fail(f"%%distribute --best {text}\n1").error[1]
