"""How much memory is left decides when an idle engine gives back what it keeps."""

from __future__ import annotations

from collections import namedtuple

import psutil
import pytest

from jupyter_dtrain.engine import idle

Memory = namedtuple("Memory", "available total")


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Memory(60, 100))


def limited(tmp_path, limit, used):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    return tmp_path


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(("limit", "used", "left"), [(1000, 900, 0.1), (1000, 100, 0.6), ("max", 900, 0.6)])
def test_a_container_has_what_its_limit_leaves(tmp_path, limit, used, left):
    assert idle.part_left(limited(tmp_path, limit, used)) == pytest.approx(left)


@pytest.mark.usefixtures("host")
def test_a_host_has_what_is_available(tmp_path):
    assert idle.part_left(tmp_path) == pytest.approx(0.6)


@pytest.mark.parametrize(("left", "given"), [(0.1, 1), (0.9, 0)])
def test_memory_goes_back_early_where_little_is_left(monkeypatch, left, given):
    calls = []
    monkeypatch.setattr(idle, "part_left", lambda: left)
    monkeypatch.setattr(idle, "give_back", lambda: calls.append(1))
    idle.give_back_what_is_scarce()
    assert len(calls) == given
