"""Row groups of files and collections as samples of a loader: which rows, in which order, from how few groups; what is said of bad ones."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from jupyter_dtrain import data
from jupyter_dtrain.data.order import EpochOrder, plan
from jupyter_dtrain.engine.data.iteration_places import Skipping
from jupyter_dtrain.engine.tensor.batch_shard import share_of
from jupyter_dtrain.errors import DataError, UsageError


def table(begin: int, end: int) -> pa.Table:
    rows = np.arange(begin, end)
    embeddings = [[float(row), float(-row)] for row in rows]
    return pa.table({"a": rows * 0.5, "b": rows.astype("int32"), "text": [f"text {row}" for row in rows], "list": embeddings, "row": rows})


@pytest.fixture
def folder(tmp_path):
    """Three files, 1000 rows, 22 row groups."""
    for number, (begin, end) in enumerate([(0, 300), (300, 301), (301, 1000)]):
        pq.write_table(table(begin, end), tmp_path / f"{number}.parquet", row_group_size=50)
    return tmp_path


def rows_of(loader: Any) -> list[list[int]]:
    return [batch[-1].flatten().tolist() for batch in loader]


def flat(batches: list[list[int]]) -> list[int]:
    return [row for batch in batches for row in batch]


# -- order ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 7, 96, 999, 1000, 5000])
@pytest.mark.parametrize("options", [{}, {"window": 1}, {"window": 2, "cache_bytes": 4000}, {"shuffle": False}], ids=str)
def test_order_has_each_row_once_and_any_batch_by_its_number(folder, batch_size, options):
    rows = data.parquet(folder, features="a", target="row", seed=1, **options)
    batches = rows_of(rows.loader(batch_size))
    assert sorted(flat(batches)) == list(range(1000))
    assert [len(batch) for batch in batches] == [batch_size] * (1000 // batch_size) + [1000 % batch_size] * (1000 % batch_size > 0)
    for number in range(0, len(batches), 1 + len(batches) // 7):
        later = iter(rows.batch_sampler(batch_size))
        later.skip(number)  # type: ignore[attr-defined]
        assert [list(some) for some in later] == batches[number:]
    assert flat(rows_of(rows.loader(batch_size, drop_last=True))) == flat([batch for batch in batches if len(batch) == batch_size])


def test_order_is_that_of_the_seed_and_another_in_each_epoch(folder):
    rows = data.parquet(folder, features="a", target="row", seed=1)
    loader = rows.loader(96)
    first, second = rows_of(loader), rows_of(loader)
    assert first != second
    assert rows_of(rows.loader(96)) == first == rows_of(rows.loader(96, num_workers=2))
    assert rows_of(data.parquet(folder, features="a", target="row", seed=2).loader(96)) != first
    free = data.parquet(folder, features="a", target="row")
    torch.manual_seed(3)
    drawn = rows_of(free.loader(96))
    torch.manual_seed(3)
    assert rows_of(free.loader(96)) == drawn
    in_order = data.parquet(folder, features="a", target="row", shuffle=False)
    assert flat(rows_of(in_order.loader(96))) == flat(rows_of(DataLoader(in_order, 96, sampler=in_order.sampler))) == list(range(1000))


@pytest.mark.parametrize("engines", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("batch_size", [48, 100, 256])
def test_engines_read_row_groups_of_their_own(engines, batch_size):
    starts = np.arange(201) * 1000
    cuts, window = plan(np.diff(starts), 8000, 1 << 30, batch_size)
    order = EpochOrder(starts, batch_size, cuts=cuts, window=1, seed=0)
    assert window == 66
    read: list[set[int]] = []
    for rank in range(engines):
        share = share_of(batch_size, rank, [1.0] * engines)
        rows = [order.rows(batch, share.start, share.stop) for batch in range(200_000 // batch_size)]
        read.append(set((np.concatenate(rows) // 1000).tolist()))
    assert sum(map(len, read)) <= 200 + engines - 1  # where one engine's rows end and another's begin, a group is read twice
    assert set().union(*read) >= set(range(199))


def test_position_far_inside_an_epoch_is_there_at_once():
    starts = np.arange(2001) * 10_000
    begun = time.perf_counter()
    order = EpochOrder(starts, 256, cuts=(0, 128, 256), window=4, seed=0)
    order.rows(10_000_000 // 256, 0, 256)
    assert time.perf_counter() - begun < 1


def test_resume_passes_over_batches_without_making_them(folder):
    rows = data.parquet(folder, features="a", target="row", seed=4)
    whole = [list(batch) for batch in rows.batch_sampler(10)]
    assert [list(batch) for batch in Skipping(rows.batch_sampler(10), 60)] == whole[60:]
    assert list(Skipping(rows.batch_sampler(10), 100)) == []  # an epoch's end


def test_memory_is_bounded_and_groups_are_read_about_once(folder):
    rows = data.parquet(folder, features=["a", "list"], target="row", seed=1, cache_bytes=14_000)  # of 32,000
    for epoch in (1, 2):
        assert sorted(flat(rows_of(rows.loader(50)))) == list(range(1000))
        info = rows.cache_info
        assert info["most_bytes"] <= 14_000
        assert info["num_loaded"] <= epoch * (rows.num_row_groups + 8)  # those that two of four lanes share, and the short batch


MEMORY = """
import resource, sys
from pathlib import Path
from jupyter_dtrain import data
rows = data.parquet(sys.argv[1], features=[f"x{number}" for number in range(16)], cache_bytes=64 << 20)
loader = iter(rows.loader(batch_size=512))
next(loader)
begun = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
total = 512 + sum(len(batch) for batch in loader)
# Of this program: a process's own `ru_maxrss` begins with what its parent had.
most = next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(total, most - begun)
"""


@pytest.mark.long
def test_memory_of_a_process_stays_under_a_limit(tmp_path):
    """512 MB of numbers, with 64 MB for row groups: what reading takes is the largest group, a few times."""
    rng = np.random.default_rng(0)
    for part in range(8):
        columns = {f"x{number}": rng.normal(size=500_000) for number in range(16)}
        pq.write_table(pa.table(columns), tmp_path / f"{part}.parquet", row_group_size=50_000)  # 6.4 MB
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150, env={**os.environ, "OMP_NUM_THREADS": "1"})
    total, more = map(int, done.stdout.split())
    assert total == 4_000_000
    assert more < 160 << 20, f"{more:,} bytes"


# -- samples -------------------------------------------------------------------------------------------------------------


def test_samples_have_the_types_of_their_columns(folder):
    x, y = data.parquet(folder, features=["a", "b", "list"], target="row")[400]
    assert (x.dtype, x.tolist(), y.item()) == (torch.float64, [200.0, 400.0, 400.0, -400.0], 400)
    assert data.parquet(folder, features=["b", "row"])[3].dtype == torch.int64
    assert data.parquet(folder, features="list", dtype=torch.float32)[3].tolist() == [3.0, -3.0]
    assert data.parquet(folder, features="a", dtype=torch.bfloat16)[1].dtype == torch.bfloat16
    x, y = data.parquet(folder, features=["text", "a"], target=["row", "b"])[-1]
    assert (x["text"], x["a"].item(), y.tolist()) == ("text 999", 499.5, [999, 999])


def test_batches_are_those_of_default_collate(folder):
    for options in ({"features": ["a", "b"], "target": "row"}, {"features": "list"}, {"features": ["text", "a"], "target": "text"}):
        rows = data.parquet(folder, **options)
        samples: Any = [rows[number] for number in range(64)]
        whole, single = next(iter(DataLoader(rows, 64))), next(iter(DataLoader(samples, 64)))
        assert str(whole) == str(single)
        assert type(whole) is type(single)


def test_batch_is_the_cells_own_to_write_to(folder):
    rows = data.parquet(folder, features="a", shuffle=False)
    for batch in rows.loader(50):
        batch.zero_()
    assert rows[999].item() == 499.5


def test_collate_function_and_transforms_see_samples(folder):
    rows = data.parquet(folder, features="text", target="row", transform=len, target_transform=lambda y: -y, seed=1)
    lengths, targets = next(iter(rows.loader(20)))
    assert lengths.tolist() == [len(f"text {-row}") for row in targets.tolist()]
    rows = data.parquet(folder, features="a", target="row", seed=1)
    stacked = list(rows.loader(64, collate_fn=lambda samples: (len(samples), type(samples[0][0]), samples[0][1])))
    assert [number for number, *_ in stacked] == [64] * 15 + [40]
    assert isinstance(stacked[0][2], torch.Tensor)


def test_data_set_is_sent_without_what_it_has_read(folder):
    rows = data.parquet(folder, features="a", target="row", seed=1)
    before = len(pickle.dumps(rows))
    expected = rows_of(rows.loader(64))
    assert len(pickle.dumps(rows)) == before < 5000
    assert rows_of(pickle.loads(pickle.dumps(rows)).loader(64)) == expected


# -- sources -------------------------------------------------------------------------------------------------------------


def test_paths_globs_folders_and_file_systems(folder):
    deep = folder / "year=2024" / "x"
    deep.mkdir(parents=True)
    pq.write_table(table(0, 10), deep / "more.parquet")
    (folder / "_SUCCESS").touch()
    memory = fsspec.filesystem("memory")
    with memory.open("/taxi/0.parquet", "wb") as file:
        pq.write_table(table(0, 20), file)
    for paths, number in {
        str(folder / "[01].parquet"): 301,
        str(folder / "**/*.parquet"): 1010,
        str(folder): 1010,
        folder.as_uri() + "/*.parquet": 1000,
        (folder / "1.parquet", str(deep)): 11,
        "memory://taxi/*.parquet": 20,
        "memory://taxi": 20,
    }.items():
        assert len(data.parquet(paths, features="a")) == number, paths
    assert len(data.parquet("/taxi/*.parquet", features="a", filesystem=memory)) == 20
    assert data.parquet("memory://taxi", features="a", shuffle=False)[7].item() == 3.5


@pytest.mark.parametrize("block_bytes", [40, 300, 1 << 20])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_with_quotes_and_lines_of_all_kinds(tmp_path, block_bytes, newline):
    texts = ['with "quotes"', f"of two{newline}{newline}lines", "a, b", "plain", "é" * 9]
    frame = pd.DataFrame({"text": [f"{texts[row % 5]} {row}" for row in range(200)], "a": np.arange(200) / 4, "row": np.arange(200)})
    written = frame.to_csv(index=False, lineterminator=newline)
    for name, text in {"0": written.rstrip(), "1": written + newline * 3, "2": written.splitlines()[0]}.items():
        (tmp_path / f"{name}.csv").write_bytes(text.encode())
    rows = data.csv(tmp_path / "*.csv", features=["text", "a"], target="row", seed=0, block_bytes=block_bytes)
    seen = [sample for x, y in rows.loader(32) for sample in zip(x["text"], x["a"].tolist(), y.tolist(), strict=True)]
    assert sorted(seen, key=lambda one: one[2]) == [one for one in frame.itertuples(index=False, name=None) for _ in range(2)]


@pytest.mark.parametrize("block_bytes", range(1, 14))
def test_csv_whose_blocks_end_anywhere(tmp_path, block_bytes):
    """Also behind the line of names, in the midst of the first row."""
    (tmp_path / "one.csv").write_text("a\n123\n45\n\n6\n")
    rows = data.csv(tmp_path / "one.csv", features="a", shuffle=False, block_bytes=block_bytes)
    assert torch.cat(list(rows.loader(2))).tolist() == [123, 45, 6]


def test_dask_frame_whose_partitions_dask_would_join(folder):
    rows = data.from_dask(dd.read_parquet(folder), features=["a"], target="row", seed=1)
    assert sorted(flat(rows_of(rows.loader(32)))) == list(range(1000))


def test_dask_collections():
    frame = pd.DataFrame({"a": np.arange(100.0), "row": np.arange(100)})
    rows = data.from_dask(dd.from_pandas(frame, npartitions=7), features=["a"], target="row", seed=1)
    assert all(torch.equal(x[:, 0].long(), y) for x, y in rows.loader(8))
    assert sorted(flat(rows_of(rows.loader(8)))) == list(range(100))
    x = da.from_array(np.arange(600.0).reshape(100, 6), chunks=(13, 4))
    rows = data.from_dask(x[x[:, 0] >= 0], target=da.from_array(np.arange(100), chunks=13), dtype=torch.float32, seed=1)
    assert sorted(flat(rows_of(rows.loader(8)))) == list(range(100))
    assert rows[3][0].tolist() == [18.0, 19.0, 20.0, 21.0, 22.0, 23.0]
    bag = db.from_sequence(range(50), npartitions=6).filter(lambda item: item % 2 == 0)
    rows = data.from_dask(bag, transform=lambda item: torch.tensor([item]), seed=1)
    assert sorted(flat(rows_of([(batch,) for batch in rows.loader(8)]))) == list(range(0, 50, 2))


# -- what is wrong with the data -----------------------------------------------------------------------------------------


def said(error: type[Exception], call: Any) -> str:
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_files_that_are_none(folder):
    read = lambda **options: data.parquet(folder, **{"features": "a", **options})  # noqa: E731
    assert "has no column 'x'. It has 'a', 'b', 'text', 'list', 'row'" in said(DataError, lambda: read(features=["a", "x"]))
    assert "No file matches" in said(DataError, lambda: data.parquet(folder / "*.csv", features="a"))
    assert "There is no file" in said(DataError, lambda: data.parquet(folder / "none", features="a"))
    assert "empty" in said(UsageError, lambda: read(features=[]))
    pq.write_table(table(0, 0), folder / "3.parquet")
    assert len(read()) == 1000  # a file without rows is one
    pq.write_table(table(0, 9).drop_columns("a").append_column("a", pa.array(["x"] * 9)), folder / "4.parquet")
    assert "Column 'a' is string in" in (text := said(DataError, read))
    assert "4.parquet, and double in" in text
    pq.write_table(table(0, 9).drop_columns("a").append_column("a", pa.array([1] * 9)), folder / "4.parquet")
    assert "int64" in said(DataError, read)
    assert len(read(dtype=torch.float32)) == 1009
    whole = (folder / "2.parquet").read_bytes()
    for content in (b"", whole[:-50], whole[:4], b"no parquet at all"):
        (folder / "4.parquet").write_bytes(content)
        text = said(DataError, read)
        assert "4.parquet cannot be read" in text
        assert "Is it a whole Parquet file?" in text


def test_decimals_of_several_precisions_are_one_type(tmp_path):
    for number, digits in enumerate((1, 3)):
        values = [Decimal(10**digits - 1) / 4, Decimal(number)]
        pq.write_table(pa.table({"a": values}), tmp_path / f"{number}.parquet")
    rows = data.parquet(tmp_path, features="a", shuffle=False)
    assert rows[0].dtype == torch.float64
    assert next(iter(rows.loader(4))).tolist() == [2.25, 0, 249.75, 1]
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "2.parquet")
    assert "Column 'a' is int64" in said(DataError, lambda: data.parquet(tmp_path, features="a"))
    assert len(data.parquet(tmp_path, features="a", dtype=torch.float32)) == 6


def test_without_pyarrow_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "jupyter_dtrain[data]" in said(UsageError, lambda: data.parquet(folder, features="a"))


def test_columns_that_do_not_fit(tmp_path):
    path = tmp_path / "one.parquet"
    pq.write_table(
        pa.table(
            {"int": [1, None, 3], "float": [1.0, None, 3.0], "ragged": [[1.0], [2.0, 3.0], []], "when": pd.date_range("2024", periods=3)}
        ),
        path,
    )
    get = lambda name, **options: data.parquet(path, features=name, **options)[1]  # noqa: E731
    assert np.isnan(get("float").item())
    assert "Row group 0 of" in (text := said(DataError, lambda: get("int")))
    assert "column 'int' has 1 nulls" in text
    assert get("int", fill_null={"int": 7}).item() == 7
    assert "lists of 0 to 2 numbers" in said(DataError, lambda: get("ragged"))
    assert "timestamp" in said(DataError, lambda: get("when"))


@pytest.mark.parametrize("what", ["vanishes", "is cut short", "is another", "is broken inside"])
def test_file_that_goes_bad_while_it_is_read(folder, what):
    rows = data.parquet(folder, features="a", target="row", shuffle=False, cache_bytes=2000)
    batches = iter(rows.loader(50))
    seen = [next(batches)[1].tolist() for _ in range(7)]
    path = folder / "2.parquet"
    info, content = path.stat(), path.read_bytes()
    match what:
        case "vanishes":
            path.unlink()
        case "is cut short":
            path.write_bytes(content[:3000])
        case "is another":
            pq.write_table(table(0, 699), path, row_group_size=70)
        case "is broken inside":
            path.write_bytes(content[:200] + bytes(len(content) - 4000) + content[len(content) - 3800 :])
    if what == "is broken inside":
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    text = said(DataError, lambda: seen.extend(batch[1].tolist() for batch in batches))
    assert "Row group " in text
    assert f"of {path}" in text
    assert "make the data set anew" in text
    assert len(flat(seen)) == len(set(flat(seen)))


def test_many_small_files(tmp_path):
    for number in range(300):
        pq.write_table(table(number * 3, number * 3 + 3), tmp_path / f"{number:03}.parquet")
    rows = data.parquet(tmp_path, features="a", target="row", seed=1)
    assert sorted(flat(rows_of(rows.loader(64)))) == list(range(900))
    assert rows.cache_info["num_loaded"] == 300
    assert len(list(Path("/proc/self/fd").iterdir())) < 250


def test_partition_that_fails():
    def check(frame: pd.DataFrame) -> pd.DataFrame:
        if 55 in set(frame["row"]):
            raise ZeroDivisionError("row 55")
        return frame

    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(100.0), "row": np.arange(100)}), npartitions=10)
    rows = data.from_dask(frame.map_partitions(check, meta=frame._meta), features="a", target="row", shuffle=False, lengths=[10] * 10)
    seen: list[int] = []
    with dask.config.set(scheduler="synchronous"):
        text = said(DataError, lambda: seen.extend(row for _, y in rows.loader(10) for row in y.tolist()))
    assert "Partition 5 of a Dask DataFrame cannot be read: ZeroDivisionError: row 55" in text
    assert seen == list(range(50))
    wrong = data.from_dask(frame, features="a", target="row", lengths=[10] * 9 + [9])
    assert "it has 10 rows, and had 9" in said(DataError, lambda: wrong[98])


def test_csv_that_is_none(tmp_path):
    path = tmp_path / "one.csv"
    read = lambda **options: rows_of(data.csv(path, **{"features": "a", "target": "b", "block_bytes": 8, **options}).loader(2))  # noqa: E731
    for content, error in {
        "": "empty (0 bytes)",
        "a,b\n": "There are no rows",
        "a,c\n1,2\n": "has no column 'b'",
        'a,b\n1,2\n3,"4\n5,6\n': "not closed",
        "a,b\n1,2\n3,4\n5\n": "Expected 2 columns",
        "a,b\n1,2\n3,4\n5,x\n": "invalid value 'x'",
        "a,b\n1,2\n3,4\n5,6.5\n": "invalid value '6.5'",
    }.items():
        path.write_text(content)
        assert error in said(DataError, read), content
    assert sorted(flat(read(column_types={"b": "float64"}))) == [2, 4, 6.5]
