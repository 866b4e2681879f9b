"""A host that is switched off at any moment of a run, also before its first snapshot, changes no number and no file."""

from __future__ import annotations

import random
import time

import pytest

from tests.hosts.conftest import ROOT, HostNotebook
from tests.hosts.test_several_hosts import SETUP, TRAIN, assert_same, hosts_of, steps_logged, trained
from tests.hosts.virtual_hosts import VirtualHosts, why_not
from tests.notebook.conftest import IMPORTS

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]

MOMENTS = 5
STEPS = 60  # of ten epochs
STANDS_STILL = 12.0  # seconds on an idle machine
SLOWER = 2.5  # times as long, on one that runs other tests


@pytest.fixture(scope="module")
def hosts():
    """The notebook's, one that stays, and one to lose for each moment."""
    with VirtualHosts(2 + MOMENTS, shared=[ROOT]) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def writer(hosts):
    notebook = HostNotebook(hosts[0], hosts, "/root")
    notebook.run(IMPORTS)
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def expected(writer):
    """What one process comes to."""
    writer.run(SETUP + TRAIN.format(epochs=10, pause=0))
    return trained(writer)


@pytest.mark.parametrize("number", range(MOMENTS))
def test_a_host_is_switched_off_at_any_moment(writer, hosts, expected, number):
    step = random.randint(1, STEPS - 2)
    stays, goes = hosts[1], hosts[2 + number]
    stays.run(["rm", "-f", "/root/log.txt"])
    writer.run(SETUP)
    writer.run(f"%distribute start --hosts {stays.name}:1,{goes.name}:1")
    cell = writer.start(f"%%distribute\n{TRAIN.format(epochs=10, pause=0.1)}")
    log = stays.state / "root/log.txt"
    writer.wait(lambda: (log.exists() and len(log.read_text().split()) >= step) or not cell.running, "the moment", cell)
    goes.lose()
    began = time.monotonic()
    writer.wait(lambda: max(steps_logged(stays), default=0) > step + 1 or not cell.running, "the next steps", cell)
    stood = time.monotonic() - began
    writer.finish(cell)
    told = f"switched off behind step {step}, stood still for {stood:.1f} s"
    print(told)
    assert cell.ok, f"{told}: {cell.traceback}"
    assert_same(writer, expected)
    assert steps_logged(stays) == list(range(1, STEPS + 1)), told
    assert hosts_of(writer) == ["h1", "h1"], told
    assert stood < STANDS_STILL * SLOWER, told
