"""Workers of Dask below a cluster's guard: they compute for this process, nobody else reaches them, and they end with the guard."""

from __future__ import annotations

import os
from datetime import timedelta

import dask.bag as db
import psutil
import pytest
from distributed import Client, default_client

from jupyter_dtrain.cluster.dask_workers import DaskWorkers
from jupyter_dtrain.cluster.folders import Folders
from jupyter_dtrain.cluster.guarded_processes import GuardedProcesses
from jupyter_dtrain.cluster.launch_config import own_environment
from jupyter_dtrain.errors import ClusterError, UsageError

LIMIT = timedelta(seconds=120)


@pytest.fixture
def workers():
    folders = Folders()
    processes = GuardedProcesses(folders.all, lambda *_: None)
    try:
        yield DaskWorkers(processes, folders, own_environment()), processes
    finally:
        processes.stop()
        folders.remove()


@pytest.mark.long
def test_workers_compute_are_reached_with_the_key_alone_and_end_with_the_guard(workers):
    workers, processes = workers
    workers.start(2, limit=LIMIT)
    workers.start(2, limit=LIMIT)  # there they are
    with pytest.raises(UsageError, match="There are 2 Dask workers beside the engines"):
        workers.start(3, limit=LIMIT)
    pids = set(default_client().run(os.getpid).values())
    assert len(pids) == 2
    assert set(db.from_sequence(range(8), npartitions=8).map(lambda _: os.getpid()).compute()) <= pids
    below = psutil.Process(processes.guard_pid).children(recursive=True)
    assert pids <= {process.pid for process in below}
    listening = [c.laddr for process in below for c in process.net_connections() if c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 4
    assert {address.ip for address in listening} == {"127.0.0.1"}
    with pytest.raises((OSError, TypeError, ValueError)):
        Client(workers.client.scheduler.address, timeout=5, set_as_default=False)  # which has no key
    workers.stop()
    with pytest.raises(ValueError, match="No clients found"):
        default_client()
    processes.stop()
    assert not any(process.is_running() for process in below)


def test_workers_that_do_not_start_are_told_of(workers, monkeypatch):
    workers, _ = workers
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(ClusterError, match="dask-scheduler ended while Dask workers were starting"):
        workers.start(1, limit=LIMIT)
    assert workers.client is None
