"""What a real run leaves on the disk and in memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

import pytest

from tests.conftest import one_of
from tests.notebook.conftest import IMPORTS

SETUP = """
import os
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
"""
TRAIN = """%%distribute --engines 2 --name kept --checkpoint-every 5 {options}
import hashlib, os, time
def look():
    for name in ("MY_API_TOKEN", "DATABASE_URL", "MADE_TOKEN", "DATA_DIR"):
        value = os.environ.get(name)
        yield name, value and hashlib.sha256(value.encode()).hexdigest()
os.environ["MADE_TOKEN"] = open("../given").read()
seen = [dict(look())]
for step in range(20):
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    while step == {stops} and not os.path.exists("../go on"):
        time.sleep(0.05)
seen = [*seen, dict(look())]
"""
SAID = "Secrets are not kept on disk, and this kernel has no {}: the cell continues without."


class Variables:
    """The environment of a kernel: secrets of its own, and what is none."""

    def __init__(self):
        token = secrets.token_hex(16)
        self.values = {"MY_API_TOKEN": f"tok-{token}", "DATABASE_URL": f"postgres://me:{token}@db/x", "DATA_DIR": f"/data/{token[::-1]}"}
        self.token = token.encode()

    def set(self, notebook):
        notebook.run(f"import os\nos.environ.update({self.values!r})")

    def seen(self, made):
        """Return what a cell in this environment sees, `made` being what it has made itself."""
        values = {**self.values, "MADE_TOKEN": made}
        return {name: value and hashlib.sha256(value.encode()).hexdigest() for name, value in values.items()}


def holds(folder, secret):
    """Return the names of the files below a folder that have a secret in them, but of those that somebody removes meanwhile."""
    found = set()
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and secret in path.read_bytes():
                    found.add(name)
    return found


@pytest.fixture
def project(tmp_path):
    """A folder beside which lies what the cell reads a secret from."""
    (tmp_path / "given").write_text("tok-" + secrets.token_hex(16))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.mark.long
@pytest.mark.parametrize("options", one_of(2, ["", "--keep-secrets"]))
def test_a_token_is_not_on_the_disk_and_is_the_new_kernels_on_resume(new_notebook, project, options):
    mine, others, made = Variables(), Variables(), (project.parent / "given").read_text()
    first = new_notebook(project)
    mine.set(first)
    first.run(IMPORTS + SETUP)
    cell = first.start(TRAIN.format(options=options, stops=12))
    checkpoints = project / "dtrain-runs"
    first.wait(lambda: [*checkpoints.glob("*/checkpoints/*10/manifest*")] or not cell.running, "a checkpoint", cell)
    assert cell.running, cell
    on_disk = {name: holds(checkpoints, secret) for name, secret in (("notebook's", mine.token), ("cell's", made.encode()))}
    assert bool(on_disk["notebook's"]) == bool(on_disk["cell's"]) == bool(options), on_disk
    assert "task.pickle" in holds(checkpoints, mine.values["DATA_DIR"].encode()), "what is no secret is there"
    first.manager.provisioner.process.kill()
    (project.parent / "go on").touch()

    second = new_notebook(project)
    if not options:
        others.set(second)
    second.run(IMPORTS)
    resumed = second.run("%distribute resume kept")
    before, after = second.value("seen")
    assert before == mine.seen(made), "the live run has them"
    if options:
        assert after == mine.seen(made) and "Secrets" not in resumed.stderr
    else:
        assert after == {**others.seen(None), "DATA_DIR": before["DATA_DIR"]}
        assert SAID.format("MADE_TOKEN") in resumed.stderr
        assert not holds(checkpoints, mine.token) | holds(checkpoints, others.token) | holds(checkpoints, made.encode())


@pytest.mark.long
def test_a_token_is_not_in_the_results_that_wait(new_notebook, project):
    mine, made = Variables(), (project.parent / "given").read_text()
    first = new_notebook(project)
    mine.set(first)
    first.run(IMPORTS + SETUP)
    cell = first.start(TRAIN.format(options="--detach", stops=12))
    runs = project / "dtrain-runs"
    first.wait(lambda: [*runs.glob("*/checkpoints/*10/manifest*")] or not cell.running, "a checkpoint", cell)
    first.close()
    (project.parent / "go on").touch()
    second = new_notebook(project)
    second.run(IMPORTS)
    second.wait(lambda: [*runs.glob("*/results/ending")], "the results")
    assert not holds(runs, mine.token) | holds(runs, made.encode())
    attached = second.run("%distribute attach kept")
    assert "the notebook does not get MADE_TOKEN, which the cell has set." in attached.stderr
    assert second.value("seen") == [mine.seen(made)] * 2
    assert second.value("os.environ.get('MY_API_TOKEN')") is None


def test_what_a_failed_cell_was_sent_goes_with_it(new_notebook):
    """Whether or not Python looks for circles, and out of the process too: C's allocator would keep some of it."""
    notebook = new_notebook()
    notebook.run(IMPORTS + "import ctypes, gc\ngc.disable()")
    count = "sum(isinstance(obj, torch.Tensor) and obj.numel() == 1_000_000 for obj in gc.get_objects())"

    def run(cells):
        for number in range(cells):
            notebook.run("data = torch.randn(1_000_000)")  # 8 MB
            total = "%%distribute --engines 2\ntotal = data.sum().item()"
            notebook.fail(f"{total}\nraise ValueError('no')") if number % 2 else notebook.run(total)

    run(4)  # so that everything is imported
    notebook.run("ctypes.CDLL(None).malloc_trim(0)")
    before = notebook.process.memory_full_info().uss
    run(24)
    assert notebook.value(count) == 1, "the notebook's own"
    # Cells that do not fail take some 5 MB as well: messages, records of runs. What the last one was sent goes a moment later.
    grown = lambda: notebook.process.memory_full_info().uss - before  # noqa: E731
    notebook.wait(lambda: grown() < 2 * 8_000_000, f"the end of what 12 cells were sent, above {before >> 20} MiB,")
