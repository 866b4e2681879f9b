"""Thirty cells in a row, each with a new model, on engines that neither hang nor grow."""

from __future__ import annotations

import pytest

from tests.notebook.conftest import IMPORTS

MEGABYTE = 1 << 20
# 0.4 million numbers with their gradients and Adam's two moments: 13 megabytes in each process for a cell that is not let go of.
MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(600, 400), nn.Tanh(), nn.Linear(400, 400), nn.Linear(400, 1))
        self.hidden = None

    def forward(self, x):
        self.hidden = self.body[0](x)  # its graph refers to the model's parameters, and is kept by the model
        return self.body[1:](self.hidden)

model = Net()
optimizer = torch.optim.Adam(model.parameters())
"""
TRAIN = """
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
closure = lambda: (model, loss)
keep = [model, optimizer, closure, loss]
"""


def footprint(process):
    with process.oneshot():
        return {
            "memory": process.memory_info().rss,
            "threads": process.num_threads(),
            "files": process.num_fds(),
            "children": len(process.children(recursive=True)),
        }


@pytest.mark.long
def test_thirty_cells_with_a_new_model_each(notebook):
    notebook.run("torch.manual_seed(1)\nloader = DataLoader(TensorDataset(torch.randn(12, 600), torch.randn(12, 1)), batch_size=6)")
    processes = [process for process in [*notebook.cluster_processes(), notebook.process] if process.parent() is not None]
    engines = notebook.engines()
    after = {}
    for number in range(1, 31):
        if number % 2:
            notebook.run(MODEL)
            cell = notebook.start("%%distribute --engines 2" + TRAIN)
        else:
            cell = notebook.start("%%distribute --engines 2" + MODEL + TRAIN)
        if number % 5 == 0:  # a failed cell's frames must not stay either
            notebook.finish(cell)
            notebook.fail("%%distribute --engines 2\nloss = model(torch.ones(1, 600)).sum()\nraise ValueError(loss)")
        assert notebook.finish(cell).ok
        if number in (10, 30):
            after[number] = {process: footprint(process) for process in processes}
    assert notebook.engines() == engines
    for process, before in after[10].items():
        now, name = after[30][process], " ".join(process.cmdline())
        assert now["memory"] < before["memory"] + 100 * MEGABYTE, name
        assert now["threads"] <= before["threads"] + 2, name
        assert now["children"] == before["children"], name
        # ipykernel closes the pipes of threads that have ended every ten seconds.
        notebook.wait(lambda: process.num_fds() <= before["files"] + 5, f"the closing of files by {name}")  # noqa: B023


def _kernel_memory_after_two_hundred(notebook, *, failing):
    """Return the bytes of the kernel after two hundred cells, of which every so many fails."""
    notebook.run(
        f"{IMPORTS}\ntorch.manual_seed(1)\nloader = DataLoader(TensorDataset(torch.randn(12, 600), torch.randn(12, 1)), batch_size=6)"
    )
    for number in range(1, 201):
        notebook.run(MODEL)
        if failing and number % failing == 0:
            notebook.fail(f"%%distribute --engines 2{TRAIN}raise ValueError(loss)")
        else:
            notebook.run("%%distribute --engines 2" + TRAIN)
        notebook.cells.clear()
    return notebook.process.memory_full_info().uss


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_hundred_cells_of_which_twenty_fail_take_no_more_of_the_kernel(new_notebook):
    sizes = []
    for failing in (0, 10):
        notebook = new_notebook()
        sizes.append(_kernel_memory_after_two_hundred(notebook, failing=failing))
        notebook.close()
    print(f"kernel: {sizes[0] / MEGABYTE:.0f} MiB, with twenty that fail {sizes[1] / MEGABYTE:.0f} MiB")
    assert sizes[1] <= 1.1 * sizes[0]
