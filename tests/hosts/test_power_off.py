"""A host that is switched off at any moment of a run, its first snapshot or not, changes no number and no file, and nothing is left."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.hosts.conftest import ROOT, HostNotebook
from tests.hosts.test_several_hosts import TRAIN, assert_nothing_left, hosts_of, steps_logged, waiting_for
from tests.hosts.test_zero1_on_hosts import WIDE, state
from tests.hosts.test_zero3_on_hosts import assert_same_bits
from tests.hosts.virtual_hosts import VirtualHost, VirtualHosts, why_not
from tests.notebook.conftest import IMPORTS

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(why_not()), reason=why_not())]

MOMENTS = 6  # of which in every other one rank 0's host is switched off
STEPS = 60  # of ten epochs
STANDS_STILL = 12.0  # seconds on an idle machine
SLOWER = max(2.5, os.getloadavg()[0] / (os.cpu_count() or 1))  # times as long, on one that runs other tests or has more to do


@pytest.fixture(scope="module")
def hosts():
    """The notebook's, one that stays, and one to lose."""
    with VirtualHosts(3, shared=[ROOT]) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def writer(hosts):
    notebook = HostNotebook(hosts[0], hosts, "/root")
    notebook.run(IMPORTS)
    yield notebook
    notebook.close()


@pytest.fixture(scope="module", params=["auto", "zero1", "zero3"])
def undisturbed(request, writer):
    """A strategy, and what two engines on two hosts come to with it."""
    writer.run(WIDE)
    writer.run(f"%%distribute --hosts h1:1,h2:1 --strategy {request.param}\n{TRAIN.format(epochs=10, pause=0)}")
    return request.param, state(writer)


class Progress:
    """How long no step was made from now on, as the log on `host` shows, and when one `beyond` this was."""

    def __init__(self, host: VirtualHost, *, beyond: int) -> None:
        self._host, self._beyond = host, beyond
        self._began = self._changed = time.monotonic()
        self._num_logged = len(self._logged())
        self.stood_still = self._regained = 0.0

    def _logged(self) -> list[int]:
        return steps_logged(self._host) if (self._host.state / "root/log.txt").exists() else []

    def is_regained(self) -> bool:
        logged, now = self._logged(), time.monotonic()
        if len(logged) > self._num_logged:  # and not less, as the log goes back to the snapshot first
            self.stood_still = max(self.stood_still, now - self._changed)
            self._changed, self._regained = now, now - self._began
        self._num_logged = len(logged)
        return max(logged, default=0) > self._beyond

    def __str__(self) -> str:
        return f"stood still for {self.stood_still:.1f} s, and was as far again after {self._regained:.1f} s"


@pytest.mark.parametrize("number", range(MOMENTS))
def test_a_host_is_switched_off_at_any_moment(writer, hosts, undisturbed, number):
    strategy, expected = undisturbed
    step = random.randint(1, STEPS - 2)
    _, stays, goes = (hosts[index] for index in range(3))
    first, second = (goes, stays) if number % 2 else (stays, goes)
    for host in (stays, goes):
        host.run(["rm", "-f", "/root/log.txt"])
    writer.run(WIDE)
    writer.run(f"%distribute start --hosts {first.name}:1,{second.name}:1")
    cell = writer.start(f"%%distribute --strategy {strategy}\n{TRAIN.format(epochs=10, pause=0.1)}")
    log = first.state / "root/log.txt"
    writer.wait(lambda: (log.exists() and len(log.read_text().split()) >= step) or not cell.running, "the moment", cell)
    goes.lose()
    try:
        progress = Progress(stays, beyond=step + 1)
        writer.wait(lambda: progress.is_regained() or not cell.running, "the next steps", cell)
        writer.finish(cell)
    finally:
        goes.switch_on()
    told = f"{strategy}: the host of rank {int(goes is second)} switched off behind step {step}, {progress}"
    print(told)
    assert cell.ok, f"{told}: {cell.traceback}"
    assert_same_bits(writer, expected)
    # What rank 0 has written on a host that is lost is lost with it; the rest is there, each step once.
    logged = steps_logged(stays)
    assert logged == list(range(logged[0], STEPS + 1)), told
    assert logged[0] <= (1 if goes is second else step + 1), told
    assert hosts_of(writer) == ["h1", "h1"], told
    assert progress.stood_still < STANDS_STILL * SLOWER, told
    writer.run("%distribute stop")
    waiting_for(lambda: not stays.processes(), limit=10)
    assert_nothing_left([hosts[0], stays])
