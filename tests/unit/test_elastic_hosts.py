"""Which ranks a run does without when hosts are lost, and who has to be replaced then."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_dtrain.cluster.hosts.host_cluster import HostCluster
from jupyter_dtrain.cluster.hosts.host_launcher import HostLauncher
from jupyter_dtrain.elastic.recovery import EngineReplacement, Restarts
from jupyter_dtrain.elastic.worker_group import WorkerGroup, WorkerResult
from jupyter_dtrain.protocol.bus import Bus


class Engines:
    """Engines of a cluster, by the names of those that there were at first."""

    controller_alive = alive = True
    client = SimpleNamespace()

    def __init__(self, names, dead, on_lost_hosts):
        self.engine_ids, self._dead, self._on_lost_hosts, self.restarted = list(names), set(dead), set(on_lost_hosts), []

    def _ranks(self, names):
        return [rank for rank, name in enumerate(self.engine_ids) if name in names]

    def dead_ranks(self):
        return self._ranks(self._dead)

    def ranks_of_lost_hosts(self):
        return self._ranks(self._on_lost_hosts)

    def drop(self, ranks):
        self.engine_ids = [name for rank, name in enumerate(self.engine_ids) if rank not in ranks]

    def wait_for_hosts(self, _on_progress):
        return False

    def restart(self, ranks, **_):
        self.restarted += [self.engine_ids[rank] for rank in ranks]


@pytest.mark.parametrize(
    ("elastic", "lost", "left", "restarted", "said"),
    [
        ((1, 4), "cd", "ab", "", "on the 2 engines of the other hosts"),
        ((1, 4), "ab", "cd", "", "on the 2 engines of the other hosts"),
        ((3, 4), "cd", "abcd", "cd", "with new engines"),  # not with so few
        (None, "cd", "abcd", "cd", "with new engines"),
    ],
)
def test_a_run_does_without_the_ranks_of_lost_hosts_where_it_may(elastic, lost, left, restarted, said):
    cluster = Engines("abcd", dead=lost, on_lost_hosts=lost)
    told: list[str] = []
    replacement = of(cluster, told, elastic)
    ends = [WorkerResult(rank="abcd".index(name), outcome=None, reason="the host h2 is lost") for name in lost]
    assert replacement.replace(ends, None)
    assert cluster.engine_ids == list(left)
    assert cluster.restarted == list(restarted)
    assert replacement.group.num_ranks == len(left)
    assert told == [
        f"Lost ranks {', '.join(str(end.rank) for end in ends)} (the host h2 is lost): resuming from the cell's beginning {said}."
    ]


def test_an_engine_of_another_host_that_was_lost_meanwhile_is_replaced():
    """Rank 0's host is lost, and rank 2 does not answer any more, which is rank 1 from then on."""
    cluster = Engines("abc", dead="a", on_lost_hosts="a")
    replacement = of(cluster, [], (1, 3))
    assert replacement.replace(
        [WorkerResult(rank=0, outcome=None, reason="lost"), WorkerResult(rank=2, outcome=None, reason="silent")], None
    )
    assert (cluster.engine_ids, cluster.restarted) == (["b", "c"], ["c"])


def of(cluster, told, elastic):
    """Return what replaces engines of `cluster`, for a run on all of them."""
    group = WorkerGroup(cluster, len(cluster.engine_ids))
    found = EngineReplacement(group, restarts=Restarts(), renew=lambda group: group, events=Bus(), tell=told.append, on_progress=print)
    found.elastic = elastic
    return found


def test_ranks_that_move_up_stay_on_their_hosts():
    launcher = object.__new__(HostLauncher)
    hosts: list[Any] = [SimpleNamespace(name=name) for name in "abcd"]
    launcher._at = {2: hosts[2], 0: hosts[0], 1: hosts[1], 3: hosts[3]}
    launcher.drop([0, 2])
    assert launcher._at == {0: hosts[1], 1: hosts[3]}


class Hosts(HostCluster):
    """A cluster that has nothing to end."""

    def __init__(self, kernel):
        self._stopped, self._kernel, self._hosts, self.given_back = False, kernel, [], 0
        self._returning: Any = SimpleNamespace(stop=list)
        self._store: Any = SimpleNamespace(close=lambda: None)
        self._dask: Any = SimpleNamespace(stop=lambda: None)
        self._processes: Any = SimpleNamespace(stop=lambda: None)
        self._folders: Any = SimpleNamespace(remove=lambda: None)
        self.client, self._stop_lock = None, threading.Lock()

    def release(self):
        self.given_back += 1


@pytest.mark.parametrize(("kernel", "times"), [(os.getpid(), 1), (1, 0)], ids=["the kernel", "a fork of it"])
def test_what_the_agents_ran_in_is_given_back_once_and_by_no_fork_of_the_kernel(kernel, times):
    cluster = Hosts(kernel)
    cluster.stop()
    cluster.stop()
    assert cluster.given_back == times
