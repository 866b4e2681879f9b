"""A recorded run, run again from what its record has: the same weights, in the same kernel and in a new one."""

from __future__ import annotations

import os

import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.corpus_cells import CELLS
from tests.notebook.kernel import difference

CORPUS = (
    *("dropout_in_the_cell", "gan", "mixup", "lbfgs", "hand_sgd"),
    *("ema_and_swa", "iterable_dataset", "early_stopping", "maml", "autoencoder"),
)
"""Cells of many kinds: draws, two optimizers, closures, raw tensors, data that is a stream."""
FINGERPRINT = "sum(p.double().sum().item() * (1 + i) for i, p in enumerate(model.parameters()))"
SETUP = """
torch.manual_seed(3)
inputs = torch.randn(40, 6)
loader = DataLoader(TensorDataset(inputs, inputs.sin().sum(1, keepdim=True)), batch_size=8, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

def step(x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
"""
TRAIN = """
losses = [step(x, y) for _ in range(2) for x, y in loader]
drawn = torch.rand(1).item()
"""


@pytest.fixture
def first(notebook):
    """The notebook in which runs are recorded."""
    notebook.run(IMPORTS + "import jupyter_dtrain")
    return notebook


@pytest.fixture(scope="module")
def second(module_notebook, shared_notebook):
    """A new kernel in the same folder, which has nothing but the record."""
    notebook = module_notebook(shared_notebook.folder)
    notebook.run("%load_ext jupyter_dtrain\nimport jupyter_dtrain")
    return notebook


def weights(notebook):
    return notebook.value(f"({FINGERPRINT}.hex(), losses, drawn)")


def test_a_run_is_run_again_to_the_bit_here_and_in_a_new_kernel(first, second):
    first.run(SETUP)
    first.run(f"%%distribute --engines 2 --name again{TRAIN}")
    expected = weights(first)
    first.run("before = jupyter_dtrain.find_run('again').points('loss')['value']")
    first.run("torch.manual_seed(99)\nmodel = inputs = None\ndef step(x, y): ...")  # nothing of the notebook's is used
    first.run("run = jupyter_dtrain.find_run('again').rerun()")
    assert weights(first) == expected
    assert first.value("(run.name, run.phase, run.world_size)") == ("again", "finished", 2)
    assert first.value("(run.run_id == jupyter_dtrain.find_run().run_id, run.points('loss')['value'] == before)") == (True, True)

    second.run("run = jupyter_dtrain.find_run('again').rerun()")
    assert weights(second) == expected
    assert second.value("step(*next(iter(loader)))") > 0  # the notebook can go on with it
    second.run("run = jupyter_dtrain.find_run('again').rerun(engines=1)")
    assert second.value("losses") == pytest.approx(expected[1], abs=1e-9)


def test_cells_of_the_corpus_are_run_again_in_a_new_kernel(first, second):
    chosen = [cell for cell in CELLS if cell.name in CORPUS][: len(CORPUS) if os.environ.get("DTRAIN_LONG") else 3]
    for cell in chosen:
        first.run(cell.setup)
        first.run(f"%%distribute --engines 2 --name {cell.name}\n{cell.cell}")
        written(first, cell.name)
        second.run(f"jupyter_dtrain.find_run({cell.name!r}).rerun()")
        assert difference(second.value(cell.compare), first.value(cell.compare)) is None, cell.name


@pytest.mark.long
def test_all_of_them(first, second, monkeypatch):
    monkeypatch.setenv("DTRAIN_LONG", "1")
    test_cells_of_the_corpus_are_run_again_in_a_new_kernel(first, second)


def test_what_the_record_does_not_have_is_a_clear_error(first):
    first.run(SETUP)
    first.run(f"%%distribute --engines 2 --name bare --keep-inputs never{TRAIN}")
    name, text = first.fail("jupyter_dtrain.find_run('bare').rerun()").error
    assert name == "UsageError"
    assert "does not have the values that its cell began with" in text
    assert "--keep-inputs always" in text
    first.run(f"%%distribute --engines 2 --name changed{TRAIN}")
    written(first, "changed")
    first.run("file = jupyter_dtrain.find_run('changed').record.folder / 'inputs' / 'task.pickle'")
    first.run("file.write_bytes(file.read_bytes()[:-1] + b'!')")
    assert first.fail("jupyter_dtrain.find_run('changed').rerun()").error[0] == "CheckpointError"


def written(notebook, name):
    """Wait until what a run began with is on disk: it is written in the background, when the run has ended."""
    is_there = f"(jupyter_dtrain.find_run({name!r}).record.folder / 'inputs').is_dir()"
    notebook.wait(lambda: notebook.value(is_there), "what the run began with")


def test_the_same_data_set_is_kept_once(first):
    first.run("data = torch.randn(2**18)")  # two megabytes
    for name in ("one", "two"):
        first.run(f"%%distribute --engines 2 --name {name}\nlast = data[-1].item()")
        written(first, name)
    first.run("kept = lambda name: (jupyter_dtrain.find_run(name).record.folder / 'inputs' / 'blobs').iterdir()")
    inodes = "[{file.stat().st_ino for file in kept(name)} for name in ('one', 'two')]"
    one, two = first.value(inodes)
    assert one == two
    assert len(one) == 1
