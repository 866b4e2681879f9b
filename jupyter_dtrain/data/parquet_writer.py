"""Write what a cell computes of each batch to Parquet files while it runs: predictions that need not fit into memory.

A part is a file of complete batches, numbered in the order in which they were added. Its contents and its name do not depend on the number
of engines: the engines write parts in turn. So a part that is written again, after the loss of an engine or by a resumed run, is identical.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from .. import api
from ..errors import DataError, UsageError
from ..system import open_writers
from .files import check_extra, opened
from .parquet_part import PART_NAME, PartColumn, array_of, kept_column, part_name, put_table, table_of

PART_ROWS = 65_536
_SEEN_LIMIT = 10.0  # seconds until a file that one host has created is visible on others


def to_parquet(folder: str | os.PathLike[str], *, part_rows: int = PART_ROWS, filesystem: Any = None) -> ParquetWriter:
    """Return what writes rows into Parquet files of a folder, in the order in which they are added, from one process or from engines.

    The rows of the last part are written at the end of the ``with`` block or by ``close()``; without either at the end of the cell, or of
    the script. A later cell may then add rows to it.

    Parameters
    ----------
    folder : path
        A folder of its own, or an address like ``"s3://bucket/predictions"``; engines on several hosts need one that all of them see. Parts
        of an earlier time are removed with the first rows, as ``open(…, "w")`` does.
    part_rows : int
        A file is written when so many rows have come, with all of the batch that was added last.
    filesystem : pyarrow.fs.FileSystem or fsspec file system, optional
        By default what the address says.

    Examples
    --------
    ``with data.to_parquet("predictions") as preds:`` and for each batch ``preds.append(model(x))``
    """
    return ParquetWriter(folder, part_rows=part_rows, filesystem=filesystem)


class ParquetWriter:
    """Rows on their way into the files of a folder; see `to_parquet`. On engines all call it at the same place."""

    place: open_writers.Place | None = None
    _is_written = True  # all added rows are in a file

    def __new__(cls, *_: Any, **__: Any) -> Self:  # noqa: D102
        made = super().__new__(cls)
        open_writers.note(made)  # also for copies, for which `__init__` is not called
        return made

    def __init__(self, folder: str | os.PathLike[str], *, part_rows: int, filesystem: Any = None) -> None:
        check_extra()
        if part_rows < 1:
            raise UsageError(f"A part has at least one row, and `part_rows` is {part_rows}.")
        self.folder, self.part_rows = os.fspath(folder), part_rows
        self._filesystem = filesystem
        self._columns: dict[str, PartColumn] | None = None  # what was added since the last part, by name
        self._pending = self._num_written = self._num_parts = 0
        self._is_closed = False

    __signature__ = inspect.Signature([*inspect.signature(__init__).parameters.values()][1:])  # otherwise that of `__new__` would be shown

    def append(self, values: Any = None, /, **columns: Any) -> None:
        """Add a row for each sample of a batch.

        Parameters
        ----------
        values : tensor, array or list, shape (B,) or (B, C)
            A column with the name ``value``, or a dict of columns by name.
        **columns
            Columns by name.
        """
        if self._is_closed:
            raise UsageError("The writer is closed and takes no more rows.")
        given = {**(values if isinstance(values, Mapping) else {} if values is None else {"value": values}), **columns}
        batch = {name: kept_column(name, column) for name, column in given.items()}
        lengths = {name: len(column) for name, column in batch.items()}
        if len(set(lengths.values())) != 1:
            raise UsageError(f"The columns of a batch must have one length, and these have {lengths or 'none'}.")
        if self._columns is None:
            self._begin()
            self._columns = {name: [] for name in batch}
        if self._columns.keys() != batch.keys():
            raise UsageError(f"The columns were {list(self._columns)} before, and are {list(batch)} now.")
        for name, column in batch.items():
            self._columns[name].append(column)
        self._pending += next(iter(lengths.values()))
        self._is_written, self.place = False, open_writers.here()
        if self._pending >= self.part_rows:
            self._end_part()

    def flush(self) -> None:
        """Write the remaining rows as the last part. It is rewritten when more rows are added."""
        if not self._is_written:
            self._write()

    def forget(self) -> None:
        """Drop unwritten rows, as another writer owns the folder."""
        self._is_written = True

    def close(self) -> None:
        """Write the remaining rows, and check that all parts exist."""
        if self._is_closed:
            return
        if self._columns is None:
            self._begin()
        if self._pending:
            self._end_part()
        self._is_closed = True
        _gather(None)  # waits until all ranks have written their parts
        missing = _gather(self._missing() if api.rank() == 0 else 0)[0]
        if missing:
            raise DataError(
                f"{missing} of {self._num_parts} parts are not in {self.folder} on the notebook's host: engines on other hosts wrote "
                "them there. Give a folder that all hosts see, or an address (s3://…)."
            )

    def __enter__(self) -> ParquetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()

    def __del__(self) -> None:
        if open_writers.is_ours(self):
            self.flush()

    def __len__(self) -> int:
        return self._num_written + self._pending

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows, {self._num_parts:,} parts in {self.folder})"

    # -- files -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Create the folder and remove parts of earlier runs, which would otherwise be read with those of this one."""
        open_writers.begin(self)
        _gather(None)  # waits until no rank writes parts of before
        problem = None
        if api.rank() == 0:
            try:
                self._clear()
            except (OSError, DataError) as error:
                problem = str(error)
        problem = _gather(problem)[0]
        if problem is not None:
            raise DataError(f"Nothing can be written to {self.folder}: {problem.rstrip('.')}.")
        blind = [rank for rank, sees in enumerate(_gather(api.world_size() == 1 or self._sees_first())) if not sees]
        if blind:
            raise DataError(
                f"Rank {blind[0]} does not see what rank 0 writes to {self.folder}: they are on several hosts. Give a folder that all of "
                "them see, or an address (s3://…)."
            )

    def _clear(self) -> None:
        from pyarrow import fs

        system, base = opened(self.folder, self._filesystem)
        system.create_dir(base, recursive=True)
        names = {info.base_name: info for info in system.get_file_info(fs.FileSelector(base))}
        others = sorted(name for name in names if not PART_NAME.fullmatch(name))
        if others:
            raise DataError(f"it has other files ({others[0]}), and parts need a folder of their own")
        for info in names.values():
            system.delete_file(info.path)
        if isinstance(system, fs.LocalFileSystem):
            Path(base, f"{part_name(0)}.0").touch()  # rank 0 will write the first part under this name

    def _sees_first(self) -> bool:
        """Return whether this rank sees the file that rank 0 has created."""
        from pyarrow import fs

        system, base = opened(self.folder, self._filesystem)
        if not isinstance(system, fs.LocalFileSystem):
            return True
        first, deadline = Path(base, f"{part_name(0)}.0"), time.monotonic() + _SEEN_LIMIT
        while not first.exists() and time.monotonic() < deadline:  # a network file system may show it late
            time.sleep(0.05)
        return first.exists()

    def _end_part(self) -> None:
        """Write the added rows as the next part, and begin another."""
        assert self._columns is not None
        self._write()
        self._num_parts += 1
        self._num_written += self._pending
        self._pending = 0
        self._columns = {name: [] for name in self._columns}

    def _write(self) -> None:
        """Write the added rows as the next part. Every engine has all rows, and one of them writes the file."""
        assert self._columns is not None
        number, rank = self._num_parts, api.rank()
        whole = {name: [array_of(piece) for piece in column] for name, column in self._columns.items()}
        if number % api.world_size() == rank:
            system, base = opened(self.folder, self._filesystem)
            try:
                put_table(system, f"{base.rstrip('/')}/{part_name(number)}", f".{rank}", table_of(whole))
            except OSError as error:
                raise DataError(f"Part {number} cannot be written to {self.folder}: {error}") from None
        self._is_written = True

    def _missing(self) -> int:
        """Return the number of missing parts; remove unfinished files and those after the last part.

        An engine that was lost leaves unfinished files. Later parts remain if a cell has returned less than it had written.
        """
        from pyarrow import fs

        system, base = opened(self.folder, self._filesystem)
        there = set()
        for info in system.get_file_info(fs.FileSelector(base)):
            match = PART_NAME.fullmatch(info.base_name)
            if match and (match[2] or int(match[1]) >= self._num_parts):
                system.delete_file(info.path)
            elif match:
                there.add(int(match[1]))
        return self._num_parts - sum(number in there for number in range(self._num_parts))


def _gather(value: Any) -> list[Any]:
    if api.current is None and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise UsageError("With --strategy none, all processes would write the same files: give each a folder of its own.")
    return api.gather(value)
