"""What a trial call of user code has changed is put back, whatever it was; where it cannot be, nothing is tried."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.verify import reachable
from jupyter_dtrain.engine.verify.noted_state import StateBefore

CELL = """
import array, contextvars, ctypes, functools, hashlib, io, itertools, mmap, multiprocessing, queue, random, sqlite3, types
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
import numpy as np
import torch
from torch import nn
{made}
class Data:
    total = 0
    @classmethod
    def count(cls): cls.total += 1
    number = property(lambda self: 0, lambda self, i: vars(self).update(_n=i))
    def __init__(self):
        {held}
    def __getitem__(self, i):
        {done}
data = Data()
"""
# What the data set holds, what loading a sample does, and how what it has changed is read.
CHANGES = {
    "an attribute": ("self.n = 0", "self.n += 1", "data.n"),
    "a new attribute": ("pass", "self.last = i", "vars(data)"),
    "a deleted attribute": ("self.first = True", "del self.first", "vars(data)"),
    "a list": ("self.seen = [1]", "self.seen.append(i)", "data.seen"),
    "a sorted list": ("self.seen = [3, 1, 2]", "self.seen.sort()", "data.seen"),
    "a dict": ("self.cache = {}", "self.cache[i] = torch.ones(2)", "data.cache"),
    "the order of a dict": ("self.cache = {1: 'a', 2: 'b'}", "self.cache[1] = self.cache.pop(1)", "list(data.cache)"),
    "the order of an ordered dict": ("self.cache = OrderedDict(a=1, b=2)", "self.cache.move_to_end('a')", "list(data.cache)"),
    "the end of an ordered dict": ("self.cache = OrderedDict(a=1, b=2)", "self.cache.popitem(last=False)", "list(data.cache)"),
    "a defaultdict": ("self.groups = defaultdict(list)", "self.groups[i % 2].append(i)", "dict(data.groups)"),
    "a defaultdict that is read": ("self.groups = defaultdict(int)", "self.groups[i]", "dict(data.groups)"),
    "a counter": ("self.counts = Counter('abc')", "self.counts.update('abd')", "dict(data.counts)"),
    "a chain of dicts": ("self.all = ChainMap({}, {'a': 1})", "self.all['a'] = 2", "data.all.maps"),
    "a deque": ("self.last = deque([1, 2], maxlen=2)", "self.last.append(i)", "(list(data.last), data.last.maxlen)"),
    "a set": ("self.seen = {1}", "self.seen |= {i}", "data.seen"),
    "bytes": ("self.mask = bytearray(4)", "self.mask[1] = 1", "bytes(data.mask)"),
    "a view of bytes": ("self.mask = memoryview(bytearray(4))", "self.mask[1] = 1", "bytes(data.mask)"),
    "an array of integers": ("self.flags = array.array('i', [0, 0])", "self.flags[1] += 1", "list(data.flags)"),
    "a tensor": ("self.t = torch.zeros(3)", "self.t[1] += 1", "(data.t.tolist(), data.t._version)"),
    "a view of a tensor": ("self.t = torch.zeros(4); self.half = self.t[:2]", "self.half.fill_(7)", "data.t.tolist()"),
    "a resized tensor": ("self.t = torch.zeros(2)", "self.t.resize_(5).fill_(1)", "data.t.tolist()"),
    "the data of a tensor": ("self.t = nn.Parameter(torch.zeros(2))", "self.t.data = torch.ones(3)", "data.t.tolist()"),
    "a sparse tensor": ("self.t = torch.eye(3).to_sparse()", "self.t.mul_(2)", "data.t.to_dense().tolist()"),
    "a sparse tensor with more entries": ("self.t = torch.eye(3).to_sparse()", "self.t.add_(torch.ones(3, 3).to_sparse())", "str(data.t)"),
    "a sparse tensor that has no entries any more": ("self.t = torch.eye(3).to_sparse()", "self.t.zero_()", "str(data.t)"),
    "the values of a sparse tensor": ("self.t = torch.eye(3).to_sparse()", "self.t._values().mul_(2)", "data.t.to_dense().tolist()"),
    "compressed rows": ("self.t = torch.eye(3).to_sparse_csr()", "self.t.mul_(2)", "data.t.to_dense().tolist()"),
    "the values of compressed rows": ("self.t = torch.eye(3).to_sparse_csr()", "self.t.values().mul_(2)", "data.t.to_dense().tolist()"),
    "statistics of a layer": (
        "self.l = nn.BatchNorm1d(2)",
        "self.l(torch.randn(4, 2))",
        "{name: t.tolist() for name, t in data.l.state_dict().items()}",
    ),
    "statistics": (
        "self.m, self.v = torch.zeros(2), torch.ones(2)",
        "nn.functional.batch_norm(torch.randn(4, 2), self.m, self.v, training=True)",
        "data.m, data.v",
    ),
    "a scripted layer": (
        "self.l = torch.jit.script(nn.BatchNorm1d(2))",
        "self.l(torch.randn(4, 2))",
        "{name: t.tolist() for name, t in data.l.state_dict().items()}",
    ),
    "scaled rows": ("self.t = torch.ones(3, 4)", "nn.functional.embedding(torch.tensor([1]), self.t, max_norm=1.0)", "str(data.t)"),
    "a gradient": ("self.t = nn.Parameter(torch.zeros(2))", "self.t.grad = torch.ones(2)", "data.t.grad"),
    "a frozen tensor": ("self.t = nn.Parameter(torch.zeros(2))", "self.t.requires_grad_(False)", "data.t.requires_grad"),
    "an array": ("self.a = np.zeros(3)", "self.a[1] = 2", "data.a.tolist()"),
    "a resized array": ("self.a = np.zeros(3)", "self.a.resize(5, refcheck=False)", "data.a.tolist()"),
    "a smaller array": ("self.a = np.arange(3.0)", "self.a.resize(2, refcheck=False)", "data.a.tolist()"),
    "the shape of an array": ("self.a = np.zeros(4)", "self.a.shape = 2, 2", "data.a.tolist()"),
    "an array of objects": ("self.a = np.array([None, []], object)", "self.a[0] = i", "data.a.tolist()"),
    "an object in an array": ("self.a = np.array([[1], [2]] + [None], object)", "self.a[0].append(i)", "data.a.tolist()"),
    "an object": ("self.m = Meter()", "self.m.n += 1; self.m.parts.append(i)", "(data.m.n, data.m.parts)"),
    "slots": ("self.s = Slots()", "self.s.n += 1; self.s.late = 1", "(data.s.n, hasattr(data.s, 'late'))"),
    "a deleted slot": ("self.s = Slots()", "del self.s.n", "data.s.n"),
    "a class": ("pass", "Data.total += 1; Data.new = 1", "(Data.total, hasattr(Data, 'new'))"),
    "a class that loses a value": ("pass", "del Data.total", "Data.total"),
    "a class method": ("pass", "self.count()", "Data.total"),
    "a property": ("self._n = 0", "self.number = i", "data._n"),
    "a function's attribute": ("pass", "load.calls += 1", "load.calls"),
    "a default": ("pass", "remember(i)", "remember.__defaults__"),
    "a keyword's default": ("pass", "remember_by_name(i)", "remember_by_name.__kwdefaults__"),
    "a closure": ("self.count = counter()", "self.count()", "data.count.__closure__[0].cell_contents"),
    "a bound method": ("self.note = notes.append", "self.note(i)", "notes"),
    "a method of an object": ("self.update = Meter().update", "self.update(i)", "data.update.__self__.n"),
    "a partial": ("self.note = functools.partial(store, notes)", "self.note(i)", "notes"),
    "a global": ("pass", "global total; total += 1", "total"),
    "a global that is made": ("pass", "global made; made = i", "'made' in globals()"),
    "a global that is deleted": ("pass", "global total; del total", "total"),
    "what a global holds": ("pass", "notes.append(i)", "notes"),
    "an empty closure": ("self.late = late()", "self.late(i)", "data.late.__closure__[0] == types.CellType()"),
    "a closure that is emptied": ("self.count = counter()", "self.count.empty()", "data.count.__closure__[0] == types.CellType()"),
    "a module of the user": ("pass", "used()", "module.n"),
    "beside a file that is closed": ("self.f, self.n = open(__import__('torch').__file__), 0; self.f.close()", "self.n += 1", "data.n"),
    "beside a scripted function": ("self.f, self.n = torch.jit.script(twice), 0", "self.n += 1", "data.n"),
    "beside a sparse tensor": ("self.f, self.n = torch.eye(2).to_sparse_csc(), 0", "self.n += 1", "data.n"),
    "a file that is read": ("self.f = open(__import__('torch').__file__)", "self.f.readline()", "data.f.tell()"),
    "random numbers": ("self.r = random.Random(1)", "random.random(), self.r.random()", "(random.getstate(), data.r.getstate())"),
    "random numbers of NumPy": ("self.r = np.random.default_rng(1)", "self.r.random()", "str(data.r.bit_generator.state)"),
    "random numbers of PyTorch": ("self.r = torch.Generator()", "torch.rand(1, generator=self.r)", "data.r.get_state().tolist()"),
}
MADE = """
class Meter:
    def __init__(self): self.n, self.parts = 0, []
    def update(self, i): self.n += i
class Slots:
    __slots__ = ("n", "late")
    def __init__(self): self.n = 0
def load(i): pass
load.calls = 0
def remember(i, seen=[]): seen.append(i)
def remember_by_name(i, *, seen={}): seen[i] = i
def counter():
    n = 0
    def count():
        nonlocal n
        n += 1
    def empty():
        nonlocal n
        del n
    count.empty = empty
    return count
def late():
    def set(i):
        nonlocal last
        last = i
    return set
    last = None
def store(all, i): all.append(i)
def twice(x): return 2 * x
class Silent(io.RawIOBase):
    def seekable(self): raise OSError("it does not say")
module = types.ModuleType("counting")
module.n = 0
def used(): module.n += 1
notes, total = [], 0
"""
OBSTACLES = {
    "an iterator": ("self.next = iter(range(9))", "next(self.next)", "iterator"),
    "a generator": ("self.next = (i for i in range(9))", "next(self.next)", "generator"),
    "a count": ("self.next = itertools.count()", "next(self.next)", "count"),
    "a file that is written": ("self.f = io.StringIO()", "self.f.write('a')", "an open file"),
    "a shared value": ("self.n = multiprocessing.Value('i', 0)", "self.n.value += 1", "multiprocessing.Value"),
    "a queue": ("self.q = queue.SimpleQueue()", "self.q.put(i)", "SimpleQueue"),
    "a digest": ("self.h = hashlib.sha256()", "self.h.update(b'a')", "HASH"),
    "a context variable": ("self.v = contextvars.ContextVar('v', default=0)", "self.v.set(i)", "ContextVar"),
    "an array of ctypes": ("self.a = (ctypes.c_int * 3)()", "self.a[0] += 1", "c_int_Array_3"),
    "a nested tensor": ("self.t = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])", "self.t.mul_(2)", "a nested tensor"),
    "a jagged tensor": (
        *("self.t = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)", "self.t.mul_(2)", "a nested tensor"),
    ),
    "a module that writes elsewhere": ("self.db = sqlite3", "self.db.connect(':memory:')", "sqlite3"),
    "a function that displays": ("pass", "display(i)", "`display` in `__getitem__`"),
    "a file of another kind": ("self.f = Silent()", "self.f.read()", "an open file"),
    "mapped memory": ("self.m = mmap.mmap(-1, 8)", "self.m[0] = 1", "mmap"),
}


def noted(held: str, done: str) -> tuple[dict[str, Any], StateBefore]:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(CELL.format(made=MADE, held=held, done=done), "cell", namespace)
    return namespace, StateBefore([("data", namespace["data"])])


@pytest.mark.parametrize("name", CHANGES)
def test_restore_undoes_what_a_call_has_changed(name):
    held, done, kept = CHANGES[name]
    namespace, before = noted(held, done)
    assert not before.reachable.obstacle
    was = repr(eval(kept, namespace))
    with before.writes:
        namespace["data"][5]
    assert before.can_restore()
    try:
        changed = repr(eval(kept, namespace))
    except (NameError, AttributeError):
        changed = ""
    assert changed != was
    before.restore()
    assert repr(eval(kept, namespace)) == was


@pytest.mark.parametrize("name", OBSTACLES)
def test_nothing_is_tried_where_a_change_could_not_be_undone(name):
    held, done, named = OBSTACLES[name]
    _, before = noted(held, done)
    assert named in before.reachable.obstacle


def test_nothing_is_tried_where_too_much_could_change(monkeypatch):
    monkeypatch.setattr(reachable, "MOST", 1000)
    assert noted("self.all = [[] for _ in range(500)]", "pass")[1].reachable.obstacle == ""
    assert noted("self.all = [[] for _ in range(1500)]", "pass")[1].reachable.obstacle == "too many objects"
