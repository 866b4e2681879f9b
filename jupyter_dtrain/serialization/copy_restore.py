"""Changes in place, carried home: call by copy and restore.

Engines work on copies of the notebook's objects. After the cell, changes *inside* them (weights, optimizer state, a scheduler's count, an
appended list item) are written into the notebook's own objects. All references to these objects see the result, as if the cell had
run in the notebook.

Contents are one level deep: the items of a list, the attributes of an instance, the numbers of a tensor. What these refer to is an object
with contents of its own. So references stay as they are, and an unchanged object costs a comparison and no bytes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from .cached_functions import CachedFunction, refill_cache
from .cut_graphs import is_leaf, restore_graph
from .item_restore import is_frame, restore_items
from .iterator_moves import put_in_place
from .iterators import is_iterator
from .python_reducers import slots_of
from .reducers import foreign_attributes

ABSENT = object()
_OF_TENSORS = ("requires_grad", "grad", "_backward_hooks", "_post_accumulate_grad_hooks")
"""Attributes of leaf tensors that are not in their dict. In this order: only a tensor that requires grad can have a gradient and hooks."""
GRAPH = "grad_fn"
"""Attribute of a tensor whose graph the cell has replaced: its name, ``None`` for a tensor that is a leaf now."""
_BARE = frozenset({list, dict, set, deque, bytearray, np.ndarray, tuple, frozenset})  # types without attributes
DEFAULTS = ("__defaults__", "__kwdefaults__")  # attributes of a function that are not in its dict
_PYTHONS_OWN = frozenset({"__dict__", "__weakref__", "__builtins__", "__slotnames__"})  # attributes that Python manages


@dataclass(frozen=True)
class Contents:
    """New contents of an object, one level deep.

    Attributes
    ----------
    items : Any
        All items of a container, the numbers of a tensor or array, the state of a generator; ``None`` if unchanged.
    attributes : dict of str to object
        Attributes with a new value.
    removed : list of str
        Names of deleted attributes.
    replaced : bool
        A tensor has other memory than before (``w.data = …``); tensors that shared the old memory keep that.
    alias : Alias, optional
        A tensor has memory that another one of the notebook had, or another part of its own.
    """

    items: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    replaced: bool = False
    alias: Alias | torch.Tensor | None = None


@dataclass(frozen=True)
class Alias:
    """The place of `tensor` in memory that `owner` had before the cell. Reads as a tensor there."""

    tensor: torch.Tensor
    owner: torch.Tensor

    def __reduce__(self) -> Any:
        """Return a reduce value that is read before memory changes hands."""
        tensor = self.tensor
        return _alias_of, (self.owner, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _alias_of(owner: torch.Tensor, dtype: torch.dtype, *place: Any) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=owner.device).set_(owner.untyped_storage(), *place)


def restore_all(objects: Sequence[Any], news: Sequence[Contents]) -> None:
    """Write `news` into `objects`; iterators last, as they refer to other objects.

    Raises
    ------
    CannotPlace
        An iterator could not be moved. All other contents are written.
    """
    last = [index for index, obj in enumerate(objects) if is_iterator(obj)]
    for index in sorted(set(range(len(objects))).difference(last)):
        restore(objects[index], news[index])
    put_in_place([objects[index] for index in last], [news[index].items for index in last])


def restore(obj: Any, new: Contents) -> None:
    """Write `new` into `obj` in place; `obj` is no iterator."""
    if new.items is not None:
        if isinstance(new.alias, torch.Tensor) and new.alias.device == obj.device:
            obj.data = new.alias
            restore_items(obj, new.items)
        elif new.replaced:
            obj.data = new.items.to(obj.device)
        elif isinstance(obj, CachedFunction):
            refill_cache(obj, new.items)
        else:
            restore_items(obj, new.items)
    if new.attributes or new.removed:
        _restore_attributes(obj, new)


# -- attributes ------------------------------------------------------------------------------------------------------


def attributes_of(obj: Any) -> dict[str, Any] | None:
    """Return the attributes in the dict and slots of `obj`; ``None`` if it cannot have any."""
    kind = type(obj)
    if kind in _BARE or is_frame(obj):
        return None
    own = getattr(obj, "__dict__", None)
    if isinstance(obj, torch.Tensor):
        # Those of a non-leaf tensor follow from its graph. Hooks that have been removed leave an empty dict.
        more = {name: _none_if_empty(getattr(obj, name)) for name in _OF_TENSORS} if is_leaf(obj) else {}
        return {**(own or {}), **more}
    if isinstance(obj, type | ModuleType):
        return {key: value for key, value in vars(obj).items() if key not in _PYTHONS_OWN}
    if kind is FunctionType:
        return {**(own or {}), **{name: getattr(obj, name) for name in DEFAULTS}}
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


def _none_if_empty(value: Any) -> Any:
    return None if type(value) is OrderedDict and not value else value


def _restore_attributes(obj: Any, new: Contents) -> None:
    own = getattr(obj, "__dict__", None)
    new_class = new.attributes.pop("__class__", None)
    if new_class is not None:
        object.__setattr__(obj, "__class__", new_class)
    if isinstance(obj, torch.Tensor):
        if GRAPH in new.attributes:
            restore_graph(obj, new.attributes.pop(GRAPH))
        for name in _OF_TENSORS:
            if name in new.attributes and is_leaf(obj):
                setattr(obj, name, new.attributes[name])
        own = obj.__dict__
        assert own is not None
        own.update({key: value for key, value in new.attributes.items() if key not in _OF_TENSORS})
        for name in new.removed:
            own.pop(name, None)
        return
    base: Any = type if isinstance(obj, type) else object
    slots: Collection[str] = () if isinstance(obj, type) else DEFAULTS if type(obj) is FunctionType else slots_of(type(obj))
    for name in new.removed:
        if isinstance(own, dict) and name not in slots:
            own.pop(name, None)
        elif hasattr(obj, name):
            base.__delattr__(obj, name)
    for name, value in new.attributes.items():
        # Bypasses a custom __setattr__, which may check, count or forbid: the value is the result of the cell's own assignment.
        if isinstance(own, dict) and name not in slots:
            own[name] = value
        else:
            base.__setattr__(obj, name, value)


# -- items -----------------------------------------------------------------------------------------------------------
