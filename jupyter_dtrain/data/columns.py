"""Convert columns of a table to a model's inputs: numbers to tensors, strings and bytes to lists.

Row groups are decoded once, into arrays from which :mod:`.decoded_rows` takes the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt
import torch

from ..errors import DataError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

Names = str | Sequence[str]


@dataclass(frozen=True)
class Column:
    """Type of a column.

    Attributes
    ----------
    dtype : torch.dtype, optional
        Type of its numbers; ``None`` for strings or bytes.
    width : int, optional
        Length of its lists of numbers; ``None`` if it has no lists.
    """

    name: str
    dtype: torch.dtype | None
    width: int | None = None


def column_of(name: str, kind: pa.DataType, width: Callable[[], int]) -> Column:
    """Return the `Column` for an Arrow type; `width` determines the length of lists whose type does not specify it."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_fixed_size_list(kind):
        return Column(name, _dtype_of(name, kind.value_type), kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        return Column(name, _dtype_of(name, kind.value_type), width())
    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_binary, types.is_large_binary)
    if any(is_text(kind) for is_text in (*texts, types.is_binary_view, types.is_fixed_size_binary)):
        return Column(name, None)
    return Column(name, _dtype_of(name, kind))


def _dtype_of(name: str, kind: pa.DataType) -> torch.dtype:
    import pyarrow.types as types

    if types.is_decimal(kind):
        return torch.float64
    found = _DTYPES.get(str(kind))
    if found is None:
        raise DataError(f"Column {name!r} holds {kind}, which is not a number, a string or bytes. Leave it out, or write it as a number.")
    return found


_DTYPES = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint16": torch.int32,
    "uint32": torch.int64,
    "uint64": torch.int64,
    "halffloat": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
}


@dataclass(frozen=True)
class Selection:
    """The columns that form the features, or the target, of a sample.

    Numbers and lists of numbers are concatenated to one tensor of shape ``(F,)``, of the dtype that PyTorch promotes them to. A single name
    gives its column unchanged. If several columns include strings or bytes, a sample is a dict.

    Parameters
    ----------
    columns : tuple of Column
    single : bool
        Whether the user has given one name instead of a list.
    dtype : torch.dtype, optional
        Type of numbers; ``None`` for that of the columns.
    """

    columns: tuple[Column, ...]
    single: bool
    dtype: torch.dtype | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether several columns form one tensor."""
        return not self.single and all(column.dtype is not None for column in self.columns)

    def dtype_of(self, column: Column) -> torch.dtype:
        """Return the dtype of a column's numbers in a batch."""
        if self.dtype is not None:
            return self.dtype
        among = self.columns if self.is_matrix else (column,)
        return reduce(torch.promote_types, [one.dtype for one in among if one.dtype is not None])

    def row_bytes(self, text_bytes: Mapping[str, float]) -> float:
        """Return the bytes of a row in memory; `text_bytes` has those of columns of strings or bytes."""
        found = 0.0
        for column in self.columns:
            found += text_bytes.get(column.name, 32.0) if column.dtype is None else self.dtype_of(column).itemsize * (column.width or 1)
        return found

    def decode(self, table: pa.Table) -> Any:
        """Return a row group's rows as `gather` takes them: an array, an Arrow array, or a dict of these."""
        if not self.is_matrix:
            found = {column.name: self._one(column, table) for column in self.columns}
            return found[self.columns[0].name] if self.single else found
        kind = _numpy_type(self.dtype_of(self.columns[0]))
        made = np.empty((table.num_rows, sum(column.width or 1 for column in self.columns)), kind)
        at = 0
        for column in self.columns:
            width = column.width or 1
            made[:, at : at + width] = self._one(column, table).reshape(table.num_rows, width)
            at += width
        return made

    def _one(self, column: Column, table: pa.Table) -> Any:
        values = table.column(column.name)
        array = values.combine_chunks() if hasattr(values, "combine_chunks") else values
        array = _plain(array)
        if column.dtype is None:
            if array.null_count:
                raise DataError(f"column {column.name!r} has {array.null_count} nulls: give a value for them, as `fill_null={{…}}`")
            return array
        if column.width is not None:
            array = _flat(array, column)
        return _numbers(array, column).astype(_numpy_type(self.dtype_of(column)), copy=False).reshape(_shape(table.num_rows, column))


def _shape(rows: int, column: Column) -> tuple[int, ...]:
    return (rows,) if column.width is None else (rows, column.width)


def _plain(array: Any) -> Any:
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _flat(array: Any, column: Column) -> Any:
    import pyarrow.compute as pc

    assert column.width is not None
    if array.null_count:
        raise DataError(f"column {column.name!r} has {array.null_count} nulls among its lists")
    lengths = pc.unique(pc.list_value_length(array)).to_pylist()
    if any(length != column.width for length in lengths):
        raise DataError(
            f"column {column.name!r} has lists of {min(lengths)} to {max(lengths)} numbers, and its first row has {column.width}: "
            "pad them to one length when the file is written"
        )
    return array.flatten()


def _numbers(array: Any, column: Column) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.types as types

    is_float = column.dtype is not None and column.dtype.is_floating_point
    if array.null_count and not is_float:
        raise DataError(f"column {column.name!r} has {array.null_count} nulls among {array.type}: give a value for them, `fill_null={{…}}`")
    try:
        if types.is_decimal(array.type):
            array = array.cast(pa.float64())
        elif types.is_uint64(array.type):
            array = array.cast(pa.int64())
    except pa.ArrowInvalid as error:
        raise DataError(f"column {column.name!r} does not fit a tensor: {error}") from None
    found: npt.NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return found


def _numpy_type(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the NumPy dtype of decoded rows; ``bfloat16``, which NumPy lacks, is converted by PyTorch later."""
    return np.dtype(np.float32) if dtype == torch.bfloat16 else torch.empty(0, dtype=dtype, device="cpu").numpy().dtype


def fill_nulls(table: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """Replace nulls by values, by column name."""
    import pyarrow.compute as pc

    for name, value in values.items():
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, pc.fill_null(_plain(table.column(name)), value))
    return table


@overload
def selected(names: Names, columns: Mapping[str, Column], dtype: torch.dtype | None) -> Selection: ...


@overload
def selected(names: None, columns: Mapping[str, Column], dtype: torch.dtype | None) -> None: ...


def selected(names: Names | None, columns: Mapping[str, Column], dtype: torch.dtype | None) -> Selection | None:
    """Return the `Selection` of columns with these names; ``None`` without names, as for a missing target."""
    if names is None:
        return None
    found = tuple(columns[name] for name in _names_of(names))
    if not found:
        raise UsageError("`features` and `target` are the name of a column or a list of names, and this list is empty.")
    return Selection(found, isinstance(names, str), dtype)


def columns_to_read(features: Names, target: Names | None) -> list[str]:
    """Return the names of features and target without duplicates."""
    return list(dict.fromkeys([*_names_of(features), *_names_of(target)]))


def _names_of(names: Names | None) -> list[str]:
    return [] if names is None else [names] if isinstance(names, str) else list(names)
