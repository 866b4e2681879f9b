"""The engines' memory: used again while a cell runs, given back when it is over."""

from __future__ import annotations

import contextlib
import platform
import statistics
from pathlib import Path

import pytest

from tests.notebook.kernel import SESSION
from tests.notebook.test_zero1 import OWN

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc to keep memory")

MEGABYTE = 1 << 20
LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_large_tensors_of_a_step_take_the_memory_of_the_step_before(notebook):
    notebook.run("""\
%%distribute --engines 2
import resource
faults = []
for step in range(12):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    large = [torch.ones(8_000_000) for _ in range(3)]
    total = sum(one.sum() for one in large)
    del large
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
""")
    faults = notebook.value("faults")  # some steps find a small block in the way, and take new memory
    assert statistics.median(faults) * 20 < 3 * 4 * 8_000_000 // 4096


@pytest.mark.skipif(not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="the system has no large pages on request")
def test_new_memory_comes_in_large_pages(notebook):
    notebook.run("""\
%%distribute --engines 2
import resource
faults, kept = [], []
for step in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    kept.append(torch.ones(8_000_000))
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
del kept
""")
    assert statistics.median(notebook.value("faults")) * 20 < 4 * 8_000_000 // 4096


LEAVES = """\
%%distribute --engines 2
import gc, psutil, torch
freed = [torch.ones(8_000_000) for _ in range(3)]
circle = [torch.ones(8_000_000) for _ in range(3)]
circle.append(circle)
gc.collect()  # from now on it is as old as a model at the end of a run
used = psutil.Process().memory_info().rss
del freed, circle
"""


def test_a_cell_takes_the_memory_of_the_one_before(notebook):
    used = []
    for _ in range(5):  # a cell that begins at once finds some of it in circles still
        notebook.run(LEAVES)
        used.append(notebook.value("used"))
    each = 6 * 8 * 8_000_000  # bytes that a cell asks for
    assert used[-1] < used[0] + 2 * each, used


@pytest.mark.long
def test_an_idle_engine_has_given_back_what_the_cell_used(module_notebook, monkeypatch):
    monkeypatch.setenv("JUPYTER_DTRAIN_KEEP_MEMORY", "1")
    notebook = module_notebook()
    notebook.run("%load_ext jupyter_dtrain\nimport torch\n%distribute start -n 2 --device cpu")
    notebook.run("%%distribute --engines 2\npass")
    engines = [process for process in notebook.cluster_processes() if process.pid in notebook.engines()]
    assert len(engines) >= 2
    before = {process: process.memory_info().rss for process in engines}
    notebook.run(LEAVES)
    assert notebook.value("used") > min(before.values()) + 150 * MEGABYTE
    for process in engines:
        notebook.wait(lambda: process.memory_info().rss < before[process] + 60 * MEGABYTE, "the memory's return")  # noqa: B023


OF_NOTEBOOK = """
model = nn.Sequential(nn.Linear(400, 100), nn.BatchNorm1d(100), nn.Linear(100, 1))
optimizer = torch.optim.Adam(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loader = DataLoader(TensorDataset(torch.randn(64, 400)), batch_size=16)

def train(fails=False):
    for x, in loader:
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if fails:
            raise ValueError("that fails")
    scheduler.step()
    return loss
"""


TRAINED = """
for x, in loader:
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
OWN_FUNCTION = """
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient
for x, in loader:
    Doubled.apply(model(x)).pow(2).mean().backward()
"""
OWN_MANAGER = """
class Managed:
    def __enter__(self):
        return model
    def __exit__(self, *error):
        pass
with Managed() as entered:
    for x, in loader:
        entered(x).pow(2).mean().backward()
"""

OWN_HANDLER = """
import logging
class Handler(logging.Handler):
    def emit(self, record):
        print(model)
logging.getLogger("kept").addHandler(Handler())
loss = train()
"""
OWN_VARIABLE = """
import contextvars
current = contextvars.ContextVar("current")
current.set(model)
loss = train()
"""


@pytest.mark.parametrize(
    ("options", "cell"),
    [
        ("", "len(loader)"),
        ("--strategy zero1", OWN + TRAINED),
        ("", OWN_FUNCTION),
        ("", OWN_MANAGER),
        ("", OWN_HANDLER),
        ("", OWN_VARIABLE),
        ("", "loss = train()"),
        ("--checkpoint-every 2 --best loss:min", "for epoch in range(3):\n    loss = train().item()"),
        ("", "import contextlib\nwith contextlib.suppress(ValueError):\n    train(fails=True)"),
        ("--strategy none", "loss = train()"),
        ("--strategy zero1", "loss = train()"),
        ("--strategy zero3", "loss = train()"),
        ("--strategy tensor", "loss = train()"),
        ("--strategy pipeline", "del model[1]\nloss = train()"),
    ],
)
def test_an_idle_engine_holds_nothing_of_the_cell(notebook, options, cell):
    notebook.run(OF_NOTEBOOK)
    notebook.run("%%distribute --engines 2\npass")
    blobs, engines = str(notebook.value(f"{SESSION}.get().cluster.blob_dir")), notebook.engines()
    notebook.finish(notebook.start(f"%%distribute --engines 2 {options}\n{cell}"))
    notebook.wait(lambda: not any(holds(engine, blobs) for engine in engines), "the end of the cell's values")


def test_a_cell_that_has_failed_is_held_for_debug_until_the_next_one(notebook):
    notebook.run(OF_NOTEBOOK)
    blobs, engines = str(notebook.value(f"{SESSION}.get().cluster.blob_dir")), notebook.engines()[:2]
    notebook.fail("%%distribute --engines 2\ntrain(fails=True)")
    assert all(holds(engine, blobs) for engine in engines)
    notebook.run("%%distribute --engines 2\npass")
    notebook.wait(lambda: not any(holds(engine, blobs) for engine in engines), "the end of the cell's values")


def holds(engine: int, blobs: str) -> bool:
    """Return whether the process of an engine has mapped values of a cell."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # others take the place of those that have met a library
        return blobs in Path(f"/proc/{engine}/maps").read_text()
    return False
