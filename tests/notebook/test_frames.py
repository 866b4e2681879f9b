"""Frames, series and arrays that share memory: a cell's write to one reaches the others only where it does in the notebook."""

from __future__ import annotations

import pytest

from tests.conftest import one_of

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


def assert_same_as_in_the_notebook(notebook, setup, write, *later):
    """Compare what `now` of the setup returns in the cell with `write`, after it and after each later cell, plain and on two engines."""
    found = {}
    for first in ("", "%%distribute --engines 2\n"):
        notebook.run(setup)
        notebook.run(f"{first}{write}\ninside = now()")
        found[first] = [notebook.value("(inside, now())")]
        for code in later:
            notebook.run(code.format(first=first))
            found[first].append(notebook.value("now()"))
    assert found[""] == found["%%distribute --engines 2\n"]


@pytest.mark.parametrize("write", WRITES)
def test_writes_reach_who_shares_the_memory_as_in_the_notebook(notebook, write):
    assert_same_as_in_the_notebook(notebook, SETUP, write, "df.loc[2, 'a'] = 6.0; ser.iloc[0] = 8.0")


ARRAYS = """
import pandas as pd, numpy as np, torch
df = pd.DataFrame({"a": [0.0, 1, 2, 3], "b": [0.0, 2, 4, 6], "s": list("wxyz"), "k": [1, 2, 3, 4]})
one = df["a"].to_numpy(); both = df[["a","b"]].to_numpy(); ks = df["k"].values; whole = df[["a", "b"]].values; txt = df["s"].to_numpy()
ser = df["b"]; ofser = ser.to_numpy(); t = torch.from_numpy(df["b"].to_numpy(copy=True)); c = df["a"].to_numpy(copy=True)
ix = df.index.to_numpy(); col = pd.Series([1.0, 2, 3]); arr = col.to_numpy(); arr2 = col.values
base = np.arange(4.0); fr = pd.DataFrame({"x": base}, copy=False); fx = fr["x"].to_numpy()
d2 = pd.DataFrame(np.arange(6.0).reshape(3, 2), columns=["p", "q"]); p = d2["p"].to_numpy(); pq = d2.to_numpy(); qv = d2["q"].values
def now():
    objs = (one, both, ks, whole, txt, ofser, t, c, ix, arr, arr2, base, fx, p, pq, qv, df.to_numpy(), ser.to_numpy(),
        col.to_numpy(), fr.to_numpy(), d2.to_numpy())
    return [o.tolist() for o in objs], [o.flags.writeable for o in objs if isinstance(o, np.ndarray)]
"""
TO_FRAMES_LATER = """
df.loc[2, 'a'] = 6.0; ser.iloc[1] = 8.0; col.iloc[1] = -3.; fr.loc[2, 'x'] = -1.
d2.iloc[1, 1] = 99.; base[3] = 42.
"""
TO_FRAMES = [
    "df.loc[0, 'a'] = 9.0",
    "df.iloc[1, 1] = 7.0; ser.iloc[0] = 5.",
    "ser.iloc[0] = 5.; df['k'] += 1; df.loc[2, 'k'] = 40",
    "col.iloc[0] = 7.; col += 1",
    "base[1] = 50.; fr.loc[0, 'x'] = 8.",
    "fr.loc[0, 'x'] = 8.; base[1] = 50.",
    "d2.loc[0, 'p'] = 8.; d2.iloc[2] = 3.",
    "d2 += 1",
    "d2['p'] *= 2; d2.loc[:, 'q'] = 4.0",
    "df.fillna(0, inplace=True); df.loc[1, 's'] = 'Q'",
    "p = p.copy(); p[0] = 3; d2.iloc[0,0] = 6.",
    "one = df['a'].to_numpy(); df.loc[3, 'a'] = -1.; df2 = df; df2.loc[2,'b'] = -2",
]


@pytest.mark.parametrize("write", TO_FRAMES)
def test_arrays_of_frames_show_writes_as_in_the_notebook(notebook, write):
    assert_same_as_in_the_notebook(notebook, ARRAYS, write, TO_FRAMES_LATER)


MADE = """
import pandas as pd, numpy as np, torch
dates = pd.date_range("2020", periods=4)
df = pd.DataFrame({"a": [0.0, 1, 2, 3], "b": [0.0, 2, 4, 6], "s": list("wxyz"), "k": [1, 2, 3, 4]})
df["d"], df["c"] = dates, pd.Categorical(list("aabb"))
ser = df["a"]; ks = df.set_index("k"); ind = pd.Index(df["a"]); dt = df["d"]; dta = dt.to_numpy(); cat = df["c"]
m = df.set_index(["k", "s"]); obj = pd.Series([[1], {"a": 2}, None]); oa = obj.to_numpy(); nul = pd.array([1, 2, None]); ns = pd.Series(nul)
class D(torch.utils.data.Dataset):
    def __init__(self, f): self.f = f; self.v = f[["a", "b"]].to_numpy(); self.t = torch.tensor(self.v)
    def __len__(self): return len(self.f)
    def __getitem__(self, i): return torch.tensor(self.f["a"].iloc[i]), self.t[i]
ds = D(df[["a", "b"]]); cyc = pd.Series([1, None, 3], dtype=object); cyc.iloc[1] = {"me": cyc}
part = view = s2 = ix2 = None; made = {}
def one(x):
    if x is None or isinstance(x, (int, float, str)): return x
    if isinstance(x, (list, tuple)): return [one(y) for y in x]
    if isinstance(x, dict): return {k: one(v) for k, v in x.items()}
    if isinstance(x, torch.Tensor): return x.tolist()
    if isinstance(x, pd.DataFrame): return [str(x.to_dict("list")), str(list(x.index)), str(list(x.dtypes))]
    return str(list(x))
def now():
    found = dict(df=df, ser=ser, ks=ks, ind=ind, dt=dt, dta=dta, cat=cat, m=m, oa=oa, obj=obj, nul=nul, ns=ns)
    return one({**found, **dict(dsf=ds.f, dsv=ds.v, cyc=len(cyc), part=part, view=view, s2=s2, ix2=ix2, made=made)})
"""
MADE_IN_THE_CELL = [
    "part = df.iloc[1:3]; view = df[['a', 'b']]; s2 = df['b']",
    "part = df.iloc[1:3]; part.iloc[0, 0] = 5.; df.iloc[2, 1] = 7.; s2 = part['b']",
    "s2 = ser; view = df; part = df.copy(deep=False)",
    "df = df.copy(); part = df.iloc[::2]; s2 = df['a'][1:]",
    "made['x'] = df['a'].to_numpy(); made['y'] = df[['a']].values; df.loc[0, 'a'] = 3.",
    "del ser; df.loc[0, 'a'] = 3.; ser = df['a']; s2 = ser.rename('z')",
    "ix2 = df.set_index('a').index; df.loc[0, 'a'] = 3.; ks.loc[2, 'a'] = 44.",
    "df['d'] = df['d'] + pd.Timedelta('1D'); df.loc[0, 'd'] = pd.Timestamp('1970'); dt.iloc[3] = pd.Timestamp('1971')",
    "cat.iloc[0] = 'b'; df.loc[3, 'c'] = 'a'; m.loc[(1, 'w'), 'a'] = 9.; obj.iloc[0].append(2)",
    "ds.f.loc[0, 'a'] = 50.; ds.f['b'] += 1; part = ds.f.iloc[:2]",
    "for x, y in torch.utils.data.DataLoader(ds, batch_size=2): ds.f.loc[0, 'b'] += 1.; made[float(x[0])] = y",
    (
        "ns.iloc[0] = 5; nul[2] = 6; s2 = ns; df.drop(columns='k', inplace=True); "
        "df.rename(columns={'a': 'A'}, inplace=True); df.rename(columns={'A': 'a'}, inplace=True); df['k'] = 1"
    ),
    (
        "df = df.sort_values('b', ascending=False); part = df.head(2); df.reset_index(drop=True, inplace=True); "
        "df.index = pd.Index(df['b']); view = df.loc[:, ['a']]"
    ),
    "part, s2 = df.iloc[:, :2], df.iloc[0]; view = df.T.iloc[:2]; df.sort_values('b', ascending=False, inplace=True)",
]
LATER = [
    "df.loc[2, 'a'] = 6.0; df.loc[1, 'b'] = 61.",
    "df.loc[2, 'k'] = 60; df.loc[0, 'd'] = pd.Timestamp('1999'); df.loc[0, 'c'] = 'b'",
    "if part is not None: part.iloc[0, 0] = -8.",
    "if view is not None: view.iloc[1, 0] = -9.",
    "if s2 is not None: s2.iloc[0] = -10.",
    "ser.iloc[0] = 8.0; ds.f.loc[3, 'b'] = 5.; ds.f['a'] *= 2",
    "dt.iloc[1] = pd.Timestamp('1980'); ks.iloc[0, 0] = 4.; m.iloc[1, 0] = 4.5; ns.iloc[0] = 9; nul[1] = 7",
]


@pytest.mark.parametrize("write", one_of(3, MADE_IN_THE_CELL))
def test_frames_that_the_cell_makes_share_memory_as_in_the_notebook(notebook, write):
    again = f"{{first}}{LATER[0]}\n{LATER[5]}\ninside = now()"
    assert_same_as_in_the_notebook(notebook, MADE, write, *LATER, again, "made['inside'] = inside")


def test_an_array_that_is_read_only_is_so_in_the_cell(notebook):
    notebook.run("import numpy as np\nfixed = np.arange(3.0)\nfixed.flags.writeable = False")
    assert "assignment destination is read-only" in str(notebook.fail("%%distribute --engines 2\nfixed[0] = 1.0").error)
    assert notebook.value("fixed.tolist()") == [0.0, 1.0, 2.0]
