"""Pack a cell's results into one pickle that preserves shared memory: within the results, and with the notebook's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeGuard

import torch

from ..serialization.array_windows import Windows
from ..serialization.cached_functions import caches_left
from ..serialization.copy_restore import Alias, Contents
from ..serialization.leaves import Numbers, trackable
from ..serialization.module_reducers import by_value
from ..serialization.pickler import Packed, Packer, Reference
from .new_modules import refuse_names
from .result_pickler import Changes, Head, ResultPacker, graphs_of


class ResultPacking:
    """Packs the results of one cell.

    Parameters
    ----------
    namespace : dict
        The cell's namespace.
    objects : sequence of object
        The objects from the notebook, in its order.

    Attributes
    ----------
    references : mapping of int to Reference
        By id: references that stand for library objects that the cell has changed.
    caches_left : dict of str to str
        Names of functions that were packed last without what they have cached → the reason.
    """

    def __init__(self, namespace: dict[str, Any], objects: Sequence[object]) -> None:
        self._namespace, self._objects = namespace, objects
        self._storages = _storages_of(objects)
        self._places = {index: _place_of(obj) for index, obj in enumerate(objects) if _has_memory(obj)}
        self.references: Mapping[int, Reference | None] = {}
        self.caches_left: dict[str, str] = {}
        self._modules: list[ModuleType] = []

    def packed(
        self,
        changes: Changes,
        bound: Mapping[str, Any],
        value: object,
        states: Sequence[object],
        *,
        extra: Sequence[Mapping[str, Any]] | None = None,
        whole: Callable[[Any], Any] | None = None,
        elsewhere: Mapping[int, int] | None = None,
    ) -> Packed:
        """Return the graphs of the cell's results; with `extra`, for a resumed process, also these values and all tracked objects.

        Memory shared by several arrays is known only after all have been seen: then everything is pickled again.
        """
        windows = Windows()
        for new in changes.changed.values():
            windows.leave(new.items)  # new values of an array that the reader has must not be views of old ones
        while True:
            packer = self.packer(whole, elsewhere, windows)
            for graph in graphs_of(changes, bound, value, states, self._modules):
                packer.dump(graph)
            if extra is not None:
                values = list(extra)
                packer.dump(values)
                own = {id(obj) for obj in (*_parts_of_graphs(packer.seen), values, *extra)}
                packer.dump(trackable(obj for obj in packer.seen if id(obj) not in own))
            if not windows.grow():
                self.caches_left = caches_left(packer.seen)
                packed = packer.packed()
                refuse_names(packed.stream, self._modules)
                return packed

    def packer(
        self, whole: Callable[[Any], Any] | None, elsewhere: Mapping[int, int] | None = None, windows: Windows | None = None
    ) -> Packer:
        """Return a packer for results."""
        packer = ResultPacker(
            namespace=self._namespace,
            known=self._objects,
            storages=self._storages_kept(),
            whole=whole,
            elsewhere=elsewhere,
            windows=windows,
            modules=self._modules,
        )
        packer.refer(self.references)
        return packer

    @contextmanager
    def with_modules(self, modules: list[ModuleType]) -> Iterator[None]:
        """Pack these modules, by value, in the ``with`` block."""
        self._modules = modules
        try:
            with by_value(modules):
                yield
        finally:
            self._modules = []

    def modules_refused(self, why_not: Callable[[object], str | None]) -> dict[str, str]:
        """Return which of the modules cannot be packed by value → the reason."""
        return {module.__name__: reason for module in self._modules if (reason := why_not(module)) is not None}

    def with_memory(self, index: int, new: Contents) -> Contents:
        """Return new contents of an object; of a tensor with other memory than before, with what memory that is."""
        if not isinstance(new.items, Numbers):
            return new
        place = _place_of(new.items.tensor)
        if place[0] not in self._storages:
            return replace(new, replaced=True)
        if self._places.get(index) == place:
            return new
        owner: Any = self._objects[self._storages[place[0]][0]]
        return replace(new, replaced=True, alias=Alias(new.items.tensor, owner))

    def _storages_kept(self) -> dict[int, int]:
        """Return the storages that still belong to the notebook's tensors; ``w.data = …`` gives a tensor another storage."""
        found: dict[int, int] = {}
        for index, (address, *_) in self._places.items():
            tensor: Any = self._objects[index]
            if address not in found and Numbers.can_hold(tensor) and tensor.untyped_storage()._cdata == address:
                found[address] = index
        return found


def _parts_of_graphs(seen: Iterable[object]) -> Iterator[object]:
    """Yield those of the pickled objects of which graphs are made, and which the notebook does not know."""
    for obj in seen:
        if isinstance(obj, _PARTS):
            yield obj
            yield vars(obj)
        if isinstance(obj, Contents):
            yield from (obj.items, obj.attributes, obj.removed)
        elif isinstance(obj, Changes):
            yield from (obj.changed, obj.deleted)
        elif isinstance(obj, Head):
            yield from (obj.others, obj.names)


_PARTS = (Head, Changes, Contents, Numbers, Alias)


def _has_memory(obj: object) -> TypeGuard[torch.Tensor]:
    return isinstance(obj, torch.Tensor) and Numbers.can_hold(obj)


def _place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _storages_of(objects: Sequence[object]) -> dict[int, tuple[int, torch.UntypedStorage]]:
    """Return the storages of tensors among `objects` by address, each with a tensor's index and a reference that keeps it alive."""
    found: dict[int, tuple[int, torch.UntypedStorage]] = {}
    for index, obj in enumerate(objects):
        if _has_memory(obj):
            storage = obj.untyped_storage()
            found.setdefault(storage._cdata, (index, storage))
    return found
