"""What is written of each batch: in order, in parts of whole batches, and never beside what is somebody else's."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from IPython.utils.capture import capture_output

from jupyter_dtrain import data
from jupyter_dtrain.errors import DataError, UsageError
from jupyter_dtrain.system import open_writers


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_are_written_in_parts_of_whole_batches(tmp_path):
    folder = tmp_path / "preds"
    with data.to_parquet(folder, part_rows=10) as preds:
        for begin in range(0, 28, 4):
            rows = torch.arange(begin, begin + 4)
            preds.append(row=rows, score=rows[:, None] * torch.tensor([0.5, 1.0]), text=[f"text {row}" for row in rows.tolist()])
    assert names(folder) == ["part-000000.parquet", "part-000001.parquet", "part-000002.parquet"]
    assert [pq.read_metadata(folder / name).num_rows for name in names(folder)] == [12, 12, 4]
    table = pq.read_table(folder)
    assert table["row"].to_pylist() == list(range(28))
    assert table["score"].to_pylist() == [[0.5 * row, row] for row in range(28)]
    assert table["text"].to_pylist() == [f"text {row}" for row in range(28)]
    assert len(preds) == 28 and "28 rows, 3 parts" in repr(preds)
    back = data.parquet(folder, features="score", target="row", shuffle=False)
    assert back[5][0].tolist() == [2.5, 5.0]


def test_writer_goes_on_from_a_copy_of_itself(tmp_path):
    """As a run does that goes on from a snapshot: the part that was written since is written again."""
    expected, folder = tmp_path / "expected", tmp_path / "preds"
    for target, copied_at in ((expected, None), (folder, 5)):
        preds, copy = data.to_parquet(target, part_rows=3), b""
        for row in range(10):
            if row == copied_at:
                copy = pickle.dumps(preds)
            preds.append(torch.full((2,), row))
        if copy:
            (target / "part-000003.parquet.1").write_bytes(b"cut short")  # by an engine that was lost
            preds = pickle.loads(copy)
            for row in range(5, 10):
                preds.append(torch.full((2,), row))
        preds.close()
    assert pq.read_table(folder) == pq.read_table(expected)
    assert names(folder) == names(expected)
    assert pq.read_table(folder)["value"].to_pylist() == [row for row in range(10) for _ in "ab"]


def test_what_is_kept_is_of_this_moment_and_no_larger(tmp_path):
    large, array = torch.zeros(4, 1000, requires_grad=True), np.zeros(4)
    with data.to_parquet(tmp_path / "preds") as preds:
        preds.append(a=large[:, 0], b=array, c=torch.zeros(4).bfloat16())
        array += 1
        assert preds._columns is not None
        assert preds._columns["a"][0].untyped_storage().nbytes() == 16
    assert pq.read_table(tmp_path / "preds").to_pydict() == {name: [0.0] * 4 for name in "abc"}


def test_parts_of_an_earlier_time_are_removed_with_the_first_rows(tmp_path):
    for rows in (7, 3, 0):
        with data.to_parquet(tmp_path / "preds", part_rows=1) as preds:
            for row in range(rows):
                preds.append([row])
        assert len(names(tmp_path / "preds")) == rows


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "part-000000.parquet").write_text("whose?")
    with pytest.raises(DataError, match=r"it has other files \(notes\.txt\)"):
        data.to_parquet(tmp_path).append([1])
    assert names(tmp_path) == ["notes.txt", "part-000000.parquet"]


def test_part_that_is_not_there_is_told_of(tmp_path):
    preds = data.to_parquet(tmp_path / "preds", part_rows=1)
    for row in range(3):
        preds.append([row])
    (tmp_path / "preds/part-000001.parquet").unlink()
    with pytest.raises(DataError, match=r"1 of 3 parts are not in"):
        preds.close()


def test_an_error_leaves_the_writer_open(tmp_path):
    preds = data.to_parquet(tmp_path / "preds", part_rows=1)
    with suppress(ZeroDivisionError), preds:
        preds.append([0])
        preds.append([1 // 0])
    preds.append([1])
    preds.close()
    assert pq.read_table(tmp_path / "preds")["value"].to_pylist() == [0, 1]


def test_mistakes_are_told_of(tmp_path):
    preds = data.to_parquet(tmp_path / "preds")
    with pytest.raises(UsageError, match=r"one length, and these have \{'a': 2, 'b': 3\}"):
        preds.append(a=torch.zeros(2), b=torch.zeros(3))
    with pytest.raises(UsageError, match=r"'value' has shape \(2, 3, 4\).*flatten"):
        preds.append(torch.zeros(2, 3, 4))
    with pytest.raises(UsageError, match=r"'value' has shape \(\)"):
        preds.append(1.0)
    with pytest.raises(UsageError, match="these have none"):
        preds.append()
    preds.append({"a": [1]})
    with pytest.raises(UsageError, match=r"were \['a'\] before, and are \['b'\]"):
        preds.append(b=[1])
    preds.close()
    preds.close()
    with pytest.raises(UsageError, match="is closed"):
        preds.append(a=[1])
    with pytest.raises(UsageError, match="at least one row"):
        data.to_parquet(tmp_path, part_rows=0)


def test_processes_that_distribute_themselves_write_no_folder_together(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with pytest.raises(UsageError, match="give each a folder of its own"):
        data.to_parquet(tmp_path).append([1])


def test_an_address_is_written_to(tmp_path):
    import fsspec

    with data.to_parquet("memory://preds", part_rows=2) as preds:
        for row in range(5):
            preds.append([row])
    files = fsspec.filesystem("memory").find("/preds")
    assert len(files) == 3
    assert data.parquet("memory://preds", features="value", shuffle=False)[4].item() == 4


def values_in(folder: Path) -> list[int]:
    return pq.read_table(folder)["value"].to_pylist() if names(folder) else []


def some(folder: Path, rows: int) -> data.ParquetWriter:
    preds = data.to_parquet(folder, part_rows=4)
    for row in range(rows):
        preds.append([row])
    return preds


def test_what_nobody_closes_is_written_at_the_end_of_the_cell_and_goes_on_in_the_next(tmp_path):
    preds = some(tmp_path, 6)
    assert values_in(tmp_path) == [0, 1, 2, 3]
    open_writers.flush_all()
    assert values_in(tmp_path) == list(range(6))
    for row in range(6, 9):
        preds.append([row])
    assert values_in(tmp_path) == list(range(8))
    open_writers.flush_all()
    assert values_in(tmp_path) == list(range(9)) and len(names(tmp_path)) == 3
    preds.close()
    assert values_in(tmp_path) == list(range(9)) and len(names(tmp_path)) == 3


def test_writer_that_is_let_go_writes_what_it_holds(tmp_path):
    preds = some(tmp_path, 6)
    ring: list[object] = [preds]
    ring.append(ring)
    del preds, ring
    gc.collect()
    assert values_in(tmp_path) == list(range(6))


SCRIPT = """
import sys
from jupyter_dtrain import data
preds = data.to_parquet(sys.argv[1])
for row in range(6):
    preds.append([row])
"""


def test_what_nobody_closes_is_written_at_the_end_of_a_script(tmp_path):
    folder = tmp_path / "preds"
    subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], check=True, timeout=120)
    assert values_in(folder) == list(range(6))


def test_a_cell_of_ipython_writes_at_its_end(tmp_path):
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    try:
        shell.run_cell(SCRIPT.replace("sys.argv[1]", repr(str(tmp_path))))
        assert values_in(tmp_path) == list(range(6))
        shell.run_cell("preds.append([6])")
        assert values_in(tmp_path) == list(range(7))
        (tmp_path / names(tmp_path)[0]).unlink()
        tmp_path.rmdir()
        tmp_path.write_text("no folder")
        with capture_output() as shown:
            shell.run_cell("preds.append([7])")
        assert "DataError" in shown.stdout + shown.stderr and "Part 0 cannot be written" in shown.stdout + shown.stderr
        tmp_path.unlink()
        tmp_path.mkdir()
        shell.run_cell("print(len(preds))")  # which writes at its end what is in no file yet
        assert values_in(tmp_path) == list(range(8))
    finally:
        InteractiveShell.clear_instance()
        shell.user_ns.clear()


def test_a_writer_writes_nothing_over_one_that_came_after_it(tmp_path):
    earlier, later = some(tmp_path, 6), some(tmp_path, 3)
    open_writers.flush_all()
    del earlier
    assert values_in(tmp_path) == [0, 1, 2] == list(range(len(later)))


def test_a_copy_takes_over_and_what_it_is_of_writes_no_more_once_its_run_is_over(tmp_path):
    """As on an engine: what a failed run holds lives on for the debugger, and is let go while a later run writes."""
    preds = some(tmp_path, 6)
    copy = pickle.dumps(preds)
    open_writers.leave()
    again = pickle.loads(copy)
    again.append([6])
    again.append([7])
    assert values_in(tmp_path) == list(range(8))
    del preds
    assert values_in(tmp_path) == list(range(8))
    home = pickle.loads(copy)  # comes home with rows that are in no file
    (tmp_path / names(tmp_path)[1]).unlink()
    open_writers.flush_all()
    assert values_in(tmp_path) == list(range(len(home))) == list(range(6))


def test_what_a_forked_process_has_of_a_writer_is_not_written_by_it(tmp_path):
    preds = some(tmp_path, 6)
    pid = os.fork()
    if pid == 0:
        open_writers.flush_all()
        del preds
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert values_in(tmp_path) == [0, 1, 2, 3]


def test_parts_behind_the_last_one_are_removed(tmp_path):
    """Less came home of an interrupted cell than it had written."""
    copy = pickle.dumps(some(tmp_path, 3))
    some(tmp_path, 11).close()
    home = pickle.loads(copy)
    home.close()
    assert values_in(tmp_path) == [0, 1, 2]
