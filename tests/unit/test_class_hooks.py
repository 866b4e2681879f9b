"""Classes whose making notes them are noted once: on an engine, and at home."""

# ruff: noqa: E501, ISC004  # a table

from __future__ import annotations

import pytest

HOOKS = {
    "a metaclass with a list": (
        "class Meta(type):\n    known = []\n    def __new__(meta, *args):\n        made = super().__new__(meta, *args)\n        meta.known.append(made)\n"
        "        return made\nclass A(metaclass=Meta): pass",
        "class B(A): pass\nnames = [one.__name__ for one in Meta.known]",
        "names, [one.__name__ for one in Meta.known], Meta.known[0] is A, Meta.known[1] is B, type(B) is Meta",
    ),
    "a metaclass that counts": (
        "class Meta(type):\n    def __init__(cls, *args):\n        super().__init__(*args)\n        seen.append(cls.__name__)\nseen = []\nclass A(metaclass=Meta): pass",
        "class B(A): pass\nfirst = list(seen)",
        "first, seen",
    ),
    "a base that registers": (
        "class Base:\n    known = []\n    def __init_subclass__(cls, **options):\n        super().__init_subclass__()\n        Base.known.append((cls, options))\n"
        "class A(Base, rank=1): pass",
        "class B(A, rank=2): pass\nmade = [kind() for kind, _ in Base.known]",
        "[(kind.__name__, options) for kind, options in Base.known], [type(one).__name__ for one in made], Base.known[1][0] is B",
    ),
    "an abstract base": (
        "import abc\nclass Base(abc.ABC):\n    count = 0\n    def __init_subclass__(cls):\n        Base.count += 1\n    @abc.abstractmethod\n    def f(self): ...\n"
        "class A(Base):\n    def f(self): return 1\na = A()",
        "class B(A):\n    def f(self): return 2\nn = Base.count\ntry:\n    Base()\nexcept TypeError:\n    refused = True",
        "n, Base.count, refused, a.f(), B().f(), isinstance(B(), Base)",
    ),
    "models": (
        "from torch import nn\nMODELS = []\nclass Model(nn.Module):\n    def __init_subclass__(cls):\n        MODELS.append(cls)\n"
        "class Net(Model):\n    def __init__(self):\n        super().__init__(); self.l = nn.Linear(1, 1)\nnet = Net()",
        "class Other(Net): pass\nother = MODELS[1]()",
        "[kind.__name__ for kind in MODELS], type(other) is Other, isinstance(net, MODELS[0])",
    ),
    "with slots": (
        "class Meta(type):\n    made = 0\n    def __new__(meta, *args):\n        Meta.made += 1\n        return super().__new__(meta, *args)\n"
        "class A(metaclass=Meta):\n    __slots__ = ('x',)\na = A(); a.x = 1",
        "a.x += 1\nn = Meta.made",
        "n, Meta.made, a.x, hasattr(a, '__dict__')",
    ),
    "still there afterwards": (
        "class Base:\n    known = []\n    def __init_subclass__(cls):\n        Base.known.append(cls.__name__)\nclass A(Base): pass",
        "class B(Base): pass\nclass C(B): pass",
        "Base.known, [type('D', (C,), {}).__name__], Base.known",
    ),
    "a generic base": (
        "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass Box(Generic[T]):\n    kinds = []\n    def __init_subclass__(cls, **options):\n"
        "        super().__init_subclass__(**options)\n        Box.kinds.append(cls)\nclass Ints(Box[int]): pass",
        "class Texts(Box[str]): pass\nn = len(Box.kinds)",
        "n, [kind.__name__ for kind in Box.kinds], Ints.__orig_bases__ == (Box[int],)",
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_class_that_arrives_is_not_noted_again(name, notebook, other_notebook):
    setup, cell, compared = HOOKS[name]
    for one in (notebook, other_notebook):
        one.plain(setup)
    other_notebook.plain(cell)
    notebook.distribute(cell)
    assert repr(notebook.plain(compared)) == repr(other_notebook.plain(compared))
