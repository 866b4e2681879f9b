"""Changes in place, carried home: call by copy and restore.

The engines work on copies of the notebook's objects. After the cell, what it changed *inside* them (weights, an
optimizer's moments, a scheduler's count, a list that it appended to) is written into the notebook's own objects, so
every name and every reference to them sees the result, as if the cell had run here.

An object's contents are taken one level deep: the items of a list, the attributes of an instance, the numbers of a
tensor. What those refer to is an object of its own, with contents of its own. So the graph keeps its shape, and what
did not change costs a comparison and no bytes.
"""

from __future__ import annotations

import io
import random
import sys
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import is_lazy

from .cached_functions import CachedFunction, contents_of, is_notebooks, refill_cache
from .iterators import is_iterator, put_in_place, standing_of
from .pickler import Numbers
from .python_reducers import slots_of
from .reducers import foreign_attributes
from .shared_tensors import is_in_shared_memory
from .shared_values import is_shared_value, set_bytes
from .torch_reducers import is_leaf
from .weak_references import is_weak_container, items_of_weak, refill

ABSENT = object()
_BARE = frozenset({list, dict, set, deque, bytearray, np.ndarray})  # hold no attributes
_PYTHONS_OWN = frozenset({"__dict__", "__weakref__", "__builtins__", "__slotnames__"})  # attributes that it keeps for itself


@dataclass(frozen=True)
class Contents:
    """What an object holds that it did not hold before, one level deep.

    Attributes
    ----------
    items : Any
        All items of a container, the numbers of a tensor or array, the state of a generator; ``None`` if they are the same.
    attributes : dict of str to object
        Attributes with a new value.
    removed : list of str
        Attributes that are gone.
    replaced : bool
        A tensor's numbers are in other memory than before (``w.data = …``): who shared the old has it still.
    """

    items: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    replaced: bool = False


def restore_all(objects: Sequence[Any], news: Sequence[Contents]) -> None:
    """Write `news` into `objects`, iterators last: they walk over what is in others.

    Raises
    ------
    CannotPlace
        An iterator is not where it is to be. All else is.
    """
    last = [index for index, obj in enumerate(objects) if is_iterator(obj)]
    for index in sorted(set(range(len(objects))).difference(last)):
        restore(objects[index], news[index])
    put_in_place([objects[index] for index in last], [news[index].items for index in last])


def restore(obj: Any, new: Contents) -> None:
    """Write `new` into `obj` in place, which is no iterator."""
    if new.items is not None:
        if new.replaced:
            obj.data = new.items.to(obj.device)
        elif isinstance(obj, CachedFunction):
            refill_cache(obj, new.items)
        else:
            _restore_items(obj, new.items)
    if new.attributes or new.removed:
        _restore_attributes(obj, new)


# -- attributes ------------------------------------------------------------------------------------------------------


def attributes_of(obj: Any) -> dict[str, Any] | None:
    """Return the attributes that `obj` itself holds, in its dict and its slots; ``None`` where it cannot hold any."""
    kind = type(obj)
    if kind in _BARE or is_frame(obj):
        return None
    own = getattr(obj, "__dict__", None)
    if isinstance(obj, torch.Tensor):
        # Of a graph's inner tensor these two follow from the graph.
        return {**(own or {}), "requires_grad": obj.requires_grad, "grad": obj.grad} if is_leaf(obj) else dict(own or {})
    if isinstance(obj, type | ModuleType):
        return {key: value for key, value in vars(obj).items() if key not in _PYTHONS_OWN}
    slots = slots_of(kind)
    if own is None and not slots:
        return None
    found = dict(own or {})
    for name in slots:
        value = getattr(obj, name, ABSENT)
        if value is not ABSENT:
            found[name] = value
    for name in foreign_attributes(obj):
        found.pop(name, None)
    return found


def _restore_attributes(obj: Any, new: Contents) -> None:
    own = getattr(obj, "__dict__", None)
    new_class = new.attributes.pop("__class__", None)
    if new_class is not None:
        object.__setattr__(obj, "__class__", new_class)
    if isinstance(obj, torch.Tensor):
        for name in ("requires_grad", "grad"):  # in this order: only what requires a gradient can have one
            if name in new.attributes and is_leaf(obj):
                setattr(obj, name, new.attributes[name])
        own = obj.__dict__
        assert own is not None
        own.update({key: value for key, value in new.attributes.items() if key not in ("requires_grad", "grad")})
        for name in new.removed:
            own.pop(name, None)
        return
    base: Any = type if isinstance(obj, type) else object
    slots = () if isinstance(obj, type) else slots_of(type(obj))
    for name in new.removed:
        if isinstance(own, dict) and name not in slots:
            own.pop(name, None)
        elif hasattr(obj, name):
            base.__delattr__(obj, name)
    for name, value in new.attributes.items():
        # Past the object's own __setattr__, which may check, count or forbid: the value is what the cell's assignment left.
        if isinstance(own, dict) and name not in slots:
            own[name] = value
        else:
            base.__setattr__(obj, name, value)


# -- items -----------------------------------------------------------------------------------------------------------


def items_of(obj: Any) -> Any:
    """Return what `obj` holds beside attributes, as a new object; ``None`` for objects that hold nothing that could change."""
    match obj:
        case torch.Tensor():
            return Numbers(obj.detach()) if Numbers.can_hold(obj) else obj.detach()
        case np.ndarray():
            return obj.view()  # not `obj`: that is one which the other side has
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
            return [_value_of(cell) for cell in obj.__closure__] if obj.__closure__ else None
        case torch.Generator():
            return obj.get_state()
        case np.random.Generator():
            return obj.bit_generator.state
        case np.random.BitGenerator():
            return obj.state
        case np.random.RandomState():
            return obj.get_state(legacy=False)
        case random.Random():
            return obj.getstate()
        case io.StringIO() | io.BytesIO():
            return obj.__reduce_ex__(4)[2][:-1]  # the state, less the attributes
        case _ if is_notebooks(obj):
            return contents_of(obj)
        case _ if is_iterator(obj):
            return standing_of(obj)
    return obj.copy(deep=False) if is_frame(obj) else None


def _restore_items(obj: Any, items: Any) -> None:
    match obj:
        case torch.Tensor():
            _restore_tensor(obj, items)
        case np.ndarray():
            if obj.shape == items.shape and obj.dtype == items.dtype and obj.flags.writeable:
                obj[...] = items
        case dict():
            kind = OrderedDict if isinstance(obj, OrderedDict) else dict
            kind.clear(obj)
            half = len(items) // 2
            for key, value in zip(items[:half], items[half:], strict=True):
                kind.__setitem__(obj, key, value)
        case list():
            list.__setitem__(obj, slice(None), items)
        case set():
            set.clear(obj)
            set.update(obj, items)
        case deque():
            deque.clear(obj)
            deque.extend(obj, items)
        case _ if is_weak_container(obj):
            refill(obj, items)
        case bytearray() | array():
            obj[:] = items
        case FunctionType():
            for cell, value in zip(obj.__closure__ or (), items, strict=True):
                if value is not _Variable.EMPTY:
                    cell.cell_contents = value
        case torch.Generator():
            obj.set_state(items)
        case np.random.Generator():
            obj.bit_generator.state = items
        case np.random.BitGenerator():
            obj.state = items
        case np.random.RandomState():
            obj.set_state(items)
        case random.Random():
            obj.setstate(items)
        case io.StringIO() | io.BytesIO() | io.TextIOWrapper():
            _restore_stream(obj, items)
        case _:
            set_bytes(obj, items) if is_shared_value(obj) else obj._update_inplace(items)


def _restore_stream(stream: Any, items: Any) -> None:
    if isinstance(stream, io.TextIOWrapper):  # a file that is read, of which a copy was sent
        stream.seek(0)
        stream.read(items[2])
    else:
        stream.__setstate__((*items, None))  # what pickle calls


class _Variable(Enum):
    """In the place of the value of a closure's variable that has none."""

    EMPTY = "empty"


def _value_of(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _Variable.EMPTY


def is_frame(obj: object) -> bool:
    """Return whether `obj` is a table of pandas', without importing that."""
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
    if is_in_shared_memory(new) and not is_in_shared_memory(tensor):  # the cell has put it there
        tensor.share_memory_()
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        target, source = once(tensor), once(new)
        plain = target.layout == torch.strided and target.device == source.device and not target.is_quantized
        # Weights count as changed: those that are the same keep their version, and so the graphs that hold them.
        if not (plain and torch.equal(target, source)):
            target.copy_(source)


def once(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` without the dims along which it repeats one value, as ``expand`` makes them."""
    if tensor.layout != torch.strided or 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
