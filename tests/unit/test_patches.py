"""What a notebook has put into libraries is found by the texts that it has run, and is there for the time of a cell."""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any

import pytest

from jupyter_dtrain.capture.library_patches import in_place, patches


class Library(pickle.Pickler):
    attribute = 1


Library.__module__ = "pickle"


@pytest.fixture
def names(monkeypatch):
    monkeypatch.setattr(pickle, "Library", Library, raising=False)
    own = ModuleType("own")
    return {"p": pickle, "Library": Library, "instance": Library, "own": own}


def found(names: dict[str, Any], *texts: str) -> dict[str, Any]:
    return {patch.name: patch.value for patch in patches({**names, "In": ["", *texts]}, [])}


def test_attributes_that_cells_have_set(names, monkeypatch):
    text = "p.limit = 3\nsetattr(p.Library, 'attribute', 2)\n@added(Library)\ndef function(self): ...\n@patch\ndef other(x: p.Library): ..."
    for name in ("function", "other"):
        monkeypatch.setattr(Library, name, name, raising=False)
    monkeypatch.setattr(pickle, "limit", 3, raising=False)
    assert found(names, "not python", text) == {"limit": 3, "attribute": 1, "function": "function", "other": "other"}


@pytest.mark.parametrize(
    "text",
    ["p.gone = 1", "own.limit = 1", "unknown.limit = 1", "import sys\nsys.argv = []", "def f(self):\n self.p = 1", "p.encode_long = 1"],
)
def test_what_is_not_there_or_not_a_librarys(names, text):
    assert found(names, text) == {}


def test_a_function_of_the_library_in_another_place_is_a_patch(names, monkeypatch):
    monkeypatch.setattr(pickle, "encode_long", pickle.decode_long)
    assert found(names, "p.encode_long = p.decode_long") == {"encode_long": pickle.decode_long}


def test_libraries_are_as_they_were_after_a_cell(names):
    (patch,) = patches({**names, "In": ["Library.attribute = 2"]}, [])
    patch.value = 2
    with in_place([patch, "of other kinds"]):
        assert Library.attribute == 2
    assert Library.attribute == 1
    patch.name = "new"
    with in_place([patch]):
        assert Library.new == 2  # type: ignore[attr-defined]
    assert not hasattr(Library, "new")
