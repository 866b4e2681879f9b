"""A run that is ended at any boundary of its loops and gone on with elsewhere does what it would have done."""
# ruff: noqa: E501  # tables: one case a line

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import pytest
import torch

from jupyter_dtrain.analysis.code_objects import sources_of
from jupyter_dtrain.engine.cell import describe, run_cell
from jupyter_dtrain.engine.resume.jump_path import JumpFailed
from jupyter_dtrain.engine.resume.loops import Loops
from jupyter_dtrain.serialization.pickler import Packer
from jupyter_dtrain.serialization.unpickler import Unpacker
from tests.conftest import one_of
from tests.unit.resuming import Run, plain, resumed, watched

SETUP = """
import contextlib, functools, itertools, random, torch
from contextlib import contextmanager, suppress
trace = []
t = trace.append
"""


def comparable(value: Any) -> Any:
    """Return what of a value has to be the same in another process."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return [(comparable(key), comparable(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | set):
        return type(value).__name__, [comparable(item) for item in value]
    if isinstance(value, int | float | str | bytes | bool | range | None):
        return value
    return type(value).__name__


PYTHONS_OWN = frozenset({"__builtins__", "__conditional_annotations__"})


def state(run: Run) -> dict[str, Any]:
    return {name: comparable(value) for name, value in run.namespace.items() if name not in PYTHONS_OWN} | {
        "the value": comparable(run.value)
    }


def check(program: str, setup: str = "", most: int = 16) -> tuple[int, list[str]]:
    """Interrupt a program at each boundary; return at how many it was gone on with, and why it could not be at the others."""
    setup = SETUP + setup
    expected = plain(setup, program)
    seen = watched(setup, program)
    assert state(seen) == state(expected), "the rewritten text does something else"
    count = len(seen.places)
    done, reasons = 0, [place[4:] for place in seen.places if place.startswith("no: ")]
    for index in sorted({*range(0, count, max(1, count // most)), *([count - 1] if count else [])}):
        killed = watched(setup, program, index)
        assert killed.places[: index + 1] == seen.places[: index + 1]
        if killed.snapshot is None:
            assert killed.places[index].startswith("no: ")
            continue
        again = resumed(setup, program, killed.snapshot)
        assert state(again) == state(expected), f"after {killed.places[index]}"
        assert again.resumed == 1
        done += 1
    return done, reasons


# Programs all of whose boundaries are places: name, setup, program.
PROGRAMS = {
    "a loop": ("", "for i in range(4): t(i)"),
    "a method of what a loop walks over": (
        "class Trainer:\n    def __init__(self, size): self.size = size\n    def train(self):\n        for i in range(self.size): t(i)",
        "for trainer in [Trainer(2), Trainer(3)]: trainer.train()",
    ),
    "a function that a loop walks over, in another": (
        """\
def train(power):
    for i in range(3): t(i**power)
def twice():
    for name, (call, power) in {'a': (train, 1), 'b': (train, 2)}.items():
        call(power)
        t(name)""",
        "twice()",
    ),
    "nested": (
        "",
        "for a in range(3):\n    t(a)\n    for b in 'xy':\n        t((a, b))\n        for c in [1, 2]:\n            t(c)\n    t('end')\nt('after')",
    ),
    "break and else": (
        "",
        "for a in range(4):\n    for b in range(4):\n        if b == a: break\n        t((a, b))\n    else:\n        t('else')\n        for c in range(2): t(c)\nelse:\n    t('done')\n    for d in range(2): t(d)",
    ),
    "continue": (
        "",
        "for a in range(5):\n    if a % 2: continue\n    for b in range(2):\n        if b: continue\n        t((a, b))\n    t(a)",
    ),
    "while": (
        "",
        "n = 0\nwhile n < 4:\n    n += 1\n    if n == 2: continue\n    t(n)\n    m = 0\n    while True:\n        m += 1\n        t((n, m))\n        if m > n: break\nelse:\n    t('else')\n    for i in range(2): t(i)\nt(n)",
    ),
    "while with a call in its condition": (
        "def more(n):\n    for i in range(2): t(('more', i))\n    return n < 3\n",
        "n = 0\nwhile more(n) and n < 9:\n    t(n)\n    n += 1\n    for i in range(2): t(i)",
    ),
    "walrus": (
        "def get(q):\n    for _ in range(2): t('get')\n    return q.pop() if q else None\n",
        "q = [1, 2, 3]\nwhile (x := get(q)) is not None:\n    t(x)\n    if (y := x * 2) > 2: t(y)",
    ),
    "if, elif, else": (
        "",
        "for a in range(4):\n    if a == 0:\n        for b in range(2): t(('zero', b))\n    elif a == 1:\n        t('one')\n        for b in range(2): t(('one', b))\n    else:\n        for b in range(2): t(('many', b))\n        t('many')",
    ),
    "if with a call in its condition": (
        "def good(a):\n    for i in range(2): t(('good', a, i))\n    return a % 2 == 0\n",
        "for a in range(3):\n    if good(a):\n        t('good')\n        for i in range(2): t(i)\n    elif good(a + 1):\n        t('next')\n    else:\n        t('never')",
    ),
    "a condition that changes": ("flag = True\n", "if flag:\n    flag = False\n    for i in range(3): t(i)\nelse:\n    t('wrong')"),
    "starred and nested targets": (
        "",
        "for i, (a, *b), [c, d] in [(1, (2, 3, 4), [5, 6]), (7, (8,), 'xy')]:\n    for j in range(2): t((i, a, b, c, d, j))",
    ),
    "enumerate, zip, reversed, map": (
        "",
        "for i, (a, b) in enumerate(zip([1, 2, 3], 'xyz'), 5):\n    for c in reversed([1, 2]):\n        for d in map(str, [a, b]):\n            t((i, a, b, c, d))",
    ),
    "itertools": (
        "",
        "for a, b in itertools.product([1, 2], 'xy'):\n    t((a, b))\n    for c in itertools.islice(itertools.count(), 2): t(c)",
    ),
    "dicts": (
        "d = {'a': 1, 'b': 2, 'c': 3}\n",
        "for k in d:\n    t(k)\n    for k2, v in d.items():\n        t((k2, v))\n        d[k2] = v + 1\n    for v in d.values(): t(v)",
    ),
    "dict made for its items": (
        "def make():\n    t('made')\n    return {'a': 1, 'b': 2}\n",
        "for k, v in make().items():\n    t((k, v))\n    for i in range(2): t(i)",
    ),
    "ordered dicts": (
        "from collections import OrderedDict\nd = OrderedDict(a=1, b=2, c=3)\nd.move_to_end('a')\n",
        "for k in d:\n    t(k)\n    for k2, v in d.items():\n        t((k2, v))\n        d[k2] = v + 1\n    for v in reversed(d.values()): t(v)",
    ),
    "an ordered dict within the loop over it": (
        "d = __import__('collections').OrderedDict({(1, 2): 'x', 3: 'y', None: 'z'})\n",
        "for k in d:\n    for i in range(2):\n        d[k] += str(i)\n        t((k, i, d[k]))",
    ),
    "the state of a module": (
        "torch.manual_seed(0)\nm = torch.nn.Linear(2, 2)\nclass EMA:\n    def __init__(self):\n        self.shadow = {k: v.clone() for k, v in m.state_dict().items()}\n    def update(self):\n        for k, v in m.state_dict().items():\n            self.shadow[k].lerp_(v, 0.5)\n            t((k, v.sum().item()))\nema = EMA()\n",
        "for step in range(2):\n    with torch.no_grad(): m.bias += 1\n    ema.update()\n    for k in m.state_dict(): t(k)",
    ),
    "deques": (
        "from collections import deque\nq = deque([1, 2], maxlen=3)\n",
        "for step in range(3):\n    q.append([step])\n    for x in q:\n        t((step, str(x)))\n        for i in range(2):\n            if type(x) is list: x.append(i)",
    ),
    "a deque of an object": (
        "from collections import deque\nclass Last:\n    def __init__(self): self.q, self.n = deque(maxlen=3), 0\n    def add(self, x):\n        self.q.append(x)\n        for y in self.q: self.n += y\n        t(self.n)\nlast = Last()\n",
        "for step in range(5): last.add(step)",
    ),
    "values that change after the loop over them began": (
        "from collections import OrderedDict, deque\nclass Own(OrderedDict): pass\nd, o, own, q = dict(a=1, b=2), OrderedDict(a=1, b=2), Own(a=1, b=2), deque([1, 2])\n",
        "for i, (k, v) in enumerate(d.items()):\n    t((i, k, v))\n    for j in range(2): d['b'] += 1\nfor v in map(str, o.values()):\n    t(v)\n    for j in range(2): o['b'] += 1\nfor i, v in zip('ab', own.values()):\n    t((i, v))\n    for j in range(2): own['b'] += 1\nfor i, v in enumerate(q):\n    t((i, v))\n    for j in range(2): q[1] += 1",
    ),
    "dicts that an iterator yields": (
        "it = iter([{'a': 1, 'b': 2}, {'a': 3, 'b': 4}, {'a': 5, 'b': 6}])\n",
        "for step in range(2):\n    for i, (k, v) in enumerate(next(it).items()):\n        t((step, i, k, v))\n        for j in range(2): t(j)",
    ),
    "a buffer of the user's own": (
        "from collections import OrderedDict, deque\nclass Buffer:\n    def __init__(self): self.q, self.d = deque([1, 2], maxlen=3), OrderedDict(a=1)\n    def __iter__(self):\n        yield from self.q\n        for k, x in self.d.items(): yield k, x\nb = Buffer()\n",
        "for step in range(2):\n    b.q.append(step)\n    for x in b:\n        t((step, x))\n        for j in range(2): b.q[-1] += 1",
    ),
    "dicts that lost keys": (
        "from collections import Counter, defaultdict\nd = defaultdict(int, a=1, b=2, c=3, d=4)\ndel d['b']\nc = Counter('abca')\nc.pop('b')\n",
        "for k in d:\n    t(k)\n    for c1 in c:\n        t((k, c1, c[c1]))\n        c[c1] += d[k]",
    ),
    "sets": ("", "for x in {10, 20, 30}:\n    for y in frozenset('ab'): t((x, y))"),
    "tensors": ("", "x = torch.arange(6.0).view(3, 2)\nfor row in x:\n    row += 1\n    for value in row: t(value.item())"),
    "a list that grows": ("", "q = [1]\nfor x in q:\n    t(x)\n    if len(q) < 5: q.append(x + 1)\n    for y in range(2): t(y)"),
    "a list that is another one": ("", "q = [1, 2, 3]\nfor x in q:\n    q = [9]\n    t(x)\n    for y in range(2): t(y)"),
    "two loops": ("", "for i in range(3): t(i)\nt('between')\nfor i in range(3):\n    t(-i)\nx = i"),
    "the variable of one loop in another": (
        "",
        "for i in range(2):\n    t(i)\n    for i in range(5, 7): t(i)\n    t(i)\nfor i in range(2): t(i)\nt(i)",
    ),
    "del": (
        "",
        "a = b = 1\nfor i in range(3):\n    if i == 1:\n        del a\n    t('a' in globals())\nfor j in range(2):\n    t('a' in globals())\n    for k in range(2):\n        if k: del k",
    ),
    "an unused item": ("", "for _ in range(3):\n    for _ in range(2): t(_)"),
    "function": (
        "def f(n, *rest, key=2, **more):\n    'doc'\n    s = 0\n    for i in range(n):\n        s += i * key\n        t((i, s, rest, more))\n    return s\n",
        "a = f(3)\nb = f(2, 7, key=4, z=1)\nt(a + b)\nf(*[1, 2], **{'key': 3})",
    ),
    "early return": (
        "def f(n):\n    for i in range(9):\n        for j in range(2):\n            t((i, j))\n            if i == n: return i, j\n    return None\n",
        "x = [0]\nx[0] = f(2)\nt(f(0))\ny, z = f(1)",
    ),
    "functions of functions": (
        "def epoch(n):\n    for i in range(2):\n        step(n, i)\n    return n\ndef step(n, i):\n    for j in range(2): t((n, i, j))\n    n = 5\n    for k in range(2): t((n, k))\ndef fit(n):\n    for e in range(n):\n        s = epoch(e)\n        t(s)\n",
        "fit(2)\nfor i in range(2):\n    fit(i)",
    ),
    "recursion": (
        "def walk(n, depth=0):\n    for i in range(n):\n        t((depth, i))\n        walk(n - 1, depth + 1)\n        t((depth, -i))\n",
        "walk(3)",
    ),
    "method": (
        "class Trainer:\n    rate = 2\n    def __init__(self, n):\n        self.n, self.seen = n, []\n    def fit(self, epochs):\n        for e in range(epochs):\n            self.epoch(e)\n            self.last = e\n        return self\n    def epoch(self, e):\n        for i in range(self.n):\n            self.seen.append((e, i, self.rate))\n            t(len(self.seen))\n    @classmethod\n    def make(cls, n):\n        for i in range(2): t(i)\n        return cls(n)\n    @staticmethod\n    def other(n):\n        for i in range(n): t(i)\n",
        "trainer = Trainer.make(2)\ntrainer.fit(2).fit(1)\nt(trainer.seen)\nTrainer.other(2)\nTrainer(1).fit(2)\nt(trainer.last)",
    ),
    "super": (
        "class A:\n    def fit(self, n):\n        for i in range(n): t(('A', i))\n        return n\nclass B(A):\n    def fit(self, n):\n        for i in range(n):\n            x = super().fit(n)\n            t(('B', i, x))\n        return super(B, self).fit(1)\n",
        "b = B()\nb.fit(2)\nt(b.fit(1))",
    ),
    "class in the cell": (
        "",
        "class A:\n    def fit(self):\n        self.n = 0\n        for i in range(3):\n            self.n += 1\n            t(self.n)\n        return self\ndef f(a):\n    for i in range(2):\n        a.fit()\n        t(i)\na = A()\nf(a)\nf(a)\nn = a.n",
    ),
    "call over lines": (
        "class A:\n    def go(self, n, m):\n        for i in range(n): t((i, m))\n        return self\na = A()\n",
        "(a\n .go(\n     2, 1)\n .go(1,\n     2))\nx = [1,\n     2]\na.go(\n    n=1,\n    m=2,\n)",
    ),
    "no_grad": (
        "@torch.no_grad()\ndef evaluate(n):\n    for i in range(n): t((i, torch.is_grad_enabled()))\n    return n\n@torch.inference_mode()\ndef infer(n):\n    for i in range(n): t((i, torch.is_inference_mode_enabled()))\n",
        "for e in range(2):\n    evaluate(2)\n    t(torch.is_grad_enabled())\ninfer(2)\nt(torch.is_inference_mode_enabled())",
    ),
    "own decorator": (
        "def timed(f):\n    @functools.wraps(f)\n    def inner(*args, **kwargs):\n        t('before')\n        result = f(*args, **kwargs)\n        t('after')\n        return result\n    return inner\n@timed\ndef fit(n):\n    for i in range(n): t(i)\n    return n\n",
        "for e in range(2):\n    x = fit(2)\nt(fit(n=1))\nx",
    ),
    "decorator with arguments": (
        "def repeat(times):\n    def decorate(f):\n        def inner(*args):\n            for k in range(times):\n                t(('round', k))\n                result = f(*args)\n            return result\n        return inner\n    return decorate\n@repeat(2)\ndef fit(n):\n    for i in range(n): t(i)\n    return n\n",
        "fit(2)\nx = fit(1)",
    ),
    "closure and nonlocal": (
        "def make():\n    n = 0\n    def step(k):\n        nonlocal n\n        for i in range(k):\n            n += 1\n            t(n)\n        return n\n    return step\n",
        "step = make()\nother = make()\nfor e in range(2):\n    step(2)\n    t(other(1))\nstep(1)",
    ),
    "function inside a function": (
        "def fit(n):\n    total = 0\n    k = 10\n    def step(i):\n        nonlocal total\n        for j in range(2):\n            total += i + j + k\n            t(total)\n    for e in range(n):\n        k += 1\n        step(e)\n        t(total)\n    return total\n",
        "x = fit(2)\nfit(1)",
    ),
    "function inside the cell": (
        "",
        "def step(i, n=[]):\n    for j in range(2):\n        n.append(i)\n        t(list(n))\nfor e in range(2):\n    step(e)\nhistory = []",
    ),
    "lambda inside": ("", "def f(n, g=lambda x: x + 1):\n    h = lambda x: g(x) * 2\n    for i in range(n):\n        t(h(i))\nf(3)"),
    "global": (
        "count = 0\ndef step():\n    global count, made\n    for i in range(2):\n        count += 1\n        made = i\n        t(count)\n",
        "for e in range(2):\n    step()\n    count += 10\nt(made)",
    ),
    "with": (
        "@contextmanager\ndef section(name):\n    level.append(name)\n    try:\n        yield name.upper()\n    finally:\n        level.pop()\nlevel = []\nclass Level:\n    def __enter__(self): level.append('in')\n    def __exit__(self, *_): level.pop()\n",
        "with section('a') as x, suppress(ZeroDivisionError):\n    level.clear(); level.append('a')\n    for i in range(3):\n        t((list(level)[:1], x, i))\n        if i == 2: 1 / 0\nt('after')\nwith torch.no_grad():\n    for i in range(2): t(torch.is_grad_enabled())\nt(torch.is_grad_enabled())",
    ),
    "try": (
        "",
        "for a in range(3):\n    try:\n        for b in range(3):\n            t((a, b))\n            if (a, b) == (1, 1): raise ValueError(a)\n    except ValueError as error:\n        t(str(error))\n    else:\n        for c in range(2): t(('else', c))\n    finally:\n        t('finally')",
    ),
    "return in finally": (
        "def f():\n    for i in range(3):\n        try:\n            for j in range(2):\n                t((i, j))\n                if i == 1: return 'body'\n        finally:\n            t(('finally', i))\n    return 'end'\n",
        "x = f()",
    ),
    "StopIteration": (
        "",
        "it = iter([1, 2, 3])\nwhile True:\n    try:\n        x = next(it)\n    except StopIteration:\n        break\n    t(x)\nfor y in it: t(y)",
    ),
    "an iterator in hand": ("", "it = iter(range(6))\nfor a in it:\n    t(a)\n    t(next(it))\n    for b in range(2): t(b)\nz = list(it)"),
    "items left for another loop": (
        "",
        "it = enumerate([1, 2, 3, 4])\nfor i, a in it:\n    t(a)\n    if i == 1: break\nfor j in range(2): t(j)\nfor i, a in it: t(a)",
    ),
    "own iterator": (
        "class Count:\n    def __init__(self, n): self.i, self.n = 0, n\n    def __iter__(self): return self\n    def __next__(self):\n        self.i += 1\n        if self.i > self.n: raise StopIteration\n        return self.i\n",
        "c = Count(3)\nfor x in c:\n    t((x, c.i))\n    for y in range(2): t(y)\nfor x in Count(2): t(x)",
    ),
    "own iterable": (
        "class Batches:\n    def __init__(self, n): self.n = n\n    def __iter__(self):\n        order = list(range(self.n))\n        random.shuffle(order)\n        for i in order: yield i\n    def __len__(self): return self.n\nbatches = Batches(4)\n",
        "for e in range(2):\n    for b in batches:\n        t(b)\n        t(random.random())",
    ),
    "generator": (
        "def numbers(n):\n    order = torch.randperm(n).tolist()\n    for i in order:\n        yield i\n",
        "for e in range(2):\n    for i in numbers(4):\n        t((e, i, random.random()))\n    for i, j in enumerate(numbers(2)): t((i, j))\nfor x in (y * y for y in range(3)): t(x)",
    ),
    "generator made before its loop": (
        "def numbers(n):\n    for i in range(n): yield i\n",
        "g = numbers(4)\nk = 1\nfor i in g:\n    t(i)\n    for j in range(2): t(j)",
    ),
    "random numbers": (
        "",
        "for i in torch.randperm(4):\n    t(int(i))\n    t(torch.rand(1).item())\n    for j in random.sample(range(9), 3):\n        t((j, random.random()))\nfor a, b in zip(torch.randperm(3), torch.rand(3)): t((a.item(), b.item()))",
    ),
    "arguments that must not be made again": (
        "def make(n):\n    t('made')\n    return list(range(n))\ndef fit(items, *more, key=None):\n    for i in items: t((i, key))\n    return len(items)\n",
        "fit(make(2))\nt(fit(make(3), *make(1), key=make(2)))\nq = [1, 2]\nfit([q.pop()])",
    ),
    "a callee that changes what it was called with": (
        "def fit():\n    for i in range(3):\n        if items: items.pop()\n        t(len(items))\nitems = [1, 2]\ntable = {'f': fit}\n",
        "table['f'](*items[2:])\nfor e in range(2):\n    fit(*items[:0])\n    items = [1, 2]",
    ),
    "augmented assignment": (
        "def f(n):\n    for i in range(n): t(i)\n    return n\n",
        "total = 1\nfor e in range(2):\n    total += f(2)\n    total = total + f(1)\nd = {}\nd['a'] = f(1)\nd[len(d)], x = f(2), 3",
    ),
    "annotated": (
        "def f(n):\n    for i in range(n): t(i)\n    return n\n",
        "x: int = f(2)\ny: list[int]\nfor i in range(2):\n    z: int = i\n    t(z)",
    ),
    "many statements": (
        "",
        "a = 1\nimport math\nfrom os import path\nb = a + 1\nfor i in range(2):\n    c = b + i\n    import json\n    d = json.dumps(c)\n    for j in range(2):\n        t((a, b, c, d, j))\n    e = math.pi\nf = path.join('a', 'b')",
    ),
    "import in a function": ("def f(n):\n    import math\n    for i in range(n): t(math.floor(i))\n", "f(3)"),
    "global declared late": (
        "def f():\n    for i in range(2): t(i)\n    global later\n    later = 1\n    for i in range(2): t(later)\n",
        "f()",
    ),
    "empty loops": ("", "for i in []: t(i)\nfor i in range(2):\n    for j in range(0): t(j)\n    while False: t(1)\n    t(i)"),
    "match beside": (
        "",
        "for i in range(3):\n    match i:\n        case 0: t('zero')\n        case _: t('other')\n    for j in range(2): t(j)",
    ),
    "future": (
        "",
        "'doc'\nfrom __future__ import annotations\ndef f(x: Undefined):\n    for i in range(x): t(i)\nf(2)\nfor i in range(2): t(i)",
    ),
    "async function beside": ("", "async def f():\n    for i in range(2): t(i)\nimport asyncio\nfor i in range(2): t(i)"),
    "what nobody holds any more": (
        """\
import weakref
class Large: pass
def f(n):
    mine = Large()
    ref = weakref.ref(mine)
    for i in range(n):
        if i == 2: mine = None
        t((i, ref() is None))""",
        "held = Large()\nref = weakref.ref(held)\nfor e in range(3):\n    if e == 1: held = None\n    t((e, ref() is None))\nf(4)",
    ),
    "the value of the last line": ("def f(n):\n    for i in range(n): t(i)\n    return [n]\n", "x = 1\nf(3)"),
    "unpacking of what is returned": (
        "def f(n):\n    for i in range(n): t(i)\n    return n, [n]\n",
        "a, (b,) = f(2)\n[c, *d] = f(1)\nprint(a, f(1))",
    ),
}


@pytest.mark.parametrize("name", one_of(2, PROGRAMS))
def test_at_every_boundary(name):
    setup, program = PROGRAMS[name]
    done, reasons = check(program, setup)
    assert reasons == []
    assert done > 0


# Programs some of whose boundaries are no places: setup, program, what is said of those.
FALLING_BACK = {
    "comprehension": (
        "def f(n):\n    for i in range(n): t(i)\n    return n\n",
        "for e in range(2):\n    x = [f(k) for k in range(2)]\n    t(x)",
        "inside a list comprehension",
    ),
    "argument read before": (
        "def f(n):\n    for i in range(n): t(i)\n    return n\n",
        "for e in range(2):\n    x = e * 2 + f(2)\n    t(x)",
        "line 2: after other values of its line were read",
    ),
    "condition": (
        "def f(n):\n    for i in range(n): t(i)\n    return n\n",
        "for e in range(2):\n    x = e and f(2)\n    y = 1 if f(1) else f(0)\n    t((x, y))",
        "line 2: after a condition of its line",
    ),
    "map": (
        "def f(n):\n    for i in range(n): t(i)\n    return n\n",
        "for e in range(2):\n    x = list(map(f, [1, 2]))\n    t(x)",
        "line 2: not by a plain call",
    ),
    "key function": (
        "import functools\ndef f(a, b):\n    for i in range(b): t(i)\n    return a + b\n",
        "for e in range(2):\n    x = f(1, 2)\n    y = sorted([2, 1], key=lambda v: f(0, v))\n    t((x, y))",
        "line 3 of program: inside a lambda",
    ),
    "library": (
        "def f(m):\n    for i in range(2): t(i)\nnet = torch.nn.ReLU()\n",
        "for e in range(2):\n    net.apply(f)\n    t(e)",
        "called by apply(), which cannot be entered again",
    ),
    "handler": (
        "def f(n):\n    for i in range(n): t(i)\n",
        "for e in range(2):\n    try:\n        1 / e\n    except ZeroDivisionError:\n        f(2)\n        for i in range(2): t(i)",
        "line 5: while an exception is handled",
    ),
    "match": (
        "def f(n):\n    for i in range(n): t(i)\n",
        "for e in range(2):\n    match e:\n        case 1: f(2)\n    t(e)",
        "line 3: inside a match statement",
    ),
    "constructor": (
        "",
        "class A:\n    def __init__(self, n):\n        for i in range(n): t(i)\n        self.f(n)\n    def f(self, n):\n        for i in range(n): t(i)\nfor e in range(2):\n    a = A(2)",
        "called by __init__(), which cannot be entered again",
    ),
    "targets that are no names": (
        "x = {}\n",
        "for e in range(2):\n    for x[0] in range(2):\n        for j in range(2): t((dict(x), j))",
        "line 2: the loop assigns to other targets than names of its own",
    ),
    "a variable of a function that is over": (
        "def make():\n    i = 5\n    def f():\n        nonlocal i\n        for i in range(2):\n            for j in range(2): t((i, j))\n        return i\n    return f\n",
        "f = make()\nfor e in range(2):\n    t(f())",
        "line 10: the loop assigns to other targets than names of its own",
    ),
    "an iterator made before": (
        "d = {'a': 1, 'b': 2, 'c': 3}\n",
        "it = iter(d.values())\nfor v in it:\n    t(v)\n    for i in range(2): d['c'] += 1\ndel it\nfor e in range(2): t(e)",
        "line 2: the loop walks over an iterator made before it, whose position cannot be saved",
    ),
    "generator under way": (
        "def numbers():\n    for i in range(9): yield i\n",
        "g = numbers()\nt(next(g))\nfor e in range(2):\n    t(next(g))\ndel g\nfor e in range(2): t(e)",
        "line 3: `g` is a generator that has started",
    ),
    "name changed in the loop over it": (
        "def numbers(n):\n    for i in range(n): yield i\n",
        "n = 3\nfor e in range(2):\n    n = 2\n    for i in numbers(n):\n        n = 5\n        t(i)",
        "line 4: the loop assigns `n`, over which it walks",
    ),
}


@pytest.mark.parametrize("name", FALLING_BACK)
def test_at_boundaries_that_are_places(name):
    setup, program, reason = FALLING_BACK[name]
    done, reasons = check(program, setup)
    assert reasons
    assert all(reason in said for said in set(reasons)), set(reasons)
    assert done > 0


# -- what a user notices -----------------------------------------------------------------------------------------------


def watch(program: str, namespace: dict[str, Any]) -> Any:
    """Run a program with its loops watched and nothing else."""
    loops = Loops(on_boundary=lambda: None, say=lambda _: None)
    functions = [value for value in namespace.values() if isinstance(value, FunctionType)]
    loops.texts.adopt(functions, sources_of(functions))
    with loops.installed():
        return run_cell(program, "program", namespace, loops)


ERRORS = [
    "for i in range(3):\n    x = 1\n    for j in [\n        1, 2]:\n        x += 1 / (j - 1)",
    "def f(n):\n    'doc'\n    s = 0\n    for i in range(n):\n        s += (i *\n            g(i))\n    return s\ndef g(i):\n    if i == 2:\n        raise ValueError(i)\n    return f\nfor e in range(2): 0\nf(3)",
    "for i in range(2):\n    x = i\nx()",
    "for a, b in [1]: pass",
    "for i in undefined: pass",
    "n = 1\nwhile n / (n - 1) > 0: n += 1",
    "with open('/no/such/file') as f:\n    for line in f: pass",
    "for i in range(2):\n    pass\nelse:\n    print(missing)",
    "def f(n=2):\n    for i in range(n): assert i < 1, (\n        i)\nfor i in range(2): f(\n    n=i + 1)",
    "for x in map(int, ['1', 'x']): pass",
]


@pytest.mark.parametrize("program", ERRORS)
def test_errors_are_reported_as_they_were(program):
    def told(run: Any) -> Any:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            run()
        failure = describe(caught.value)
        frames = [frame for frame in failure.frames if frame.filename in ("program", "setup")]
        columns = [
            (frame.line, frame.colno, frame.end_colno)
            for frame in traceback.extract_tb(caught.value.__traceback__)
            if frame.filename == "program"
        ]
        return failure.name, failure.message, frames, columns

    assert told(lambda: watch(program, {})) == told(lambda: run_cell(program, "program", {}))


def test_an_error_of_what_cannot_be_walked_over():
    with pytest.raises(TypeError, match="'int' object is not iterable") as caught:
        watch("x = 1\nfor i in 3:\n    pass", {})
    assert [(frame.filename, frame.line) for frame in describe(caught.value).frames][-1] == ("program", 2)


def test_functions_have_their_code_back_and_are_sent_with_it():
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell("def f(n):\n    for i in range(n): pass\n    return n", "setup", namespace)
    f = namespace["f"]
    before = f.__code__
    watch("seen = f.__code__\ndef g(n):\n    def inner():\n        for i in range(n): f(i)\n    return inner\nh = g(2)\nh()", namespace)
    assert namespace["seen"] is not before
    assert f.__code__ is before
    packer = Packer(namespace=namespace)
    packer.dump([f, namespace["g"], namespace["h"], namespace["seen"]])
    sent = packer.packed()
    assert b"__dtrain__" not in sent.stream
    _, g, h, _ = Unpacker(sent, namespace={"f": f}).load()
    assert h() is None
    assert g(1)() is None


def test_lambdas_on_one_line_are_told_apart():
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell("add, double = lambda x: x + 1, lambda x: x * 2", "setup", namespace)
    watch("both = [add(3), double(3)]\ntriple, square = lambda x: x * 3, lambda x: x**2", namespace)
    assert namespace["both"] == [4, 6]
    packer = Packer(namespace=namespace)
    packer.dump([namespace["triple"], namespace["square"]])
    triple, square = Unpacker(packer.packed(), namespace={}).load()
    assert (triple(5), square(5)) == (15, 25)


def test_a_function_that_is_kept_runs_on_after_the_run():
    namespace: dict[str, Any] = {"__name__": "__main__"}
    watch(
        "def f(n):\n    total = 0\n    for i in range(n):\n        while i:\n            i -= 1\n            total += 1\n    with memoryview(b''):\n        for k in 'ab': total += 1\n    return total",
        namespace,
    )
    assert namespace["f"](4) == 8


def test_a_text_that_was_edited_is_left_alone():
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell("def f(n):\n    for i in range(n): pass\n    return n", "setup", namespace)
    before = namespace["f"].__code__
    loops = Loops(on_boundary=lambda: None, say=lambda _: None)
    loops.texts.adopt([namespace["f"]], {"setup": "def f(n):\n    for i in range(n + 1): pass\n    return n"})
    with loops.installed():
        run_cell("inside = f.__code__\nf(2)", "program", namespace, loops)
    assert namespace["inside"] is before


@pytest.mark.parametrize(
    ("edited", "reason"),
    [
        ("x = 1\nfor i in range(3): t(i)", "there is no such place"),
        ("for i in range(1): t(i)", "has 1 items where it had 2"),
        ("for i in 1 / 0: t(i)", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_jump_that_leads_nowhere(edited, reason):
    killed = watched(SETUP, "for i in (n for n in range(3)): t(i)", 2)
    assert killed.snapshot is not None
    with pytest.raises(JumpFailed, match=reason):
        resumed(SETUP, edited.replace("range(1)", "(n for n in range(1))"), killed.snapshot)


@pytest.mark.parametrize(
    "function",
    [
        "def f(n):\n    for i in range(2):\n        t((n, i))\n        if n: f(n - 1)\n",
        "def f(n):\n    i = 2\n    while (i := i - 1):\n        t((n, i))\n        if n: f(n - 1)\n",
    ],
    ids=["for", "while"],
)
def test_loops_that_are_over_are_forgotten(function):
    program = f"{function}for e in range(2):\n    f(4)\n    for i in range(2): t(i)\n"
    kept: list[int] = []

    @contextmanager
    def few(loops: Loops, _: dict[str, Any]) -> Iterator[None]:
        loops.places.most_active = 3
        yield
        kept.extend((len(loops.places.active), loops.places.most_active))

    run, usual = watched(SETUP, program, around=few), watched(SETUP, program)
    assert state(run) == state(plain(SETUP, program))
    assert run.places == usual.places, "the places of loops that go on are known"
    assert kept[0] < 10
    assert kept[1] > 500, "there is room for more until the next look"


def test_names_that_cannot_be_saved_are_made_again():
    setup = "import threading\nclass Log:\n    def __init__(self): self.lock = threading.Lock()\n    def write(self, *x):\n        with self.lock: t(x)\n"
    program = (
        "log = Log()\nfor i in range(3):\n    log.write(i)\ndef f(n):\n    own: Log = Log()\n    for i in range(n): own.write(i)\nf(2)"
    )
    done, reasons = check(program, setup)
    assert done > 4 and not reasons


def test_a_name_that_cannot_be_made_again_is_told():
    program = "if True:\n    lock = __import__('zlib').compressobj()\nfor i in range(2): t(i)"
    killed = watched(SETUP, program, 1)
    assert killed.snapshot is not None
    run = resumed(SETUP, program, killed.snapshot)
    assert run.said == ["`lock` could not be saved, and no statement assigns it again: the cell continues without it."]
    assert "lock" not in run.namespace


def test_a_position_in_words():
    setup = SETUP + "def epoch(n):\n    for i in range(n): t(i)\n"
    program = "for e in range(2):\n    epoch(2)\nn = 0\nwhile n < 2:\n    n += 1"
    assert watched(setup, program).places == [
        "iteration 1 of line 1",
        "epoch(): iteration 1 of line 7, in line 2, iteration 1 of line 1",
        "epoch(): iteration 2 of line 7, in line 2, iteration 1 of line 1",
        "epoch(): iteration 3 of line 7, in line 2, iteration 1 of line 1",
        "iteration 2 of line 1",
        "epoch(): iteration 1 of line 7, in line 2, iteration 2 of line 1",
        "epoch(): iteration 2 of line 7, in line 2, iteration 2 of line 1",
        "epoch(): iteration 3 of line 7, in line 2, iteration 2 of line 1",
        "iteration 3 of line 1",
        "iteration 1 of line 4",
        "iteration 2 of line 4",
        "iteration 3 of line 4",
    ]


def test_a_loop_costs_less_than_a_microsecond_of_the_processor_for_an_iteration():
    def seconds(run: Any) -> Any:
        namespace: dict[str, Any] = {}
        program = "import time\ndef f():\n    for i in range(50000): pass\nbegun = time.thread_time()\nf()\nfor i in range(50000): pass\ntook = time.thread_time() - begun"
        return min((run(program, namespace), namespace["took"])[1] for _ in range(5))

    more = seconds(watch) - seconds(lambda program, namespace: run_cell(program, "program", namespace))
    assert more / 100_000 < 1e-6


def test_functions_for_torch_compile_are_left_alone():
    program = """
import torch
def helper(layer, x):
    for i in range(2): x = layer(x)
    return x
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3)])
    def forward(self, x):
        for layer in self.layers: x = helper(layer, x)
        return x
def shift(x):
    for i in range(2): x = x + i
    return x
net = torch.compile(Net(), backend="eager", fullgraph=True)
compiled = torch.compile(shift, backend="eager", fullgraph=True)
for i in range(2): y = net(torch.ones(2, 3)), compiled(torch.ones(2))
"""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    watch(program, namespace)
    assert namespace["y"][1].tolist() == [2.0, 2.0]
