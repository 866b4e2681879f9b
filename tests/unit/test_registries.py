"""Modules of a library that are in a list of their class are in it wherever they are sent."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from jupyter_dtrain.analysis.code_objects import installed_folders
from jupyter_dtrain.serialization.pickler import Packer
from jupyter_dtrain.serialization.registries import left_afterwards
from jupyter_dtrain.serialization.unpickler import Unpacker

LIBRARY = """
import torch

class Neuron(torch.nn.Module):
    instances = []

    def __init__(self):
        super().__init__()
        self.state = torch.ones(2)
        Neuron.instances.append(self)

    @classmethod
    def reset_all(cls):
        for neuron in cls.instances:
            neuron.state = torch.zeros(2)

class Pickier(Neuron):
    def __setstate__(self, state):
        super().__setstate__(state)
        self.read = True
"""


@pytest.fixture
def library(monkeypatch):
    """A module that is found by its name, as one that is installed."""
    made = ModuleType("a_library")
    monkeypatch.setitem(sys.modules, "a_library", made)
    exec(compile(LIBRARY, f"{installed_folders()[0]}a_library.py", "exec"), vars(made))
    return made


def sent(value: Any) -> Any:
    packer = Packer(namespace={})
    packer.dump(value)
    return Unpacker(packer.packed(), namespace={}).load()


def test_a_module_is_in_its_classs_list_where_it_is_read(library):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), library.Neuron(), library.Pickier())
    copy = sent(model)
    assert library.Neuron.instances == [model[1], model[2], copy[1], copy[2]]
    assert copy[2].read
    library.Neuron.reset_all()
    assert copy[1].state.tolist() == copy[2].state.tolist() == [0, 0]


def test_one_that_is_in_no_list_comes_to_be_in_none(library):
    neuron = library.Neuron()
    library.Neuron.instances.clear()
    assert sent(neuron).state.tolist() == [1, 1]
    assert library.Neuron.instances == []


def test_an_engine_keeps_none_of_a_cell_that_is_over(library):
    neuron = library.Neuron()
    with left_afterwards():
        first, second = sent(neuron), sent(neuron)
        library.Neuron()  # of the cell itself
        assert library.Neuron.instances[:3] == [neuron, first, second]
    assert library.Neuron.instances == [neuron]
