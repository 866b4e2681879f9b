"""What a real run leaves on the disk and in memory."""

from __future__ import annotations

from tests.notebook.conftest import IMPORTS

SETUP = """
import os
os.environ["MY_TOKEN"], os.environ["DATA_DIR"] = "tok-0123456789", "/data"
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
"""
TRAIN = """%%distribute --engines 2 --name kept --checkpoint-every 5 {option}
import os
os.environ["MADE_TOKEN"] = "tok-" + "9" * 10
for step in range(20):
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == 12 and not os.path.exists("again"):
        raise KeyError("broken off")
seen = [os.environ.get("MY_TOKEN"), os.environ["DATA_DIR"]]
"""


def holds(folder, secret):
    return [path.name for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


def test_an_option_keeps_them(new_notebook):
    notebook = new_notebook()
    notebook.run(IMPORTS + SETUP)
    notebook.fail(TRAIN.format(option="--keep-secrets"))
    assert "task.pickle" in holds(notebook.folder / "dtrain-runs", b"tok-0123456789")


def test_what_a_failed_cell_was_sent_goes_with_it(new_notebook):
    notebook = new_notebook()
    notebook.run(IMPORTS + "%load_ext jupyter_dtrain\nimport gc\ngc.disable()")
    count = "sum(isinstance(obj, torch.Tensor) and obj.numel() == 20_000 for obj in gc.get_objects())"
    for _ in range(4):
        notebook.run("data = torch.randn(20_000)")
        notebook.fail("%%distribute --engines 2\ntotal = data.sum().item()\nraise ValueError('no')")
    assert notebook.value(count) == 1, "the notebook's own"
