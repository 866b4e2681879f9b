"""One engine process for all tests that need another side: its start costs an import of PyTorch."""

from __future__ import annotations

import pytest

from tests.unit.other_side import Engine, Notebook


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
