"""How much memory is left decides when an idle engine gives back what it keeps."""

from __future__ import annotations

import pytest

from jupyter_dtrain.engine import memory
from jupyter_dtrain.system.resources import Memory


@pytest.mark.parametrize(("left", "given"), [(10, 1), (90, 0)])
def test_memory_goes_back_early_where_little_is_left(monkeypatch, left, given):
    calls = []
    monkeypatch.setattr(memory, "memory", lambda: Memory(left, 100))
    monkeypatch.setattr(memory, "give_back", lambda: calls.append(1))
    memory.give_back_what_is_scarce()
    assert len(calls) == given
