"""Read row groups that are tables, and report errors of files, columns and types."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from ..errors import DataError
from ..system import read_counters
from ..system.read_counters import DECODING
from .columns import Column, Selection, fill_nulls
from .decoded_rows import nbytes_of
from .order import Numbers
from .row_groups import RowGroups

if TYPE_CHECKING:
    import pyarrow as pa

_T = TypeVar("_T")


def common_schema(
    of_files: list[tuple[str, dict[str, pa.DataType]]], wanted: list[str], *dtypes: torch.dtype | None
) -> dict[str, pa.DataType]:
    """Return the types of columns, which must be equal in all files.

    Raises
    ------
    DataError
        A column is missing, or has different types in two files. Numeric types may differ if a `dtype` is given.
    """
    first_path, first = of_files[0]
    for path, types in of_files:
        missing = [name for name in wanted if name not in types]
        if missing:
            raise DataError(f"{path} has no column {missing[0]!r}. It has {', '.join(map(repr, types))}.")
        for name in wanted:
            kinds = types[name], first[name]
            if kinds[0] != kinds[1] and not _are_decimals(*kinds) and not (all(dtypes[:1]) and _are_numbers(*kinds)):
                raise DataError(
                    f"Column {name!r} is {types[name]} in {path}, and {first[name]} in {first_path}. Write the files with one type, "
                    "or, for numbers, say which one as `dtype=torch.float32`."
                )
    return {name: first[name] for name in wanted}


def _are_numbers(*kinds: pa.DataType) -> bool:
    import pyarrow.types as types

    return all(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) for kind in kinds)


def _are_decimals(*kinds: pa.DataType) -> bool:
    import pyarrow.types as types

    return all(types.is_decimal(kind) for kind in kinds)  # decimals of any precision are read as float64


def said_of(what: str, read: Callable[[], _T], to_do: str) -> _T:
    """Return what `read` returns; turn its errors into a `DataError` that says what cannot be read, and what to do."""
    try:
        return read()
    except (OSError, ValueError, KeyError, DataError, IndexError, StopIteration) as error:  # Arrow's errors are subclasses of these
        text = f"{what} cannot be read: {str(error).strip().rstrip('.')}. {to_do}".rstrip()
        raise DataError(text) from (None if isinstance(error, DataError) else error)


class TableRowGroups(RowGroups):
    """Row groups that are tables.

    Parameters
    ----------
    counts : array of int, shape (groups,)
    features, target : Selection
    fill_null : dict, optional
    text_bytes : dict
        Mean bytes of a string by column.
    """

    def __init__(
        self,
        counts: Numbers,
        features: Selection,
        target: Selection | None,
        fill_null: Mapping[str, Any] | None,
        text_bytes: Mapping[str, float],
    ) -> None:
        super().__init__(counts)
        self.features, self.target = features, target
        self._fill_null = dict(fill_null or {})
        parts = [part for part in (features, target) if part is not None]
        self._row_bytes = sum(part.row_bytes(text_bytes) for part in parts)
        self._columns: list[Column] = list({column.name: column for part in parts for column in part.columns}.values())

    def expected_bytes(self, group: int) -> int:
        """Return the approximate bytes of a group in memory."""
        return int(self.counts[group] * self._row_bytes)

    def load(self, group: int) -> tuple[Any, int]:
        """Return a group's features and targets, and their bytes."""

        def read() -> tuple[Any, int]:
            table = self.table(group, [column.name for column in self._columns])
            if table.num_rows != self.counts[group]:
                raise DataError(f"it has {table.num_rows} rows, and had {self.counts[group]} when the data set was made")
            with read_counters.spent(DECODING):
                table = fill_nulls(table, self._fill_null)
                parts = [part.decode(table) for part in (self.features, self.target) if part is not None]
                return tuple(parts), sum(map(nbytes_of, parts))

        name = self.name(group)
        return said_of(name[:1].upper() + name[1:], read, self.to_do)

    to_do = "Write the file again, or leave it out, and make the data set anew: its other rows were used once each, and none of this batch."

    def table(self, group: int, columns: list[str]) -> pa.Table:
        """Read the given columns of a group."""
        raise NotImplementedError
