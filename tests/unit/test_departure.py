"""What a run does when a scheduler takes its hosts away: a last snapshot is here before they are let go."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_dtrain.checkpoint.snapshot_index import CompleteSnapshot
from jupyter_dtrain.elastic import departure
from jupyter_dtrain.elastic.departure import LEAVING, Departure


def snapshot(number: int) -> CompleteSnapshot:
    return CompleteSnapshot(number, 2, number, "a line", frozenset({"key"}))


class Fakes:
    """A keeper and a cluster, and what is done with them in order."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.newest: CompleteSnapshot | None = snapshot(1)
        self.is_leaving = False
        self.store = SimpleNamespace(keep_here=lambda number, **options: self.done.append((number, options)))

    def hasten(self) -> None:
        self.done.append("hasten")

    def let_go(self) -> None:
        self.done.append("let go")


@pytest.fixture
def fakes() -> Fakes:
    return Fakes()


@pytest.fixture
def look(fakes):
    told = Departure(fakes, fakes.done.append)
    return lambda: told.look(fakes)


def test_nothing_is_done_while_no_host_leaves(fakes, look):
    look()
    assert fakes.done == []


def test_a_snapshot_that_is_newer_is_here_before_hosts_are_let_go(fakes, look):
    fakes.is_leaving = True
    look()
    look()
    assert fakes.done == ["hasten", LEAVING]
    fakes.newest = snapshot(2)
    look()
    assert fakes.done[2:] == [(2, {"world_size": 2, "keys": frozenset({"key"})}), "let go"]


@pytest.mark.parametrize("newest", [snapshot(1), None])
def test_where_none_comes_in_time_they_are_let_go_with_what_there_is(fakes, look, newest, monkeypatch):
    fakes.newest, fakes.is_leaving = newest, True
    look()
    monkeypatch.setattr(departure, "LIMIT", timedelta(0))
    look()
    assert fakes.done[-1] == "let go"
    assert len(fakes.done) == (4 if newest else 3)
