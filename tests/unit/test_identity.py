"""Objects without changeable contents, and exceptions, are the same objects after a cell, and exceptions have what the cell set in them."""

# ruff: noqa: E501  # a table

from __future__ import annotations

import pytest

# A notebook, a cell, and what both have the same of afterwards, wherever the cell ran.
SAME = {
    "an object() as a default": (
        "_MISSING = object()\ndef get(k, default=_MISSING): return default is _MISSING\nmarks = {_MISSING: 1}",
        "def get2(k, default=_MISSING): return default is _MISSING\nu, l, new = _MISSING, [_MISSING], object()\nl.append(new)\nget(1), get2(1), marks[u]",
        "get(1), get2(1), u is _MISSING, l[0] is _MISSING, marks[u], l[1] is new",
    ),
    "an exception": (
        "errors = [ValueError('a')]\nclass R: pass\nr = R(); r.err = errors[0]",
        "errors[0].add_note('seen'); errors[0].code = 5; errors[0].args = ('b', 2); q = errors[0]",
        "errors[0] is r.err, r.err.__notes__, r.err.code, r.err.args, q is r.err, len(errors)",
    ),
    "one of a class of the notebook": (
        "class E(Exception):\n    def __init__(self, a, b): super().__init__(a); self.b = b\ne = E(1, 2); held = {'e': e}",
        "e.args = (5,); e.b = 3; f = e; e.add_note('x')",
        "e.args, e.b, held['e'] is e, f is e, e.__notes__",
    ),
    "of the system": (
        "try: open('/nowhere/x')\nexcept OSError as x: e = x\nheld = [e]; plain = OSError(2, 'no')",
        "e.filename = 'y'; e.errno = 5; g = e\nstr(e), str(plain)",
        "str(e), e.filename, e.errno, g is e, held[0] is e, str(plain)",
    ),
    "with a value, and in a group": (
        "s, x, k = StopIteration(3), SystemExit(2), KeyError('a'); g = ExceptionGroup('m', [k, s])",
        "s.value = 4; x.code = 3; kk = g.exceptions[0]; g.add_note('n')\ng.exceptions[1].value",
        "s.value, x.code, kk is k, g.exceptions[0] is k, g.exceptions[1] is s, g.__notes__",
    ),
    "with names": (
        "caught = []\nfor text in ('import nothing_there', 'undefined_', '(1).foo', 'b\"\\\\xff\".decode()'):\n    try: exec(text)\n    except Exception as x: caught.append(x)",
        "caught[3].reason = 'r'\n[str(one) for one in caught], [one.name for one in caught[:3]]",
        "[str(one) for one in caught], [one.name for one in caught[:3]]",
    ),
    "another one by the same name": ("e = ValueError('x')", "old = e\ne = KeyError('y')", "repr(old), repr(e), old is e"),
}


@pytest.mark.parametrize("name", SAME)
def test_they_are_the_same_objects(name, notebook, other_notebook):
    setup, cell, compared = SAME[name]
    other_notebook.plain(setup)
    expected = repr(other_notebook.plain(cell)), repr(other_notebook.plain(compared))
    notebook.plain(setup)
    assert (repr(notebook.distribute(cell)), repr(notebook.plain(compared))) == expected
    assert repr(notebook.distribute(compared)) == expected[1]
