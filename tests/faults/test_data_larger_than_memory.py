"""Five gigabytes of Parquet on engines that may take one each, over a lost engine and two resumes in one epoch: each row once."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults.control_groups import ControlGroups
from tests.notebook import kernel
from tests.notebook.conftest import IMPORTS
from tests.notebook.kernel import SESSION, Notebook, difference

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

GIGABYTE = 1 << 30
FILES, ROWS, WIDTH = 20, 1 << 20, 64  # 20 × 256 MiB of float32
TABLE = f"""
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
from jupyter_dtrain import data
torch.set_num_threads(1)
Path("rows").mkdir()
numbers = np.random.default_rng(0).normal(size=({ROWS}, {WIDTH})).astype("float32")
for part in range({FILES}):
    x = pa.FixedSizeListArray.from_arrays(pa.array((numbers + part / 100).ravel()), {WIDTH})
    row = np.arange({ROWS}) + {ROWS} * part
    pq.write_table(pa.table({{"x": x, "row": row}}), f"rows/{{part:02}}.parquet", row_group_size={ROWS // 16}, compression="none",
        use_dictionary=False)
del numbers, x, row
"""
MAKE = """
torch.manual_seed(0)
model = nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
loader = data.parquet("rows", features=["x"], target=["row"], dtype=torch.float64, target_dtype=torch.int64).loader(batch_size=16384)
count, total, squares, batches = 0, 0, 0, []
"""
CELL = """
for x, row in loader:
    loss = (model(x).squeeze(1) - x[:, 0]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count += len(row)
    total += row.sum().item()
    squares += (row % 4093).pow(2).sum().item()
    batches.append((row[0].item(), loss.item()))
"""
STATE = "(count, total, squares, batches, [p.detach() for p in model.parameters()])"


def start(notebook: Notebook, engines: int, groups: ControlGroups) -> list[int]:
    """Start engines, each of which may take a gigabyte, and return what watches over them."""
    notebook.run(f"%distribute start -n {engines} --device cpu")
    watchers: list[int] = notebook.value(f"list({SESSION}.get().cluster.pids().values())")
    groups.limit(watchers)
    return watchers


def test_each_row_is_used_once(module_notebook, new_notebook, control_groups, monkeypatch):
    groups = control_groups(GIGABYTE)
    monkeypatch.setattr(kernel, "LIMIT", 1800.0)  # seconds
    if shutil.disk_usage(Path.cwd()).free < 20 * GIGABYTE:
        pytest.skip("takes 6 GB of disk")
    notebook = module_notebook()
    notebook.run(IMPORTS + TABLE)
    assert sum(file.stat().st_size for file in (notebook.folder / "rows").iterdir()) > 5 * GIGABYTE
    notebook.run(MAKE + CELL)
    expected = notebook.value(STATE)
    num_rows, rows = FILES * ROWS, range(FILES * ROWS)
    assert expected[:3] == (num_rows, sum(rows), sum((row % 4093) ** 2 for row in rows))

    watchers = start(notebook, 2, groups)
    engines = notebook.engines()
    notebook.run(MAKE)
    cell = notebook.start(f"%%distribute --engines 2 --checkpoint-every 100 --name rows\n{CELL}")

    def is_behind(step: int) -> bool:
        groups.limit(watchers)  # whoever takes the place of the lost engine too
        return not cell.running or any(int(path.name[5:11]) >= step for path in notebook.folder.glob("dtrain-runs/*/checkpoints/step-*"))

    notebook.wait(lambda: is_behind(100), "a checkpoint", cell)
    os.kill(engines[1], signal.SIGKILL)
    for num_engines, step in ((3, 400), (1, 800)):
        notebook.wait(lambda step=step: is_behind(step), f"a checkpoint at step {step}", cell)
        assert cell.running, cell
        notebook.interrupt()
        notebook.finish(cell)
        notebook.close()
        notebook = new_notebook(notebook.folder)
        notebook.run("%load_ext jupyter_dtrain")
        watchers = start(notebook, num_engines, groups)
        cell = notebook.start("%distribute resume rows")
    notebook.finish(cell)
    assert cell.ok, cell
    assert difference(notebook.value(STATE), expected) is None
    assert max(groups.peaks()) <= GIGABYTE
    shutil.rmtree(notebook.folder / "rows")
