"""Processes of a cluster that are killed or stopped while others wait for them: nobody waits until the limit."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta

import pytest

from jupyter_dtrain.cluster import ranked_engines
from jupyter_dtrain.cluster.local import LocalCluster
from jupyter_dtrain.cluster.startup import Arrival
from jupyter_dtrain.cluster_options import ClusterOptions
from jupyter_dtrain.errors import ClusterError
from tests.conftest import in_turn, one_of

LIMIT = timedelta(seconds=120)
"""What would be waited for a process that does not come."""
SOON = 60.0
"""Seconds that are enough for two starts, also where the machine is busy."""


@pytest.fixture
def disturb(monkeypatch):
    """Return a function that has a process get a signal the next time that engines are waited for."""
    monkeypatch.setattr(ranked_engines, "WARM_MODULES", ())  # these clusters compute nothing
    of_engines = Arrival.of_engines

    def disturb(name, number):
        def disturbed(arrival, engine_ids):
            monkeypatch.setattr(Arrival, "of_engines", of_engines)
            processes = arrival._processes
            arrival.of(lambda: name in {"guard", *processes.pids}, lambda: f"{name} starts")
            os.kill(processes.guard_pid if name == "guard" else processes.pids[name], number)
            of_engines(arrival, engine_ids)

        monkeypatch.setattr(Arrival, "of_engines", disturbed)

    return disturb


NUMBERS = [signal.SIGSTOP, signal.SIGKILL]


@pytest.mark.parametrize(
    ("name", "number"),
    [*in_turn(["engine-1", "controller"], NUMBERS), *(pytest.param("guard", number, marks=pytest.mark.long) for number in NUMBERS)],
)
def test_a_start_that_is_disturbed_is_made_once_more(disturb, name, number):
    disturb(name, number)
    began = time.monotonic()
    cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu", start_timeout=LIMIT))
    try:
        assert cluster.view.apply_sync(int, "1") == [1, 1]
        assert time.monotonic() - began < SOON
    finally:
        cluster.stop()


@pytest.mark.parametrize("name", one_of(2, ["engine-2", "controller"]))  # a guard may have started the engine by then
def test_what_is_stopped_while_another_engine_starts_has_ended(disturb, name):
    cluster = LocalCluster.start(ClusterOptions(num_engines=2, device="cpu"))
    try:
        disturb(name, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(ClusterError):
            cluster.restart([0], limit=LIMIT)
        assert time.monotonic() - began < SOON
        assert not cluster.alive
        assert cluster.controller_alive == (name == "engine-2")
        if cluster.controller_alive:
            cluster.restart(cluster.dead_ranks(), limit=LIMIT)
            assert cluster.view.apply_sync(int, "1") == [1, 1]
    finally:
        cluster.stop()


@pytest.mark.long
def test_a_stopped_guard_keeps_no_engine_from_being_restarted():
    cluster = LocalCluster.start(ClusterOptions(num_engines=1, device="cpu"))
    try:
        os.kill(cluster.pids()["guard"], signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(ClusterError, match="The process that watches over the engines ended"):
            cluster.restart([0], limit=LIMIT)
        assert time.monotonic() - began < SOON
    finally:
        cluster.stop()
