"""What ranks of several hosts leave of optimizers when they fail: files that somebody else has to bring, or none at all."""

from __future__ import annotations

import shutil
import threading
import time
from datetime import timedelta

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]  # not in torch's own list of exports

from jupyter_dtrain.engine.comm.rank_store import StoreChannel
from jupyter_dtrain.engine.strategies.zero1.distant_orphans import DistantOrphans

LIMIT = timedelta(seconds=0.5)


class States:
    """Stands in for the sharded states of one rank."""

    are_home = False

    def __init__(self, rank):
        self.rank, self.loaded = rank, None

    def state_dict(self):
        return {1: {self.rank: f"of rank {self.rank}"}}

    def needs_others(self):
        return True

    def load_state_dicts(self, parts):
        self.loaded = list(parts)


class Hosts:
    """Each rank with a folder of its own, and a way between them that takes its time or is not there."""

    def __init__(self, folder, *, brings=True):
        store = HashStore()
        self.brings, self.folders = brings, [folder / f"host{rank}" for rank in range(3)]
        self.states = [States(rank) for rank in range(3)]
        self.channels = [StoreChannel(store, rank=rank, world_size=3, timeout=timedelta(seconds=20)) for rank in range(3)]
        self.orphans = [self._of(rank, talk) for rank, talk in enumerate(self.channels)]

    def _of(self, rank, talk):
        return DistantOrphans(
            self.folders[rank], self.states[rank], rank=rank, world_size=3, generation=0, talk=talk, tell=lambda event: self.bring(event)
        )

    def bring(self, event):
        if self.brings:
            aside = self.folders[0] / f".in-{event.name}"
            shutil.copy(self.folders[event.rank] / event.name, aside)
            threading.Timer(0.3, aside.rename, [self.folders[0] / event.name]).start()

    def end(self, steps, limit=LIMIT):
        """Let the ranks of `steps` fail behind these, rank 0 first; return whether all of it has come home within `limit`."""
        found = []
        first = threading.Thread(target=lambda: found.append(self.orphans[0].come_home(steps[0], limit)))
        first.start()
        for rank, step in steps.items():
            if rank:
                assert self.orphans[rank].come_home(step, limit)
        first.join(80)
        return found[0]


def test_all_parts_come_home(tmp_path):
    hosts = Hosts(tmp_path)
    assert hosts.end({0: 7, 1: 7, 2: 7})
    assert hosts.states[0].loaded == [{1: {1: "of rank 1"}}, {1: {2: "of rank 2"}}]


@pytest.mark.parametrize(
    ("steps", "brings"), [({0: 7, 1: 7}, True), ({0: 7, 1: 8, 2: 7}, True), ({0: 7, 1: 7, 2: 7}, False)], ids=["killed", "step", "cut"]
)
def test_what_is_not_whole_is_not_taken(tmp_path, monkeypatch, steps, brings):
    monkeypatch.setattr("jupyter_dtrain.engine.strategies.zero1.distant_orphans.SPEED", 1e3)
    hosts = Hosts(tmp_path, brings=brings)
    assert not hosts.end(steps)
    assert hosts.states[0].loaded == []


def test_parts_of_lost_ranks_are_not_waited_for(tmp_path):
    hosts = Hosts(tmp_path)
    threading.Timer(0.3, hosts.channels[0].abort).start()
    began = time.monotonic()
    assert not hosts.end({0: 7, 1: 7}, timedelta(seconds=60))
    assert time.monotonic() - began < 10
    assert hosts.states[0].loaded == []


def test_a_file_of_a_host_lost_on_the_way_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("jupyter_dtrain.engine.strategies.zero1.distant_orphans.SPEED", 1)
    hosts = Hosts(tmp_path, brings=False)
    threading.Timer(0.3, hosts.channels[0].abort).start()
    began = time.monotonic()
    assert not hosts.end({0: 7, 1: 7, 2: 7}, timedelta(seconds=60))
    assert time.monotonic() - began < 10
    assert hosts.states[0].loaded == []
