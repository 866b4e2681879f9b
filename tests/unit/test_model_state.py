"""State that a model keeps where PyTorch registers none: found, put back, and noticed in later calls."""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.forward.module_state import ModuleState
from jupyter_dtrain.engine.forward.reached import reached_from
from jupyter_dtrain.engine.forward.state import State, fingerprint, hold_tensors
from jupyter_dtrain.engine.forward.watch import Watch

log: list[object] = []
count = 0


class Config(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Meter:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


class Model(nn.Module):
    """Calls what it is made with on itself and its input."""

    shared = 0

    keeps: Any = None  # by this attribute the code of what it calls is found

    def __init__(self, keep):
        super().__init__()
        self.linear, self.keep = nn.Linear(2, 1), keep
        self.config: Any = Config(n=0)
        self.last: deque[int] = deque(maxlen=2)
        self.counter: Counter[str] = Counter()
        self.number, self.tensor, self.array, self.items = 0, torch.zeros(2), np.zeros(2), [torch.zeros(1)]
        self.meter, self.space = Meter(), types.SimpleNamespace(n=0, kept=[])
        self.frozen = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.bytes, self.elsewhere = bytearray(2), [nn.BatchNorm1d(2)]
        self.objects, self.table = np.array([None, [], {}], dtype=object), OrderedDict(a=1, b=2)
        self.register_buffer("buffer", torch.zeros(()))

    def forward(self, x):
        self.keep(self, x)
        return self.linear(x)

    def state(self):
        """Return all that it keeps, as text."""
        global count
        kept = [
            self.number,
            self.tensor,
            self.array,
            self.items,
            self.meter.n,
            vars(self.space),
            self.config,
            dict(self.counter),
            list(self.last),
            list(self.objects),
            list(self.table.items()),
        ]
        return repr([*kept, self.frozen, self.buffer, bytes(self.bytes), self.elsewhere[0].running_mean, log, count, Model.shared])


def set_global(model, x):
    global count
    count += len(x)


def set_class(model, x):
    Model.shared += len(x)


def set_bypassing(model, x):
    model.__dict__["number"] += len(x)


KEEPS = {
    "a number": set_bypassing,
    "a tensor": lambda model, x: model.tensor.add_(x.sum(0)),
    "a tensor, past its version": lambda model, x: model.tensor.data.add_(x.sum(0)),
    "a tensor, as an array": lambda model, x: np.add(model.tensor.numpy(), 1, out=model.tensor.numpy()),
    "an array": lambda model, x: np.add(model.array, x.sum(0).numpy(), out=model.array),
    "a tensor in a list": lambda model, x: model.items[0].add_(len(x)),
    "a slot": lambda model, x: setattr(model.meter, "n", model.meter.n + len(x)),
    "an attribute of an object": lambda model, x: setattr(model.space, "n", model.space.n + len(x)),
    "a dict of its own class": lambda model, x: setattr(model.config, "n", model.config.n + len(x)),
    "a list in an object": lambda model, x: model.space.kept.append(len(x)),
    "a counter": lambda model, x: model.counter.update(n=len(x)),
    "a deque": lambda model, x: model.last.append(len(x)),
    "a frozen parameter": lambda model, x: model.frozen.add_(len(x)),
    "a buffer": lambda model, x: model.buffer.add_(len(x)),
    "bytes": lambda model, x: model.bytes.extend(b"x" * len(x)),
    "a layer that it does not register": lambda model, x: model.elsewhere[0](x),
    "an object in an array": lambda model, x: model.objects[1].append(len(x)),
    "a list of the module": lambda model, x: log.append(len(x)),
    "a global": set_global,
    "a class": set_class,
}


def order_anew(model, x):
    model.table.move_to_end("a")


@pytest.mark.parametrize("keep", [*KEEPS.values(), order_anew], ids=[*KEEPS, "the order of a table"])
def test_before_undoes_what_a_call_has_changed(keep):
    model = Model(keep)
    was, before = model.state(), ModuleState(model, None)
    model(torch.ones(3, 2))
    assert model.state() != was
    assert before.written() or before.changes()
    before.restore()
    assert model.state() == was
    assert not before.changes()


@pytest.mark.parametrize("name", KEEPS)
def test_watch_sees_what_a_later_call_changes(name):
    model = Model(lambda model, x: KEEPS[name](model, x) if x.sum() > 0 else None)
    model.keeps = KEEPS[name]
    watch = Watch(model, (), set())
    for _ in range(3):
        watch.start()
        model(torch.zeros(3, 2))
        assert not watch.changed()
    KEEPS[name](model, torch.ones(3, 2))  # between two calls: it is the cell's
    watch.start()
    assert not watch.changed()
    watch.start()
    model(torch.ones(3, 2))
    assert watch.changed()


@pytest.mark.parametrize("name", ["a tensor", "an array", "a slot", "a list in an object", "a deque", "a class"])
def test_watch_passes_over_what_the_first_call_has_changed(name):
    model = Model(KEEPS[name])
    state = State(reached_from(model))
    model(torch.ones(3, 2))
    watch = Watch(model, (), {found for change in state.changes() for found in change.names()})
    watch.start()
    model(torch.ones(3, 2))
    assert not watch.changed()
    assert watch.changed(anything=True)


def test_watch_looks_into_what_the_cell_has_put_there_since():
    model = Model(lambda model, x: None)
    watch = Watch(model, (), set())
    model.space.kept.append(types.SimpleNamespace(n=0))
    watch.start()
    model.space.kept[0].n += 1
    assert watch.changed()
    model.tensor = torch.zeros(3)
    watch.start()
    assert not watch.changed()
    watch.start()
    model.tensor += 1
    assert watch.changed()


def test_watch_leaves_tensors_that_are_set_to_those_who_see_it():
    model: Any = Model(lambda model, x: None)
    watch = Watch(model, (), set())
    watch.start()
    model.tensor, model.hidden = torch.ones(2), torch.ones(3)
    assert not watch.changed()
    watch.start()
    model.shape = (3,)
    assert watch.changed()


def test_watch_knows_keys_of_a_table_that_was_ordered_anew():
    model: Any = Model(lambda model, x: None)
    model.table = OrderedDict(counted=0, kept=0)
    model.table.move_to_end("counted")
    watch = Watch(model, (), {(id(model.table), "counted")})
    watch.start()
    model.table["counted"] = 1
    assert not watch.changed()
    watch.start()
    model.table["kept"] = 1
    assert watch.changed()


def test_fingerprints_tell_values_and_not_objects():
    model = Model(lambda model, x: (model.space.kept.append({"mean": x.mean(), "n": [len(x)]}), model.last.append(float("nan"))))
    state = State(reached_from(model))
    prints = []
    for x in (torch.ones(3, 2), torch.ones(3, 2), torch.ones(4, 2), torch.zeros(3, 2)):
        model(x)
        changes = state.changes()
        prints.append(fingerprint(changes))
        assert hold_tensors(changes)
        state.restore()
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_a_norm_that_writes_its_own_statistics_is_written_to():
    class Own(nn.BatchNorm1d):
        def forward(self, x):
            assert self.running_mean is not None
            self.running_mean.lerp_(x.mean(0), 0.1)
            return x - self.running_mean

    for layer, written in ((nn.BatchNorm1d(2), False), (Own(2), True), (nn.InstanceNorm1d(2, track_running_stats=True), True)):
        before = ModuleState(layer, None)
        layer(torch.randn(4, 2, 3) if isinstance(layer, nn.InstanceNorm1d) else torch.randn(4, 2))
        assert before.written() == written


class Table(OrderedDict):
    """A table of classes that makes one of what is looked up, as that of activations in transformers is."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


activations = Table(relu=nn.ReLU, needs_more=nn.Linear)


def test_a_table_that_makes_what_is_looked_up_is_not_asked():
    state = State(reached_from(Model(lambda model, x: activations["relu"](x))))
    assert state.changes() == []
    activations["tanh"] = nn.Tanh
    assert [change.keys for change in state.changes()] == [["tanh"]]
    state.restore()
    assert list(activations) == ["relu", "needs_more"]
