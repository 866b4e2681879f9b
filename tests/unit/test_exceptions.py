"""An exception that a cell keeps, or the notebook has kept, comes with the exceptions before it. Its traceback stays where it was."""

# ruff: noqa: E501, ISC004  # a table

from __future__ import annotations

import pytest

from jupyter_dtrain.errors import CaptureError
from tests.unit.test_pickling import sent

CHAINS = (
    "def kept_by(after, cause):\n    try:\n        try: {}['a']\n        except KeyError as e: raise after from {'it': e, 'none': None}[cause] if cause else e\n    except type(after) as error: return error\n"
    "def told(error): return repr(error), repr(error.__cause__), repr(error.__context__), error.__suppress_context__, getattr(error, '__notes__', None)\n"
    "class Own(Exception):\n    def __init__(self, a, b): super().__init__(a); self.b = b\nclass Reduced(Exception):\n    def __reduce__(self): return Reduced, ()\n"
)
# A notebook, a cell, and what both have the same of afterwards, wherever the cell ran.
KEPT = {
    "raised in the cell": (
        CHAINS + "kept = []",
        "kept += [kept_by(RuntimeError('w'), 'it'), kept_by(OSError(2, 'v'), 'none'), kept_by(Own(1, 2), 'it'), kept_by(Reduced(), 'it')]\n"
        "try:\n    try: 1 / 0\n    except ZeroDivisionError: raise ValueError('u')\nexcept ValueError as error: kept.append(error)\nkept[0].add_note('n')\n[told(one) for one in kept]",
        "[told(one) for one in kept], kept[0].__cause__ is kept[0].__context__, kept[2].b",
    ),
    "raised before it": (
        CHAINS
        + "kept = [kept_by(RuntimeError('w'), 'it'), kept_by(OSError(2, 'v'), 'it'), kept_by(Reduced(), 'none')]\ncause = kept[0].__cause__",
        "first = [told(one) for one in kept], kept[0].__cause__ is cause\nkept[2].__cause__ = kept[1]; kept[1].__cause__ = None; kept[1].__suppress_context__ = False; cause.add_note('x')\nfirst",
        "[told(one) for one in kept], kept[2].__cause__ is kept[1], kept[0].__context__ is cause, cause.__notes__",
    ),
    "raised again": (
        "e = ValueError('x'); held = [e]",
        "try:\n    try: 1 / 0\n    except ZeroDivisionError: raise e\nexcept ValueError as again: kept = again\nrepr(kept.__context__)",
        "repr(e.__context__), held[0] is e, kept is e",
    ),
    "a group": (
        "",
        "try:\n    try: 1 / 0\n    except ZeroDivisionError as e: raise ExceptionGroup('g', [e, ValueError(3)]) from e\nexcept ExceptionGroup as group: kept = group\nrepr(kept), repr(kept.__cause__)",
        "repr(kept), repr(kept.__cause__), kept.exceptions[0] is kept.__cause__",
    ),
    "a long chain": (
        "error = None",
        "for n in range(300):\n    new = ValueError(n); new.__context__ = error; error = new",
        "n = 0\nlast = error\nwhile last.__context__ is not None: last = last.__context__; n += 1\nn, last.args",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_exceptions_have_those_before_them(name, notebook, other_notebook):
    setup, cell, compared = KEPT[name]
    other_notebook.plain(setup)
    expected = repr(other_notebook.plain(cell)), repr(other_notebook.plain(compared))
    notebook.plain(setup)
    assert (repr(notebook.distribute(cell)), repr(notebook.plain(compared))) == expected


def test_tracebacks_stay():
    try:
        raise ValueError from KeyError("a")
    except ValueError as error:
        copy = sent(error)
    assert copy.__traceback__ is copy.__cause__.__traceback__ is None
    assert copy.__cause__.args == ("a",)


def test_a_cause_that_cannot_be_sent_is_named(notebook):
    notebook.plain(
        "import threading\nerror, cause = ValueError('x'), KeyError('y')\ncause.within = threading.local(); cause.within.a = (i for i in 'a')\nerror.__cause__ = cause"
    )
    with pytest.raises(CaptureError, match=r"its \.__cause__\.within"):
        notebook.distribute("error.args")
