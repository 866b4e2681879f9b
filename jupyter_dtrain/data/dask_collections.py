"""Use partitions of Dask collections as row groups: each is computed where its rows are used, by the user's `Client` if there is one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..errors import DataError, UsageError
from .columns import Names, column_of, columns_to_read, selected
from .dask_row_groups import TO_DO, ArrayRowGroups, BagRowGroups, FrameRowGroups, as_table, computed
from .decoded_rows import nbytes_of
from .files import check_extra
from .order import Numbers
from .row_groups import RowGroupDataset, RowGroups
from .tables import said_of


def from_dask(
    collection: Any,
    *,
    features: Names | None = None,
    target: Any = None,
    dtype: torch.dtype | None = None,
    target_dtype: torch.dtype | None = None,
    lengths: Sequence[int] | None = None,
    fill_null: Mapping[str, Any] | None = None,
    **options: Any,
) -> RowGroupDataset:
    """Return the rows of a Dask DataFrame, Array or Bag as a map-style data set.

    Partitions are computed by what computes collections in the process: a `distributed.Client` of the notebook is one of the same
    cluster on the engines. A partition that is computed a second time must come to the same rows.

    Parameters
    ----------
    collection : dask DataFrame, Array or Bag
        An array has its samples along the first dim; a sample of a bag is its item, for which `transform` says what a model is fed with.
    features, target : str or list of str
        Columns of a DataFrame, as in `jupyter_dtrain.data.parquet`. Of an array, the target is another with as many rows.
    dtype, target_dtype : torch.dtype, optional
        Of numbers.
    lengths : sequence of int, optional
        Rows of each partition. By default each is computed once to be counted; arrays know them.
    fill_null : dict, optional
        By column of a DataFrame, what stands for nulls.
    **options
        See `RowGroupDataset`.

    Returns
    -------
    RowGroupDataset

    Raises
    ------
    DataError
        A partition that fails, a column that is not there.
    UsageError
        No collection, one that was persisted on a cluster, or arrays with other numbers of rows.
    """
    check_extra()
    for one in (collection, target):
        _check_not_persisted(one)
    kind = type(collection).__module__
    if kind.startswith(("dask.dataframe", "dask_expr")) and features is not None:
        source: RowGroups = _of_frame(collection, features, target, dtype, target_dtype, lengths, fill_null)
    elif kind.startswith("dask.array"):
        source = _of_arrays(collection, target, dtype, target_dtype)
    elif kind.startswith("dask.bag"):
        source = _of_bag(collection, lengths)
    else:
        raise UsageError(
            "Give `features`: the columns of the DataFrame for the model's input."
            if kind.startswith(("dask.dataframe", "dask_expr"))
            else f"Expected a Dask DataFrame, Array or Bag, not a {type(collection).__name__}."
        )
    return RowGroupDataset(source, **options)


def _check_not_persisted(collection: Any) -> None:
    """Refuse a collection in the memory of a cluster: an engine would wait for its partitions forever."""
    client: Any = sys.modules.get("distributed.client")
    if client is not None and hasattr(collection, "__dask_graph__") and client.futures_of(collection):
        raise UsageError(
            "This Dask collection was persisted: its partitions are futures of this process. Pass the collection from before `persist()`: "
            "partitions in use are kept in memory anyway."
        )


def _of_frame(
    frame: Any,
    features: Names,
    target: Any,
    dtype: torch.dtype | None,
    target_dtype: torch.dtype | None,
    lengths: Sequence[int] | None,
    fill_null: Mapping[str, Any] | None,
) -> RowGroups:
    wanted = columns_to_read(features, target)
    for name in wanted:
        if name not in frame.columns:
            raise DataError(f"The DataFrame has no column {name!r}. It has {', '.join(map(repr, frame.columns))}.")
    made = frame[wanted].to_delayed()
    if lengths is None:
        lengths = _lengths_of(made)
    parts, counts, numbers = _filled(made, lengths)
    table = said_of(f"Partition {numbers[0]}", lambda: as_table(computed(parts[0])), TO_DO)

    def width(name: str) -> int:
        return len(table.column(name)[0].as_py())

    columns = {name: column_of(name, table.schema.field(name).type, lambda name=name: width(name)) for name in wanted}  # type: ignore[misc]
    return FrameRowGroups(
        parts,
        numbers,
        counts=counts,
        features=selected(features, columns, dtype),
        target=selected(target, columns, target_dtype),
        fill_null=fill_null,
        text_bytes={name: table.column(name).nbytes / table.num_rows for name in wanted},
    )


def _of_arrays(array: Any, target: Any, dtype: torch.dtype | None, target_dtype: torch.dtype | None) -> RowGroups:
    arrays = [array] if target is None else [array, target]
    whole = []
    for one in arrays:
        if any(np.isnan(chunk) for chunks in one.chunks for chunk in chunks):
            one.compute_chunk_sizes()
        if len(one) != len(array):
            raise UsageError(f"The target has {len(one)} rows, and the features have {len(array)}.")
        whole.append(one.rechunk({0: array.chunks[0], **dict.fromkeys(range(1, one.ndim), -1)}))
    parts, counts, numbers = _filled(zip(*(one.to_delayed().ravel() for one in whole), strict=True), array.chunks[0])
    dtypes = [dtype, target_dtype]
    row_bytes = sum(one.dtype.itemsize * int(np.prod(one.shape[1:])) for one in arrays)
    return ArrayRowGroups(parts, numbers, counts, row_bytes, dtypes[: len(arrays)])


def _of_bag(bag: Any, lengths: Sequence[int] | None) -> RowGroups:
    made = bag.to_delayed()
    if lengths is None:
        lengths = _lengths_of(made)
    parts, counts, numbers = _filled(made, lengths)
    first = said_of(f"Partition {numbers[0]}", lambda: list(computed(parts[0])), TO_DO)
    return BagRowGroups(parts, numbers, counts, nbytes_of(first) / len(first))


def _lengths_of(parts: Any) -> list[int]:
    """Count the rows of delayed partitions. Computing the collection instead might merge small partitions, or start processes."""
    from dask.delayed import delayed

    counted: list[int] = said_of(
        "The partitions' lengths", lambda: computed([delayed(_count)(part) for part in parts]), "Mend what computes them."
    )
    return counted


def _count(items: Any) -> int:
    return len(items) if hasattr(items, "__len__") else sum(1 for _ in items)


def _filled(parts: Any, lengths: Any) -> tuple[list[Any], Numbers, list[int]]:
    """Return the partitions that have rows, their numbers of rows, and the partitions' numbers."""
    parts = list(parts)
    if len(parts) != len(lengths):
        raise UsageError(f"There are {len(parts)} partitions, and {len(lengths)} `lengths`.")
    numbers = [number for number, length in enumerate(lengths) if length]
    if not numbers:
        raise DataError("No partition has a row.")
    return [parts[number] for number in numbers], np.array([int(lengths[number]) for number in numbers], np.int64), numbers
