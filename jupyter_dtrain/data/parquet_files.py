"""Read row groups of Parquet files. Footers are read once, when the data set is made; an engine reads only the groups that it needs."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ..errors import DataError
from .columns import Names, column_of, columns_to_read, selected
from .files import File, Paths, counted_file, find_files, no_rows
from .order import Numbers
from .progress_line import ProgressLine, progress_line
from .row_groups import RowGroupDataset
from .tables import TableRowGroups, common_schema, said_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

_AT_ONCE = 16  # footers that are read in parallel


def parquet(
    paths: Paths,
    *,
    features: Names,
    target: Names | None = None,
    dtype: torch.dtype | None = None,
    target_dtype: torch.dtype | None = None,
    fill_null: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    **options: Any,
) -> RowGroupDataset:
    """Return the rows of Parquet files as a map-style data set that is read row group by row group.

    Parameters
    ----------
    paths : path, glob, folder, or several of these
        ``"taxi/*.parquet"``, ``"s3://bucket/taxi"``.
    features : str or list of str
        Columns. Several with numbers (or lists of numbers, all of one length) make one tensor of shape ``(F,)``; with texts or bytes among
        them a sample is a dict; one name, and no list, gives its column as it is.
    target : str or list of str, optional
        Columns, in the same way. Without, a sample is its features alone.
    dtype, target_dtype : torch.dtype, optional
        Of numbers. By default what PyTorch promotes the columns' types to.
    fill_null : dict, optional
        By column, what stands for nulls. Without, floats get NaN and all else is an error.
    filesystem : pyarrow.fs.FileSystem or fsspec file system, optional
        By default what the address says.
    **options
        See `RowGroupDataset`: `transform`, `target_transform`, `shuffle`, `seed`, `cache_bytes`, `window`.

    Returns
    -------
    RowGroupDataset

    Raises
    ------
    DataError
        No file, one that is no Parquet file, a column that is not there or differs between files.
    """
    system, files = find_files(paths, filesystem, ".parquet")
    wanted = columns_to_read(features, target)
    with progress_line("Reading footers", len(files), in_bytes=False) as line, ThreadPoolExecutor(_AT_ONCE) as threads:
        footers = list(threads.map(partial(_footer, system, columns=wanted, line=line), files))
    schema = common_schema([(file.path, footer.types) for file, footer in zip(files, footers, strict=True)], wanted, dtype, target_dtype)
    filled = [(file, footer) for file, footer in zip(files, footers, strict=True) if sum(footer.rows)]
    if not filled:
        raise no_rows(files)

    def width(name: str) -> int:
        return _width(system, filled[0][0], name)

    columns = {name: column_of(name, kind, partial(width, name)) for name, kind in schema.items()}
    groups = [
        (number, group, rows, footer.text_bytes[group])
        for number, (_, footer) in enumerate(filled)
        for group, rows in enumerate(footer.rows)
        if rows
    ]
    source = ParquetRowGroups(
        system,
        [file for file, _ in filled],
        groups=np.array([(number, group) for number, group, _, _ in groups], np.int64),
        counts=np.array([rows for *_, rows, _ in groups], np.int64),
        features=selected(features, columns, dtype),
        target=selected(target, columns, target_dtype),
        fill_null=fill_null,
        text_bytes={name: sum(sizes[name] for *_, sizes in groups) / sum(rows for *_, rows, _ in groups) for name in wanted},
    )
    return RowGroupDataset(source, **options)


@dataclass
class _Footer:
    types: dict[str, pa.DataType]
    rows: list[int]
    text_bytes: list[dict[str, int]]
    """Uncompressed bytes by row group and column."""


def _footer(system: fs.FileSystem, file: File, columns: list[str], line: ProgressLine) -> _Footer:
    import pyarrow.parquet as pq

    def read() -> _Footer:
        if not file.size:
            raise DataError("the file is empty (0 bytes)")
        with system.open_input_file(file.path) as opened, pq.ParquetFile(opened) as found:
            metadata, schema = found.metadata, found.schema_arrow
            places = {metadata.schema.column(number).path.partition(".")[0]: number for number in range(metadata.num_columns)}
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            sizes = [
                {name: group.column(places[name]).total_uncompressed_size if name in places else 0 for name in columns} for group in groups
            ]
            types = {name: schema.field(name).type for name in schema.names}
            line.add(1)
            return _Footer(types, [group.num_rows for group in groups], sizes)

    return said_of(f"The footer of {file.path}", read, "Is it a whole Parquet file? Leave it out, or write it again.")


def _width(system: fs.FileSystem, file: File, name: str) -> int:
    import pyarrow.parquet as pq

    def read() -> int:
        with system.open_input_file(file.path) as opened, pq.ParquetFile(opened) as found:
            first = next(found.iter_batches(batch_size=1, columns=[name]))
            value = first.column(0)[0].as_py()
            if value is None:
                raise DataError(f"column {name!r} begins with a null")
            return len(value)

    return said_of(f"Column {name!r} of {file.path}", read, "")


class ParquetRowGroups(TableRowGroups):
    """Row groups of Parquet files.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
    files : list of File
    groups : array of int, shape (groups, 2)
        Number of the file, and of the row group in it.
    """

    def __init__(self, system: fs.FileSystem, files: list[File], *, groups: Numbers, **table: Any) -> None:
        super().__init__(**table)
        self._system, self._files, self._groups = system, files, groups

    def name(self, group: int) -> str:
        """Return the name of a group for messages."""
        file, number = self._groups[group].tolist()
        return f"row group {number} of {self._files[file].path}"

    def table(self, group: int, columns: list[str]) -> pa.Table:
        """Read the given columns of a group, and no other bytes."""
        import pyarrow.parquet as pq

        number, row_group = self._groups[group].tolist()
        footers = _footers.setdefault(self, FooterCache())
        with (
            counted_file(self._system, self._files[number]) as opened,
            pq.ParquetFile(opened, metadata=footers.get(number)) as found,
        ):
            footers.put(number, found.metadata)
            return found.read_row_group(row_group, columns=columns, use_threads=True)


class FooterCache:
    """Cache of recently used footers. The footer of a wide file with many row groups can be larger than a row group."""

    LIMIT = 16 << 20
    """Maximum bytes, by their size in the files."""

    def __init__(self) -> None:
        self._by_file: OrderedDict[int, Any] = OrderedDict()  # most recently used last
        self._nbytes = 0
        self._lock = threading.Lock()

    def get(self, number: int) -> Any:
        """Return a cached footer, or ``None``."""
        with self._lock:
            if number in self._by_file:
                self._by_file.move_to_end(number)
            return self._by_file.get(number)

    def put(self, number: int, footer: Any) -> None:
        """Cache a footer, and evict others beyond the limit."""
        with self._lock:
            if number in self._by_file:
                return
            self._by_file[number] = footer
            self._nbytes += footer.serialized_size
            while self._nbytes > self.LIMIT:
                self._nbytes -= self._by_file.popitem(last=False)[1].serialized_size


_footers: WeakKeyDictionary[ParquetRowGroups, FooterCache] = WeakKeyDictionary()
"""Stored outside of the data sets, so that footers are neither their state nor pickled with them."""
os.register_at_fork(after_in_child=lambda: _footers.clear())  # a lock may be held by a thread of the parent
