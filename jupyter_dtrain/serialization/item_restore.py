"""Items of containers: what is compared, and how a container gets its copy's new items."""

from __future__ import annotations

import io
import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from enum import Enum
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from .cached_functions import contents_of, is_notebooks
from .container_reducers import fill_deque, fill_dict
from .context_variables import set_value, values_of
from .exceptions import contents_of_exception, refill_exception
from .iterators import is_iterator, standing_of
from .leaves import Numbers
from .seed_sequences import num_spawned, set_num_spawned
from .shared_tensors import is_in_shared_memory
from .shared_values import is_shared_value, set_bytes
from .weak_references import is_weak_container, items_of_weak, refill


def items_of(obj: Any) -> Any:
    """Return the contents of `obj` besides attributes as a new object; ``None`` for objects without changeable contents."""
    match obj:
        case torch.Tensor():
            return Numbers(obj.detach()) if Numbers.can_hold(obj) else obj.detach()
        case np.ndarray():
            return obj.view()  # not `obj` itself, which would be written as a reference to the reader's array
        case OrderedDict():
            return [*OrderedDict.keys(obj), *OrderedDict.values(obj)]
        case dict():
            return [*dict.keys(obj), *dict.values(obj)]
        case list():
            return list.copy(obj)
        case set():
            return [*set.__iter__(obj)]
        case deque():
            return [*deque.__iter__(obj)]
        case _ if is_weak_container(obj):
            return items_of_weak(obj)
        case _ if isinstance(obj, bytearray) or is_shared_value(obj):
            return bytes(obj)
        case array():
            return obj[:]
        case FunctionType():
            return [value_of(cell) for cell in obj.__closure__] if obj.__closure__ else None
        case BaseException() | ContextVar() | np.random.SeedSequence():
            return next(get for kind, get, _ in _OTHERS if isinstance(obj, kind))(obj)
        case torch.Generator():
            return obj.get_state()
        case np.random.Generator() | np.random.BitGenerator():
            return _bits_of(obj).state
        case np.random.RandomState():
            return obj.get_state(legacy=False)
        case random.Random():
            return obj.getstate()
        case io.StringIO() | io.BytesIO():
            return obj.__reduce_ex__(4)[2][:-1]  # the state without the attributes
        case _ if is_notebooks(obj):
            return contents_of(obj)
        case _ if is_iterator(obj):
            return standing_of(obj)
    return _items_of_frame(obj) if is_frame(obj) else None


_OTHERS: tuple[tuple[type, Callable[[Any], Any], Callable[[Any, Any], None]], ...] = (
    (BaseException, contents_of_exception, refill_exception),
    (ContextVar, values_of, set_value),
    (np.random.SeedSequence, num_spawned, set_num_spawned),
)
"""Kinds of objects with the functions that return their contents and set them."""


def _items_of_frame(frame: Any) -> Any:
    """Return a shallow copy that pandas does not count as a reference: else it would copy a block before it writes to `frame`."""
    items = frame.copy(deep=False)
    for block in items._mgr.blocks:
        if (refs := getattr(block, "refs", None)) is not None:
            refs.referenced_blocks = [reference for reference in refs.referenced_blocks if reference() is not block]
    return items


def restore_items(obj: Any, items: Any) -> None:
    """Set the contents of `obj` besides its attributes to `items`."""
    match obj:
        case torch.Tensor():
            _restore_tensor(obj, items)
        case np.ndarray():
            if obj.shape == items.shape and obj.dtype == items.dtype and obj.flags.writeable:
                obj[...] = items
        case dict():
            half = len(items) // 2
            fill_dict(obj, items[:half], items[half:])
        case list():
            list.__setitem__(obj, slice(None), items)
        case set():
            set.clear(obj)
            set.update(obj, items)
        case deque():
            fill_deque(obj, items, obj.maxlen)
        case _ if is_weak_container(obj):
            refill(obj, items)
        case bytearray() | array():
            obj[:] = items
        case FunctionType():
            for cell, value in zip(obj.__closure__ or (), items, strict=True):
                if value is not _Variable.EMPTY:
                    cell.cell_contents = value
        case BaseException() | ContextVar() | np.random.SeedSequence():
            next(put for kind, _, put in _OTHERS if isinstance(obj, kind))(obj, items)
        case torch.Generator():
            obj.set_state(items)
        case np.random.Generator() | np.random.BitGenerator():
            _bits_of(obj).state = items
        case np.random.RandomState():
            obj.set_state(items)
        case random.Random():
            obj.setstate(items)
        case io.StringIO() | io.BytesIO() | io.TextIOWrapper():
            _restore_stream(obj, items)
        case _:
            set_bytes(obj, items) if is_shared_value(obj) else _restore_frame(obj, items)


def _restore_frame(frame: Any, items: Any) -> None:
    frame._update_inplace(items)
    frame.attrs = items.attrs
    frame.flags.allows_duplicate_labels = items.flags.allows_duplicate_labels
    if hasattr(items, "name") and frame.ndim == 1:
        frame.name = items.name


def marks_of_frame(frame: Any) -> list[Any]:
    """Return what a frame or series has besides values and labels: its `attrs`, flags, and the name of a series."""
    name = [frame.name] if frame.ndim == 1 else []
    return [*frame.attrs, *frame.attrs.values(), frame.flags.allows_duplicate_labels, *name]


def _bits_of(generator: Any) -> Any:
    return getattr(generator, "bit_generator", generator)


def _restore_stream(stream: Any, items: Any) -> None:
    if isinstance(stream, io.TextIOWrapper):  # a file opened for reading, of which a copy was sent
        stream.seek(0)
        stream.read(items[2])
    else:
        stream.__setstate__((*items, None))  # as pickle calls it


class _Variable(Enum):
    """Placeholder for the value of an empty closure cell."""

    EMPTY = "empty"


def value_of(cell: CellType) -> object:
    """Return the value of a closure cell, or `_Variable.EMPTY`."""
    try:
        return cell.cell_contents
    except ValueError:
        return _Variable.EMPTY


def is_frame(obj: object) -> bool:
    """Return whether `obj` is a pandas DataFrame or Series, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(obj, pandas.DataFrame | pandas.Series)


def _restore_tensor(tensor: torch.Tensor, new: torch.Tensor) -> None:
    if tensor.is_nested:
        with torch.no_grad():
            tensor.copy_(new)
        return
    if is_lazy(tensor) or tensor.shape != new.shape or tensor.dtype != new.dtype or tensor.layout != new.layout:
        with torch.no_grad():
            tensor.data = new.to(tensor.device)
        return
    if is_in_shared_memory(new) and not is_in_shared_memory(tensor):  # the cell has called `share_memory_()`
        tensor.share_memory_()
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        target, source = once(tensor), once(new)
        plain = target.layout == torch.strided and target.device == source.device and not target.is_quantized
        # Skip equal values: the version counter then stays, and graphs that have saved the tensor remain usable.
        if not (plain and torch.equal(target, source)):
            target.copy_(source)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in logical order, flat. Handles single-element tensors, which may have any stride."""
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def once(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` with expanded dims (stride 0) reduced to size 1."""
    if tensor.layout != torch.strided or 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
