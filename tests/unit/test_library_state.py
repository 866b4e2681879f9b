"""State that a library keeps in a module of its own goes along with a cell's names."""

from __future__ import annotations

import sys
import zlib
from types import ModuleType
from typing import Any

import pytest
import torch

from jupyter_dtrain.analysis.names import CellNames
from jupyter_dtrain.capture.bundle import Bundle, pack, unpack
from jupyter_dtrain.integrations import pyro, registry
from jupyter_dtrain.serialization.pickler import Packed
from jupyter_dtrain.serialization.unpickler import Unpacker


class Store:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.params: dict[str, Any] = {}


Store.__module__ = "library_of_a_test.state"


@pytest.fixture
def store(monkeypatch):
    module = ModuleType("library_of_a_test.state")
    module.Store, module.STORE = Store, Store()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(pyro, "_PLACES", {module.__name__: "STORE"})
    monkeypatch.setitem(registry._known, module.__name__, registry._known["pyro"])
    monkeypatch.setattr(registry, "_is_told", True)  # or a look at what is installed would drop it
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    return module.STORE


def packed(**namespace: Any) -> Bundle:
    return pack(CellNames(needed=dict.fromkeys(namespace, 1), maybe={}), namespace)


def read(bundle: Bundle) -> tuple[dict[str, Any], list[object]]:
    sent = bundle.packed
    own = [memoryview(bytearray(buffer)) for buffer in sent.buffers]
    return unpack(Unpacker(Packed(sent.stream, sent.leaves, own), namespace={}))


def test_the_reader_finds_the_state_where_its_own_was(store):
    weight = torch.ones(2, requires_grad=True)
    store.params["weight"] = weight
    bundle = packed(weight=weight)
    store.params = {"of a cell before": torch.zeros(1)}
    values, tracked = read(bundle)
    assert list(store.params) == ["weight"]
    assert store.params["weight"] is values["weight"] is not weight
    assert any(obj is store for obj in tracked)
    assert len(tracked) == len(bundle.tracked)


def test_a_state_that_was_emptied_is_empty_for_the_reader(store):
    bundle = packed(x=1)
    store.params["stale"] = 2
    read(bundle)
    assert store.params == {}


def test_a_state_that_cannot_be_sent_stays_and_the_cell_runs(store):
    store.params["lock"] = zlib.compressobj()
    values, _ = read(packed(x=1))
    assert values == {"x": 1}
    assert list(store.params) == ["lock"]
