"""Read CSV files by an index of byte offsets: each file is scanned once, and then any block of its rows is read separately."""

from __future__ import annotations

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import DataError
from .columns import Names, column_of, columns_to_read, selected
from .files import CountedFile, File, Paths, counted_file, find_files, no_rows
from .order import Numbers
from .progress_line import ProgressLine, progress_line
from .row_groups import RowGroupDataset
from .tables import TableRowGroups, common_schema, said_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

BLOCK_BYTES = 1 << 22
_QUOTE, _NEWLINE, _RETURN = ord('"'), ord("\n"), ord("\r")
_AT_ONCE = 4


def csv(
    paths: Paths,
    *,
    features: Names,
    target: Names | None = None,
    dtype: torch.dtype | None = None,
    target_dtype: torch.dtype | None = None,
    column_types: Mapping[str, Any] | None = None,
    delimiter: str = ",",
    fill_null: Mapping[str, Any] | None = None,
    filesystem: Any = None,
    block_bytes: int = BLOCK_BYTES,
    **options: Any,
) -> RowGroupDataset:
    """Return the rows of CSV files as a map-style data set that is read block by block.

    The first line of each file names its columns. Fields may be quoted, and have line breaks within quotes.

    Parameters
    ----------
    paths, features, target, dtype, target_dtype, fill_null, filesystem
        As in `jupyter_dtrain.data.parquet`.
    column_types : dict, optional
        By column, a type of Arrow (``"float64"``, ``pyarrow.string()``). By default that of the first file's first block.
    delimiter : str
    block_bytes : int
        About how much is read at a time.
    **options
        See `RowGroupDataset`.

    Returns
    -------
    RowGroupDataset

    Raises
    ------
    DataError
        No file, one without columns, a column that is not there, a field that is not of its column's type.
    """
    import pyarrow as pa

    system, files = find_files(paths, filesystem, ".csv")
    wanted = columns_to_read(features, target)
    size = sum(file.size for file in files)
    with progress_line("Looking for the rows of CSV files", size, in_bytes=True) as line, ThreadPoolExecutor(_AT_ONCE) as threads:
        indexes = list(threads.map(partial(_index, system, delimiter=delimiter, block_bytes=block_bytes, line=line), files))
    given = {name: pa.type_for_alias(kind) if isinstance(kind, str) else kind for name, kind in (column_types or {}).items()}
    nothing = {index.header: dict.fromkeys(index.header, pa.null()) for index in indexes}
    common_schema([(file.path, nothing[index.header]) for file, index in zip(files, indexes, strict=True)], wanted)
    blocks = [
        (number, *block)
        for number, index in enumerate(indexes)
        for block in zip(index.begins, index.ends, index.rows, strict=True)
        if block[2]
    ]
    if not blocks:
        raise no_rows(files)
    reader = _Reader(system, files, [index.header for index in indexes], delimiter)
    first = blocks[0]
    table = said_of(
        f"The beginning of {files[first[0]].path}", lambda: reader.read(first[0], first[1], first[2], wanted, given), "Is it a CSV file?"
    )
    types = {name: table.schema.field(name).type for name in wanted}
    columns = {name: column_of(name, kind, lambda: 0) for name, kind in types.items()}
    source = CsvRowGroups(
        reader,
        types,
        blocks=np.array([block[:3] for block in blocks], np.int64),
        counts=np.array([rows for *_, rows in blocks], np.int64),
        features=selected(features, columns, dtype),
        target=selected(target, columns, target_dtype),
        fill_null=fill_null,
        text_bytes={name: table.column(name).nbytes / table.num_rows for name in wanted},
    )
    return RowGroupDataset(source, **options)


@dataclass
class _Index:
    header: tuple[str, ...]
    begins: list[int]
    ends: list[int]
    rows: list[int]


def _index(system: fs.FileSystem, file: File, *, delimiter: str, block_bytes: int, line: ProgressLine) -> _Index:
    def read() -> _Index:
        if not file.size:
            raise DataError("the file is empty (0 bytes)")
        with counted_file(system, file) as opened:
            return _index_of(opened, file.size, delimiter, block_bytes, line)

    return said_of(f"The lines of {file.path}", read, "Leave it out, or write it again.")


def _index_of(opened: CountedFile, size: int, delimiter: str, block_bytes: int, line: ProgressLine) -> _Index:
    """Scan a file once for the offsets of its lines; a newline within quotes does not end a line."""
    header: tuple[str, ...] = ()
    found = _Index((), [], [], [])
    place, rest = 0, b""
    while place < size or rest:
        data = opened.read(block_bytes)
        line.add(len(data))
        is_last = place + len(data) >= size or not data
        text = np.frombuffer(rest + data, np.uint8)
        start = place - len(rest)
        place += len(data)
        quotes = np.logical_xor.accumulate(text == _QUOTE) if len(text) else np.empty(0, bool)
        ends = np.flatnonzero((text == _NEWLINE) & ~quotes) + 1
        if is_last and len(text) and (not len(ends) or ends[-1] < len(text)):
            if quotes[-1]:
                raise DataError(f"a quote that is opened in the line at byte {start + int(ends[-1] if len(ends) else 0)} is not closed")
            ends = np.append(ends, len(text))  # the last line has no newline
        if not len(ends):
            if is_last:
                break
            rest += data
            continue
        begins = np.concatenate([[0], ends[:-1]])
        rest = text[ends[-1] :].tobytes()
        if not header:
            header = _fields(text[: ends[0]].tobytes(), delimiter)
            begins, ends = begins[1:], ends[1:]
        if len(ends):
            # Empty lines are not rows, as for other readers of CSV.
            lengths = ends - begins - (text[ends - 1] == _NEWLINE)
            lengths -= (lengths > 0) & (text[np.maximum(begins + lengths - 1, 0)] == _RETURN)
            found.begins.append(start + int(begins[0]))
            found.ends.append(start + int(ends[-1]))
            found.rows.append(int((lengths > 0).sum()))
        if is_last:
            break
    return _Index(header, found.begins, found.ends, found.rows)


def _fields(line: bytes, delimiter: str) -> tuple[str, ...]:
    import csv as reader

    return tuple(next(reader.reader([line.decode("utf-8-sig").strip("\r\n")], delimiter=delimiter)))


class _Reader:
    """Read blocks of lines."""

    def __init__(self, system: fs.FileSystem, files: list[File], headers: list[tuple[str, ...]], delimiter: str) -> None:
        self._system, self.files, self._headers, self._delimiter = system, files, headers, delimiter

    def read(self, number: int, begin: int, end: int, columns: list[str], types: Mapping[str, Any]) -> pa.Table:
        """Return the given columns of the lines between two byte offsets."""
        from pyarrow import csv as arrow

        with counted_file(self._system, self.files[number]) as opened:
            opened.seek(begin)
            data = opened.read(end - begin)
            return arrow.read_csv(
                io.BytesIO(data),
                read_options=arrow.ReadOptions(column_names=list(self._headers[number]), block_size=max(1 << 20, len(data) + 1)),
                parse_options=arrow.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                convert_options=arrow.ConvertOptions(
                    include_columns=columns,
                    column_types={name: types[name] for name in columns if name in types},
                    strings_can_be_null=False,
                ),
            )


class CsvRowGroups(TableRowGroups):
    """Blocks of lines of CSV files.

    Parameters
    ----------
    reader : _Reader
    types : dict
        Arrow types by column.
    blocks : array of int, shape (groups, 3)
        Number of the file, and the byte offsets of the block's start and end.
    """

    def __init__(self, reader: _Reader, types: Mapping[str, Any], *, blocks: Numbers, **table: Any) -> None:
        super().__init__(**table)
        self._reader, self._types, self._blocks = reader, types, blocks

    def name(self, group: int) -> str:
        """Return the name of a group for messages."""
        number, begin, end = self._blocks[group].tolist()
        return f"the lines at bytes {begin:,} to {end:,} of {self._reader.files[number].path}"

    def table(self, group: int, columns: list[str]) -> pa.Table:
        """Read the given columns of a group."""
        number, begin, end = self._blocks[group].tolist()
        return self._reader.read(number, begin, end, columns, self._types)
