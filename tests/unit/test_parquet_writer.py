"""What is written of each batch: in order, in parts of whole batches, and never beside what is somebody else's."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from jupyter_dtrain import data
from jupyter_dtrain.errors import DataError, UsageError


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
    with pytest.raises(DataError, match=r"something else in it \(notes\.txt\)"):
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
    with pytest.raises(UsageError, match="was closed"):
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
