"""Changes in place, carried home: call by copy and restore.

The engines work on copies of the notebook's objects. After the cell, what it changed *inside* them (weights, an
optimizer's moments, a scheduler's count, a list that it appended to) is written into the notebook's own objects, so
every name and every reference to them sees the result, as if the cell had run here.

An object's contents are taken one level deep: the items of a list, the attributes of an instance, the numbers of a
tensor. What those refer to is an object of its own, with contents of its own. So the graph keeps its shape, and what
did not change costs a comparison and no bytes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch

from .pickling import portable_state


@dataclass(frozen=True)
class Contents:
    """What an object holds, one level deep: `items` of a container or numbers, and its `attributes`."""

    items: Any = None
    attributes: dict[str, Any] | None = None


def contents(obj: object) -> Contents | None:
    """Return what `obj` holds now, or ``None`` for objects that are not restored in place."""
    if isinstance(obj, FunctionType | type):
        return None
    return Contents(_items(obj), _attributes(obj))


def _attributes(obj: object) -> dict[str, Any] | None:
    if isinstance(obj, torch.Tensor | np.ndarray):
        return None
    attributes = getattr(obj, "__dict__", None)
    if not isinstance(attributes, dict):
        return None
    return portable_state(obj) or dict(attributes)


def _items(obj: Any) -> Any:
    match obj:
        case torch.Tensor():
            return obj.detach()
        case np.ndarray():
            return obj
        case dict():
            return [part for pair in obj.items() for part in pair]
        case list() | deque() | set():
            return list(obj)
        case bytearray():
            return bytes(obj)
        case torch.Generator():
            return obj.get_state()
        case np.random.Generator():
            return obj.bit_generator.state
        case np.random.RandomState():
            return obj.get_state(legacy=False)
        case random.Random():
            return obj.getstate()
    return None


class Baseline:
    """The contents of objects at one moment, to tell later which have changed.

    Parameters
    ----------
    objects : sequence of object
        Kept alive, in order, until the comparison.
    """

    def __init__(self, objects: Sequence[object]) -> None:
        self.objects = objects
        self._before = [_mark(obj) for obj in objects]

    def changed(self) -> dict[int, Contents]:
        """Return the contents of the objects that have changed since, by their index."""
        now = ((index, obj, before) for index, (obj, before) in enumerate(zip(self.objects, self._before, strict=True)))
        result: dict[int, Contents] = {}
        for index, obj, before in now:
            if before is not None and _differs(obj, before):
                found = contents(obj)
                if found is not None:
                    result[index] = found
        return result


def _mark(obj: object) -> Contents | None:
    if isinstance(obj, torch.Tensor):
        return Contents(_version(obj))
    if isinstance(obj, np.ndarray):
        return Contents(obj.copy() if obj.nbytes <= _SMALL else _sample(obj))
    return contents(obj)


def _version(tensor: torch.Tensor) -> tuple[object, ...]:
    if tensor.is_inference():  # these count no versions, and cannot be changed outside inference mode either
        return (tensor.data_ptr(), tensor.shape)
    return (tensor._version, tensor.data_ptr(), tensor.shape)


_SMALL = 1 << 20  # bytes


def _sample(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a spread of values of a large array: a full copy would double the memory of a dataset."""
    flat = array.reshape(-1)
    return flat[:: max(1, flat.size // 4096)].copy()


def _differs(obj: object, before: Contents) -> bool:
    if isinstance(obj, torch.Tensor):
        # Weights are assumed to have changed: `p.data -= …` does it without counting a version.
        return obj.requires_grad or _version(obj) != before.items
    if isinstance(obj, np.ndarray):
        now = obj if obj.nbytes <= _SMALL else _sample(obj)
        return bool(now.shape != before.items.shape or now.tobytes() != before.items.tobytes())
    found = contents(obj)
    assert found is not None
    return not (_same_items(found.items, before.items) and _same_attributes(found.attributes, before.attributes))


def _same_items(now: Any, before: Any) -> bool:
    if isinstance(now, list):
        return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
    if isinstance(now, torch.Tensor):
        return torch.equal(now, before)
    if isinstance(now, dict):  # the state of a NumPy generator holds arrays
        return repr(now) == repr(before)
    return bool(now == before)


def _same_attributes(now: dict[str, Any] | None, before: dict[str, Any] | None) -> bool:
    if now is None or before is None:
        return now is before
    return now.keys() == before.keys() and all(now[key] is before[key] for key in now)


def restore(obj: Any, new: Contents) -> None:
    """Write `new` into `obj` in place."""
    if new.attributes is not None:
        _restore_attributes(obj, new.attributes)
    items = new.items
    match obj:
        case torch.Tensor():
            _restore_tensor(obj, items)
        case np.ndarray():
            if obj.shape == items.shape and obj.dtype == items.dtype and obj.flags.writeable:
                obj[...] = items
        case dict():
            obj.clear()
            obj.update(zip(items[::2], items[1::2], strict=True))
        case list():
            obj[:] = items
        case deque() | set():
            obj.clear()
            obj.extend(items) if isinstance(obj, deque) else obj.update(items)
        case bytearray():
            obj[:] = items
        case torch.Generator():
            obj.set_state(items)
        case np.random.Generator():
            obj.bit_generator.state = items
        case np.random.RandomState():
            obj.set_state(items)
        case random.Random():
            obj.setstate(items)


def _restore_attributes(obj: Any, attributes: dict[str, Any]) -> None:
    own = obj.__dict__
    if portable_state(obj) is None:
        for key in own.keys() - attributes.keys():
            del own[key]
    own.update(attributes)


def _restore_tensor(tensor: torch.Tensor, new: torch.Tensor) -> None:
    with torch.no_grad():
        if tensor.shape == new.shape and tensor.dtype == new.dtype:
            tensor.detach().copy_(new)
        else:
            tensor.data = new.to(tensor.device)
