"""The names that a cell needs, against what happens when it runs with exactly those."""

from __future__ import annotations

import ast
import asyncio
import builtins
import inspect
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_dtrain.analysis.names import CellNames, find_names
from jupyter_dtrain.serialization.python_reducers import EAGER


def names_of(cell: str) -> tuple[set[str], set[str]]:
    """Return what the cell needs and what it may need, without the names of builtins."""
    found = find_names(ast.parse(cell))
    assert not set(found.needed) & set(found.maybe), "a name is one or the other"
    return {name for name in found.needed if not hasattr(builtins, name)}, {name for name in found.maybe if not hasattr(builtins, name)}


# Each cell with the names that it needs, and those that it may need.
CELLS = {
    # order of statements
    "y = model(x)": ("model x", ""),
    "x = 1\ny = x": ("", ""),
    "y = x\nx = 1": ("x", ""),
    "x = x + 1": ("x", ""),
    "x += 1": ("x", ""),
    "x.lr = 1": ("x", ""),
    "x['a'][k] = v": ("x k v", ""),
    "x[i] += 1": ("x i", ""),
    "a = b = c": ("c", ""),
    "(a, [b, *c]), d.e = f()\na, b, c": ("d f", ""),
    "x = 1; y = x; z = w": ("w", ""),
    "assert ok, message": ("ok message", ""),
    "raise error from cause": ("error cause", ""),
    "global x\nx = 1\nprint(x)": ("", ""),
    "pass": ("", ""),
    # expressions
    "f'{a!r:>{width}} {b.c[d]} {{e}}'": ("a width b d", ""),
    "f(*args, key=value, **options)": ("f args value options", ""),
    "x = lst[start:stop, ::step]": ("lst start stop step", ""),
    "a if b else c": ("a b c", ""),
    "a < b <= c": ("a b c", ""),
    "not a and b or c": ("a b c", ""),
    "{a: b, **c}\n{d, *e}": ("a b c d e", ""),
    "x @ y; -z; ~w": ("x y z w", ""),
    "print(f'{x=}')": ("x", ""),
    "t.query('loss < @best')[f'@{x}'].eval('@k + 1')": ("t x", "best k"),
    "t.find('@best')": ("t", ""),
    # assignment expressions
    "(n := 3)\nn": ("", ""),
    "(n := n + 1)": ("n", ""),
    "if (m := match(s)):\n    use(m)\nm": ("match s use", ""),
    "while (chunk := read()):\n    use(chunk)\nprint(chunk)": ("read use", ""),
    "a and (b := 1)\nb": ("a", "b"),
    "(b := 1) if a else 2\nb": ("a", "b"),
    "a < 1 < (b := 2)\nb": ("a", "b"),
    "[last := v for v in data]\nlast": ("data", "last"),
    "print((k := 1), k)": ("", "k"),  # whichever comes first in an expression: its own value is found when it runs
    # comprehensions
    "[x for x in xs if x > low]": ("xs low", ""),
    "{k: v for k, v in items for k in k}": ("items", ""),
    "x = 1\n[x for y in ys]": ("ys", ""),
    "sum(a * b for a, b in zip(p, q))": ("p q", ""),
    "[y for x in xs for y in x]\ny": ("xs y", ""),
    "[[f(i, j, k) for j in js] for i in range(n)]": ("f js n k", ""),
    "[lambda: x + free for x in xs]": ("xs", "free"),
    # branches
    "if c:\n    x = 1\nprint(x)": ("c", "x"),
    "if c:\n    x = 1\nelse:\n    x = 2\nprint(x)": ("c", ""),
    "if c:\n    x = 1\nelif d:\n    x = 2\nprint(x)": ("c d", "x"),
    "if c:\n    print(x)": ("c x", ""),
    "if c:\n    x = 1\n    print(x)": ("c", ""),
    # loops
    "for x, y in loader:\n    loss = f(x, y)\nloss": ("loader f", "loss"),
    "for i in r:\n    break\nelse:\n    done = 1": ("r", ""),
    "for i in r:\n    if i:\n        continue\n    use(i)": ("r use", ""),
    "for i in r:\n    total += i": ("r total", ""),
    "total = 0\nfor i in r:\n    total += i\ntotal": ("r", ""),
    "for i in r:\n    print(best)\n    best = i": ("r best", ""),
    "for i in r:\n    if i > 0:\n        print(prev)\n    prev = i": ("r", "prev"),
    "for i in r:\n    print(prev if i else None)\n    prev = i": ("r prev", ""),  # both arms of an expression count
    "for i in r:\n    pass\nprint(i)": ("r", "i"),
    "for d[k] in r:\n    pass": ("d k r", ""),
    "for self.i in r:\n    pass": ("self r", ""),
    "for i in r:\n    x = 1\nelse:\n    print(x)": ("r", "x"),
    "while n > 0:\n    n -= 1": ("n", ""),
    "while True:\n    x = 1\n    break\nprint(x)": ("", "x"),
    "while a:\n    b = 1\n    if b:\n        break\nelse:\n    c": ("a c", ""),
    "for a in r:\n    for b in a:\n        if b:\n            use(last)\n    last = a": ("r use", "last"),
    # with
    "with open(path) as f:\n    text = f.read()\ntext": ("path", ""),
    "with no_grad(), autocast(kind) as (a, b):\n    out = model(a)\nout, b": ("no_grad autocast kind model", ""),
    "with suppress(KeyError):\n    x = d['k']\nprint(x)": ("suppress d", "x"),
    "with contextlib.suppress(E):\n    x = 1\nx": ("contextlib E", "x"),
    "with lock as d[k]:\n    pass": ("lock d k", ""),
    # try
    "try:\n    x = f()\nexcept E as e:\n    print(e)\nprint(x)": ("f E", "x"),
    "try:\n    x = f()\nexcept E:\n    x = None\nprint(x)": ("f E", ""),
    "try:\n    x = f()\nfinally:\n    print(x)": ("f", "x"),
    "try:\n    x = f()\nfinally:\n    y = 1\nprint(x, y)": ("f", ""),
    "try:\n    pass\nexcept (A, B) as e:\n    raise\nelse:\n    z = 1\nz": ("A B", "z"),
    "e = 1\ntry:\n    f()\nexcept E as e:\n    pass\ne": ("f E", "e"),
    "try:\n    f()\nexcept* E as group:\n    group.x": ("f E", ""),
    # match
    "match point:\n    case (x, y) if x > limit:\n        use(x, y)\n    case [a, *rest]:\n        rest": ("point limit use", ""),
    "match v:\n    case {'k': w, **others}:\n        others, w": ("v", ""),
    "match v:\n    case Point(x=0, y=yy) | Other(yy):\n        yy\n    case Color.RED:\n        pass": ("v Point Other Color", ""),
    "match v:\n    case 1:\n        x = 1\nx": ("v", "x"),
    "match v:\n    case 1:\n        x = 1\n    case _:\n        x = 2\nx": ("v", ""),
    "match v:\n    case {key.a: 1}:\n        pass": ("v key", ""),
    # functions
    "def f(a, b=d, *c: t, **k) -> r:\n    return a + g": ("d t r", "g") if EAGER else ("d", "g r t"),
    "def f():\n    return g()\ndef g():\n    return h": ("", "g h"),
    "def f(n):\n    return f(n - 1)": ("", ""),
    "x = 1\ndef f():\n    return x + y": ("", "y"),
    "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = y\n    return g": ("", "y"),
    "@decorator(arg)\ndef f():\n    pass": ("decorator arg", ""),
    "def f():\n    global count\n    count += 1\nf()\nprint(count)": ("", "count"),
    "def f():\n    global made\n    made = 1\nf()\nmade": ("", "made"),
    "g = lambda a, b=c: a + b + d": ("c", "d"),
    "def f():\n    yield from g": ("", "g"),
    "def f():\n    import math\n    return math.pi + tau": ("", "tau"),
    "def f():\n    return [x for x in xs if x in ys]": ("", "xs ys"),
    "def f():\n    del x[k]": ("", "x k"),
    # async
    "await f(x)": ("f x", ""),
    "async for x in xs:\n    x\nasync with c as d:\n    d": ("xs c", ""),
    "[await g(y) async for y in ys]": ("g ys", ""),
    "async def f():\n    await g(x)": ("", "g x"),
    # classes
    "class A(B, metaclass=M):\n    x = y\n    z = x\n    def f(self):\n        return w, A": ("B M y", "w"),
    "@dataclass\nclass A:\n    lr: float = base\n    names: list[T] = field(default_factory=list)": ("dataclass base T field", "")
    if EAGER
    else ("dataclass base field", "T"),
    "class A:\n    x = [i for i in xs]": ("xs", ""),
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.a = nn.Linear(n, 1)\nm = Net()": ("nn", "n"),
    "x = 1\nclass A:\n    y = x\nA": ("", ""),
    "class A:\n    x = x": ("x", ""),
    # imports, annotations, deletion
    "import a.b.c\nimport d as e\nfrom f import g, h as i\na, e, g, i": ("", ""),
    "import a.b as c\na": ("a", ""),
    "from math import *\nsin(x)": ("", "sin x"),
    "x: int\nprint(x)": ("x", ""),
    "x: T = 1\nprint(x)": ("T", "") if EAGER else ("", "T"),
    "self.x: T": ("self T", "") if EAGER else ("self", ""),
    "del x": ("x", ""),
    "x = 1\ndel x": ("", ""),
    "x = 1\ndel x\nx = 2\nx": ("", ""),
    "del a, (b, c[i]), d.e": ("a b c i d", ""),
    "del x\nx = 1\nx": ("x", ""),
    "x = 1\nif c:\n    del x\nprint(x)": ("c", "x"),
}


@pytest.mark.parametrize("cell", CELLS)
def test_needed_and_maybe_needed(cell):
    needed, maybe = CELLS[cell]
    assert names_of(cell) == (set(needed.split()), set(maybe.split()))


def test_lines_are_those_of_the_first_read():
    cell = "a = 1\n\nprint(a,\n      b)\nb\ndef f():\n    return (c,\n            d)\nif a:\n    d\n"
    found = find_names(ast.parse(cell))
    assert found == CellNames(needed={"print": 3, "b": 4, "d": 10}, maybe={"c": 7})
    assert list(found) == ["print", "b", "d", "c"]


def test_attributes_of_anything():
    cell = "import os\nos.path.join(a.b, [c.d for c in e.f])\ng.h = 1\ndef i():\n    return j.k"
    assert find_names(ast.parse(cell)).attributes == {"path", "join", "b", "d", "f", "h", "k"}


def test_a_training_cell():
    cell = """
losses = []
for epoch in range(num_epochs):
    model.train()
    for step, (images, labels) in enumerate(loader):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=amp):
            logits = model(images.to(device))
            loss = criterion(logits, labels)
        loss.backward()
        if step % 10 == 0 and step > 0:
            print(f"{epoch=} {loss.item():.{digits}f} {running / 10}")
            running = 0.0
        optimizer.step()
    losses.append(loss.item())
    try:
        best = min(best, losses[-1])
    except NameError:
        best = losses[-1]
print(loss)
"""
    assert names_of(cell) == (
        {"num_epochs", "model", "loader", "optimizer", "torch", "amp", "device", "criterion", "digits", "best"},
        {"running", "loss"},
    )


# -- against what really happens -------------------------------------------------------------------------------------


class Anything:
    """A value that takes part in whatever a cell does with it, and tells its name."""

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def __repr__(self) -> str:
        return f"<{self._name}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __setattr__(self, name: str, value: object) -> None:
        pass

    __delattr__ = __delitem__ = __setitem__ = lambda *_: None
    __call__ = __getitem__ = __add__ = __radd__ = __sub__ = __iadd__ = lambda self, *_, **__: self
    __mul__ = __matmul__ = __neg__ = __invert__ = lambda self, *_: self
    __enter__ = __mro_entry__ = lambda self: self
    __exit__ = lambda *_: None  # noqa: E731
    __lt__ = __le__ = __gt__ = __contains__ = lambda *_: True
    __bool__ = lambda _: True  # noqa: E731
    __len__ = lambda _: 2  # noqa: E731
    __hash__ = object.__hash__
    __format__ = lambda self, _: repr(self)  # noqa: E731

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return ()

    def __iter__(self) -> Any:
        return iter((self, self))

    def __await__(self) -> Any:
        yield from ()
        return self

    async def __aiter__(self) -> Any:
        yield self

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        return ["key"]


def run(cell: str, namespace: dict[str, Any]) -> str | None:
    """Run a cell and return what it raised."""
    code = compile(cell, "<cell>", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    try:
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, namespace))
        else:
            exec(code, namespace)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def assert_runs_the_same(cell: str, notebook: dict[str, Any]) -> None:
    """Check that the names found are all that the cell needs: with them alone it does what it does with all."""
    found = set(find_names(ast.parse(cell)))
    whole = notebook | {"__name__": "__main__"}
    part = {name: value for name, value in whole.items() if name in found or name == "__name__"}
    assert run(cell, part) == run(cell, whole)
    for name in whole.keys() | part.keys():
        if name in part or name not in notebook:
            assert describe(part.get(name)) == describe(whole.get(name)), name
        elif name in whole:
            assert whole[name] is notebook[name], f"{name} was changed, which nobody noticed"


def describe(value: object) -> str:
    return type(value).__name__ if callable(value) or type(value).__repr__ is object.__repr__ else repr(value)


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_runs_with_the_names_found_alone(cell):
    words = {node.id for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Name) and not hasattr(builtins, node.id)}
    notebook: dict[str, Any] = {name: Anything(name) for name in words} | {
        "n": 2,
        "contextlib": __import__("contextlib"),
        "suppress": suppress,
    }
    notebook |= {
        name: KeyError for name in ("E", "A", "B") if f"except {name}" in cell or f"except* {name}" in cell or f"suppress({name}" in cell
    }
    if "while" in cell:
        notebook["read"] = lambda: 0
    assert_runs_the_same(cell, {name: value for name, value in notebook.items() if name in words})


def block(lines: list[str]) -> str:
    return "\n".join("    " + line for part in lines for line in part.splitlines())


SIMPLE = ("=", "=", "=", "+=", "*", ":=", ":", "del", "import", "value", "raise", "def", "global", "nested", "class", "named class")
COMPOUND = ("if", "else", "for", "range", "later", "except", "tried", "finally", "suppress", "with", "match", "star")


class Writer:
    """Writes cells on five names, one choice after the other."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def choose(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    @property
    def name(self) -> str:
        return self.choose(*"abcde")

    def value(self, depth: int = 2) -> str:
        kind = self.choose(
            "name", "name", "name", "0", "1", "sum", "walrus", "if", "and", "or", "list", "filter", "lambda", "bound", "f-string"
        )
        if kind in "01":
            return kind
        if kind == "name" or depth == 0:
            return self.name

        def inner() -> str:
            return self.value(depth - 1)

        match kind:
            case "sum":
                return f"({inner()} + {inner()})"
            case "walrus":
                return f"({self.name} := {inner()})"
            case "if":
                return f"({inner()} if {inner()} else {inner()})"
            case "and" | "or":
                return f"({inner()} {kind} {inner()})"
            case "list":
                return f"len([{self.name} for {self.name} in (1, 0)])"
            case "filter":
                return f"sum([{inner()} for i in (1, 2) if {inner()}])"
            case "lambda":
                return f"(lambda: {self.name})()"
            case "bound":
                return f"(lambda {(name := self.name)}: {name} + {self.name})(1)"
        return f"len(f'{{{self.name}}}')"

    def body(self, depth: int, *, loop: bool = False, most: int = 3) -> str:
        return block([self.statement(depth - 1, loop=loop) for _ in range(self.draw(st.integers(1, most)))])

    def statement(self, depth: int, *, loop: bool = False) -> str:
        kinds = [*SIMPLE, *(("break", "continue") if loop else ()), *(COMPOUND if depth else ())]
        kind = self.choose(*kinds)
        return self.compound(kind, depth, loop=loop) if kind in COMPOUND else self.simple(kind)

    def simple(self, kind: str) -> str:
        match kind:
            case "=" | "+=":
                return f"{self.name} {kind} {self.value()}"
            case "*":
                return f"{self.name}, *{self.name} = {self.value()}, 1"
            case ":=":
                return f"{self.name}: int = {self.value()}"
            case ":":
                return f"{self.name}: int"
            case "del":
                return f"del {self.name}"
            case "import":
                return f"import math as {self.name}"
            case "raise":
                return "raise KeyError"
            case "def":
                return f"def f({self.name}={self.name}):\n    return {self.value()}\nf()"
            case "global":
                return f"def f():\n    global {(name := self.name)}\n    {name} = {self.value()}\nf()"
            case "nested":
                return f"def f():\n    {(name := self.name)} = 1\n    def g():\n        return {name} + {self.name}\n    return g\nf()()"
            case "class":
                return f"class K:\n    {self.name} = {self.name}\n    x = {self.name}"
            case "named class":
                return f"class {self.name}:\n    pass"
            case "break" | "continue":
                return f"if {self.value()}:\n    {kind}"
        return self.value()

    def compound(self, kind: str, depth: int, *, loop: bool) -> str:
        match kind:
            case "if":
                return f"if {self.value()}:\n{self.body(depth, loop=loop)}"
            case "else":
                return f"if {self.value()}:\n{self.body(depth, loop=loop)}\nelse:\n{self.body(depth, loop=loop)}"
            case "for":
                return f"for {self.name} in ({self.value()}, 1)[:{self.choose(*'012')}]:\n{self.body(depth, loop=True)}"
            case "range":
                return f"for i in range(2):\n{self.body(depth, loop=True)}\nelse:\n{self.body(depth, loop=loop)}"
            case "later":
                return f"for i in range(2):\n    if i > 0:\n{block([self.body(depth, loop=True)])}\n{self.body(depth, loop=True)}"
            case "except":
                return f"try:\n{self.body(depth, loop=loop)}\nexcept KeyError as {self.name}:\n{self.body(depth, loop=loop)}"
            case "tried":
                parts = [self.body(depth, loop=loop) for _ in range(3)]
                return "try:\n{}\nexcept (NameError, TypeError):\n{}\nelse:\n{}".format(*parts)
            case "finally":
                return f"try:\n{self.body(depth, loop=loop)}\nfinally:\n{self.body(depth)}"
            case "suppress":
                return f"with suppress(KeyError):\n{self.body(depth, loop=loop)}"
            case "with":
                return f"with nullcontext({self.value()}) as {self.name}:\n{self.body(depth, loop=loop)}"
            case "match":
                cases = [block([f"case {pattern}:", self.body(depth, loop=loop)]) for pattern in ("1", self.name)]
                return "\n".join([f"match {self.value()}:", *cases])
        name = self.name
        return f"match [{self.value()}, 1]:\n    case [{name}, *x] if {name}:\n{block([self.body(depth, loop=loop)])}"


@st.composite
def cells(draw: st.DrawFn) -> str:
    writer = Writer(draw)
    return "\n".join(writer.statement(2) for _ in range(draw(st.integers(1, 5))))


@settings(max_examples=100, deadline=None)
@given(cell=cells(), values=st.fixed_dictionaries({name: st.integers(0, 2) for name in "abcde"}))
def test_any_cell_runs_with_the_names_found_alone(cell, values):
    assert_runs_the_same(cell, values | {"suppress": suppress, "nullcontext": nullcontext})
