"""How often a lost host is looked for, what is told of one that can be reached again, and that nothing is left of an attempt."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_dtrain.cluster.hosts import returning_hosts
from jupyter_dtrain.cluster.hosts.returning_hosts import ReturningHosts
from jupyter_dtrain.errors import ClusterError

REFUSED = "it has torch 1.0, and the notebook 2.0: install torch 2.0 there."
DOWN = "there is no route to it: check that it is on and in this network."


class Agent:
    """Of a host, which does not come up where `why` says so."""

    def __init__(self, name="h2", why=""):
        self.name, self.lost, self._why = name, "", why
        self.ended = False

    def wait_up(self):
        if self._why:
            raise ClusterError(f"{self.name}: {self._why}")

    def give_up(self):
        self.lost = "given up"

    begin_end = end = lambda self: setattr(self, "ended", True)


class Engine:
    """In reserve."""

    plan, ready = "plan", True

    def prepare(self):
        pass

    def acquire(self, _plan):
        return SimpleNamespace(plan=self.plan)


@pytest.fixture
def clock(monkeypatch):
    """One that stands."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(returning_hosts, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def looked(hosts):
    """Let one be looked for, and return whether it is back."""
    hosts.look()
    wait(hosts)
    return hosts.look()


def wait(hosts):
    deadline = time.monotonic() + 10
    while hosts._thread is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def of(agents, make_ready=lambda _lost, _host, number: [Engine()] * number) -> Any:
    found: Any = ReturningHosts(lambda _lost: agents[-1], make_ready)
    return found


def test_attempts_become_rare_and_say_nothing_of_a_host_that_is_down(clock):
    agents, attempts = [Agent(why=DOWN)], []
    hosts = of(agents)
    hosts.miss(Agent(), num_engines=1)
    for second in range(300):
        clock.now = 1000.0 + second
        agents.append(Agent(why=DOWN))
        assert not looked(hosts)
        if agents[-1].ended:
            attempts.append(second)
    assert attempts == [0, 5, 15, 35, 75, 135, 195, 255]
    assert hosts.news() == []
    assert hosts.stop() == []


def test_what_is_wrong_with_a_host_is_told_once(clock):
    hosts = of([Agent()], make_ready=refuse)
    hosts.miss(Agent(), num_engines=1)
    told = []
    for _ in range(4):
        assert not looked(hosts)
        told += hosts.news()
        clock.now += 60
    assert told == [f"The host h2 can be reached again, but cannot be used: {REFUSED} The run continues without it."]


def refuse(_lost, _host, _number):
    raise ClusterError(f"h2: {REFUSED}")


def test_a_host_that_is_back_is_taken_once_and_missed_again_later(clock):
    agents = [Agent()]
    hosts, lost = of(agents), Agent()
    hosts.miss(lost, num_engines=2)
    assert looked(hosts)
    assert hosts.news() == ["The host h2 is back: 2 engines to start there."]
    assert hosts.hosts == agents
    before, now, members = hosts.take()
    assert (before, now, len(members)) == (lost, agents[0], 2)
    clock.now += 600
    assert not looked(hosts)  # nothing is missed
    assert hosts.take() is None
    hosts.miss(now, num_engines=2)
    agents.append(Agent())
    assert looked(hosts)
    assert hosts.stop() == [agents[-1]]


def test_one_that_is_lost_before_it_is_taken_is_looked_for_again(clock):
    agents = [Agent()]
    hosts = of(agents)
    hosts.miss(Agent(), num_engines=1)
    assert looked(hosts)
    agents[0].give_up()
    assert hosts.take() is None
    assert not looked(hosts)
    agents.append(Agent())
    clock.now += 5
    assert looked(hosts)
    assert hosts.hosts == [agents[-1]]


def test_a_stop_ends_an_attempt(clock):
    class Silent(Agent):
        def wait_up(self):
            deadline = time.monotonic() + 10
            while not self.lost:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            raise ClusterError(f"h2: {self.lost}.")

    waiting = Silent()
    hosts = of([waiting])
    hosts.miss(Agent(), num_engines=1)
    hosts.look()
    assert hosts.stop() == []
    assert waiting.ended
    assert hosts.news() == []
    clock.now += 60
    assert not looked(hosts)


def test_where_nobody_can_none_is_looked_for():
    hosts = ReturningHosts(None, refuse)
    hosts.miss(Agent(), num_engines=1)  # type: ignore[arg-type]
    assert not hosts.look()
    assert hosts._thread is None
