"""What stays with an object's class where it cannot be written is looked for, and not for ever."""

from __future__ import annotations

import itertools
import sqlite3
import time

import pytest

from jupyter_dtrain.serialization.custom_reduce import go_back
from jupyter_dtrain.serialization.pickler import Packer


class Node:
    """One of many that lead to one another, with a way of its own to be pickled."""

    def __init__(self, world):
        self.world = world

    def __getstate__(self):
        return self.__dict__.copy()


class World:
    def __init__(self, number):
        self.nodes = [Node(self) for _ in range(number)]
        self.table = sqlite3.connect(":memory:")


@pytest.mark.parametrize(("number", "most"), [(5, 20), (400, 60)])
def test_objects_that_lead_to_one_another_are_not_all_tried(monkeypatch, number, most):
    world, seconds = World(number), itertools.count()
    tried = []

    def cannot_be_written(value):
        tried.append(value)
        try:
            Packer(namespace={}).dump(value)
        except TypeError:
            return True
        return False

    assert cannot_be_written(world)
    monkeypatch.setattr(time, "monotonic", lambda: next(seconds))
    go_back(cannot_be_written)
    assert 2 <= len(tried) <= most
