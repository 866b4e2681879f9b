"""Compare rows of Parquet files with the same rows in memory-mapped arrays: ``python -m bench.data [--rows 200000] [--rounds 5]``.

Loaders are walked over in turns, because a machine is never quite idle: what counts are ratios within a round.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, Dataset

from jupyter_dtrain import data
from jupyter_dtrain.data.samplers import SeekableIterator

COLUMNS = [f"x{number}" for number in range(32)]
GROUP = 10_000
BATCH = 256


class Mapped(Dataset[Any]):
    """Rows of arrays in files, as one writes a data set of them."""

    def __init__(self, folder: Path) -> None:
        self.x, self.y = (np.load(folder / f"{name}.npy", mmap_mode="r+") for name in ("x", "y"))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.x[index]), torch.as_tensor(self.y[index])


class RowByRow(Dataset[Any]):
    """A data set of which nobody sees that it gives batches."""

    def __init__(self, rows: data.RowGroupDataset) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def write(folder: Path, rows: int) -> None:
    """Write the same rows as arrays and as Parquet files."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(rows, len(COLUMNS))).astype(np.float32), rng.integers(0, 10, rows)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    for part in range(4):
        some = slice(part * rows // 4, (part + 1) * rows // 4)
        table = pa.table({name: x[some, number] for number, name in enumerate(COLUMNS)} | {"y": y[some]})
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=GROUP)


def seconds(loader: Any, batches: int) -> float:
    """Return how long it takes to load so many batches."""
    begun = time.perf_counter()
    for number, _ in enumerate(loader, 1):
        if number == batches:
            break
    return time.perf_counter() - begun


def measure(rows: int, rounds: int) -> dict[str, list[float]]:
    """Return seconds per batch of each way, by round."""
    with tempfile.TemporaryDirectory(prefix="bench-data-") as name:
        folder = Path(name)
        write(folder, rows)
        parquet: Callable[[], data.RowGroupDataset] = lambda: data.parquet(folder, features=COLUMNS, target="y")  # noqa: E731
        whole, part = rows // BATCH, max(1, rows // BATCH // 10)
        found: dict[str, list[float]] = {"memory-mapped": [], "parquet": [], "parquet, its sampler": [], "row by row": []}
        for _ in range(rounds):
            found["memory-mapped"].append(seconds(DataLoader(Mapped(folder), BATCH, shuffle=True), whole) / whole)
            found["parquet"].append(seconds(parquet().loader(BATCH), whole) / whole)  # nothing of it is in memory yet
            fresh = parquet()
            found["parquet, its sampler"].append(seconds(DataLoader(fresh, BATCH, sampler=fresh.sampler), whole) / whole)
            by_row = RowByRow(parquet())
            found["row by row"].append(seconds(DataLoader(by_row, BATCH, sampler=by_row.rows.sampler), part) / part)
        return found


def skipping(rows: int) -> tuple[float, float]:
    """Return how long a resumed epoch takes to pass over `rows` rows and to read what follows: by the batch sampler, and by the sampler."""
    with tempfile.TemporaryDirectory(prefix="bench-data-") as name:
        write(Path(name), rows + GROUP)
        dataset = data.parquet(name, features=COLUMNS, target="y")
        begun = time.perf_counter()
        batches = iter(dataset.batch_sampler(BATCH))
        assert isinstance(batches, SeekableIterator)
        batches.skip(rows // BATCH)
        dataset.__getitems__(next(batches))
        between = time.perf_counter()
        dataset[next(itertools.islice(dataset.sampler, rows, None))]
        return between - begun, time.perf_counter() - between


def main() -> None:
    """Print a table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rows", type=int, default=200_000)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    found = measure(given.rows, given.rounds)
    for name, times in found.items():
        ratio = statistics.median(plain / mine for plain, mine in zip(found["memory-mapped"], times, strict=True))
        print(f"{name:22} {1000 * statistics.median(times):7.2f} ms a batch of {BATCH}   {ratio:5.2f} × memory-mapped")
    by_batch, by_row = skipping(1_000_000)
    print(f"a million rows passed over: {by_batch:.3f} s by the batch sampler, {by_row:.3f} s by the sampler")


if __name__ == "__main__":
    main()
