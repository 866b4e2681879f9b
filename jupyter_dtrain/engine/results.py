"""What rank 0 sends home: the names that the cell bound, and what it changed in the notebook's objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..capture.copy_restore import Baseline, Contents
from ..capture.pickling import Numbers, Packed, Packer

_HIDDEN = frozenset({"__builtins__", "__name__"})


@dataclass(frozen=True)
class Changes:
    """What the cell did to what was there. Read first, because it is read for certain.

    Attributes
    ----------
    changed : dict of int to Contents
        New contents of tracked objects, by their index.
    deleted : list of str
        Names that the cell deleted.
    """

    changed: dict[int, Contents]
    deleted: list[str]


@dataclass(frozen=True)
class Bound:
    """What the cell made. An object that only the engine can make again fails to be read here, and takes the rest of this along.

    Attributes
    ----------
    names : dict
        Values of names that the cell bound.
    value : object
        Value of the cell's last line.
    """

    names: dict[str, Any]
    value: Any


class Home:
    """The namespace of a cell and the objects that came with it, as they were before the cell ran."""

    def __init__(self, namespace: dict[str, Any], tracked: list[object]) -> None:
        self._namespace = namespace
        self._before = dict(namespace)
        self._baseline = Baseline(tracked)
        self._storages = _storages_of(tracked)

    def changed_and_not(self) -> tuple[list[object], list[object]]:
        """Return the objects of the notebook that the cell has changed in place, and the others. Of tensors and arrays it says nothing."""
        changed = self._baseline.changed_holders()
        ids = {id(obj) for obj in changed}
        return changed, [obj for obj in self._baseline.objects if id(obj) not in ids]

    def pack(self, value: object) -> tuple[Packed, dict[str, str]]:
        """Return what goes home, and the names that cannot, with the reason of each.

        `value` is that of the cell's last line.
        """
        before = self._before
        bound = {
            name: obj
            for name, obj in self._namespace.items()
            if name not in _HIDDEN and (name not in before or before[name] is not obj or _moves_on(obj))
        }
        deleted = [name for name in before if name not in self._namespace]
        changed = {index: replace(new, replaced=self._is_elsewhere(new)) for index, new in self._baseline.changed().items()}
        changes = Changes(changed, deleted)
        try:
            return self._pickled(changes, Bound(bound, value)), {}
        except Exception:
            # Something cannot be sent; now find out what, piece by piece.
            stays = {name: reason for name, obj in bound.items() if (reason := self._why_not(obj)) is not None}
            kept = {name: obj for name, obj in bound.items() if name not in stays}
            changed = {index: self._what_can_be_sent(index, new, stays) for index, new in changes.changed.items()}
            return self._pickled(Changes(changed, deleted), Bound(kept, None if self._why_not(value) else value)), stays

    def _what_can_be_sent(self, index: int, new: Contents, stays: dict[str, str]) -> Contents:
        """Return `new` without what cannot be sent; say so in `stays`."""
        reasons = {f".{key}": reason for key, value in new.attributes.items() if (reason := self._why_not(value)) is not None}
        attributes = {key: value for key, value in new.attributes.items() if f".{key}" not in reasons}
        reason = self._why_not(new.items)
        if reason is not None:
            reasons[""] = f"of what the cell put into it, something cannot be sent ({reason})"
        obj = self._baseline.objects[index]
        name = next((name for name, value in self._before.items() if value is obj), f"a {type(obj).__name__}")
        stays |= {name + key: reason for key, reason in reasons.items()}
        return replace(new, items=None if reason is not None else new.items, attributes=attributes)

    def _pickled(self, *graphs: object) -> Packed:
        packer = Packer(namespace=self._namespace, known=self._baseline.objects, storages=self._storages_kept())
        for graph in graphs:
            packer.dump(graph)
        return packer.packed()

    def _is_elsewhere(self, new: Contents) -> bool:
        """Return whether a tensor has memory that no tensor of the notebook had."""
        return isinstance(new.items, Numbers) and new.items.tensor.untyped_storage()._cdata not in self._storages

    def _storages_kept(self) -> dict[int, int]:
        """Return the storages that still are those of the notebook's tensors: ``w.data = …`` gives a tensor another one."""
        found: dict[int, int] = {}
        for address, (index, _) in self._storages.items():
            tensor: Any = self._baseline.objects[index]
            if Numbers.can_hold(tensor) and tensor.untyped_storage()._cdata == address:
                found[address] = index
        return found

    def _why_not(self, obj: object) -> str | None:
        try:
            self._pickled(obj)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None


def _moves_on(obj: object) -> bool:
    """Return whether `obj` is an iterator of Python's own: where it stands cannot be seen, so it takes the place of the notebook's."""
    return type(obj).__module__ in ("builtins", "itertools") and isinstance(obj, Iterator)


def _storages_of(objects: Sequence[object]) -> dict[int, tuple[int, torch.UntypedStorage]]:
    """Return the storages of the tensors among `objects` by their address: the index of a tensor, and the storage, to be kept alive."""
    found: dict[int, tuple[int, torch.UntypedStorage]] = {}
    for index, obj in enumerate(objects):
        if isinstance(obj, torch.Tensor) and Numbers.can_hold(obj):
            storage = obj.untyped_storage()
            found.setdefault(storage._cdata, (index, storage))
    return found
