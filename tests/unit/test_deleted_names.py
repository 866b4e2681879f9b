"""Names that a cell deletes are gone in the notebook afterwards, also those whose values it did not need."""

from __future__ import annotations

import pytest

# The notebook has, the cell does, the names that are left with a value to look at.
CASES = {
    "a handler's": ("e = 5", "try: 1 / 0\nexcept ZeroDivisionError as e: print(e)"),
    "a handler's that is not entered": ("e = 5", "try: 1 / 1\nexcept ZeroDivisionError as e: print(e)"),
    "a handler's of a group": ("e = 5", "try: raise ExceptionGroup('', [OSError()])\nexcept* OSError as e: pass"),
    "a handler's in a function": ("e = 5", "def f():\n    try: 1 / 0\n    except ZeroDivisionError as e: pass\nf()"),
    "a handler's in a function, global": ("e = 5", "def f():\n    global e\n    try: 1 / 0\n    except Exception as e: pass\nf()"),
    "a handler's that is rebound": ("e = 5", "try: 1 / 0\nexcept ZeroDivisionError as e: pass\ne = 7"),
    "assigned": ("q = 6", "q = 7; del q"),
    "assigned in a loop": ("q = 6; i = 8", "for i in range(3): q = i; del q"),
    "assigned in a loop without iterations": ("q = 6; i = 8", "for i in range(0): q = i; del q"),
    "assigned after": ("q = 6", "q = 7; del q; q = 8"),
    "what cannot be sent": ("q = (i for i in [1])", "q = 7; del q"),
    "of a with": ("w = 1", "with open('t', 'w') as w: w.write('x')\ndel w"),
    "an import": ("np = 3", "import numpy as np; del np"),
    "a function": ("f = 3", "def f(): pass\ndel f"),
    "several": ("a, b, c = 1, 2, 3", "a, b = 4, 5; del a, (b,)"),
    "by a function": ("q = 6", "def f():\n    global q\n    q = 7\n    del q\nf()"),
    "by a function that is not called": ("q = 6", "def f():\n    global q\n    q = 7\n    del q"),
    "by the notebook's function": ("q = 6\ndef f():\n    global q\n    q = 7\n    del q", "f()"),
    "read by the notebook's function": ("q = 6\ndef f(): return q", "r = f(); q = 7; s = f(); del q"),
    "in a branch": ("q = 6; r = 7", "q = 1; r = 2\nif q: del q\nelse: del r"),
    "that was not there": ("", "q = 7; del q\ntry: q\nexcept NameError: r = 2"),
    "in a name table": (
        "q = 6",
        "q = 7; r = 'q' in globals(); del q; s = 'q' in globals(), 'e' in globals()\ntry: pass\nexcept ValueError as e: pass",
    ),
    "with a comprehension": ("i = 6; q = 3", "q = [i for i in range(3)]; del q"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_deleted_name_is_gone(name, notebook, other_notebook):
    setup, cell = CASES[name]
    for one in (notebook, other_notebook):
        one.plain(setup)
    other_notebook.plain(cell)
    notebook.distribute(cell)
    left, expected = (
        {
            key: value if isinstance(value, int | bool | tuple) else type(value)
            for key, value in one.names.items()
            if not key.startswith("__")
        }
        for one in (notebook, other_notebook)
    )
    assert left == expected


def test_the_value_is_not_sent(notebook):
    """A name that the cell always binds first costs nothing on the way, whatever it has become."""
    notebook.plain("import numpy as np\nbatch = np.zeros(1 << 20)")
    notebook.distribute("batch = 2\ndel batch")
    assert notebook.sent.packed.buffers == []
    assert "batch" not in notebook.names
