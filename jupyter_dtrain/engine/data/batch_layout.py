"""Structure of a loader's batches: number of samples, the rank's part, and what the cell sees.

PyTorch's own collate function puts samples along dim 0 of every tensor, and strings in lists. With a collate function of the user's,
nothing is assumed (time may come first, texts may be concatenated): a :class:`Layout` says where the samples are. Tensors are cut and
placed along their batch dim. Other values (texts, ids, boxes of different sizes) come in lists with one entry per sample; the ranks' lists
are all-gathered, so the cell sees all entries.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, is_dataclass, replace
from dataclasses import fields as fields_of
from typing import Any, Literal

import numpy as np
import torch

from ..tensor.batch_shard import BatchShard
from ..tensor.placement_types import Shard, from_local
from ..tensor.redistribute import Exchange
from ..user_frames import is_users_module

_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.generic)

Path = tuple[Any, ...]
"""Position of a value in a batch: keys and indices from the root."""

Layout = Mapping[Path, int | Literal["entries", "same"]]
"""By path: the batch dim of a tensor, ``"entries"`` for a list with one entry per sample, or ``"same"`` for a value of all samples."""


class UnknownBatch(Exception):
    """A batch contains a value that cannot be assigned to samples."""


def length_of(batch: Any, layout: Layout | None = None) -> int | None:
    """Return the number of samples ``B``: the size of dim 0 of the first array, or of the dim in `layout`; ``None`` if unknown."""
    found: list[int] = []

    def one(path: Path, value: Any) -> Any:
        dim = 0 if layout is None else layout.get(path)
        if isinstance(dim, int) and isinstance(value, torch.Tensor | np.ndarray) and value.ndim > dim:
            found.append(value.shape[dim])
        return value

    def entries(items: Any) -> Any:
        found.append(len(items))
        return items

    _rebuild(batch, one, entries, layout)
    return found[0] if found else None


def entries_in(batch: Any, layout: Layout) -> list[Any]:
    """Return the entries of all lists with one entry per sample."""
    found: list[Any] = []

    def entries(items: Any) -> Any:
        found.extend(items)
        return items

    _rebuild(batch, lambda _, value: value, entries, layout)
    return found


def cut(batch: Any, part: slice, layout: Layout | None = None) -> Any:
    """Return the samples `part` of a full batch: ``(B, …)`` becomes ``(b, …)``, along the dim in `layout`, by default along dim 0."""

    def one(path: Path, value: Any) -> Any:
        dim = 0 if layout is None else layout.get(path)
        if isinstance(value, torch.Tensor | np.ndarray) and isinstance(dim, int) and value.ndim > dim:
            return value[(*(slice(None),) * dim, part)]
        return value

    return _rebuild(batch, one, lambda items: items[part], layout)


def placed(batch: Any, share: BatchShard, layout: Layout | None = None) -> Any:
    """Return the rank's part of a batch as the cell sees it: tensors placed, lists complete.

    Tensors ``(b, …)`` become shards of ``(B, …)``. NumPy arrays and lists with an entry per sample are all-gathered.

    Raises
    ------
    UnknownBatch
        The batch contains another type.
    """
    own, rows = share.num_samples, Shard(0, share)
    if layout is None and type(batch) in (list, tuple) and all(type(value) is torch.Tensor and value.dim() for value in batch):
        return type(batch)(from_local(value, rows) for value in batch)  # fast path for the most common batches

    def one(path: Path, value: Any) -> Any:
        dim = 0 if layout is None else layout.get(path)
        if isinstance(value, torch.Tensor):
            return from_local(value, Shard(dim, share)) if isinstance(dim, int) and value.dim() > dim else value
        if isinstance(value, np.ndarray):
            if not isinstance(dim, int) or value.ndim <= dim:
                return value
            return np.concatenate(Exchange.objects(value[(*(slice(None),) * dim, slice(own))]), dim)
        if isinstance(value, _PLAIN) or (layout is not None and dim == "same"):
            return value
        raise UnknownBatch(type(value).__name__)

    def entries(items: Any) -> Any:
        whole = [item for part in Exchange.objects(list(items[:own])) for item in part]
        return whole if isinstance(items, list) else type(items)(whole)

    return _rebuild(batch, one, entries, layout)


def kinds_of(batch: Any, layout: Layout, total: int) -> list[Any] | None:
    """Return what all ranks' parts of a batch must agree on, by path: dtypes, and shapes without the batch dim.

    ``None`` if the batch does not match `layout`, or does not have `total` samples everywhere: in the batch from which the layout was
    learned, a size may have equaled the number of samples by chance.
    """
    found: dict[Path, Any] = {}

    def fits(value: Any, path: Path) -> bool:
        kind, is_array = layout.get(path), isinstance(value, torch.Tensor | np.ndarray)
        found[path] = None
        if kind == "same":
            return True
        if kind == "entries":
            return isinstance(value, list | tuple) and len(value) == total
        if isinstance(kind, int):
            if not is_array or value.ndim <= kind or value.shape[kind] != total or has_attributes(value):
                return False
            found[path] = str(value.dtype), (*value.shape[:kind], *value.shape[kind + 1 :])
            return True
        del found[path]
        children = None if is_array else children_of(value)
        return children is not None and all(fits(child, (*path, key)) for key, child in children.items())

    return [found[path] for path in layout] if fits(batch, ()) and found.keys() == layout.keys() else None


# -- attributes of tensors -------------------------------------------------------------------------------------------


def has_attributes(value: Any) -> bool:
    """Return whether a tensor has user-defined attributes, which describe all of its samples and are lost when it is cut or copied."""
    return type(value) is torch.Tensor and bool(value.__dict__)


# -- traversal of the structure ---------------------------------------------------------------------------------------


def children_of(value: Any) -> dict[Any, Any] | None:
    """Return the entries of a container by key, with its attributes; ``None`` for anything else."""
    if isinstance(value, Mapping | list | tuple):
        entries = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
        return {**entries, **_attributes(value, entries)}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields_of(value) if field.init}
    return None


@dataclass(frozen=True)
class Attribute:
    """The key of an attribute of a dict or list subclass beside its entries: a ``batch_size``, the lengths of texts."""

    name: str


def _attributes(value: Any, entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the attributes of a container that may describe its samples, except those that store its `entries`.

    For a class of a library, private attributes are left out: a tokenizer's batch keeps everything that it was made from.
    """
    found = vars(value) if hasattr(value, "__dict__") else {}
    if found and not is_users_module(type(value).__module__):
        found = {name: attribute for name, attribute in found.items() if not name.startswith("_")}
    kept = {id(entry) for entry in entries.values()}
    return {
        Attribute(name): attribute
        for name, attribute in found.items()
        if not (isinstance(attribute, Mapping | list | tuple) and attribute and all(id(item) in kept for item in _items(attribute)))
    }


def _items(container: Mapping[Any, Any] | list[Any] | tuple[Any, ...]) -> Iterable[Any]:
    return container.values() if isinstance(container, Mapping) else container


def _rebuild(batch: Any, one: Callable[[Path, Any], Any], entries: Callable[[Any], Any], layout: Layout | None, path: Path = ()) -> Any:
    """Return `batch` with `one` applied to single values, and `entries` to lists with one entry per sample."""
    if isinstance(batch, list | tuple) and _has_entry_per_sample(batch, layout, path):
        return entries(batch)
    children = None if isinstance(batch, torch.Tensor | np.ndarray) or (layout and layout.get(path) == "same") else children_of(batch)
    if children is None:
        return one(path, batch)
    if layout is None:  # PyTorch's collate function copies attributes from the first sample
        children = {key: value for key, value in children.items() if not isinstance(key, Attribute)}
    mapped = {key: _rebuild(value, one, entries, layout, (*path, key)) for key, value in children.items()}
    attributes = {key.name: mapped.pop(key) for key in list(mapped) if isinstance(key, Attribute)}
    rebuilt: Any
    if isinstance(batch, MutableMapping):
        rebuilt = copy.copy(batch)  # keeps attributes; the constructor may take other arguments
        rebuilt.update(mapped)
    elif isinstance(batch, Mapping):
        rebuilt = type(batch)(mapped)  # type: ignore[call-arg]
    elif isinstance(batch, tuple) and hasattr(batch, "_fields"):
        rebuilt = type(batch)(*mapped.values())
    elif isinstance(batch, list | tuple):
        rebuilt = type(batch)(mapped.values())
    else:
        return replace(batch, **mapped)
    if hasattr(batch, "__dict__"):
        vars(rebuilt).update({name: value for name, value in vars(batch).items() if name not in vars(rebuilt)}, **attributes)
    return rebuilt


def _has_entry_per_sample(items: list[Any] | tuple[Any, ...], layout: Layout | None, path: Path) -> bool:
    """Return whether a list has one entry per sample, and not one batch per entry like ``[inputs, targets]``."""
    if layout is not None:
        return layout.get(path) == "entries"
    return len(items) > 0 and all(isinstance(item, str | bytes) for item in items)
