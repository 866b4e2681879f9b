"""What a cell has made in one pickle, what shares memory in one piece: with itself, or with what the notebook has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..serialization.array_windows import Windows
from ..serialization.copy_restore import Contents
from ..serialization.leaves import Numbers, trackable
from ..serialization.pickler import Packed, Packer, Reference
from .result_pickler import Changes, ResultPacker, graphs_of


class ResultPacking:
    """Packs the results of one cell.

    Parameters
    ----------
    namespace : dict
        The cell's.
    objects : sequence of object
        Those that came from the notebook, in its order.

    Attributes
    ----------
    references : mapping of int to Reference
        What stands for objects of libraries that the cell has changed, by their ids.
    """

    def __init__(self, namespace: dict[str, Any], objects: Sequence[object]) -> None:
        self._namespace, self._objects = namespace, objects
        self._storages = _storages_of(objects)
        self.references: Mapping[int, Reference | None] = {}

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
        """Return the graphs of what the cell has made, and, for a process that goes on, of `extra` and of the objects in all of them.

        Memory that several share is known once all have been seen: then they are pickled again.
        """
        windows = Windows()
        for new in changes.changed.values():
            windows.leave(new.items)  # new numbers of an array that the reader has are no window into the old ones
        while True:
            packer = self.packer(whole, elsewhere, windows)
            for graph in graphs_of(changes, bound, value, states):
                packer.dump(graph)
            if extra is not None:
                packer.dump(list(extra))
                packer.dump(trackable(packer.seen))
            if not windows.grow():
                return packer.packed()

    def packer(
        self, whole: Callable[[Any], Any] | None, elsewhere: Mapping[int, int] | None = None, windows: Windows | None = None
    ) -> Packer:
        """Return what pickles one thing or another."""
        packer = ResultPacker(
            namespace=self._namespace,
            known=self._objects,
            storages=self._storages_kept(),
            whole=whole,
            elsewhere=elsewhere,
            windows=windows,
        )
        packer.refer(self.references)
        return packer

    def is_elsewhere(self, new: Contents) -> bool:
        """Return whether a tensor has memory that no tensor of the notebook had."""
        return isinstance(new.items, Numbers) and new.items.tensor.untyped_storage()._cdata not in self._storages

    def _storages_kept(self) -> dict[int, int]:
        """Return the storages that still are those of the notebook's tensors: ``w.data = …`` gives a tensor another one."""
        found: dict[int, int] = {}
        for address, (index, _) in self._storages.items():
            tensor: Any = self._objects[index]
            if Numbers.can_hold(tensor) and tensor.untyped_storage()._cdata == address:
                found[address] = index
        return found


def _storages_of(objects: Sequence[object]) -> dict[int, tuple[int, torch.UntypedStorage]]:
    """Return the storages of the tensors among `objects` by their address: the index of a tensor, and the storage, to be kept alive."""
    found: dict[int, tuple[int, torch.UntypedStorage]] = {}
    for index, obj in enumerate(objects):
        if isinstance(obj, torch.Tensor) and Numbers.can_hold(obj):
            storage = obj.untyped_storage()
            found.setdefault(storage._cdata, (index, storage))
    return found
