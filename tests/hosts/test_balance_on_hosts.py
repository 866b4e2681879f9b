"""Shares by speed between hosts: a host that is slower than the other gets less of each batch, and the result is one process's."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.balance import throttled
from tests.faults.test_balance import SETUP, STATE, TRAIN
from tests.hosts.test_several_hosts import hosts_of
from tests.hosts.virtual_hosts import VirtualHost
from tests.notebook.kernel import difference

TOLD = "The engines are not equally fast: of each batch they take "
COMPUTES = """
torch.manual_seed(0)
inputs = torch.randn(1024, 256)
data = TensorDataset(inputs, torch.sin(inputs.sum(1, keepdim=True)))
loader = DataLoader(data, batch_size=256, shuffle=True)
model = nn.Sequential(nn.Linear(256, 2048), nn.Tanh(), nn.Linear(2048, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
history = []
"""


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to."""
    notebook.run(SETUP.format(workers=0) + TRAIN)
    return notebook.value(STATE)


def shares(cell):
    """What each engine takes of a batch, in percent, by the cell's lines: each time that it was changed."""
    told = [notice.removeprefix(TOLD).removesuffix(" now.") for notice in cell.notices if notice.startswith(TOLD)]
    return [[int(part.rstrip("%")) for part in line.split(", ")] for line in told]


def pid_outside(host: VirtualHost, pid: int) -> int:
    """The number here of the process that has the number `pid` in the host."""
    numbering = Path(f"/proc/{host.pid}/ns/pid").readlink()
    for process in psutil.process_iter():
        with suppress(OSError):  # it is over
            line = next(line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("NSpid"))
            if int(line.split()[-1]) == pid and Path(f"/proc/{process.pid}/ns/pid").readlink() == numbering:
                return process.pid
    raise LookupError(f"{host.name} has no process {pid}")


@pytest.mark.long
def test_a_slow_host_gets_less_of_each_batch_and_the_result_is_the_same(notebook, expected):
    notebook.run(SETUP.format(workers=0))
    cell = notebook.run(f"%%distribute --hosts h1:1,h2:1 --balance auto{TRAIN}")
    fast, slow = shares(cell)[-1]
    assert fast > 60 > slow, cell.notices
    assert hosts_of(notebook) == ["h1", "h2"]
    assert difference(notebook.value(STATE), expected) is None


@pytest.mark.long
def test_a_throttled_host_computes_less_and_the_wait_for_it_is_not_taken_for_work(notebook, lab):
    """The other waits for it in gloo's sums, as long as it computes itself: counted as work, both would seem equally fast."""
    train = TRAIN.replace("range(30)", "range(100)") + "    print('epoch', epoch, flush=True)\n"
    notebook.run(COMPUTES + train)
    wanted = notebook.value(STATE)
    notebook.run(COMPUTES)
    notebook.run("%distribute start --hosts h1:1,h2:1")
    engines = notebook.engines()
    cell = notebook.start(f"%%distribute --balance auto{train}")
    notebook.wait_for_stdout(cell, "epoch 0")  # an engine that is stopped before it has met the other would be replaced
    with throttled(pid_outside(lab[2], engines[1]), on=0.03, off=0.06):
        notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert notebook.engines() == engines, cell.notices
    fast, slow = shares(cell)[-1]
    assert fast > 60 > slow, cell.notices
    assert difference(notebook.value(STATE), wanted) is None


@pytest.mark.long
def test_the_slow_host_is_lost_and_its_share_goes_on_elsewhere(notebook, lab, expected):
    """Behind the loss both engines are on one host, with the shares that were in force at the snapshot."""
    notebook.run("%distribute stop")
    notebook.run(SETUP.format(workers=0))
    cell = notebook.start(f"%%distribute --hosts h1:1,h2:1 --balance auto{TRAIN}    print('epoch', epoch, flush=True)\n")
    notebook.wait_for_stdout(cell, "epoch 12")
    assert shares(cell)
    lab[2].run(["pkill", "-9", "-f", "host_agent"])
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert any("the host h2 is lost" in notice for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == ["h1", "h1"]
    assert difference(notebook.value(STATE), expected) is None
