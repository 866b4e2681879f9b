"""Installed packages are read again where one has come, gone or changed, and only there."""

import importlib
import os
import shutil

import pytest

from jupyter_dtrain.system import entry_points
from jupyter_dtrain.system.entry_points import installed

GROUP = "jupyter_dtrain.integrations"


def install(folder, name, value):
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {value}\n")


@pytest.fixture
def reads(monkeypatch):
    """How often all packages were read."""
    counted = []

    def entry_points_read(**group):
        counted.append(group)
        return importlib.metadata.entry_points(**group)

    monkeypatch.setattr(entry_points, "entry_points", entry_points_read)
    return counted


def test_files_that_a_cell_writes_beside_the_notebook_cost_no_reading(tmp_path, monkeypatch, reads):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    installed(GROUP)
    before = len(reads)
    for number in range(3):
        (tmp_path / f"weights{number}.pt").touch()
        os.utime(tmp_path, ns=(number, number))  # whatever the clock of the disk
        installed(GROUP)
    assert len(reads) == before


def test_a_package_is_found_when_it_comes_changes_and_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert "toy" not in installed(GROUP)
    install(tmp_path, "toy", "json:dumps")
    assert installed(GROUP)["toy"].value == "json:dumps"
    shutil.rmtree(tmp_path / "toy-1.0.dist-info")
    install(tmp_path, "toy", "json:loads")
    os.utime(tmp_path, ns=(11, 11))  # a disk's clock may be coarse
    assert installed(GROUP)["toy"].value == "json:loads"
    shutil.rmtree(tmp_path / "toy-1.0.dist-info")
    os.utime(tmp_path, ns=(12, 12))
    assert "toy" not in installed(GROUP)
