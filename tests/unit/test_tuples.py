"""A tuple is the same one for all that holds it, whether the cell has changed the holder or not."""

from __future__ import annotations

import pytest

SETUP = """
import torch
from collections import deque, OrderedDict
class Box: pass
"""
# The notebook has, the cell does, what is compared.
CASES = {
    "in a list and a dict": (
        "first = (1., torch.zeros(2)); L = [first]; D = {'a': first}",
        "L.append(2); D['b'] = 3",
        "L[0] is first, D['a'] is first, L, D",
    ),
    "beside a size": ("t = (torch.zeros(2), (2, ('a', None))); L = [t]", "L.append(t[1])", "L[0] is t, t"),
    "doubled": ("t = ([1],)\nu = (1,)\nfor i in range(40): t, u = (t, t), (u, u)\nL = [t, u]", "L.append(1)", "L[0] is t"),
    "with a proxy": (
        "import weakref\nb = Box(); p = weakref.proxy(b); t = (p, b); u = (p,); L = [t, u]",
        "L.append(b); t[0].n = 1",
        "L[2] is b, b.n, L[0][0].n, L[0][1] is b",
    ),
    "in an unchanged dict": ("L = [(1, torch.zeros(2))]; D = {'a': L[0]}", "L.append(2)", "L[0] is D['a'], L"),
    "under a new name": (
        "first = (1, [2]); L = [first]",
        "second = first; third = L[0]; M = [first]",
        "second is first, third is first, M[0] is first",
    ),
    "within another": (
        "inner = (torch.ones(1),); outer = (inner, [inner]); L = [outer]",
        "L.append(inner)",
        "L[0] is outer, L[1] is inner, outer[0] is L[1]",
    ),
    "with what has changed": ("t = (torch.zeros(2), [1]); L = [t]", "t[0].add_(1); t[1].append(2); L.append(t)", "L[0] is t, L[1] is t, t"),
    "of a deque": (
        "mem = deque([(torch.ones(1), 0)], maxlen=3); last = mem[-1]",
        "mem.append((torch.zeros(1), 1)); now = mem[-1]",
        "mem[0] is last, mem[-1] is now, len(mem)",
    ),
    "of an attribute": ("b = Box(); b.t = (b, 1); L = [b.t]", "L.append(1); b.u = b.t", "L[0] is b.t, b.u is b.t, b.t[0] is b"),
    "of a default": ("t = ([1],)\ndef f(x=t): return x", "L = [t]; f.n = 1", "f() is t, L[0] is t"),
    "a key": ("b = Box(); k = (b, 1); D = {k: 1}", "D[k] = 2; E = {k: 3}", "list(D)[0] is k, list(E)[0] is k, D[k]"),
    "a frozen set": ("b = Box(); f = frozenset([b]); L = [f]", "L.append(f)", "L[0] is f, L[1] is f, b in f"),
    "a set's": ("b = Box(); t = (b,); S = {t}", "S.add(1)", "t in S, [x for x in S if x != 1][0] is t"),
    "a named one": (
        "from collections import namedtuple\nP = namedtuple('P', 'a b')\np = P([1], 2); L = [p]",
        "L.append(3)",
        "L[0] is p, L",
    ),
    "that the cell makes": ("L = []", "t = (torch.ones(1), L); L.append(t); u = t", "L[0] is t, u is t, t[1] is L"),
    "equal ones that are two": ("x = [1]; a = (x,); b = (x,); L = [a, b]", "L.append(a)", "L[0] is a, L[1] is b, L[2] is a, a is b"),
    "replaced": ("t = ([1],); L = [t]", "t = (t[0], 2); L[0] = t", "L[0] is t, t"),
    "empty ones": ("t = ((), [1]); L = [t]", "L.append(())", "L[0] is t, L"),
    "with a function": ("def f(): return 1\nt = (f, len, torch.relu, Box, 'a'); L = [t]", "L.append(t[0]())", "L[0] is t, t[0] is f, L[1]"),
    "with an iterator": ("it = iter(range(9)); t = (it, 1); L = [t]", "n = next(it); L.append(n)", "next(t[0]), L[0] is t, L[1]"),
    "of groups": (
        "p = torch.nn.Parameter(torch.ones(1)); o = torch.optim.Adam([p]); b = o.defaults['betas']",
        "o.param_groups[0]['lr'] = 1",
        "o.param_groups[0]['betas'] == b",
    ),
    "deep": ("t = ([1],)\nfor i in range(3000): t = (t,)\nL = [t]", "L.append(1)", "L[0] is t"),
}


@pytest.mark.parametrize("name", CASES)
def test_it_stays_the_same(name, notebook, other_notebook):
    setup, cell, compared = CASES[name]
    for one in (notebook, other_notebook):
        one.plain(SETUP + setup)
    other_notebook.plain(cell)
    notebook.distribute(cell)
    assert repr(notebook.plain(compared)) == repr(other_notebook.plain(compared))
    notebook.distribute(cell)
    other_notebook.plain(cell)
    assert repr(notebook.plain(compared)) == repr(other_notebook.plain(compared)), "after another run"
