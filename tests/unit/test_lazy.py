"""Engines that start before there is a session: a cell that cannot be sent leaves them without one."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from jupyter_dtrain.cluster_options import ClusterOptions
from jupyter_dtrain.elastic import engine_pool
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.notebook.lazy import LazySession
from jupyter_dtrain.options import RunOptions
from jupyter_dtrain.protocol import ClusterUpdate, Command, EngineInfo

ENGINE = EngineInfo(rank=0, host="here", pid=7, device="cpu", device_name="CPU")
LIMIT = 10


class Clusters:
    """Stands for the class of clusters: one comes up when `ready` is set."""

    def __init__(self):
        self.ready = threading.Event()
        self.begun = threading.Event()
        self.given_up = threading.Event()
        self.running = 0
        self.refuses = False

    def check(self, _options):
        if self.refuses:
            raise UsageError("not here")

    def start(self, _options, *, on_progress):
        self.begun.set()
        try:
            while not self.ready.wait(0.001):
                on_progress("starting")
        except BaseException:
            self.given_up.set()
            raise
        self.running += 1
        return SimpleNamespace(
            alive=True,
            has_folders=True,
            engines=[ENGINE],
            engine_ids=[0],
            lost_hosts=[],
            device_plans=[SimpleNamespace(device="cpu")],
            stop=self.stop,
            end_stopped_guard=lambda: None,
        )

    def stop(self):
        self.running -= 1


@pytest.fixture
def clusters(monkeypatch):
    clusters = Clusters()
    monkeypatch.setattr(engine_pool, "find_launcher", lambda _name: clusters)
    return clusters


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = LazySession()
    yield session
    session.close()


def begin(session, clusters, *, until_up=True):
    session.begin_cluster(RunOptions(cluster=ClusterOptions(num_engines=1)))
    assert clusters.begun.wait(LIMIT)
    if until_up:
        clusters.ready.set()
        session._engines.start(ClusterOptions())


@pytest.mark.parametrize("until_up", [True, False], ids=["up", "on their way"])
def test_closing_ends_engines_that_no_session_has(session, clusters, until_up):
    begin(session, clusters, until_up=until_up)
    session.close()
    assert clusters.running == 0
    assert until_up or clusters.given_up.is_set()
    assert session.snapshot().cluster == ClusterUpdate(phase="stopped")


def test_none_start_for_a_run_that_is_refused(session, clusters):
    clusters.refuses = True
    session.begin_cluster(RunOptions())
    assert session._engines._beginning is None
    clusters.refuses = False
    begin(session, clusters)
    assert clusters.running == 1


@pytest.mark.parametrize("until_up", [True, False], ids=["up", "on their way"])
def test_they_can_be_stopped(session, clusters, until_up):
    begin(session, clusters, until_up=until_up)
    assert session.exists
    assert session.get().stop_cluster()
    assert clusters.running == 0
    assert not session.get().stop_cluster()


def test_the_sidebar_is_told_of_them(session, clusters):
    assert session.drain() == []
    begin(session, clusters)
    running = ClusterUpdate(phase="running", engines=[ENGINE])
    assert session.snapshot().cluster == running
    assert session.drain() == [running]
    assert session.drain() == []
    assert session.command(Command(id="1", name="stop_cluster")).ok
