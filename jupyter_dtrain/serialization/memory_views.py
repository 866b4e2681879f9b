"""``memoryview`` objects: pickled as a part of the object whose memory they show, so that both still share it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def reduced_view(view: Any) -> Any:
    """Return the reduce value of a memoryview, ``NotImplemented`` for all else."""
    if type(view) is not memoryview:
        return NotImplemented
    owner: Any = view.obj
    if owner is None or not memoryview(owner).contiguous:
        raise TypeError("cannot pickle a memoryview of memory that no Python object has in one piece")
    begin = _address(view) - _address(memoryview(owner))
    strides = None if view.c_contiguous else view.strides
    return _view, (owner, view.format, view.shape, begin, strides, view.readonly)


def _address(view: memoryview) -> int:
    return int(np.asarray(view).__array_interface__["data"][0])


def _view(owner: Any, kind: str, shape: tuple[int, ...], begin: int, strides: tuple[int, ...] | None, is_readonly: bool) -> memoryview:
    whole = memoryview(owner)
    if (kind, shape, strides) == (whole.format, whole.shape, None if whole.c_contiguous else whole.strides):
        made = whole
    else:
        # Only NumPy flattens an array that is contiguous in another order without a copy.
        in_a_row: Any = owner.ravel(order="K") if isinstance(owner, np.ndarray) else owner
        flat = memoryview(in_a_row).cast("B") if whole.nbytes else memoryview(b"")
        dtype = np.dtype(kind)
        if strides is None and len(kind) == 1 and 0 not in shape:
            made = flat[begin : begin + math.prod(shape) * dtype.itemsize].cast(kind, list(shape))  # type: ignore[call-overload]
        else:
            array: Any = np.ndarray(shape, dtype, flat, begin, strides)
            made = memoryview(array)
    return made.toreadonly() if is_readonly and not made.readonly else made
