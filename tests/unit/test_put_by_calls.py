"""What a call has put into the classes of another library (``tqdm.pandas()``) is there in a cell."""

from __future__ import annotations

import pytest

SETUP = "import pandas as pd\nfrom tqdm import tqdm\ntqdm.pandas(disable=True)\ndf = pd.DataFrame({'a': [1, 2, 3], 'b': [0, 0, 1]})"
CELLS = {
    "series": "k = df['a'].progress_apply(lambda x: x + 1).tolist()",
    "frame": "k = df.progress_apply(lambda row: row.sum(), axis=1).tolist()",
    "groups": "k = df.groupby('b')['a'].progress_apply(lambda part: part.sum()).tolist()",
    "made in the cell": "k = pd.Series([1, 2]).progress_map(lambda x: 2 * x).tolist()",
    "within a function": "def f(part): return part.progress_map(lambda x: 2 * x).tolist()\nk = f(df['a'])",
}


@pytest.fixture
def without_them():
    """Pandas as it is, afterwards."""
    pandas = pytest.importorskip("pandas")
    yield
    groupby = pandas.core.groupby
    for kind in (
        pandas.Series,
        pandas.DataFrame,
        groupby.SeriesGroupBy,
        groupby.DataFrameGroupBy,
        groupby.GroupBy,
        pandas.core.window.Rolling,
    ):
        for name in [name for name in vars(kind) if name.startswith("progress_")]:
            delattr(kind, name)


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_calls_what_a_call_has_put_there(name, without_them, notebook):
    notebook.plain(SETUP)
    notebook.plain(CELLS[name])
    expected = notebook.names.pop("k")
    notebook.distribute(CELLS[name])
    assert notebook.names["k"] == expected
    notebook.plain("for kind in (pd.Series, pd.DataFrame): del kind.progress_apply, kind.progress_map")
    notebook.distribute("left = hasattr(df, 'progress_apply')")
    assert notebook.names["left"] is False


def test_of_a_second_call_the_cell_finds_what_that_has_put_there(without_them, notebook):
    notebook.plain(SETUP)
    cell = "k = [cell.cell_contents for cell in pd.Series.progress_apply.__closure__ if isinstance(cell.cell_contents, dict)]"
    for desc in ("first", "second"):
        notebook.plain(f"tqdm.pandas(disable=True, desc={desc!r})")
        notebook.distribute(cell)
        assert notebook.names["k"] == [{"disable": True, "desc": desc}]
