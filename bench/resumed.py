"""See what libraries do in the middle of an epoch, on as many processes and on others: ``PYTHON bench/resumed.py [--results FILE]``.

PYTHON is that of an environment with ``torch datasets accelerate torchdata litdata``; this project is not needed there. All read one table:
20 global batches of 48 rows, in four files. The first processes end after 13 batches, each with the state that the library's documentation
says to keep. New ones load it, give what is left of the epoch, and one epoch more. A rank that finds no state of its own begins
anew, as with a checkpoint that has a part for each rank. What `%%distribute` does with such files ``tests/faults/test_data.py`` has.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import random
import socket
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

FILES, ROWS, GROUP, BATCH, TAKEN = 4, 240, 40, 48, 13  # rows are those of a file, batches are global
TOTAL = FILES * ROWS
CHANGES = ((4, 4), (4, 2), (2, 4))  # processes before and after
FIRST, REST, WHOLE = "first", "rest", "whole"  # what processes do of two epochs
END: list[int] = []  # stands between the epochs
LIMIT = 240.0  # seconds for processes that were started together

Batches = Iterator[list[int]]


@dataclass
class Rank:
    """One process of several: its number, where the table is, and a folder for what it keeps."""

    number: int
    world_size: int
    table: Path
    kept: Path

    @property
    def batch_size(self) -> int:
        return BATCH // self.world_size

    @property
    def _file(self) -> Path:
        return self.kept / f"rank-{self.number}"

    def keep(self, state: Any) -> None:
        self._file.write_bytes(pickle.dumps(state))

    def state(self) -> Any:
        return pickle.loads(self._file.read_bytes()) if self._file.exists() else None


def rows_of(batch: Any) -> list[int]:
    """Return the numbers of a batch's rows."""
    return [int(row) for row in batch["row"]]


def map_style(rank: Rank) -> Any:
    """Return the table as a map-style data set."""
    from datasets import load_dataset

    files = sorted(map(str, rank.table.glob("*.parquet")))
    return load_dataset("parquet", data_files=files, split="train", cache_dir=str(rank.table / "cache")).with_format("torch")


def accelerated(rank: Rank, *, part: str, stateful: bool) -> Batches:
    """As accelerate's guide to checkpoints has it: `save_state`, `load_state`, and `skip_first_batches` or a stateful loader."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration, set_seed

    set_seed(1)
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=stateful, use_seedable_sampler=True)
    )
    loader = accelerator.prepare(torch.utils.data.DataLoader(map_style(rank), batch_size=rank.batch_size, shuffle=True))
    folder = str(rank.kept / "accelerate")
    loader.set_epoch(0)
    if part == FIRST:
        batches = iter(loader)
        yield from map(rows_of, islice(batches, TAKEN))
        accelerator.save_state(folder)
        return
    if part == REST:
        accelerator.load_state(folder)
    yield from map(rows_of, loader if stateful or part == WHOLE else accelerator.skip_first_batches(loader, TAKEN))
    yield END
    loader.set_epoch(1)
    yield from map(rows_of, loader)


def stateful_loader(rank: Rank, *, part: str) -> Batches:
    """Use torchdata's `StatefulDataLoader` with PyTorch's `DistributedSampler`."""
    from torch.utils.data import DistributedSampler
    from torchdata.stateful_dataloader import StatefulDataLoader

    rows = map_style(rank)
    sampler: Any = DistributedSampler(rows, rank.world_size, rank.number, seed=1)
    loader = StatefulDataLoader(rows, batch_size=rank.batch_size, sampler=sampler)
    if part == FIRST:
        yield from map(rows_of, islice(loader, TAKEN))
        rank.keep(loader.state_dict())
        return
    if part == REST and (state := rank.state()) is not None:
        loader.load_state_dict(state)
    yield from map(rows_of, loader)
    yield END
    sampler.set_epoch(1)
    yield from map(rows_of, loader)


def streamed(rank: Rank, *, part: str, shuffled: bool) -> Batches:
    """Hugging Face's streaming: `split_dataset_by_node` and the data set's own state."""
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    rows = load_dataset("parquet", data_files=sorted(map(str, rank.table.glob("*.parquet"))), split="train", streaming=True)
    rows = rows.shuffle(seed=1, buffer_size=100) if shuffled else rows
    rows = split_dataset_by_node(rows, rank.number, rank.world_size)

    def batches() -> Batches:
        given = iter(rows)
        while batch := list(islice(given, rank.batch_size)):
            yield [row["row"] for row in batch]

    if part == FIRST:
        yield from islice(batches(), TAKEN)
        rank.keep(rows.state_dict())
        return
    if part == REST and (state := rank.state()) is not None:
        rows.load_state_dict(state)
    yield from batches()
    yield END
    rows.set_epoch(1)
    yield from batches()


def lit(rank: Rank, *, part: str) -> Batches:
    """Use litData's `StreamingDataLoader`, over the same rows in chunks of its own format."""
    from litdata import StreamingDataLoader, StreamingDataset

    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = str(rank.kept / "cache")
    loader = StreamingDataLoader(StreamingDataset(str(rank.table / "lit"), shuffle=True, seed=1), batch_size=rank.batch_size)
    if part == FIRST:
        yield from map(rows_of, islice(loader, TAKEN))
        rank.keep(loader.state_dict())
        return
    if part == REST:  # one state for all, as its documentation has it; it says itself how many processes it was made by
        loader.load_state_dict(pickle.loads((rank.kept / "rank-0").read_bytes()))
    yield from map(rows_of, loader)
    yield END
    yield from map(rows_of, loader)


WAYS: dict[str, tuple[str, Callable[..., Batches]]] = {
    "accelerate, `skip_first_batches`": ("accelerate", lambda rank, **on: accelerated(rank, stateful=False, **on)),
    "accelerate, `use_stateful_dataloader`": ("accelerate", lambda rank, **on: accelerated(rank, stateful=True, **on)),
    "`StatefulDataLoader`, `DistributedSampler`": ("torchdata", stateful_loader),
    "datasets, streamed in order": ("datasets", lambda rank, **on: streamed(rank, shuffled=False, **on)),
    "datasets, streamed with `shuffle`": ("datasets", lambda rank, **on: streamed(rank, shuffled=True, **on)),
    "litData, shuffled": ("litdata", lit),
}


# -- processes -----------------------------------------------------------------------------------------------------------


def write_row(row: int) -> dict[str, int]:
    """Return what litData writes of a row."""
    return {"row": row}


def write(folder: Path) -> None:
    """Write the table, as Parquet and in litData's format."""
    import litdata
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part in range(FILES):
        pq.write_table(pa.table({"row": np.arange(ROWS) + ROWS * part}), folder / f"{part}.parquet", row_group_size=GROUP)
    litdata.optimize(fn=write_row, inputs=list(range(TOTAL)), output_dir=str(folder / "lit"), chunk_size=GROUP, num_workers=1)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _as_rank(rank: Rank, port: int, way: str, part: str, answers: Any) -> None:
    of_launcher = {"RANK": rank.number, "LOCAL_RANK": rank.number, "WORLD_SIZE": rank.world_size, "LOCAL_WORLD_SIZE": rank.world_size}
    os.environ |= {name: str(value) for name, value in of_launcher.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true"}
    os.environ |= {"HF_HOME": str(rank.table / "home"), "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    torch.set_num_threads(1)
    random.seed(rank.number)
    try:
        import datasets

        datasets.disable_progress_bars()
        torch.distributed.init_process_group("gloo")
        answer: Any = list(WAYS[way][1](rank, part=part))
    except Exception as error:
        # What a loader raises when it is asked for its iterator, a generator here makes another error of.
        answer = type(error.__cause__ if isinstance(error.__cause__, StopIteration) else error).__name__
        (rank.kept / f"error-{rank.number}").write_text(traceback.format_exc())
    answers.put((rank.number, answer))
    answers.close()
    answers.join_thread()
    os._exit(0)


def run(way: str, world_size: int, table: Path, kept: Path, part: str) -> list[Any]:
    """Return the batches that each of `world_size` new processes was given, or its error as a text."""
    context = multiprocessing.get_context("fork")
    answers, port = context.Queue(), free_port()
    ranks = [Rank(number, world_size, table, kept) for number in range(world_size)]
    processes = [context.Process(target=_as_rank, args=(rank, port, way, part, answers)) for rank in ranks]
    for process in processes:
        process.start()
    try:
        return [answer for _, answer in sorted(answers.get(timeout=LIMIT) for _ in ranks)]
    finally:
        for process in processes:
            process.join(5)
            process.kill()


# -- what came of it -----------------------------------------------------------------------------------------------------


def epochs(of_ranks: list[list[list[int]]]) -> list[list[list[int]]]:
    """Return the rows of each step of all ranks, by epoch."""
    found = []
    while any(of_ranks):
        now = [list(takewhile(lambda batch: batch != END, batches)) for batches in of_ranks]
        of_ranks = [batches[len(taken) + 1 :] for batches, taken in zip(of_ranks, now, strict=True)]
        longest = max(map(len, now))
        found.append([sorted(chain.from_iterable(batches[step] for batches in now if step < len(batches))) for step in range(longest)])
    return found


def outcome(first: list[Any], rest: list[Any], whole: list[Any]) -> dict[str, Any]:
    """Compare an epoch in two parts, and the one behind it, with those of processes that were not ended."""
    errors = sorted({answer for answer in [*first, *rest, *whole] if isinstance(answer, str)})
    if errors:
        return {"error": errors[0]}
    [before], [after, second], [expected, _] = epochs(first), epochs(rest), epochs(whole)
    seen, next_seen = (Counter(chain.from_iterable(batches)) for batches in (before + after, second))
    return {
        "lost": TOTAL - len(seen),
        "repeated": sum(seen.values()) - len(seen),
        "same_batches": before + after == expected,
        "next_epoch_complete": len(next_seen) == TOTAL == sum(next_seen.values()),
    }


def measure() -> dict[str, dict[str, Any]]:
    """Return the outcomes of each way, by the change of processes."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-resumed-") as name:
        table = Path(name) / "table"
        table.mkdir()
        write(table)

        def answers(way: str, world_size: int, kept: Path, part: str) -> list[Any]:
            kept.mkdir(exist_ok=True)
            found = run(way, world_size, table, kept, part)
            for number, answer in enumerate(found):
                if isinstance(answer, str):
                    print(f"{way}, rank {number}, {part}:\n{(kept / f'error-{number}').read_text()}", flush=True)
            return found

        for number, way in enumerate(WAYS):
            folder = Path(name) / str(number)
            folder.mkdir()
            whole = answers(way, 4, folder / "whole", WHOLE)
            found[way] = {}
            for before, after in CHANGES:
                first, rest = (answers(way, size, folder / f"{before}-{after}", part) for size, part in ((before, FIRST), (after, REST)))
                found[way][f"{before} → {after}"] = outcome(first, rest, whole)
            print(way, found[way], flush=True)
    return found


def said(of: dict[str, Any]) -> str:
    """Return an outcome as the cell of a table."""
    if "error" in of:
        return f"fails ({of['error']})"
    parts = [f"{of['lost']} lost" * (of["lost"] > 0), f"{of['repeated']} repeated" * (of["repeated"] > 0)]
    text = ", ".join(filter(None, parts)) or ("each row once" + ("" if of["same_batches"] else ", in other batches"))
    return text + ("" if of["next_epoch_complete"] else "; the next epoch is not whole")


def main() -> None:
    """Print a table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--results", type=Path, help="a file for the outcomes")
    given = arguments.parse_args()
    found = measure()
    if given.results:
        given.results.write_text(json.dumps(found))
    changes = [f"{before} → {after}" for before, after in CHANGES]
    print(f"| {TOTAL} rows, ended after {TAKEN * BATCH} | {' | '.join(changes)} |\n|---|{'---|' * len(changes)}")
    for way, outcomes in found.items():
        print(f"| {way} ({version(WAYS[way][0])}) | {' | '.join(said(outcomes[change]) for change in changes)} |")


if __name__ == "__main__":
    main()
