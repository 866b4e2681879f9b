"""Objects that a model is given to store results in: a key-value cache, a list for auxiliary losses, a namespace for a batch.

When a model is called on a share, tensors inside such objects are replaced by the rank's part. Tensors that the model stored there are
placed as its results are when it returns. Repeated calls and learning calls find the objects unchanged. Lists and dicts that are arguments
themselves are copies: a model that changes one is open (see `model_call`). A model that stores a number in an object is open too, because
the number may depend on the share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from ...serialization.python_reducers import SlotValues
from ..tensor.materialize import attributes_worth_a_look
from ..tensor.placement_types import GlobalTensor
from .containers import MAPPINGS, copy_of, entries_of, is_same, refill
from .input_values import InputValues

_NOTHING = (int, float, complex, str, bytes, type, type(None), torch.Tensor, torch.dtype, torch.device, torch.Size, nn.Module)
_SAYS_NO_SIZE = (bool, str, bytes, type, type(None), torch.dtype, torch.device)
_MOST = 2000  # most objects that are visited

Holder = dict[Any, Any] | SlotValues | list[Any]
_HOLDERS = (dict, SlotValues, list)
Slot = tuple[Holder, Any]  # holder, and key or index in it


class CallArguments:
    """Objects, lists and dicts among a model's arguments, as they are before its call.

    Parameters
    ----------
    args, kwargs : tuple, dict
        The call's arguments; lists and dicts in them are copies made for the call.
    given : sequence
        The arguments as the cell gave them, in which tensors may span the ranks.
    is_first : bool
        Whether the call may have to be repeated.
    uncounted : bool
        As in `InputValues`.

    Attributes
    ----------
    inputs : InputValues
        The tensors among the arguments and in the objects.
    """

    def __init__(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, given: Sequence[Any] = (), is_first: bool = False, uncounted: bool = False
    ) -> None:
        self._copies: list[tuple[Any, Any, bool]] = []  # holder, its copy, and whether it is inside an object
        self._seen: dict[int, Any] = {}
        for value in (*args, *kwargs.values()):
            self._look(value, in_object=False)
        held = [value for holder, _, in_object in self._copies if in_object and isinstance(holder, _HOLDERS) for _, value in _items(holder)]
        self.inputs = InputValues([*held, *given], keep=is_first or uncounted, uncounted=uncounted)
        self._narrowed: list[tuple[Holder, Any, Any, Any]] = []
        self._versions: list[tuple[torch.Tensor, int]] = []

    def _look(self, value: Any, *, in_object: bool) -> None:
        if isinstance(value, _NOTHING) or id(value) in self._seen or len(self._seen) > _MOST:
            return
        self._seen[id(value)] = value
        items: Iterator[Any] = iter(())
        if isinstance(value, (*_HOLDERS, deque, set)):
            self._copies.append((value, copy_of(value), in_object))
            items = iter(list(value.values() if isinstance(value, dict | SlotValues) else value))
        elif isinstance(value, tuple | frozenset):
            items = iter(value)
        else:
            for attributes in attributes_worth_a_look(value):
                self._look(attributes, in_object=True)
        for item in items:
            self._look(item, in_object=in_object)

    @property
    def ids(self) -> frozenset[int]:
        """Ids of the visited objects and of the dicts of their attributes."""
        return frozenset((*self._seen, *(id(holder) for holder, _, _ in self._copies)))

    # -- during the call --------------------------------------------------------------------------------------------

    def shard(self, own: Callable[[Any], Any]) -> None:
        """Replace the tensors in the objects by what `own` returns for them."""
        self._narrowed, self._versions = [], []
        for holder, _, in_object in self._copies:
            if not in_object or not isinstance(holder, _HOLDERS):
                continue
            for key, value in _items(holder):
                if isinstance(value, GlobalTensor) or (isinstance(value, tuple) and any(_spans(leaf) for leaf in tree_leaves(value))):
                    part = holder[key] = tree_map(own, value)
                    self._narrowed.append((holder, key, value, part))
                elif isinstance(value, torch.Tensor):
                    self._versions.append((value, value._version))

    def unshard(self) -> None:
        """Put the full tensors back into the objects, except where the model has stored something else."""
        for holder, key, whole, part in self._narrowed:
            if _get(holder, key) is part:
                holder[key] = whole
        self._narrowed = []

    def restore(self) -> None:
        """Restore all arguments to their values before the call.

        Raises
        ------
        CannotRestore
        """
        self.inputs.restore()
        if self._copies:
            self._set((copy for _, copy, _ in self._copies))

    @contextmanager
    def as_before(self, own: Callable[[Any], Any]) -> Iterator[None]:
        """Restore the arguments to before the call, sharded by `own`, until the end of the ``with`` block."""
        now = [copy_of(holder) for holder, _, _ in self._copies]
        narrowed, versions = self._narrowed, self._versions
        self._set((copy for _, copy, _ in self._copies))
        self.shard(own)
        try:
            yield
        finally:
            self._set(now)
            self._narrowed, self._versions = narrowed, versions

    def _set(self, copies: Iterable[Any]) -> None:
        for (holder, _, _), copy in zip(self._copies, copies, strict=True):
            refill(holder, copy)

    # -- after the call ----------------------------------------------------------------------------------------------

    def kept(self) -> list[Slot] | None:
        """Return the slots in which the model has stored tensors; ``None`` if it did something that only an open model may do."""
        if self.inputs.replicated_are_written():
            return None
        slots: list[Slot] = []
        if not self._copies:  # the common case: a model that is given tensors alone
            return slots
        if any(tensor._version != version for tensor, version in self._versions):
            return None
        parts = {(id(holder), key): part for holder, key, _, part in self._narrowed}
        for holder, copy, in_object in self._copies:
            if is_same(holder, copy):
                continue
            if not in_object or not isinstance(holder, _HOLDERS):
                return None
            before = dict(_items(copy))
            for key, value in _items(holder):
                is_new = value is not before.get(key, slots) and value is not parts.get((id(holder), key), slots)
                if is_new and not self._add(holder, key, value, slots):
                    return None
        return slots

    def with_kept(self, result: Any) -> Any:
        """Return the model's `result`, together with the tensors that it stored in arguments, if any."""
        slots = self.kept() if self._copies else None
        return (result, [holder[key] for holder, key in slots]) if slots else result

    def keep(self, placed: Any) -> Any:
        """Return the result from `placed`, which is the placed value of :meth:`with_kept`, and store the placed tensors in their slots."""
        slots = self.kept() if self._copies else None
        if not slots:
            return placed
        result, tensors = placed
        for (holder, key), tensor in zip(slots, tensors, strict=True):
            holder[key] = tensor
        return result

    def _add(self, holder: Holder, key: Any, value: Any, slots: list[Slot]) -> bool:
        """Add the slots of tensors in a new `value` to `slots`; return whether nothing else in it can depend on the share."""
        if isinstance(value, torch.Tensor):
            slots.append((holder, key))
            return True
        if isinstance(value, _SAYS_NO_SIZE) or id(value) in self._seen:
            return True
        if isinstance(value, _HOLDERS):
            return all(self._add(value, inner, item, slots) for inner, item in _items(value))
        if isinstance(value, (*_NOTHING, Mapping, tuple)) or not (found := attributes_worth_a_look(value)):
            return False
        return all(self._add(attributes, None, attributes, slots) for attributes in found)


def _spans(value: Any) -> bool:
    return isinstance(value, GlobalTensor)


def _items(holder: Any) -> list[tuple[Any, Any]]:
    return list(entries_of(holder) if isinstance(holder, MAPPINGS) else enumerate(holder))


def _get(holder: Holder, key: Any) -> Any:
    return holder.get(key) if isinstance(holder, MAPPINGS) else holder[key] if key < len(holder) else None
