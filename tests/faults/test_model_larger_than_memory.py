"""A model that engines have no room for: one with all of it is ended by the system, one with rows of it, or under the plan for it, is not.

The first engine, which puts all of it together at the end, has room.
"""

from __future__ import annotations

import psutil
import pytest

from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LAYERS = 12  # of 16 MiB
MEMORY = 640 << 20  # bytes, and all of it takes four times the 192 MiB of parameters and more
MAKE = f"""
import jupyter_dtrain
torch.set_default_dtype(torch.float32)
torch.manual_seed(0)
model = nn.Sequential(*(layer for _ in range({LAYERS}) for layer in (nn.Linear(2048, 2048), nn.GELU())))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
inputs = torch.randn(64, 2048)
loader = DataLoader(TensorDataset(inputs, inputs.flip(1)), batch_size=16)
losses = []
"""
CELL = """
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""


def test_who_has_all_of_it_is_ended_and_who_has_rows_is_not(module_notebook, control_groups):
    notebook = module_notebook()
    notebook.run(IMPORTS + MAKE)
    for options in ("--memory-limit 500M", "--strategy zero3", "--strategy auto"):  # beside what an engine has without a model
        groups = control_groups(MEMORY)
        notebook.run("%distribute start -n 4 --device cpu")
        notebook.run(MAKE)
        engines = notebook.engines()
        groups.limit(notebook.value(f"list({SESSION}.get().cluster.pids().values())"), but=engines[:1])
        cell = notebook.start(f"%%distribute --engines 4 {options}\n{CELL}")
        if "auto" in options:
            notebook.wait(lambda engines=engines: not all(map(psutil.pid_exists, engines)), "an engine that is ended", cell)
            assert cell.running
            notebook.interrupt()
            notebook.finish(cell)
            assert max(groups.peaks()) > 0.95 * MEMORY
        else:
            notebook.finish(cell)
            assert cell.ok, cell
            assert notebook.value("len(losses)") == 4
            assert ("memory" in options) == any(line.startswith("`--strategy auto` takes --") for line in cell.notices)
            assert all(map(psutil.pid_exists, engines))
        notebook.run("%distribute stop")
