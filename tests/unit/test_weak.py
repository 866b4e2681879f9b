"""Weak references, proxies and weak containers lead to the same objects on an engine, and afterwards in the notebook."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import pytest

from tests.unit.test_copy_restore import MODEL, STEP, Case, comparable

OPTIMIZER = "\nimport weakref\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nclass Holder: pass\nh = Holder()\n"
SETUP = MODEL + OPTIMIZER
PARENT = (
    SETUP
    + """
class Child(nn.Module):
    def __init__(self, parent): super().__init__(); self.l = nn.Linear(3, 1).double(); self.__dict__['parent'] = weakref.proxy(parent)
    def forward(self, x): return self.l(x) * self.parent.scale
class Parent(nn.Module):
    def __init__(self): super().__init__(); self.scale = nn.Parameter(torch.ones(1).double()); self.child = Child(self)
    def forward(self, x): return self.child(x)
model = Parent()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
)
CASES = {
    "proxy of a model": Case(
        SETUP + "h.m = weakref.proxy(model)",
        STEP + "k = h.m[0].weight.sum().item()",
        "[p.tolist() for p in model.parameters()], k, h.m[0] is model[0]",
    ),
    "proxy that the cell makes": Case(
        SETUP,
        STEP + "h.m = weakref.proxy(model); g = Holder(); g.m = h.m",
        "[p.tolist() for p in model.parameters()], h.m[0] is model[0], g.m is h.m",
    ),
    "proxy of the parent in a child": Case(
        PARENT, STEP, "[p.tolist() for p in model.parameters()], model.child.parent.scale is model.scale"
    ),
    "proxy of a function": Case(
        SETUP + "def step(a): return a + 1\np = weakref.proxy(step); q = weakref.proxy(model)",
        "k = p(1), q(x).sum().item(); r = [q, weakref.proxy(model)]",
        "k, r[0] is q, r[1] is q",
    ),
    "proxy of what has gone": Case(
        "import weakref\nclass E: pass\ne = E(); p = weakref.proxy(e); del e",
        "try: p.x\nexcept ReferenceError as error: said = str(error)",
        "said",
    ),
    "proxy of what has gone, from a cell": Case(
        "import weakref\nclass E: pass\ne = E(); p = weakref.proxy(e); held = [p]; del e",
        "q = p; held += [q, (p, 1)]\ntry: q.x\nexcept ReferenceError as error: said = str(error)",
        "said, len(held)",
    ),
    "proxy of what no name leads to": Case("import weakref\nclass E: n = 0\nkept = E(); p = weakref.proxy(kept)", "p.n += 3", "kept.n"),
    "reference with a callback": Case(
        SETUP + "gone = []\nr = weakref.ref(model, gone.append)",
        STEP + "same = r() is model",
        "[p.tolist() for p in model.parameters()], same, r() is model, gone",
    ),
    "reference to oneself": Case(
        "import weakref\nclass E: pass\ne = E(); e.me = weakref.ref(e); e.all = [e.me]; r = e.me",
        "r().n = 1; e.all.append(e.me)",
        "e.n, e.me() is e, len(e.all), e.all[1] is e.me",
    ),
    "reference to a method": Case(
        "import weakref\nclass T:\n    n = 0\n    def on(self): self.n += 1\nt = T(); m = weakref.WeakMethod(t.on)",
        "m()(); m2 = weakref.WeakMethod(t.on)",
        "t.n, m() == t.on, m2() == t.on",
    ),
    "reference to what has gone": Case(
        "import weakref\nclass E:\n    def on(self): pass\ne = E(); r, m = weakref.ref(e), weakref.WeakMethod(e.on); del e",
        "k = r() is None, m() is None",
        "k",
    ),
    "WeakKeyDictionary": Case(
        SETUP + "d = weakref.WeakKeyDictionary(); d[model] = 1",
        "d[model] += 1; d[optimizer] = [d[model]]",
        "d[model], d[optimizer], len(d)",
    ),
    "WeakKeyDictionary cleared": Case(SETUP + "d = weakref.WeakKeyDictionary(); d[model] = 1", "d.clear()", "len(d)"),
    "WeakKeyDictionary as attribute": Case(
        SETUP + "h.d = weakref.WeakKeyDictionary(); h.d[model] = {'n': 1}",
        "h.d[model]['n'] += 1; h.e = weakref.WeakKeyDictionary({optimizer: 5})",
        "h.d[model], h.e[optimizer]",
    ),
    "WeakSet": Case(
        SETUP + "s = weakref.WeakSet(model)",
        "s.add(model); s.discard(model[0]); n = len(s)",
        "n, len(s), model in s, model[0] in s, model[1] in s",
    ),
    "WeakValueDictionary": Case(
        SETUP + "v = weakref.WeakValueDictionary(a=model, c=optimizer)",
        "v['b'] = v.pop('c'); v['d'] = model[0]",
        "sorted(v), v['a'] is model, v['b'] is optimizer, v['d'] is model[0]",
    ),
    "weak container of a subclass": Case(
        SETUP
        + "class D(weakref.WeakKeyDictionary):\n    def __init__(self, name): super().__init__(); self.name = name\nd = D('a'); d[model] = 1",
        "d.name += 'b'; d[model] += 1",
        "d.name, d[model], type(d).__name__",
    ),
    "weak dict of tensors": Case(
        SETUP + "from torch.utils.weak import WeakTensorKeyDictionary\nd = WeakTensorKeyDictionary(); d[model[0].weight] = 1",
        "d[model[0].weight] += 1; d[model[0].bias] = 3",
        "d[model[0].weight], d[model[0].bias], len(d)",
    ),
    "weak dict that a call fills": Case(
        SETUP
        + "c = weakref.WeakKeyDictionary()\nclass Net(nn.Module):\n    def __init__(self): super().__init__(); self.l = nn.Linear(3, 1).double()\n    def forward(self, x):\n        c[self] = c.get(self, 0) + 1\n        return self.l(x)\nmodel = Net(); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        STEP,
        "[p.tolist() for p in model.parameters()], c[model]",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_weak_references_lead_to_the_notebooks_objects(name, notebook, other_notebook):
    case = CASES[name]
    other_notebook.plain(case.setup)
    other_notebook.plain(case.cell)
    expected = comparable(other_notebook.plain(case.probe))
    notebook.plain(case.setup)
    notebook.distribute(case.cell)
    assert comparable(notebook.plain(case.probe)) == expected
    assert notebook.not_returned == {}


def test_a_proxy_of_what_has_gone_is_sent_on(notebook):
    notebook.plain("import weakref\nclass E: pass\ne = E(); p = weakref.proxy(e); held = [p]; del e")
    for _ in range(3):
        notebook.distribute("q = p; held.append(q)")
    assert (
        notebook.distribute("try: q.x\nexcept ReferenceError as error: said = str(error)\nsaid")
        == "weakly-referenced object no longer exists"
    )
    assert notebook.plain("len(held)") == 4
