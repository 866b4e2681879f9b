"""What a cell changes inside the notebook's objects, it has changed in the notebook: compared with the cell run there."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

from jupyter_dtrain.errors import CaptureError
from jupyter_dtrain.serialization.python_reducers import EAGER


@dataclass
class Case:
    """A cell and the notebook that it runs in.

    Attributes
    ----------
    setup, cell : str
        The notebook before, and the cell.
    probe : str
        An expression whose value has to be the same whether the cell ran there or here.
    """

    setup: str
    cell: str
    probe: str


MEMORY = "import torch\nfrom torch import nn\nenc, dec = nn.Linear(3, 2), nn.Linear(3, 2)\nwith torch.no_grad():\n    for i, p in enumerate([*enc.parameters(), *dec.parameters()]): p.copy_(torch.arange(p.numel()).view_as(p) + 10. * i)\ndef same(a, b): return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()\ndef write(t): return t.detach().mul_(-1).tolist()\n"
MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).double()
x = torch.randn(8, 3, dtype=torch.float64)
"""
STEP = """
for _ in range(3):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""

CASES = {
    # containers, mutated in place and by another name
    "list": Case("a = [1, [2], 3]; b = a; c = a[1]", "a.append(4); a[1].extend('xy'); del a[0]", "a, b, c, b is a, a[0] is c"),
    "list sorted": Case("a = [3, 1, 2]", "a.sort()", "a"),
    "dict": Case("d = {'a': 1, 'b': [2]}; b = d['b']", "d['c'] = 3; d['b'].append(d['c']); d.pop('a')", "d, b, list(d)"),
    "dict order": Case("d = {'a': 1, 'b': 2}", "d['a'] = d.pop('a')", "list(d)"),
    "dict of dicts": Case("d = {i: {'n': i} for i in range(3)}; d1 = d[1]", "d[1]['n'] = 10; d[2] = d[1]", "d, d[1] is d1, d[2] is d1"),
    "set": Case("s = {1, 2}; t = s", "s.add(3); s.discard(1)", "s, t is s"),
    "deque": Case("from collections import deque; q = deque([1, 2], maxlen=3)", "q.append(3); q.append(4)", "q, q.maxlen"),
    "OrderedDict": Case("from collections import OrderedDict; d = OrderedDict(a=1, b=2)", "d.move_to_end('a'); d['c'] = 3", "list(d.items())"),
    "defaultdict": Case("from collections import defaultdict; d = defaultdict(list)", "d['a'].append(1); d['b']", "d, d.default_factory"),
    "Counter": Case("from collections import Counter; c = Counter('aab')", "c['a'] += 1; c.update('zz')", "c, c.most_common()"),
    "SimpleNamespace": Case("from types import SimpleNamespace; n = SimpleNamespace(lr=1, net={'w': 2}); m = n", "n.lr = 3; n.new = n; n.net['w'] = 4; del m.lr; m.lr = 5", "n is m, n.lr, n.net, n.new is n"),
    "bytearray": Case("b = bytearray(b'abc'); c = b", "b[0] = 120; b.append(33)", "b, c"),
    "array of Python's own": Case("from array import array; a = array('d', [1, 2]); b = a", "a[0] = 5; a.append(3)", "a.tolist(), b is a"),
    "iterators": Case("items = [1, 2, 3]; it = iter(items); pairs = zip('abc', it)", "seen = [next(it), next(pairs)]; items.append(4)", "seen, next(it), next(pairs, None), list(it)"),
    "annotation that names nothing": Case("def f(x: Nothing = 2): return x + 1", "n = f(); g = f", "n, f(3), g is f"),
    "itertools": Case("import itertools; numbers, again = itertools.count(5), itertools.cycle('xy')", "seen = [next(numbers), next(again)]", "seen, next(numbers), next(again)"),
    "StringIO": Case("import io; s = io.StringIO(); s.write('one ')", "s.write('two'); n = s.tell()", "s.getvalue(), s.tell(), n"),
    "BytesIO": Case("import io; s = io.BytesIO(b'abc')", "s.seek(1); s.write(b'xyz')", "s.getvalue(), s.tell()"),
    "shared item": Case("a = []; b = [a, a]; d = {'a': a}", "b[0].append(1)", "a, b, d, b[1] is a, d['a'] is a"),
    "cycle": Case("a = [1]; a.append(a); d = {'a': a}; d['d'] = d", "a.append(2); d['n'] = 1", "a[0], a[1] is a, a[2], d['d'] is d, d['n'], d['a'] is a"),
    "item of ours in a new container": Case("a = [1]; b = []", "c = {'a': a}; b.append(a); b.append(c); a.append(2)", "c['a'] is a, b[0] is a, b[1] is c, a"),
    "tuple of lists": Case("t = ([1], {'a': 2})", "t[0].append(2); t[1]['a'] = 3", "t"),
    "user list": Case("class L(list):\n    def __setitem__(self, *_): raise TypeError\na = L([1]); a.note = 'x'", "a.append(2); a.note += 'y'", "list(a), a.note, type(a) is L"),
    "user dict": Case("class D(dict):\n    def __setitem__(self, k, v): super().__setitem__(k, v * 2)\nd = D(); d['a'] = 1", "d['b'] = 2; d.tag = 't'", "dict(d), d.tag, type(d) is D"),
    "user dict that hides its items": Case("class D(dict):\n    def items(self): return []\n    keys = values = items\nd = D(a=1)", "d['b'] = 2", "d['a'], d['b'], len(d)"),
    "user OrderedDict": Case("from collections import OrderedDict\nclass D(OrderedDict): pass\nd = D(a=1)", "d['b'] = 2; d.move_to_end('a')", "list(d), type(d) is D"),
    "object array": Case("import numpy as np; a = np.array([1, 'x', None, [2]], dtype=object); l = a[3]", "a[0] = 'new'; a[3].append(3)", "a.tolist(), a[3] is l"),
    # attributes
    "attributes": Case("class A: pass\na = A(); a.x = 1; a.y = [1]; b = a", "a.x += 1; a.y.append(2); a.z = a; del_me = 1", "a.x, a.y, a.z is a, b is a"),
    "attribute removed": Case("class A: pass\na = A(); a.x = 1; a.y = 2", "del a.x", "vars(a)"),
    "slots": Case("class A:\n    __slots__ = ('x', 'y', 'z')\na = A(); a.x = 1; a.z = 3", "a.x = 2; a.y = [a.x]; del a.z", "a.x, a.y, hasattr(a, 'z')"),
    "a slot behind a property": Case("class A:\n    __slots__ = ('x', 'y')\nclass B(A):\n    __slots__ = ()\n    y = property(lambda self: self.x + 1)\n    def __init__(self, x): self.x = x\n    def __reduce__(self): return B, (self.x,)\nb = B(1)", "b.x = 2", "b.x, b.y"),
    "slots of a library's class": Case("from fractions import Fraction; f = Fraction(1, 3); g = [f]", "f._numerator = 2", "g, g[0] is f"),
    "objects with slots made in the cell": Case("from dataclasses import dataclass\n@dataclass(slots=True)\nclass R:\n    a: int\n@dataclass(frozen=True, slots=True)\nclass F:\n    a: int\nkeep = [R(1)]", "keep[0].a += 1; keep.append(R(5)); keep.append(F(6)); new = R(7)", "[(k.a, type(k).__name__) for k in keep], type(keep[1]) is R, type(keep[2]) is F, new.a"),
    "slots of all kinds": Case("from abc import ABC\nclass A(ABC):\n    __slots__ = ['x', '__hidden']\n    def hide(self, v): self.__hidden = v; return self\n    def shown(self): return self.__hidden\nclass B(A): __slots__ = 'y'\nclass D(B): __slots__ = ('__dict__', '__weakref__')\nclass O(B): pass\nclass P:\n    __slots__ = {'x': 'what it is'}\n    def __init__(self, x): object.__setattr__(self, 'x', x)\n    def __setattr__(self, *_): raise TypeError\nmade = []", "import weakref\nfor kind in (B, D, O):\n    o = kind().hide(kind.__name__); o.x, o.y = made, 2; made.append(o)\nd, o = made[1:]; d.z = o.z = 3; up = weakref.ref(d)() is d; made.append(P(4))", "[(o.shown(), o.x is made, o.y, hasattr(o, '__dict__')) for o in made[:3]], d.z, o.z, up, type(d) is D, made[3].x, P.__slots__"),
    "slots refuse other attributes": Case("class A: __slots__ = ('x',)\na = A(); said = []", "class B: __slots__ = ('y',)\nfor o in (a, B()):\n    try: o.z = 1\n    except AttributeError: said.append(type(o).__name__)", "said, hasattr(B(), '__dict__')"),
    "slots and a dict": Case("class A:\n    __slots__ = ('x',)\nclass B(A): pass\nb = B(); b.x = 1; b.y = 2", "b.x, b.y = b.y, b.x", "b.x, b.y"),
    "dataclass": Case("from dataclasses import dataclass, field\n@dataclass\nclass C:\n    lr: float = 0.1\n    log: list = field(default_factory=list)\nc = C()", "c.lr = 0.2; c.log.append(c.lr)", "repr(c), c == C(0.2, [0.2])"),
    "frozen dataclass with slots": Case("from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass C:\n    log: list\nc = C([])", "c.log.append(1); object.__setattr__(c, 'log', c.log + [2])", "repr(c)"),
    "attributes by another name": Case("import argparse\nargs = argparse.Namespace(lr=1, old=2); cfg = vars(args); held = {'cfg': cfg}", "cfg['lr'] = 2; args.new = cfg['lr'] + 1; del cfg['old']; seen = [args.lr, cfg['new'], hasattr(args, 'old')]", "args, cfg, held['cfg'] is cfg, vars(args) is cfg, seen"),
    "attributes by another name in the cell alone": Case("class A: pass\na = A(); a.x = 1", "own = vars(a); own['y'] = 2; a.z = 3", "vars(a), own, own is vars(a)"),
    "a dict that is its own attributes": Case("class C(dict):\n    def __init__(self, *a, **k): super().__init__(*a, **k); self.__dict__ = self\nc = C(lr=1, old=2)", "c.lr = 2; c['new'] = c.lr + 1; del c.old; d = C(x=1); d.y = c", "c, c.lr, c.new, c.__dict__ is c, d.x, d['y'] is c, d.__dict__ is d"),
    "views of dicts": Case("from types import MappingProxyType\nd = {'a': 1}; keys, proxy = d.keys(), MappingProxyType(d)", "d['b'] = 2; values = d.values(); d['c'] = len(keys)", "[*keys], [*values], dict(proxy), proxy == d, keys.mapping == d"),
    "__setattr__ that counts": Case("class A:\n    def __init__(self): self.__dict__['n'] = 0\n    def __setattr__(self, k, v): self.__dict__['n'] += 1; self.__dict__[k] = v\na = A()", "a.x = 1; a.y = 2", "vars(a)"),
    "namespace of arguments": Case("import argparse; args = argparse.Namespace(lr=1.0, tags=['a'])", "args.lr /= 2; args.tags.append('b'); args.new = True", "args"),
    "object without __getstate__ of its lock": Case("import threading\nclass A:\n    def __init__(self): self.lock = threading.Lock(); self.n = 0\n    def __getstate__(self): return {'n': self.n}\n    def __setstate__(self, state): self.__init__(); self.n = state['n']\na = A(); lock = a.lock\nof = lambda: (a.n, a.lock is lock)", "a.n += 1", "a.n, a.lock.locked(), of()"),
    "object that is given its attributes in one": Case("import weakref\nclass A:\n    def __init__(self): self.n, self.up = 0, {}\n    def __getstate__(self): return {**vars(self), 'up': {k: v() for k, v in self.up.items()}}\n    def __setstate__(self, s): self.__dict__ = s; self.up = {k: weakref.ref(v, print) for k, v in s['up'].items()}\na = A(); b = A(); a.up['b'] = weakref.ref(b, print); same = a", "a.n += 1; a.x = [b]", "a.n, a.x[0] is b, a.up['b']() is b, same is a"),
    "class attributes": Case("class Config:\n    lr = 0.1\n    tags = []\n    def scaled(self): return self.lr * 2", "Config.lr = 0.5; Config.tags.append('x'); Config.new = 1", "Config.lr, Config.tags, Config.new, Config().scaled()"),
    "class attribute removed": Case("class A: x = 1", "del A.x", "hasattr(A, 'x')"),
    "method replaced": Case("class A:\n    def f(self): return 1\na = A()", "A.f = lambda self: 2", "a.f()"),
    "enum member's attribute": Case("from enum import Enum\nclass E(Enum):\n    A = 1\nE.A.note = 'x'; e = E.A", "e.note = 'y'", "E.A.note, e is E.A"),
    "function attribute": Case("def f(): f.calls += 1\nf.calls = 0", "f(); f()", "f.calls"),
    "closure": Case("def counter():\n    n = 0\n    def up():\n        nonlocal n; n += 1; return n\n    return up, lambda: n\nup, read = counter()", "up(); up()", "read(), up()"),
    "closure not yet bound": Case("def make():\n    def get(): return late\n    def put(v):\n        nonlocal late; late = v\n    if False: late = 0\n    return get, put\nget, put = make()", "put(5)", "get()"),
    "mutable default": Case("def f(x, seen=[]): seen.append(x); return seen", "f(1)", "f(2)"),
    "global changed by a function": Case("total = 0\nlog = []\ndef add(n):\n    global total\n    total += n; log.append(total)", "add(2); add(3)", "total, log"),
    "partial": Case("from functools import partial\nlog = []\np = partial(log.append)", "p(1); p(2)", "log"),
    "bound method": Case("class A:\n    def __init__(self): self.n = 0\n    def up(self): self.n += 1\na = A(); up = a.up", "up(); up()", "a.n"),
    # iterators of Python's own, wherever they are held
    "count": Case("import itertools; class_ = type('H', (), {}); h = class_(); h.ids = itertools.count(); b = h.ids; h.odd = itertools.count(0.5, 0.25)", "[next(h.ids) for _ in range(4)]; next(h.odd)", "next(b), b is h.ids, next(h.odd)"),
    "iterators over sequences": Case("items = [1, 2, 3, 4]; held = [iter(items), iter((5, 6, 7)), iter('hey'), iter(b'ab'), iter(range(9)), reversed(items)]", "[next(i) for i in held for _ in range(2)]; items.append(5)", "[next(i, None) for i in held], next(held[0])"),
    "iterators over dicts and sets": Case("d = {1: 2, 3: 4, 5: 6}; held = {'k': iter(d), 'v': iter(d.values()), 'i': iter(d.items()), 's': iter({7, 8, 9})}", "[next(i) for i in held.values()]", "[next(i, None) for i in held.values() for _ in range(2)]"),
    "iterators at their ends": Case("held = [iter([1, 2]), iter(range(2)), zip('ab', 'cd')]", "[list(i) for i in held]", "[next(i, None) for i in held]"),
    "iterators of iterators": Case("import itertools; from types import SimpleNamespace as N; h = N(e=enumerate('abcd'), z=zip(itertools.count(), [4, 5, 6]), m=map(abs, iter([-1, -2, -3])), f=filter(None, iter([0, 1, 0, 2])))", "[next(i) for i in (h.e, h.e, h.z, h.m, h.f)]", "[next(i) for i in (h.e, h.z, h.m, h.f)]"),
    "cycles of items": Case("import itertools; held = [itertools.cycle(range(3)) for _ in range(5)]; same = held[1]", "[next(i) for n, i in enumerate(held) for _ in range(2 * n)]", "[next(i) for i in held for _ in range(4)], same is held[1]"),
    "cycle within its first round": Case("import itertools; held = [itertools.cycle(range(4)) for _ in range(6)]; [next(i) for n, i in enumerate(held) for _ in range(n)]", "[next(i) for n, i in enumerate(held) for _ in range(n % 3)]", "[next(i) for i in held for _ in range(6)]"),
    "cycle once more": Case("import itertools; held = [itertools.cycle('abc') for _ in range(4)]; [next(i) for i in held for _ in range(4)]", "[next(i) for n, i in enumerate(held) for _ in range(n)]", "[next(i) for i in held for _ in range(4)]"),
    "iterators of which new ones are made": Case("import itertools; from collections import deque; s = itertools.islice(itertools.count(), 2, 40, 3); q = deque([s]); d = {'acc': itertools.accumulate([1, 2, 3, 4]), 's': s}\ndef f(i=q): return lambda: next(s)\ng = f()", "next(q[0]); next(d['acc'])", "next(d['s']), next(q[0]), next(s), g(), next(d['acc']), d['s'] is s is q[0]"),
    "chain and combinations": Case("import itertools; held = [itertools.chain([1, 2], [3, 4, 5]), itertools.product([0, 1], 'ab'), itertools.permutations([1, 2, 3]), itertools.repeat(4, 5), itertools.takewhile(bool, [1, 2, 0, 3])]", "[next(i) for i in held for _ in range(3 if i is held[0] else 2)]", "[next(i, None) for i in held for _ in range(2)]"),
    "iterators in iterators that are counted": Case("import itertools as it\nseeds = iter([1, 2, 3, 4, 5, 6, 7, 8, 9]); en = enumerate(it.islice([5, 6, 7, 8, 9, 10], 5)); part = it.islice(it.count(3), 1, 20, 3); deep = enumerate(it.islice(part, 2, None, 2)); both = it.islice(enumerate(zip('abcdef', range(9))), 4); pair = (en, it.islice(seeds, 4), it.islice({'a': 1, 'b': 2, 'c': 3}, 2), part, deep, both)", "seen = [next(i) for i in (seeds, *pair)]; seen += [next(part), next(seeds), *pair[2]]", "seen, [next(i, None) for i in (seeds, *pair) for _ in range(2)], [list(i) for i in pair[:3]], list(deep), list(both)"),
    "closure, default, class and slots with iterators": Case("import itertools\nclass S:\n    __slots__ = ('n',)\n    ids = itertools.count(7)\ns = S(); s.n = itertools.count()\ndef make():\n    n = itertools.count(3)\n    return lambda m=itertools.count(5): (next(n), next(m))\nf = make()", "f(); next(s.n); next(S.ids)", "f(), next(s.n), next(S.ids)"),
    "values and arrays of multiprocessing": Case("import multiprocessing as mp; n = mp.Value('i', 3); a = mp.Array('d', [1.0, 2.0]); raw = mp.RawValue('l', 7); lock = n.get_lock()", "n.value += 1; a[1] = 5.5; raw.value = 8\nwith lock: n.value += 1", "n.value, a[:], raw.value, n.get_lock() is lock"),
    "an optimizer that reduces itself": Case("import torch\nclass O(torch.optim.SGD):\n    def __reduce_ex__(self, p): return make, (self.param_groups[0]['params'], self.log)\ndef make(ps, log):\n    o = O(ps, lr=0.5); o.log = log; return o\nw = torch.nn.Parameter(torch.ones(2)); o = make([w], [])", "w.sum().backward(); o.step(); o.log.append(1)", "w.tolist(), o.log"),
    "a file that is read": Case("from pathlib import Path; Path('é.txt').write_text('één\\ntwee\\ndrie\\nvier\\n', encoding='utf-8'); f = open('é.txt', encoding='utf-8'); g = open('é.txt', encoding='utf-8'); next(f); g.readline()", "read = [next(f), g.readline()]", "read, f.readline(), next(g)"),
    # random states
    "random": Case("import random; r = random.Random(3); r.gauss(0, 1)", "r.random(); r.gauss(0, 1)", "r.random(), r.gauss(0, 1)"),
    "torch generator": Case("import torch; g = torch.Generator().manual_seed(4)", "torch.rand(3, generator=g)", "torch.rand(3, generator=g).tolist()"),
    "numpy generators": Case("import numpy as np; g = np.random.default_rng(5); o = np.random.RandomState(6); m = np.random.Generator(np.random.MT19937(7))", "g.random(5); o.rand(); m.normal()", "g.random(), o.rand(), m.normal()"),
    "global streams": Case("import random, numpy as np, torch; random.seed(1); np.random.seed(2); torch.manual_seed(3)", "random.random(); np.random.rand(); torch.rand(2)", "random.random(), np.random.rand(), torch.rand(2).tolist()"),
    # arrays
    "array": Case("import numpy as np; a = np.arange(6.0).reshape(2, 3); b = a", "a[0, 1] = 9; a *= 2", "a.tolist(), b is a"),
    "array by one element": Case("import numpy as np; a = np.zeros(1_000_000); r = a.copy()", "a[777_777] = 1", "a[777_777], a.sum()"),
    "array in which two rows change places": Case("import numpy as np; a = np.arange(400_000.0).reshape(-1, 4)", "a[[5, 90_000]] = a[[90_000, 5]]", "a[5].tolist(), a[90_000].tolist(), a.sum()"),
    "array negated": Case("import numpy as np; a = np.random.default_rng(0).normal(size=(512, 1024))", "a *= -1", "a.sum(), a[3, 5]"),
    "array with its view here": Case("import numpy as np; a = np.zeros(5); v = a[1:3]", "a[:] = 7", "a.tolist(), v.tolist()"),
    "Fortran, 0-d, empty, bool, datetime, text": Case("import numpy as np; f = np.asfortranarray(np.eye(3)); z = np.array(1.5); e = np.zeros((0, 3)); b = np.zeros(3, bool); d = np.array(['2026-01-01', 'NaT'], 'M8[D]'); t = np.array(['a', 'bc'])", "f[0, 2] = 5; z[...] = 2.5; b[1] = True; d[1] = np.datetime64('2026-02-03'); t[0] = 'xy'", "f.tolist(), f.flags.f_contiguous, z.item(), e.shape, b.tolist(), d.tolist(), t.tolist()"),
    "structured array": Case("import numpy as np; s = np.zeros(3, [('a', 'f4'), ('b', 'i8')]); r = np.array([(1, 'x')], [('n', 'i4'), ('o', object)])", "s['a'][1] = 2.5; s[2] = (1, 2); r['o'][0] = [1]", "s.tolist(), r.tolist()"),
    "masked array": Case("import numpy as np; m = np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0])", "m[0] = np.ma.masked; m[2] = 9", "m.tolist()"),
    "array kept from writing": Case("import numpy as np; a = np.arange(3); a.flags.writeable = False; n = [0]", "n[0] = int(a.sum())", "n, a.tolist()"),
    # pandas
    "frame by loc": Case("import pandas as pd; df = pd.DataFrame({'a': [1, 2], 's': ['x', 'y']}); same = df", "df.loc[0, 'a'] = 9; df.loc[1, 's'] = 'z'", "df.to_dict(), same is df"),
    "frame with a new column": Case("import pandas as pd; df = pd.DataFrame({'a': [1, 2]}); same = df", "df['b'] = df['a'] * 2; df['c'] = 'x'", "same.to_dict()"),
    "frame with a new row": Case("import pandas as pd; log = pd.DataFrame(columns=['epoch', 'loss'])", "log.loc[len(log)] = [0, 0.5]; log.loc[len(log)] = [1, 0.25]", "log.to_dict()"),
    "frame renamed, dropped, sorted": Case("import pandas as pd; df = pd.DataFrame({'a': [2, 1], 'b': [3, 4], 'c': [5, 6]})", "df.columns = ['x', 'y', 'z']; df.drop(columns='z', inplace=True); df.sort_values('x', inplace=True)", "df.to_dict(), list(df.index)"),
    "series": Case("import pandas as pd; s = pd.Series([1.0, 2.0], index=['a', 'b']); same = s", "s['a'] = 5; s['c'] = 3.0", "same.to_dict()"),
    "categories and dates": Case("import pandas as pd; df = pd.DataFrame({'c': pd.Categorical(['a', 'b']), 'd': pd.to_datetime(['2026-01-01', '2026-01-02'])})", "df.loc[0, 'c'] = 'b'; df.loc[1, 'd'] = pd.Timestamp('2027-01-01')", "df.astype(str).to_dict()"),
    # tensors
    "tensor in place": Case("import torch; t = torch.arange(6.0).reshape(2, 3); v = t[0]; same = t", "t.mul_(2); t[1, 1] = -1", "t.tolist(), v.tolist(), same is t"),
    "tensor by its view": Case("import torch; t = torch.zeros(4); v = t[1:3]", "v += 1; v[0] = 5", "t.tolist(), v.tolist()"),
    "tensor past its version": Case("import torch; t = torch.zeros(3); u = torch.zeros(3)", "t.data.add_(1); u.numpy()[1] = 2", "t.tolist(), u.tolist()"),
    "tensor that shares memory with an array": Case("import torch, numpy as np; a = np.zeros(3); t = torch.from_numpy(a)", "t += 1", "t.tolist(), a.tolist()"),
    "tensor resized": Case("import torch; t = torch.zeros(2)", "t.data = torch.ones(3)", "t.tolist()"),
    "tensor transposed": Case("import torch; t = torch.arange(6.0).reshape(2, 3).T", "t[0, 1] = 10", "t.tolist(), t.stride()"),
    "expanded tensor": Case("import torch; b = torch.zeros(1, 3); t = b.expand(4, 3)", "b[0, 1] = 2", "t.tolist(), t.stride()"),
    "kinds of numbers": Case("import torch; kinds = [torch.zeros(3, dtype=d) for d in (torch.bfloat16, torch.half, torch.complex64, torch.bool, torch.int8, torch.uint8, torch.int64, torch.float8_e5m2)]", "for t in kinds[:-1]: t[1] = 1", "[t.to(torch.complex64).tolist() for t in kinds[:-1]], kinds[-1].dtype"),
    "sparse": Case("import torch; s = torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (2, 2), check_invariants=True).coalesce()", "s.mul_(3)", "s.to_dense().tolist()"),
    "conjugated": Case("import torch; c = torch.tensor([1 + 2j, 3 - 1j]).conj(); n = [0]", "n[0] = c.sum().item()", "n, c.tolist()"),
    "parameter": Case("import torch; p = torch.nn.Parameter(torch.zeros(2)); q = [p]", "with torch.no_grad(): p.add_(1)", "p.tolist(), q[0] is p, p.requires_grad"),
    "by hand": Case("import torch; w = torch.zeros(2, requires_grad=True)", "(w - 3).pow(2).sum().backward(); w.data -= 0.1 * w.grad", "w.tolist(), w.grad.tolist()"),
    "gradients arrive and leave": Case("import torch; w = torch.ones(2, requires_grad=True); (w * 3).sum().backward()", "w.grad += 1; (w * 2).sum().backward()", "w.grad.tolist()"),
    "gradient cleared": Case("import torch; w = torch.ones(2, requires_grad=True); w.sum().backward()", "w.grad = None", "w.grad"),
    "frozen": Case(MODEL, "for p in model[0].parameters(): p.requires_grad = False", "[p.requires_grad for p in model.parameters()]"),
    "thawed": Case(MODEL + "model.requires_grad_(False)", "model.requires_grad_(True)", "[p.requires_grad for p in model.parameters()]"),
    "attribute of a tensor": Case("import torch; t = torch.zeros(1); t.note = 'a'", "t.note = 'b'; t.more = 1", "t.note, t.more"),
    # models and what goes with them
    "model trained": Case(MODEL + "optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)\nfirst = model[0].weight", STEP, "{k: v.tolist() for k, v in model.state_dict().items()}, model[0].weight is first, optimizer.state[first]['exp_avg'].tolist(), optimizer.param_groups[0]['params'][0] is first"),
    "tied weights": Case("import torch\nfrom torch import nn\ntorch.manual_seed(0)\na, b = nn.Linear(3, 3).double(), nn.Linear(3, 3).double()\nb.weight = a.weight\nboth = nn.Sequential(a, b); optimizer = torch.optim.SGD(both.parameters(), lr=0.1)\nmodel, x = both, torch.ones(2, 3).double()", STEP, "a.weight.tolist(), b.weight is a.weight, both[1] is b"),
    "recurrent layer, moved": Case("import torch\ntorch.manual_seed(0)\nlayer = torch.nn.LSTM(2, 3)", "layer.to('cpu')\nwith torch.no_grad(): layer.weight_hh_l0.fill_(0.5)", "layer(torch.ones(2, 1, 2))[0].tolist(), layer._flat_weights[1] is layer.weight_hh_l0"),
    "optimizer with state, then scheduler": Case(MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\nscheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)" + STEP, STEP + "scheduler.step(); scheduler.step()", "[p.tolist() for p in model.parameters()], optimizer.param_groups[0]['lr'], scheduler.last_epoch, scheduler.optimizer is optimizer, optimizer.state[model[0].weight]['momentum_buffer'].tolist()"),
    "module put into another": Case(MODEL, "model.append(nn.Linear(1, 1).double()); model[4].weight.data.fill_(2)", "len(model), model[4].weight.item(), model(x).shape"),
    "layer replaced": Case(MODEL + "old = model[3]", "model[3] = nn.Linear(4, 2).double()", "model[3].out_features, model[3] is old, model(x).shape"),
    "lazy layer": Case(MODEL + "lazy = nn.Sequential(nn.LazyLinear(2), nn.LazyLinear(3)).double(); weight = lazy[0].weight", "y = lazy[0](x)", "type(lazy[0]).__name__, lazy[0].weight is weight, weight.shape, type(weight).__name__, type(lazy[1]).__name__, lazy(x).shape, y.shape"),
    "lazy layers, trained": Case(MODEL + "lazy = nn.Sequential(nn.LazyConv1d(2, 1), nn.LazyBatchNorm1d(), nn.Flatten(), nn.LazyLinear(3)).double(); frozen = nn.LazyLinear(2).double()\nfor p in frozen.parameters(): p.requires_grad = False", "lazy(x[:, :, None]).sum().backward(); frozen(x)", "[(type(p).__name__, p.requires_grad, p.is_leaf, p.grad is not None) for p in [*lazy.parameters(), *frozen.parameters()]], [(type(b).__name__, b.requires_grad, b.shape) for b in lazy.buffers()]"),
    "lazy parameter and buffer": Case("import torch\nfrom torch import nn\np, q, b = nn.UninitializedParameter(), nn.UninitializedParameter(requires_grad=False), nn.UninitializedBuffer(); r = [nn.UninitializedParameter()]", "for t in (p, q, b): t.materialize((2,)); t.data.fill_(1)\nq.requires_grad_()\nb.mul_(torch.ones(2, requires_grad=True))", "[(type(t).__name__, t.requires_grad, t.is_leaf, t.tolist()) for t in (p, q, b)], type(r[0]).__name__, r[0].requires_grad"),
    "lazy parameter, in a cell that fails": Case("import torch\nfrom torch import nn\nlazy = nn.LazyLinear(2)", "try:\n    lazy(torch.ones(1, 3)); 1 / 0\nexcept ZeroDivisionError: pass", "[(type(p).__name__, p.requires_grad, p.is_leaf) for p in lazy.parameters()]"),
    "class changed": Case("class A: pass\nclass B: pass\na = A(); a.x = 1", "a.__class__ = B; a.x = 2", "type(a) is B, a.x"),
    "train and eval": Case(MODEL, "model.eval()", "model.training, model[1].training"),
    "batch statistics": Case(MODEL, "with torch.no_grad(): model(x); model(x)", "model[1].running_mean.tolist(), model[1].running_var.tolist(), model[1].num_batches_tracked.item()"),
    "averaged past its version": Case(MODEL + "import copy; ema = copy.deepcopy(model).requires_grad_(False)\nwith torch.no_grad(): model[0].weight.add_(1)", "for e, p in zip(ema.parameters(), model.parameters()): e.data.mul_(0.5).add_(p.data, alpha=0.5)", "ema[0].weight.tolist()"),
    "optimizer of the user's own": Case(MODEL + "class Mine(torch.optim.Optimizer):\n    def __init__(self, params): super().__init__(params, {'lr': 0.1}); self.count = 0\n    def step(self):\n        self.count += 1\n        for g in self.param_groups:\n            for p in g['params']: p.data.add_(p.grad, alpha=-g['lr'])\noptimizer = Mine(model.parameters())", STEP, "optimizer.count, model[0].weight.tolist(), type(optimizer) is Mine"),
    "instance comes home with the notebook's class": Case("class A:\n    def f(self): return 'old'\nbox = []", "box.append(A()); new = A()", "type(box[0]) is A, isinstance(new, A), new.f()"),
    "instance of a class made in the cell": Case("box = []", "class B:\n    def f(self): return 7\nbox.append(B())", "type(box[0]) is B, box[0].f()"),
    "subclass in the cell": Case("class A:\n    def f(self): return 1", "class B(A):\n    def f(self): return super().f() + 1\nb = B()", "b.f(), isinstance(b, A), B.__mro__[1] is A"),
    "lr finder": Case(MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "optimizer.param_groups[0]['lr'] = 0.5; optimizer.add_param_group({'params': [extra := nn.Parameter(torch.zeros(1))], 'lr': 1.0})", "[g['lr'] for g in optimizer.param_groups], optimizer.param_groups[1]['params'][0] is extra"),
    "loader's generator": Case("import torch\nfrom torch.utils.data import DataLoader\ng = torch.Generator().manual_seed(1)\nloader = DataLoader(list(range(8)), batch_size=4, shuffle=True, generator=g)", "seen = [b.tolist() for b in loader]", "seen, [b.tolist() for b in loader], loader.generator is g"),
    "weight drop of a dataset": Case("import torch\nclass Data(torch.utils.data.Dataset):\n    def __init__(self): self.seen = []; self.x = torch.arange(4.0)\n    def __len__(self): return 4\n    def __getitem__(self, i): self.seen.append(i); return self.x[i]\ndata = Data(); loader = torch.utils.data.DataLoader(data, 2)", "total = sum(b.sum() for b in loader).item()", "total, data.seen, loader.dataset is data"),
    # memory in common
    "state dict of the model": Case(MODEL + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nlog = {}", STEP + "state = model.state_dict(); log['first'] = model[0].weight.data[0]", "state['0.weight'].tolist(), [model[0].weight.data.add_(1), state['0.weight'].sub_(3)] and (model[0].weight.tolist(), state['0.weight'].tolist(), log['first'].tolist())"),
    "copy of the state dict": Case(MODEL + "import copy", "best = copy.deepcopy(model.state_dict())", "model[0].weight.data.add_(1) is None, best['0.weight'].tolist(), {k: v.tolist() for k, v in model.state_dict().items()}"),
    "views of data": Case("import torch; data = torch.arange(6.0).reshape(3, 2)", "first, column = data[0], data.T[1]; data[1] += 5; pair = [data[1:], data[:1].numpy()]", "first.tolist(), data.zero_() is None, first.tolist(), column.tolist(), column.stride(), pair[0].tolist()"),
    "history of weights that are replaced": Case("import torch; w = torch.zeros(2, requires_grad=True); log = [w.data]", "for _ in range(3):\n    (w - 3).pow(2).sum().backward()\n    w.data = w.data - 0.1 * w.grad\n    w.grad = None\n    log.append(w.data)", "[v.tolist() for v in log[1:]], w.tolist(), (w.data.add_(1), log[-1].tolist())[1]"),
    "old weights under a new name": Case("import torch; w = torch.zeros(2, requires_grad=True)", "old = w.data; w.data = w.data + 1", "old.tolist(), w.tolist()"),
    "weights of another model": Case(MEMORY + "old = dec.state_dict(); out = {**old}", "dec.weight.data = enc.weight.data\nwith torch.no_grad(): enc.weight += 1; dec.bias += 2", "same(enc.weight, dec.weight), [t.tolist() for t in (*enc.parameters(), *dec.parameters(), *old.values(), out['weight'])], write(enc.weight), dec.weight.tolist(), same(old['bias'], dec.bias)"),
    "weights of another model, whose old ones the cell does not use": Case(MEMORY + "old = dec.state_dict()\ndef tell(): return [t.tolist() for t in old.values()]", "dec.weight.data = enc.weight.data\nwith torch.no_grad(): enc.weight.mul_(3)", "same(enc.weight, dec.weight), tell(), dec.weight.tolist(), write(dec.weight), enc.weight.tolist(), tell()"),
    "weights that change places": Case(MEMORY + "a, b = enc.weight.data, dec.weight.data", "enc.weight.data, dec.weight.data = dec.weight.data, enc.weight.data\nwith torch.no_grad(): enc.weight += 1", "[t.tolist() for t in (a, b, *enc.parameters(), *dec.parameters())], same(a, dec.weight), same(b, enc.weight), write(a), dec.weight.tolist(), enc.weight.tolist()"),
    "weights that change places, unseen before": Case(MEMORY, "enc.weight.data, dec.weight.data = dec.weight.data, enc.weight.data; v = enc.weight.data; w = dec.weight.detach()[0]\nwith torch.no_grad(): enc.weight += 1", "[t.tolist() for t in (v, w, *enc.parameters(), *dec.parameters())]"),
    "weights in a flat tensor": Case(MEMORY + "flat = torch.arange(20.)", "o = 0\nfor p in [*enc.parameters(), *dec.parameters()]:\n    flat[o:o + p.numel()] = p.detach().flatten(); p.data = flat[o:o + p.numel()].view_as(p); o += p.numel()\nwith torch.no_grad():\n    for p in enc.parameters(): p.mul_(2)", "flat.tolist(), [t.tolist() for t in (*enc.parameters(), *dec.parameters())], write(flat), [t.tolist() for t in (*enc.parameters(), *dec.parameters())], same(flat, enc.weight)"),
    "weights in a flat tensor of the cell": Case(MEMORY, "ps = [*enc.parameters(), *dec.parameters()]; flat = torch.cat([p.detach().flatten() for p in ps]); o = 0\nfor p in ps: p.data = flat[o:o + p.numel()].view_as(p); o += p.numel()\nflat.mul_(2)", "write(flat), [t.tolist() for t in (*enc.parameters(), *dec.parameters())]"),
    "weights of which parts are others' now": Case(MEMORY + "flat = torch.arange(20.)\nenc.weight.data = flat[:6].view(2, 3); dec.weight.data = flat[6:12].view(2, 3)", "enc.weight.data = flat[8:14].view(2, 3); dec.weight.data = flat[:12].view(3, 4).t()[:2, :3]; flat[9] = -1", "flat.tolist(), enc.weight.tolist(), dec.weight.tolist(), write(flat), enc.weight.tolist(), dec.weight.stride(), dec.weight.tolist()"),
    "a tensor that is another's row, expanded or of other shape": Case(MEMORY + "t = torch.arange(6.).view(2, 3); r, e, s, k = torch.zeros(3), torch.zeros(2, 3), torch.zeros(2), torch.arange(4.); k2 = k.view(2, 2)", "r.data = t[1]; e.data = t[0].expand(2, 3); s.data = t; t[0, 0] = 7; k.unsqueeze_(0); k += 1", "[x.tolist() for x in (t, r, e, s, k, k2)], e.stride(), write(t), [x.tolist() for x in (r, e, s)], write(k), k2.tolist()"),
    "a buffer and an average in the place of weights": Case(MEMORY + "ema = {n: p.detach().clone() for n, p in enc.named_parameters()}; norm = nn.BatchNorm1d(3); mean = norm.running_mean", "kept = {n: p.data for n, p in enc.named_parameters()}\nfor n, p in enc.named_parameters(): ema[n] += 1; p.data = ema[n]\nnorm.running_mean.data = ema['bias'][:2]; dec.bias.data = mean", "[t.tolist() for t in (*enc.parameters(), *ema.values(), *kept.values(), *norm.buffers(), dec.bias)], same(ema['weight'], enc.weight), write(ema['bias']), enc.bias.tolist(), norm.running_mean.tolist(), dec.bias.tolist()"),
    "kinds of numbers that are shared": Case("import torch; kinds = [torch.zeros(4, dtype=d) for d in (torch.bfloat16, torch.complex64, torch.bool, torch.int64)]", "halves = [t[2:] for t in kinds]; other = kinds[3].view(torch.int32)", "[t.fill_(1).dtype for t in kinds], [h.to(torch.complex64).tolist() for h in halves], other.tolist()"),
    # names
    "assigned names": Case("a = 1", "a = 2; b = [a]; (c, *d), e = 'xyz', {'k': b}", "a, b, c, d, e, e['k'] is b"),
    "deleted name": Case("a = 1; b = [2]", "del a", "'a' in dir(), b"),
    "rebound to another of ours": Case("a = [1]; b = [2]", "a = b; b.append(3)", "a, a is b"),
    "swapped": Case("a = [1]; b = [2]; c = a", "a, b = b, a", "a, b, c is b"),
    "function and lambda made in the cell": Case("k = 2", "def f(x): return x * k\ng = lambda x: f(x) + 1\nk = 3", "f(2), g(2), f.__globals__ is g.__globals__"),
    "function that a later cell's globals reach": Case("k = 2\ndef f(): return k", "h = f; k = 5", "f(), h is f"),
    "modules": Case("import math", "import os.path as p, json; n = math.floor(1.5)", "p.basename('a/b'), json.dumps(n)"),
    "results that refer to ours": Case(MODEL, "best = {'model': model, 'weights': [p for p in model.parameters()]}", "best['model'] is model, best['weights'][0] is model[0].weight"),
    "a graph's end": Case("import torch; w = torch.ones(2, requires_grad=True)", "loss = (w * 2).sum()", "loss.item(), loss.requires_grad, loss.is_leaf"),
}  # fmt: skip
if not EAGER:
    del CASES["itertools"]  # which cannot be pickled any more
else:
    del CASES["annotation that names nothing"]  # which is an error where it is written


def comparable(value: Any) -> Any:
    """Return numbers in a form that is equal where they are exactly equal, NaN included."""
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return value


# Python 3.14 tells nobody where these stand.
STAY = (
    {
        "cycle within its first round",
        "iterators in iterators that are counted",
        "iterators of which new ones are made",
        "chain and combinations",
    }
    if sys.version_info >= (3, 14)
    else ()
)


@pytest.mark.parametrize("name", STAY)
def test_what_python_does_not_tell_of_stays(name, notebook):
    notebook.plain(CASES[name].setup)
    with pytest.raises(CaptureError, match="cannot pickle 'itertools"):
        notebook.distribute(CASES[name].cell)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python tells nobody where an accumulation stands")
def test_an_iterator_that_cannot_be_moved_leaves_the_others_and_is_named(notebook):
    notebook.plain("""
import itertools
class Items:
    def __getitem__(self, i): read.append(i); return [4, 5, 6, 7][i]
class A: pass
read = []
first, last, seen = iter([1, 2, 3]), itertools.count(), []
stuck = (itertools.islice(Items(), 4),)
en = enumerate(stuck[0])
loose = itertools.islice(Items(), 4)
a = A(); a.more = (itertools.islice(Items(), 3),)
""")
    notebook.distribute("seen += [next(i) for i in (first, stuck[0], en, loose, last, a.more[0])]; n = next(en)")
    assert notebook.unread == {
        "en": "where it stands cannot be set, and a tuple holds it (enumerate, islice)",
        "an iterator (islice)": "where it stands cannot be set, and a tuple holds it (islice)",
    }
    assert notebook.names["seen"] == [1, 4, (0, 5), 4, 0, 4]
    assert notebook.plain("next(first), next(last), next(loose), read") == (2, 1, 5, [0, 1, 0, 0, 2, 1])


@pytest.mark.filterwarnings("ignore")  # of PyTorch and pandas, about old and new ways to do things
@pytest.mark.parametrize("name", [name for name in CASES if name not in STAY])
def test_the_notebook_is_as_if_the_cell_had_run_there(name, notebook, other_notebook):
    case = CASES[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")
        other_notebook.plain(case.setup)
        other_notebook.plain(case.cell)
        expected = comparable(other_notebook.plain(case.probe))
        notebook.plain(case.setup)
        notebook.distribute(case.cell)
    assert comparable(notebook.plain(case.probe)) == expected
    assert notebook.not_returned == {}
