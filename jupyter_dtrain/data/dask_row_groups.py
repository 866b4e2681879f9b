"""Row groups of Dask collections: partitions of a DataFrame, blocks of an array, partitions of a bag, each computed when it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import DataError
from ..system import read_counters
from ..system.read_counters import BYTES, DECODING, PARTITIONS
from .decoded_rows import nbytes_of
from .order import Numbers
from .row_groups import RowGroups
from .tables import TableRowGroups, said_of

if TYPE_CHECKING:
    import pyarrow as pa

TO_DO = "Mend what computes it and make the data set anew: the other rows were used once each, and none of this batch."


def computed(value: Any) -> Any:
    """Compute a collection or a partition; raise errors of the user's functions as `DataError`."""
    from dask.base import compute

    try:
        with read_counters.spent(PARTITIONS):
            return compute(value)[0]  # type: ignore[no-untyped-call]
    except Exception as error:
        raise DataError(f"{type(error).__name__}: {error}") from error


def as_table(frame: Any) -> pa.Table:
    """Return a DataFrame's rows as an Arrow table."""
    import pyarrow as pa

    return pa.Table.from_pandas(frame, preserve_index=False)


class FrameRowGroups(TableRowGroups):
    """Partitions of a DataFrame.

    Parameters
    ----------
    parts : list of Delayed
    numbers : list of int
        Numbers of the partitions.
    """

    to_do = TO_DO

    def __init__(self, parts: list[Any], numbers: list[int], **table: Any) -> None:
        super().__init__(**table)
        self._parts, self._numbers = parts, numbers

    def name(self, group: int) -> str:
        """Return the name of a partition for messages."""
        return f"partition {self._numbers[group]} of a Dask DataFrame"

    def table(self, group: int, columns: list[str]) -> pa.Table:
        """Compute a partition."""
        frame = computed(self._parts[group])
        with read_counters.spent(DECODING):
            table = as_table(frame).select(columns)
        read_counters.add(BYTES, table.nbytes)
        return table


class _Parts(RowGroups):
    """Partitions that are not tables."""

    def __init__(self, parts: list[Any], numbers: list[int], counts: Numbers, row_bytes: float) -> None:
        super().__init__(counts)
        self._parts, self._numbers, self._row_bytes = parts, numbers, row_bytes

    def expected_bytes(self, group: int) -> int:
        """Return the approximate bytes of a partition in memory."""
        return int(self.counts[group] * self._row_bytes)

    def load(self, group: int) -> tuple[Any, int]:
        """Return the contents of a partition, and their bytes."""

        def read() -> tuple[Any, int]:
            found = self._stores(self._parts[group])
            for store in found:
                if len(store) != self.counts[group]:
                    raise DataError(f"it has {len(store)} rows, and had {self.counts[group]} when the data set was made")
            nbytes = sum(map(nbytes_of, found))
            read_counters.add(BYTES, nbytes)
            return found, nbytes

        name = self.name(group)
        return said_of(name[:1].upper() + name[1:], read, TO_DO)

    def _stores(self, part: Any) -> tuple[Any, ...]:
        raise NotImplementedError


class ArrayRowGroups(_Parts):
    """Blocks of an array along its first dim, with the blocks of its target."""

    def __init__(self, parts: list[Any], numbers: list[int], counts: Numbers, row_bytes: float, dtypes: list[torch.dtype | None]) -> None:
        super().__init__(parts, numbers, counts, row_bytes)
        self._dtypes = dtypes

    def name(self, group: int) -> str:
        """Return the name of a block for messages."""
        return f"block {self._numbers[group]} of a Dask Array"

    def _stores(self, part: Any) -> tuple[Any, ...]:
        blocks = [np.asarray(block) for block in computed(list(part))]
        tensors = [torch.from_numpy(np.ascontiguousarray(block)) for block in blocks]
        return tuple((tensor if dtype is None else tensor.to(dtype)).numpy() for tensor, dtype in zip(tensors, self._dtypes, strict=True))


class BagRowGroups(_Parts):
    """Partitions of a bag."""

    def name(self, group: int) -> str:
        """Return the name of a partition for messages."""
        return f"partition {self._numbers[group]} of a Dask Bag"

    def _stores(self, part: Any) -> tuple[Any, ...]:
        return (list(computed(part)),)
