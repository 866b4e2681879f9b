"""What a loader yields, whatever its structure: how many samples, the rank's part of them, and how the cell sees it.

PyTorch's own collate function puts samples along dim 0 of every tensor, and texts in lists. Where the user has a collate function
nothing is taken for granted (time may come first, texts may be joined end to end): a :class:`Layout` says where the samples are. Tensors
are cut and placed along that dim. What is not a tensor (texts, ids, boxes of different sizes) comes one entry per
sample in a list; the ranks' lists are put together again, so the cell sees all of it.
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
"""Where something is in a batch: keys and positions from the top."""

Layout = Mapping[Path, int | Literal["entries", "same"]]
"""What is where in a batch: a tensor with its samples along a dim, a list with an entry per sample, or what is the same for all samples."""


class UnknownBatch(Exception):
    """A batch holds something of which it cannot be said which part belongs to which sample."""


def length_of(batch: Any, layout: Layout | None = None) -> int | None:
    """Return the number of samples ``B``: the size of dim 0 of the first array, or of the dim in `layout`; ``None``: nothing says it."""
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


def cut(batch: Any, part: slice, layout: Layout | None = None) -> Any:
    """Return the samples `part` of a whole batch: ``(B, …)`` becomes ``(b, …)``, along the dim in `layout` where it is given."""

    def one(path: Path, value: Any) -> Any:
        dim = 0 if layout is None else layout.get(path)
        if isinstance(value, torch.Tensor | np.ndarray) and isinstance(dim, int) and value.ndim > dim:
            return value[(*(slice(None),) * dim, part)]
        return value

    return _rebuild(batch, one, lambda items: items[part], layout)


def placed(batch: Any, share: BatchShard, layout: Layout | None = None) -> Any:
    """Return the rank's part of a batch as the cell is to see it: tensors placed, entries per sample complete.

    Tensors ``(b, …)`` become shards of ``(B, …)``. Arrays of NumPy and lists with an entry per sample are all-gathered.

    Raises
    ------
    UnknownBatch
        There is something else in it.
    """
    own, rows = share.num_samples, Shard(0, share)
    if layout is None and type(batch) in (list, tuple) and all(type(value) is torch.Tensor and value.dim() for value in batch):
        return type(batch)(from_local(value, rows) for value in batch)  # what most loaders give

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
    """Return what the ranks' parts of a batch must have in common, by place: types of numbers, and shapes without the dim of the samples.

    ``None`` where the batch is not as `layout` says, or has not `total` samples at each place that has one per sample: as many rows as
    samples may have been a chance in the batch that the layout is from.
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
            if not is_array or value.ndim <= kind or value.shape[kind] != total or _has_attributes(value):
                return False
            found[path] = str(value.dtype), (*value.shape[:kind], *value.shape[kind + 1 :])
            return True
        del found[path]
        children = None if is_array else _children(value)
        return children is not None and all(fits(child, (*path, key)) for key, child in children.items())

    return [found[path] for path in layout] if fits(batch, ()) and found.keys() == layout.keys() else None


# -- finding out where the samples are -------------------------------------------------------------------------------


def compared(whole: Any, part: Any, total: int, where: slice) -> dict[Path, tuple[list[int | str], bool]] | None:
    """Compare what a collate function made of all samples of a batch and of the samples `where`.

    Returns
    -------
    dict or None
        By path, what it may be as in :data:`Layout`, and whether the part is exactly a part of the whole. ``None``: the structures differ.
    """
    found: dict[Path, tuple[list[int | str], bool]] = {}
    return found if _compare(whole, part, (), total, where, found) else None


def _compare(whole: Any, part: Any, path: Path, total: int, where: slice, found: dict[Path, tuple[list[int | str], bool]]) -> bool:
    if type(whole) is not type(part):
        return False
    if isinstance(whole, torch.Tensor | np.ndarray):
        if _has_attributes(whole) or _has_attributes(part):
            found[path] = ["attributes"], False
        else:
            found[path] = _compare_arrays(torch.as_tensor(whole), torch.as_tensor(part), total, where)
        return True
    if isinstance(whole, list | tuple) and not hasattr(whole, "_fields"):
        count = where.stop - where.start
        if len(whole) == total and len(part) == count:
            found[path] = ["entries"], True
            return True
    children, others = _children(whole), _children(part)
    if children is not None and others is not None:
        return list(children) == list(others) and all(
            _compare(children[key], others[key], (*path, key), total, where, found) for key in children
        )
    try:
        same = bool(whole == part)
    except Exception:  # an object with an idea of its own of being equal
        same = False
    found[path] = (["same"] if same else []), same
    return True


def _has_attributes(value: Any) -> bool:
    """Return whether a tensor has attributes that somebody has given it: of all of its samples, and lost where it is cut or copied."""
    return type(value) is torch.Tensor and bool(value.__dict__)


def _compare_arrays(whole: torch.Tensor, part: torch.Tensor, total: int, where: slice) -> tuple[list[int | str], bool]:
    count = where.stop - where.start
    has_rows = all(tensor.layout == torch.strided and not tensor.is_nested for tensor in (whole, part))
    if not has_rows or whole.dim() != part.dim():
        return [], False
    dims = [dim for dim in range(whole.dim()) if whole.shape[dim] == total and part.shape[dim] == count]
    exact = [dim for dim in dims if _equal(whole.narrow(dim, where.start, count), part)]
    if exact:
        return list(exact), True
    if not dims and _equal(whole, part):
        return ["same"], True
    return list(dims), False


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.shape == right.shape and left.dtype == right.dtype and bool(((left == right) | ((left != left) & (right != right))).all())


def has_other_values(whole: Any, part: Any, total: int, where: slice) -> bool:
    """Return whether a part has other numbers than the whole has there. Of other sizes (padding) its ranks find out themselves."""
    if type(whole) is not type(part):
        return False
    if isinstance(whole, torch.Tensor | np.ndarray):
        left, right = torch.as_tensor(whole), torch.as_tensor(part)
        dims, is_exact = _compare_arrays(left, right, total, where)
        alike = [dim for dim in dims if isinstance(dim, int) and _without(left.shape, dim) == _without(right.shape, dim)]
        return bool(alike) and not is_exact
    children, others = _children(whole), _children(part)
    if children is None or others is None or list(children) != list(others):
        return False
    return any(has_other_values(children[key], others[key], total, where) for key in children)


def _without(shape: torch.Size, dim: int) -> list[int]:
    return [size for number, size in enumerate(shape) if number != dim]


# -- through the structure --------------------------------------------------------------------------------------------


def _children(value: Any) -> dict[Any, Any] | None:
    """Return what a container holds by key, and its attributes beside that; ``None`` for what is none."""
    if isinstance(value, Mapping | list | tuple):
        entries = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
        return {**entries, **_attributes(value, entries)}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields_of(value) if field.init}
    return None


@dataclass(frozen=True)
class Attribute:
    """The key of what a dict or a list of a class of its own holds beside its entries: a ``batch_size``, the lengths of texts."""

    name: str


def _attributes(value: Any, entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the attributes of a container that may say something of its samples, and are not where it keeps its `entries` itself.

    What the class of a library has for itself is left out: a tokenizer's batch keeps all that it was made from.
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
    children = None if isinstance(batch, torch.Tensor | np.ndarray) or (layout and layout.get(path) == "same") else _children(batch)
    if children is None:
        return one(path, batch)
    if layout is None:  # PyTorch's own function takes attributes from the first sample
        children = {key: value for key, value in children.items() if not isinstance(key, Attribute)}
    mapped = {key: _rebuild(value, one, entries, layout, (*path, key)) for key, value in children.items()}
    attributes = {key.name: mapped.pop(key) for key in list(mapped) if isinstance(key, Attribute)}
    rebuilt: Any
    if isinstance(batch, MutableMapping):
        rebuilt = copy.copy(batch)  # which may have attributes beside its entries, or want other arguments than these
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
