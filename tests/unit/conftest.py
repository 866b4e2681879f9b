"""One engine process for all tests that need another side: its start costs an import of PyTorch."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

from tests.unit.other_side import Engine, Notebook

# A GPU's machine may have no Dask: files that cannot be imported would end the run of all others. Under CI=true it is to be there.
_OF_DASK = ("test_dask_integration.py", "test_dask_workers.py", "test_read_counters.py", "test_row_groups.py")
collect_ignore = [] if find_spec("dask") is not None or os.environ.get("CI") == "true" else [*_OF_DASK]


@pytest.fixture(scope="session")
def engine():
    engine = Engine()
    yield engine
    engine.close()


@pytest.fixture
def notebook(engine, tmp_path, monkeypatch):
    """An empty notebook in an empty folder."""
    folder = tmp_path / "notebook"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Notebook(engine, tmp_path / "blobs")


@pytest.fixture
def other_notebook(engine, tmp_path):
    """Another one, to compare with."""
    return Notebook(engine, tmp_path / "blobs")
