"""What data sets have read, counted where it is read: by threads that read ahead, by workers, and on the way to whoever shows it."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from jupyter_dtrain import data
from jupyter_dtrain.engine.telemetry import progress
from jupyter_dtrain.engine.telemetry.progress import ExtentMeter
from jupyter_dtrain.engine.timing import DATA, Timing
from jupyter_dtrain.notebook.summary import Summary
from jupyter_dtrain.protocol import RankStarted, TimeSplit
from jupyter_dtrain.runs.recorder import RunRecorder
from jupyter_dtrain.system import read_counters

ROWS = 4000


@pytest.fixture
def path(tmp_path):
    frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=ROWS), "row": np.arange(ROWS)})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    pq.write_table(pa.Table.from_pandas(frame), tmp_path / "rows.parquet", row_group_size=500, use_dictionary=False)
    return tmp_path


def slow(x: torch.Tensor) -> torch.Tensor:
    time.sleep(1e-4)
    return x


def read_by(loader: Any) -> read_counters.Counts:
    before = read_counters.read()
    assert sum(len(batch) for batch in loader) == ROWS
    return read_counters.Counts(*(now - then for now, then in zip(read_counters.read(), before, strict=True)))


# Workers are no forks by default since Python 3.14, and count for themselves.
FORKED = pytest.mark.skipif(sys.version_info >= (3, 14), reason="workers are not forked")


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=FORKED)])
def test_rows_bytes_and_what_takes_the_time(path, workers):
    parquet = data.parquet(path / "rows.parquet", features="a", seed=0, transform=slow)
    csv = data.csv(path / "rows.csv", features="a", seed=0, block_bytes=10_000)
    dask = data.from_dask(dd.from_pandas(pd.read_csv(path / "rows.csv"), npartitions=4), features="a", seed=0)
    for rows, nbytes, parts in (
        (parquet, 8 * ROWS, ("files", "decoding", "transforms")),
        (csv, (path / "rows.csv").stat().st_size, ("files", "decoding")),
        (dask, 8 * ROWS, ("partitions", "decoding")),
    ):
        found = read_by(rows.loader(100, num_workers=workers))
        assert found.rows == ROWS
        # A footer for each of the row groups, which two workers may both read.
        assert nbytes * 0.95 <= found.bytes_read <= max(1, workers) * (nbytes + 8 * 65_536)
        assert {name for name in ("files", "partitions", "decoding", "transforms") if getattr(found, name) > 0} == set(parts)
    assert read_by(parquet.loader(100)).transforms >= ROWS * 1e-4


def test_a_process_that_is_forked_may_count_for_itself():
    before = read_counters.read().rows
    pid = os.fork()
    if pid == 0:
        read_counters.add(read_counters.ROWS, 5)
        theirs = read_counters.read().rows
        read_counters.own()
        read_counters.add(read_counters.ROWS, 7)
        os._exit(0 if (theirs, read_counters.read().rows) == (before + 5, 7) else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert read_counters.read().rows == before + 5


def test_a_rank_tells_what_was_read_since_the_cell_began(path):
    rows = data.parquet(path / "rows.parquet", features="a", seed=0)
    read_by(rows.loader(100))
    timing = Timing(0, torch.device("cpu"))
    timing.start()
    timing.switch(DATA)
    read_by(rows.loader(100))
    (split,) = timing.drain(0)
    timing.stop()
    assert isinstance(split, TimeSplit)
    assert (split.rows, split.bytes_read, split.decoding) == (ROWS, 0, 0.0)  # it was in memory


def split_after(rank: int, seconds: float, **read: float) -> TimeSplit:
    times: Any = {"data": seconds, **dict.fromkeys(("forward", "backward", "communication", "optimizer", "other"), 0.0), **read}
    return TimeSplit(rank=rank, step=0, **times)


def test_a_run_says_how_fast_its_ranks_read_of_late_and_in_the_end():
    run = RunRecorder(run_id="r", name="r", world_size=2)
    for rank in range(2):
        run.apply(RankStarted(rank=rank, world_size=2, host="here", pid=1, device="cpu", device_name="cpu"))
    assert run.run_update().rows_per_second is None
    for second in range(1, 21):
        for rank in range(2):
            run.apply(split_after(rank, second, rows=100 * min(second, 10), bytes_read=2_000_000 * second))
        if second == 10:
            assert run.run_update().rows_per_second == 200
            so_far = Summary(run.run_update(), []).sentence
            assert "read at 200 rows/s, 3.8 MiB/s on 2 engines" in so_far
    assert (run.run_update().rows_per_second, run.run_update().bytes_per_second) == (None, 4_000_000)
    run.apply(RankStarted(rank=1, world_size=2, host="here", pid=2, device="cpu", device_name="cpu"))
    run.apply(split_after(1, 5, rows=500, bytes_read=10_000_000))  # another engine in its place, which begins at 0
    assert run.run_update().bytes_per_second == 4_000_000
    run.finish("finished")
    assert run.run_update().rows_per_second == 1000 / 20 + 1500 / 25


def test_a_loop_that_only_reads_says_how_far_it_is(monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    loop = SimpleNamespace(count=0, iterable=None, items=iter(range(10)))
    observer = SimpleNamespace(step=0)
    meter = ExtentMeter(0, SimpleNamespace(places=SimpleNamespace(around=lambda: [loop])), observer)  # type: ignore[arg-type]
    for _ in loop.items:
        loop.count += 1
        if loop.count > 2:
            read_counters.add(read_counters.ROWS, 1)
        meter.at_boundary()
        found = [message.fraction for message in meter.drain()]  # type: ignore[attr-defined]
        assert found == ([] if loop.count <= 2 else [loop.count / 10])
    observer.step = 1
    meter.at_boundary()
    assert len(meter.drain()) == 1
    meter.at_boundary()
    assert meter.drain() == []
