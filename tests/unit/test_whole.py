"""Folders that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_dtrain.system.atomic_files import folder_made_whole


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "results"
    with folder_made_whole(folder) as aside:
        (aside / "number").write_text("1")
    return folder


def write(folder: Path, number: str) -> None:
    with folder_made_whole(folder) as aside:
        (aside / "number").write_text(number)


def test_it_takes_the_place_of_what_was_there(folder):
    write(folder, "2")
    assert (folder / "number").read_text() == "2"
    assert list(folder.parent.iterdir()) == [folder]


def test_what_was_there_stays_where_it_cannot_be_written(folder):
    with pytest.raises(FileNotFoundError), folder_made_whole(folder) as aside:
        (aside / "missing" / "number").write_text("2")
    assert (folder / "number").read_text() == "1"
    assert list(folder.parent.iterdir()) == [folder]


def test_what_was_there_comes_back_where_the_new_one_cannot_take_its_place(folder, monkeypatch):
    rename = Path.rename

    def refused(self, target):
        if target == folder and (self / "number").read_text() == "2":
            raise OSError("refused")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(OSError, match="refused"):
        write(folder, "2")
    assert (folder / "number").read_text() == "1"
    assert list(folder.parent.iterdir()) == [folder]
