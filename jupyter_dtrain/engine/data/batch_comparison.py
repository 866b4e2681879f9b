"""Compare batches and parts of batches, of any structure."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .batch_layout import Path, children_of, has_attributes


def compared(whole: Any, part: Any, total: int, where: slice) -> dict[Path, tuple[list[int | str], bool]] | None:
    """Compare the collated full batch with the collated samples `where`.

    Returns
    -------
    dict or None
        By path: candidate kinds as in :data:`Layout`, and whether the part equals a slice of the full batch. ``None``: the structures
        differ.
    """
    found: dict[Path, tuple[list[int | str], bool]] = {}
    return found if _compare(whole, part, (), total, where, found) else None


def _compare(whole: Any, part: Any, path: Path, total: int, where: slice, found: dict[Path, tuple[list[int | str], bool]]) -> bool:
    if type(whole) is not type(part):
        return False
    if isinstance(whole, torch.Tensor | np.ndarray):
        if has_attributes(whole) or has_attributes(part):
            found[path] = ["attributes"], False
        else:
            found[path] = _compare_arrays(torch.as_tensor(whole), torch.as_tensor(part), total, where)
        return True
    if isinstance(whole, list | tuple) and not hasattr(whole, "_fields"):
        count = where.stop - where.start
        if len(whole) == total and len(part) == count:
            found[path] = ["entries"], True
            return True
    children, others = children_of(whole), children_of(part)
    if children is not None and others is not None:
        return list(children) == list(others) and all(
            _compare(children[key], others[key], (*path, key), total, where, found) for key in children
        )
    try:
        same = bool(whole == part)
    except Exception:  # the object has a custom `__eq__`
        same = False
    found[path] = (["same"] if same else []), same
    return True


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
    """Return whether a part has other values than the full batch at the same place; parts of other sizes (padding) do not count."""
    if type(whole) is not type(part):
        return False
    if isinstance(whole, torch.Tensor | np.ndarray):
        left, right = torch.as_tensor(whole), torch.as_tensor(part)
        dims, is_exact = _compare_arrays(left, right, total, where)
        alike = [dim for dim in dims if isinstance(dim, int) and _without(left.shape, dim) == _without(right.shape, dim)]
        return bool(alike) and not is_exact
    children, others = children_of(whole), children_of(part)
    if children is None or others is None or list(children) != list(others):
        return False
    return any(has_other_values(children[key], others[key], total, where) for key in children)


def _without(shape: torch.Size, dim: int) -> list[int]:
    return [size for number, size in enumerate(shape) if number != dim]
