"""Functions of files that a notebook holds are found by their names with each call where an engine reads them."""

from __future__ import annotations

import builtins
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from jupyter_dtrain.serialization.late_bound import _Process, reduced_late


class Held:
    """A class that holds one of them, which is no method of it."""

    remove: Any = os.remove


def sent(function: Any) -> Any:
    make, arguments = reduced_late(function)
    return make(*arguments)


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(_Process, "is_engine", True)


@pytest.mark.parametrize("function", [builtins.open, os.remove, torch.save])
def test_it_is_itself_where_no_engine_reads_it(function):
    assert sent(function) is function


def test_a_call_finds_what_takes_its_place(engine, monkeypatch, tmp_path):
    (tmp_path / "there").touch()
    remove, save = sent(os.remove), sent(torch.save)
    monkeypatch.setattr(Held, "remove", remove)
    called: list[Any] = []
    monkeypatch.setattr(os, "remove", called.append)
    monkeypatch.setattr(torch, "save", lambda *what: called.append(what))
    Held().remove("there")
    save(1, "file")
    assert called == ["there", (1, "file")]
    monkeypatch.undo()
    remove(tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("function", [builtins.open, torch.load])
def test_it_goes_home_as_itself(engine, monkeypatch, function: Callable[..., Any]):
    late = sent(function)
    assert late is not function
    monkeypatch.setattr(_Process, "is_engine", False)
    original = getattr(late, "__wrapped__", None)
    assert original is function
    if function is builtins.open:
        assert pickle.loads(pickle.dumps(late)) is function


def test_other_functions_are_left_alone():
    assert reduced_late(os.getpid) is NotImplemented
    assert reduced_late([]) is NotImplemented
