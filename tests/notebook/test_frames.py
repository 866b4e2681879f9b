"""Frames and series of pandas that share memory: a cell's write to one reaches the others only where it does in the notebook."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas")

SETUP = """
import pandas as pd
df = pd.DataFrame({"a": [0.0, 1, 2, 3], "b": [0.0, 2, 4, 6], "s": list("wxyz"), "k": [1, 2, 3, 4]})
ser, sub, part, same, text, rows = df["a"], df[["a", "b"]], df.iloc[1:3], df.copy(deep=False), df["s"], df[df.a > 1]
def now():
    frames = (df, ser, sub, part, same, text, rows)
    said = [(frame.attrs, frame.flags.allows_duplicate_labels, getattr(frame, "name", None)) for frame in frames]
    return [frame.to_numpy().tolist() for frame in frames], [str(one) for one in said]
"""
WRITES = [
    "df.loc[0, 'a'] = 9.0",
    "ser.iloc[1] = 7.0",
    "sub.iloc[0, 1] = 5.0; part.iloc[0, 0] = 4.0",
    "same.loc[:, 'b'] = 1.0; text.iloc[0] = 'q'",
    "df['a'] += 1; df.loc[df.a > 1, 'b'] = 0",
    "part['a'] = 1.0; ser.clip(1, 2, inplace=True); rows.loc[2, 'a'] = 50.0",
    "df['z'] = df['a'] * 2",
    "df.attrs['unit'] = 'm'; ser.name = 'speed'; sub.flags.allows_duplicate_labels = False",
]


@pytest.mark.parametrize("write", WRITES)
def test_writes_reach_who_shares_the_memory_as_in_the_notebook(notebook, write):
    found = {}
    for first in ("", "%%distribute --engines 2\n"):
        notebook.run(SETUP)
        notebook.run(f"{first}{write}\ninside = now()")
        found[first] = [notebook.value("(inside, now())")]
        notebook.run("df.loc[2, 'a'] = 6.0; ser.iloc[0] = 8.0")
        found[first].append(notebook.value("now()"))
    assert found[""] == found["%%distribute --engines 2\n"]
