"""Classes of the notebook have on an engine the attributes that they have there, in the same order; and so have those that come home."""

# ruff: noqa: E501, ISC004  # a table

from __future__ import annotations

import pytest

LISTED = (
    "def listed(*kinds):\n    left = ('__module__', '__dict__', '__weakref__', '__doc__', '__slotnames__')\n"
    "    return [[name for name in vars(kind) if name not in left] for kind in kinds]\n"
)
CFG = LISTED + "class CFG:\n    seed = 3\n    lr: float = 0.1\n    apex = True\n    def f(self): pass\n    batch = 2\n"

# A notebook, a cell, and what both have the same of afterwards, wherever the cell ran.
CLASSES = {
    "of the notebook": (CFG, "{k: v for k, v in vars(CFG).items() if k[0] != '_' and not callable(v)}, listed(CFG)", "listed(CFG)"),
    "of the cell": (LISTED, CFG.removeprefix(LISTED) + "listed(CFG)", "{k: v for k, v in vars(CFG).items() if k[0] != '_' and not callable(v)}, listed(CFG)"),
    "changed in the cell": (CFG, "CFG.zeta = 1; CFG.alpha = 2; CFG.lr = 5; del CFG.apex\nlisted(CFG)", "listed(CFG), CFG.lr"),
    "with the values of a base": (
        CFG + "class Debug(CFG):\n    seed = 3\n    apex = True\n    aa = 1",
        "CFG.seed = 4\nclass Other(Debug):\n    zz = 1\n    aa = 1\n    seed = 3\nlisted(Debug, Other), Debug.seed",
        "listed(Debug, Other), CFG.seed, Debug.seed, Other.seed",
    ),
    "with several bases": (
        LISTED + "class A:\n    z = 1\n    a = 1\nclass B:\n    y = 2\n    b = 1\nclass C(A, B):\n    z = 1\n    b = 1\n    x = 3\n    y = 2",
        "class D(C):\n    x = 3\n    b = 1\nlisted(C, D)",
        "listed(C, D)",
    ),
    "with slots": (
        LISTED + "class S:\n    z = 1\n    __slots__ = ('b', 'a')\n    y = 2\n    def f(self): pass\ns = S(); s.b = 1",
        "class T(S):\n    x = 1\n    __slots__ = ('k', 'j')\n    a2 = 2\ns.a = 2\nlisted(S, T)",
        "listed(S, T), s.a, s.b, hasattr(s, '__dict__')",
    ),
    "data classes": (
        LISTED + "from dataclasses import *\n@dataclass\nclass A:\n    z: int = 1\n    b: list = field(default_factory=list)\n    a: str = 'x'",
        "@dataclass\nclass B(A):\n    y: int = 1\n    c: int = 2\nlisted(A, B)",
        "listed(A, B), repr(B())",
    ),
    "enumerations": (
        LISTED + "import enum\nclass E(enum.Enum):\n    Z = 1\n    A = 2\n    def g(self): return 1\n    M = 0\n    @property\n    def b(self): return 2\n"
        "class N(enum.Enum):\n    def __new__(cls, value):\n        made = object.__new__(cls); made._value_ = value; return made\n    Z = 1\n    def g(self): pass\n    A = 2\n    def b(self): pass",
        "class F(enum.IntFlag):\n    Z = 1\n    A = 2\n    def k(self): pass\n    def b(self): pass\nlisted(E, F, N), [*E, *F, *N]",
        "listed(E, F, N), [*E, *F, *N]",
    ),
    "abstract ones": (
        LISTED + "import abc\nclass A(abc.ABC):\n    z = 1\n    @abc.abstractmethod\n    def f(self): pass\n    a = 2\nclass B(A):\n    y = 1\n    def f(self): return 1\n    b = 2",
        "class C(B):\n    x = 2\n    c = 1\nlisted(A, B, C), B().f()",
        "listed(A, B, C), C().f(), sorted(A.__abstractmethods__)",
    ),
    "named tuples, generic ones, protocols": (
        LISTED + "from typing import *\nT = TypeVar('T')\nclass P(NamedTuple):\n    y: int\n    x: int = 3\n    def g(self): pass\n    @property\n    def a(self): return 1\n"
        "class G(Generic[T]):\n    z = 1\n    a = 2\nclass Q(Protocol):\n    z: int\n    def f(self): ...\n    a: int\nclass D(TypedDict):\n    z: int\n    a: int",
        "class H(G[int]):\n    y = 1\n    b = 2\nclass R(NamedTuple):\n    z: int\n    b: int = 3\nlisted(P, G, Q, D, H, R), P(1)",
        "listed(P, G, Q, D, H, R), R(1)",
    ),
    "with a metaclass and a hook": (
        LISTED + "class Meta(type):\n    def zz(cls): pass\n    def __new__(meta, *args): return super().__new__(meta, *args)\n    def aa(cls): pass\nclass A(metaclass=Meta):\n    z = 1\n    a = 2\n"
        "class R:\n    def __init_subclass__(cls): cls.zeta = 1; cls.alpha = 2\nclass S(R):\n    y = 1\n    b = 2",
        "class B(A):\n    y = 1\n    b = 2\nclass T(S):\n    x = 1\n    c = 2\nlisted(Meta, A, B, R, S, T)",
        "listed(Meta, A, B, R, S, T)",
    ),
    "with an instance of itself": (
        LISTED + "class A:\n    z = 1\n    def __new__(cls): return super().__new__(cls)\n    def __init__(self): self.q = 1\n    a = 2\nA.default = A(); A.one = {A.default}; A.b = 3",
        "A.default.q += 1\nlisted(A), A.default in A.one",
        "listed(A), A.default.q",
    ),
    "models": (
        LISTED + "from torch import nn\nclass M(nn.Module):\n    z = 1\n    def forward(self, x): return x\n    a = 2\n    def __init__(self): super().__init__()\n    def b(self): pass",
        "m = M()\nlisted(M)",
        "listed(M, type(m))",
    ),
}  # fmt: skip


QUALIFIED = {
    "nested": (
        "class Outer:\n    class Cfg:\n        class In: x = 1\n        lr = 0.1\n    def make(self):\n        class Local: pass\n        return Local\nc, i = Outer.Cfg(), Outer.Cfg.In()",
        "d = Outer.Cfg.In(); Local = Outer().make()\nOuter.Cfg, Outer.Cfg.In, Local, type(c) is Outer.Cfg",
        "type(d), Local, type(c) is Outer.Cfg, type(d) is type(i)",
    ),
    "local": (
        "def make(n):\n    class C:\n        k = n\n        def f(self): return self.k\n    return C\nA, B = make(1), make(2); a = A()",
        "D = make(3); d = D()\nA, A is B, a.f(), D, A.f.__qualname__",
        "D, d.f(), isinstance(a, A), make(4)",
    ),
    "of the cell": (
        "",
        "import enum\nclass O:\n    class I:\n        class J: pass\n    class E(enum.Enum): A = 1\nj, e = O.I.J(), O.E.A\nO.I.J, O.E",
        "O.I.J, type(j) is O.I.J, O.E, e is O.E.A",
    ),
    "data classes and tuples": (
        "from dataclasses import *\nfrom typing import NamedTuple\nclass T:\n    @dataclass\n    class C:\n        lr: float = 0.1\n    @dataclass(slots=True)\n    class S:\n        k: int = 1\n"
        "    class P(NamedTuple):\n        x: int\nc, s, p = T.C(), T.S(), T.P(1)",
        "d = replace(c, lr=2.0); q = T.P(2)\nc, s, p, T.P",
        "c, d, s, type(q)",
    ),
    "errors": (
        "class M:\n    class Err(Exception): pass\n    def go(self): raise self.Err('x')\nm = M()",
        "import traceback\ntry: m.go()\nexcept Exception as error: kept = error\ntraceback.format_exception_only(kept)",
        "traceback.format_exception_only(kept), isinstance(kept, M.Err)",
    ),
    "with a metaclass, a hook, and another name": (
        "class Meta(type):\n    def __new__(meta, *args): return super().__new__(meta, *args)\nclass O:\n    class A(metaclass=Meta): x = 1\n"
        "    class R:\n        def __init_subclass__(cls): cls.q = cls.__qualname__\nclass Z: pass\nZ.__qualname__ = 'X.Y'",
        "class K:\n    class T(O.R): pass\nO.A, K.T, K.T.q, Z",
        "O.A, K.T, K.T.q, Z",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", QUALIFIED)
def test_names_are_qualified(name, notebook, other_notebook):
    test_attributes_are_in_order(name, notebook, other_notebook)


@pytest.mark.parametrize("name", CLASSES)
def test_attributes_are_in_order(name, notebook, other_notebook):
    setup, cell, compared = (CLASSES | QUALIFIED)[name]
    other_notebook.plain(setup)
    expected = repr(other_notebook.plain(cell)), repr(other_notebook.plain(compared))
    notebook.plain(setup)
    assert (repr(notebook.distribute(cell)), repr(notebook.plain(compared))) == expected


def test_a_class_that_an_engine_has_follows_the_notebook(notebook):
    notebook.plain(CFG)
    assert notebook.distribute("CFG.kept = 1\nlisted(CFG)") == [["__annotations__", "seed", "lr", "apex", "f", "batch", "kept"]]
    notebook.plain("del CFG.apex, CFG.seed, CFG.kept; CFG.z = 1; CFG.seed = 7")
    expected = ["__annotations__", "lr", "f", "batch", "z", "seed"]
    assert notebook.distribute("listed(CFG) + [hasattr(CFG, 'apex'), hasattr(CFG, 'kept'), CFG.seed]") == [expected, False, False, 7]
    assert notebook.plain("listed(CFG)") == [expected]
