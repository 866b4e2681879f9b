"""What is noted of files, and what is cut back of them when a run goes on from a snapshot."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_dtrain.engine.side_effects.file_journal import FileLog
from jupyter_dtrain.engine.side_effects.journal_entries import cut_back, go_on_from

PLACE = "iteration 1 of line 2"


class Notebook:
    """A folder, and the user's code that writes into it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "notebook"
        self.folder.mkdir()
        self.log = folder / "files"

    def run(self, code: str, *, since: int | None = None, snapshots: tuple[int, ...] = ()) -> FileLog:
        """Run the lines of a cell; before line `n` that snapshot is taken if it is one of `snapshots`."""
        files = FileLog(self.log, self.folder, since=since, jumps=lambda: False)
        names: dict[str, object] = {"os": os, "at": lambda name: str(self.folder / name)}
        with files.installed():
            for number, line in enumerate(code.splitlines()):
                if number in snapshots:
                    files.snapshot(number, step=number, place=PLACE)
                exec(compile(line, "/cell.py", "exec"), names)
                files.at_boundary()
        return files

    def text(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text() if path.exists() else None


@pytest.fixture
def notebook(tmp_path):
    return Notebook(tmp_path)


ADD = """
with open(at("log"), "a") as file: file.write("one ")
with open(at("log"), "a") as file: file.write("two ")
with open(at("late"), "a") as file: file.write("late ")
"""


@pytest.mark.parametrize(("number", "log"), [(2, "old one "), (1, "old "), (None, "old "), (7, "old one two ")])
def test_what_was_added_since_a_snapshot_is_cut(notebook, number, log):
    (notebook.folder / "log").write_text("old ")
    notebook.run(ADD, snapshots=(1, 2))
    cut_back(notebook.log, number)
    assert (notebook.text("log"), notebook.text("late")) == (log, "late " if number == 7 else None)


def test_nothing_is_noted_of_a_cell_that_writes_nothing(notebook):
    notebook.run("\n\n1 + 1\nlen([])", snapshots=(1, 2, 3))
    assert not notebook.log.exists()


def test_what_another_program_adds_to_is_left_alone(notebook):
    other = f"os.system('echo other >> {notebook.folder}/log')\n"
    notebook.run(
        ADD.replace('\nwith open(at("late")', f"\n{other}" + 'with open(at("log"), "a") as file: file.write("three ")#'), snapshots=(1,)
    )
    cut_back(notebook.log, 1)
    assert notebook.text("log") == "one two other\nthree "


def test_open_files_have_all_that_was_written_when_a_snapshot_is_taken(notebook):
    lines = 'file = open(at("log"), "w")\nfile.write("one ")\nfile.write("two ")\nfile.write("three ")\nfile.close()'
    notebook.run(lines, snapshots=(3,))
    cut_back(notebook.log, 3)
    assert notebook.text("log") == "one two "
    again = FileLog(notebook.log, notebook.folder, since=3, jumps=lambda: False)
    with again.reopen(str(notebook.folder / "log"), "open", "utf-8") as file:
        file.write("3")
    assert notebook.text("log") == "one two 3"


DO = """
os.remove(at("old"))
os.mkdir(at("new"))
open(at("new/part"), "x").close()
os.rename(at("new/part"), at("new/whole"))
"""


@pytest.mark.parametrize("taken_over", [False, True])
def test_what_was_done_already_is_done(notebook, taken_over):
    (notebook.folder / "old").write_text("")
    notebook.run(DO, snapshots=(1,))
    if taken_over:
        go_on_from(notebook.log, 5, step=1, place=PLACE)
    notebook.run(DO, since=5 if taken_over else 1)
    assert [path.name for path in (notebook.folder / "new").iterdir()] == ["whole"]
    with pytest.raises(FileNotFoundError):
        notebook.run('os.remove(at("never"))', since=5 if taken_over else 1)


def test_without_a_snapshot_before_it_an_error_is_an_error(notebook):
    (notebook.folder / "old").write_text("")
    notebook.run(DO, snapshots=(2,))
    with pytest.raises(FileNotFoundError):
        notebook.run('os.remove(at("old"))', since=2)


def test_a_kernel_that_takes_over_cuts_nothing(notebook):
    notebook.run(ADD, snapshots=(1,))
    go_on_from(notebook.log, 9, step=1, place=PLACE)
    cut_back(notebook.log, 9)
    assert notebook.text("log") == "one two "
