"""The engine in reserve takes a place only where it sees the device of that place."""

from __future__ import annotations

import psutil
import pytest

from jupyter_dtrain.cluster.devices import DevicePlan
from jupyter_dtrain.cluster.launcher import Member
from jupyter_dtrain.cluster.spare import Spare


def plan(rank: int, index: str | None) -> DevicePlan:
    return DevicePlan(rank=rank, kind="cpu" if index is None else "cuda", index=index, name="a device", num_threads=1)


@pytest.fixture
def ended(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1 << 40}))
    return set()


def spare(ended: set[str], index: str | None) -> Spare:
    found = Spare(
        start=lambda: Member(plan=plan(0, index), engine_id=7),
        has_ended=ended.__contains__,
        is_registered=lambda _: True,
        warm_up=lambda _: None,
    )
    found.prepare()
    return found


@pytest.mark.parametrize("index", [None, "0"])
def test_acquire_gives_it_the_plan_of_the_place(ended, index):
    engines = spare(ended, index)
    member = engines.acquire(plan(1, index))
    assert member is not None
    assert (member.engine_id, member.plan.rank) == (7, 1)
    assert engines.acquire(plan(1, index)) is None


def test_acquire_leaves_one_in_reserve_that_sees_another_gpu(ended):
    engines = spare(ended, "0")
    assert engines.acquire(plan(1, "1")) is None
    assert engines.acquire(plan(0, "0")) is not None


def test_acquire_gives_none_that_has_ended(ended):
    engines = spare(ended, None)
    ended.add(Member(plan=plan(0, None), engine_id=7).name)
    assert engines.acquire(plan(0, None)) is None
