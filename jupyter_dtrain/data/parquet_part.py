"""Name a part of a Parquet data set, convert its columns to an Arrow table, and write its file atomically."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs

PART_NAME = re.compile(r"part-(\d{6,})\.parquet(\.[0-9]+)?")  # the second suffix is that of an unfinished file
PartColumn = list[Any]


def part_name(part: int) -> str:
    """Return the file name of a part."""
    return f"part-{part:06}.parquet"


def kept_column(name: str, column: Any) -> Any:
    """Return a copy of a column on the CPU, without an autograd graph."""
    if isinstance(column, torch.Tensor):
        column = column.detach().cpu().clone()  # a view would keep its base's storage alive
    elif isinstance(column, np.ndarray):
        column = column.copy()
    else:
        column = list(column) if isinstance(column, Sequence) and not isinstance(column, str | bytes) else np.asarray(column)
    if not isinstance(column, list) and column.ndim not in (1, 2):
        raise UsageError(f"Column {name!r} has shape {tuple(column.shape)}, but a column must be (B,) or (B, C): use `.flatten(1)`.")
    return column


def array_of(piece: Any) -> Any:
    """Return a piece as an array or list; of a batch sharded over the ranks, all rows. Collective."""
    if not isinstance(piece, torch.Tensor):
        return piece
    return (piece.float() if piece.dtype == torch.bfloat16 else piece).numpy()


def table_of(columns: Mapping[str, PartColumn]) -> pa.Table:
    """Return columns, each a list of pieces, as an Arrow table."""
    import pyarrow as pa

    return pa.table({name: pa.chunked_array([_array(piece) for piece in pieces]) for name, pieces in columns.items()})


def _array(piece: Any) -> pa.Array:
    import pyarrow as pa

    if isinstance(piece, list) or piece.ndim == 1:
        return pa.array(piece)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(piece).ravel()), piece.shape[1])


def put_table(system: fs.FileSystem, path: str, suffix: str, table: pa.Table) -> None:
    """Write a table to a file atomically."""
    import pyarrow.parquet as pq
    from pyarrow import fs

    if not isinstance(system, fs.LocalFileSystem):  # an object store shows a file only once it is complete
        with system.open_output_stream(path) as stream:
            pq.write_table(table, stream)
        return
    with system.open_output_stream(path + suffix) as stream:
        pq.write_table(table, stream)
    system.move(path + suffix, path)
