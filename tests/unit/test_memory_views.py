"""A view of memory is one in a cell too: what is written there, or into what it shows, is there for both and in the notebook."""

from __future__ import annotations

import pytest

from jupyter_dtrain.errors import CaptureError
from tests.unit.test_copy_restore import Case, comparable

BEGIN = "import array, numpy as np\n"
CASES = {
    "all": Case("b = bytearray(b'abcdef'); m = memoryview(b)", "m[0] = 65; b[1] = 66; k = bytes(m), m.obj is b", "k, b, bytes(m)"),
    "slice": Case("b = bytearray(b'abcdef'); m = memoryview(b)[1:4]", "m[0] = 65; b[2] = 66; k = bytes(m)", "k, b, bytes(m)"),
    "step": Case("b = bytearray(b'abcdef'); m = memoryview(b)[::2]", "m[0] = 65; b[2] = 66; k = bytes(m)", "k, b, bytes(m)"),
    "backwards": Case("b = bytearray(b'abcdef'); m = memoryview(b)[::-1]", "m[0] = 65; b[2] = 66; k = bytes(m)", "k, b, bytes(m)"),
    "cast": Case("b = bytearray(24); m = memoryview(b).cast('i', [2, 3])", "m[1, 2] = 25; k = m.tolist(), m.shape", "k, b"),
    "bytes": Case("m = memoryview(b'abcdef')[1:]", "k = bytes(m), m.readonly", "k"),
    "not to be written": Case("b = bytearray(b'abc'); m = memoryview(b).toreadonly()", "b[0] = 65; k = bytes(m), m.readonly", "k, b"),
    "of an array": Case(
        "a = np.arange(6.).reshape(2, 3); m = memoryview(a)[1:]", "a[1, 0] = 5; k = m.tolist(), m.shape", "k, a.tolist(), m.tolist()"
    ),
    "of an array of Python's": Case("a = array.array('i', [1, 2]); m = memoryview(a)[1:]", "m[0] = 9; k = m.tolist()", "k, list(a)"),
    "in another order": Case(
        "a = np.asfortranarray(np.arange(6.).reshape(2, 3)); m = memoryview(a)", "a[1, 0] = 5; k = m.tolist()", "k, m.tolist()"
    ),
    "empty": Case("b = bytearray(b'abc'); m = memoryview(b)[1:1]", "k = bytes(m), m.nbytes", "k"),
    "in a list": Case(
        "b = bytearray(b'abc'); ms = [memoryview(b), memoryview(b)[1:]]",
        "ms[0][1] = 65; ms.append(1); k = bytes(ms[1])",
        "k, b, bytes(ms[0]), ms[1].obj is b",
    ),
    "made in the cell": Case("b = bytearray(b'abc')", "m = memoryview(b)[1:]; m[0] = 65", "m.obj is b, bytes(m), b"),
    "alone": Case("m = memoryview(bytearray(b'abc'))", "m[0] = 65; k = bytes(m)", "k, bytes(m)"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_view_shows_the_memory_of_the_same_object(name, notebook, other_notebook):
    case = CASES[name]
    other_notebook.plain(BEGIN + case.setup)
    other_notebook.plain(case.cell)
    notebook.plain(BEGIN + case.setup)
    notebook.distribute(case.cell)
    assert comparable(notebook.plain(case.probe)) == comparable(other_notebook.plain(case.probe))


def test_a_view_of_memory_in_pieces_is_told_of(notebook):
    notebook.plain(BEGIN + "m = memoryview(np.arange(6.).reshape(2, 3)[:, 1:])")
    with pytest.raises(CaptureError, match=r"'m' \(a memoryview\).* in one piece"):
        notebook.distribute("k = m.tolist()")
