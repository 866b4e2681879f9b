"""Arrays that share memory in the notebook share it on an engine, and what the cell writes to one is in the others at home."""

from __future__ import annotations

import pytest

SHARED = {
    "every second": ("a = np.arange(10.0); v = a[::2]", "v[0] = 100; a *= 2", "a, v"),
    "reshaped and turned": ("a = np.arange(10.0); r = a.reshape(2, 5); t = r.T", "t[1, 1] = -1; r[0] += 5", "a, r, t"),
    "backwards": ("a = np.arange(6); b = a[::-1]", "b[0] = 9; a[0] = 7", "a, b"),
    "overlapping parts": ("a = np.arange(9.0); v, w = a[1:6], a[4:8]; del a", "v += 1; w[0] = -5", "v, w"),
    "of another type": ("a = np.arange(4, dtype=np.int32); b = a.view(np.uint8)", "b[0] = 255; a[3] = 1", "a, b"),
    "a diagonal": ("a = np.zeros((3, 3)); d = np.lib.stride_tricks.as_strided(a, (3,), (32,))", "d[:] = [1, 2, 3]", "a, d"),
    "by columns": ("a = np.asfortranarray(np.arange(12.0).reshape(3, 4)); c = a[:, 1]", "c[:] = 0; a[0] = 1", "a, c"),
    "in containers": ("a = np.zeros(8); d = {'x': [a[:3]], 'y': (a[2:],)}", "d['x'][0][2] = 4; d['y'][0][1] = 5; a[7] = 1", "a, d"),
    "in an object": (
        "class Replay:\n    def __init__(self):\n        self.rows = np.zeros((4, 3)); self.states = self.rows[:, :2]\nreplay = Replay()",
        "replay.states[1] = 7; replay.rows[:, 2] = replay.states.sum(1)",
        "replay.rows, replay.states",
    ),
    "one element": ("a = np.zeros(3); e = a[1:2]; z = a[1].reshape(())", "e += 1", "a, e, z"),
    "read only": (
        "a = np.arange(4.0); v = a[1:]; v.flags.writeable = False",
        "a[2] = 8\ntry:\n    v[0] = 1\nexcept ValueError:\n    said = True",
        "a, v, said",
    ),
    "moments": ("a = np.array(['2020-01-01', '2021-01-01'], 'M8[D]'); v = a[1:]", "v += 1", "a, v"),
    "disjoint parts": ("a = np.arange(6.0); v, w = a[:3], a[3:]; del a", "v += 1; w -= 1", "v, w"),
    "two pairs": ("a = np.zeros(4); v = a[:2]; b = np.ones(4); w = b[1:]", "v += 1; w += 1", "a, v, b, w"),
}


@pytest.mark.parametrize("name", SHARED)
def test_what_is_written_to_one_is_in_the_others(name, notebook, other_notebook):
    setup, cell, compared = SHARED[name]
    for one in (notebook, other_notebook):
        one.plain("import numpy as np\n" + setup)
    other_notebook.plain(cell)
    seen = notebook.distribute(f"{cell}\nrepr(({compared}))")
    expected = other_notebook.plain(f"repr(({compared}))")
    assert seen == expected, "in the cell"
    assert notebook.plain(f"repr(({compared}))") == expected, "at home"


def test_what_they_share_is_sent_once(notebook):
    notebook.plain("import numpy as np\na = np.zeros(100_000); v = a[1:]; w = a[::2]")
    notebook.distribute("a[0] + v[0] + w[0]")
    assert sum(buffer.nbytes for buffer in notebook.sent.packed.buffers) == 800_000


def test_parts_of_what_stays_are_sent_alone(notebook):
    notebook.plain("import numpy as np\na = np.zeros(100_000); v = a[1000:2000]; w = a[1500:2500]")
    notebook.distribute("v[0] + w[0]")
    assert sum(buffer.nbytes for buffer in notebook.sent.packed.buffers) <= 1500 * 8 + 64


def test_a_frame_and_its_column_are_as_pandas_has_them(notebook):
    notebook.plain("import pandas as pd\ndf = pd.DataFrame({'a': [1.0, 2.0, 3.0], 'b': [4.0, 5.0, 6.0]}); s = df['a']; w = df[['b']]")
    assert notebook.distribute("df.loc[1, 'a'] = 10\ns.iloc[0] = 7\n(s.tolist(), df['a'].tolist())") == ([7.0, 2.0, 3.0], [1.0, 10.0, 3.0])
    assert notebook.plain("s.tolist(), df['a'].tolist(), w['b'].tolist()") == ([7.0, 2.0, 3.0], [1.0, 10.0, 3.0], [4.0, 5.0, 6.0])


def test_tens_of_thousands_of_windows_into_one_array(notebook):
    notebook.plain("import numpy as np\na = np.zeros((20_000, 2)); rows = [a[index:index + 2] for index in range(0, 19_998)]")
    assert notebook.distribute("rows[7][0, 1] = 3\na[7, 1], rows[6][1, 1]") == (3, 3)
