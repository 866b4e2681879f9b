"""Cache of full tensors: a cell may read a batch entry by entry, and may write into what it has read.

Tensors that share a storage have one cached full tensor: that of their root. A view of a batch is the same view of the batch's full
tensor. A write to a batch, a view, a sample or an array of it is therefore visible in all of them, as in one process.

A write into a full tensor or a sample of it bumps the version of the full tensor, and the change is copied to the rank's part. A write
through a NumPy array bumps no version. If the cell may hold an array, the part is copied again whenever the tensor is used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch.autograd import forward_ad

from ..functional_collectives import nothing_of
from ..memory_layout import described
from ..placement_types import GlobalTensor, KeptFull, Origin, Placement, Shard, from_local, to_local
from ..redistribute import Exchange
from ..versions import copy_uncounted, version_of
from ..view_calls import ViewCall, have_one_memory, seen_through
from .operands import at, global_shape, globals_in, requires_grad

_MUCH = 4
"""A base with more than this many times the elements of a view is not gathered for the view."""
_MOST_VIEWED = 8
"""Tensors that are checked for writes at each operation; older ones are checked only when they are operands."""


@dataclass(kw_only=True)
class KeptFulls:
    """The cached full tensors of the global tensors that the cell has read."""

    viewed: list[GlobalTensor] = field(default_factory=list)  # the cell may hold, and write into, samples of their full tensors
    lent: list[weakref.ref[GlobalTensor]] = field(default_factory=list)  # the cell has arrays or views of their full tensors
    is_first: bool = False  # this is rank 0
    transforms: int = 0  # depth of nested torch.func transforms that are running

    def keep(self, root: GlobalTensor, whole: torch.Tensor) -> None:
        """Cache the full tensor `whole` of `root` until `root` is written to; the cell may take samples of it."""
        root._state.full = KeptFull(version_of(root), whole, whole._version)
        if isinstance(root.placement, Shard):
            self.viewed = [*(other for other in self.viewed[1 - _MOST_VIEWED :] if other is not root), root]

    def part_of(self, whole: torch.Tensor, placement: Placement) -> torch.Tensor:
        """Return the rank's part of a full tensor: a slice ``(b, …)`` of ``(B, …)``, or a part whose sum or mean over ranks is `whole`."""
        if isinstance(placement, Shard):
            return whole[at(placement.dim, placement.loaded)]
        return whole.clone() if placement.weight is not None or self.is_first else nothing_of(whole)

    @staticmethod
    def keep_on(root: GlobalTensor) -> None:
        """Mark the cached full tensor as current after the version of `root` has changed: part and full tensor have equal values."""
        kept = root._state.full
        if kept is not None:
            root._state.full = KeptFull(version_of(root), kept.tensor, kept.tensor._version)

    def is_read(self, tensor: Any) -> bool:
        """Return whether the full tensor of `tensor` is cached and current: the cell may hold samples, which must change with it."""
        if type(tensor) is not GlobalTensor:
            return False
        root = root_of(tensor)
        kept = root._state.full
        return kept is not None and kept.version == self.version_to_keep(root)

    def version_to_keep(self, tensor: GlobalTensor) -> int | None:
        """Return the version under which the full tensor of `tensor` may be cached, ``None`` if it may not be cached."""
        with torch._C.DisableTorchFunctionSubclass():
            if tensor.is_inference() or forward_ad._current_level >= 0:
                return None
            if tensor.requires_grad and (
                tensor.is_leaf or self.transforms or not torch.is_grad_enabled() or not isinstance(tensor.placement, Shard)
            ):
                return None
            return version_of(tensor)

    def lend(self, result: Any, operands: Any) -> None:
        """Record which of `operands` have a cached full tensor that `result`, which the cell gets, is a view of."""
        view = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(view, torch.Tensor):
            for root in map(root_of, globals_in(operands)):
                if root._state.full is not None and have_one_memory(view, root._state.full.tensor):
                    self.note_lent(root)

    def note_lent(self, root: GlobalTensor) -> None:
        """Record that the cell may write into the full tensor of `root` without a version bump."""
        root._state.is_lent = True
        self.lent = [*(other for other in self.lent if other() is not None and other() is not root), weakref.ref(root)]

    def take_back_lent(self) -> None:
        """Copy to the parts what the cell has written through arrays and views (``x.numpy()[:] = 0``), before a backward pass."""
        for root in [other() for other in self.lent]:
            if root is not None:
                self.take_back(root, by_array=True)

    @staticmethod
    def trace(result: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `result`, and record the view operation if it, or tensors in it, are views of the shard ``args[0]``.

        A view that in one process would be a copy, because the full tensor has another layout, is returned as a copy.
        """
        source = next(iter(args), None)
        if type(source) is not GlobalTensor or type(source._state.placement) is not Shard:
            return result
        for number, view in enumerate(result) if isinstance(result, tuple | list) else ((None, result),):
            if type(view) is not GlobalTensor or type(view._state.placement) is not Shard:
                continue
            with torch._C.DisableTorchFunctionSubclass():
                if not have_one_memory(view, source):
                    continue
                is_single = source.shape[source._state.placement.dim] < 2
                has_graph = view.requires_grad
            call = ViewCall(func, tuple(map(_shaped, args[1:])), {key: _shaped(value) for key, value in kwargs.items()}, number)
            root, views = (source._state.base or Origin(source, ())) if has_graph else origin_of(source)
            if is_single and number is None and seen_through(_described(root), (*views, call)) is None:
                with torch._C.DisableTorchFunctionSubclass():  # of the full tensor it would be a copy
                    return from_local(view.clone(), view._state.placement)
            if has_graph:
                if view is not source and source.requires_grad:
                    view._state.base = Origin(root, (*views, call))
                continue
            if view is not source:
                view._state.origin = Origin(root, (*views, call))
        return result

    def bring_up_to_date(self) -> None:
        """Update cached full tensors with a graph after writes that autograd does not see, as ``out.data *= 2``.

        A collective if there were such writes. Other writes are followed where they happen.
        """
        for root in self.viewed:
            kept = root._state.full
            if kept is None or not kept.tensor.requires_grad or kept.version == version_of(root):
                continue
            with torch.no_grad():
                kept.tensor.detach().copy_(Exchange().full_tensor(root).detach())
            self.keep_on(root)

    def take_back_all(self, operands: Iterable[Any], *, by_array: bool = True) -> None:
        """Copy to the parts what the cell has written into full tensors of `operands`; see :meth:`take_back`."""
        for tensor in operands:
            if type(tensor) is GlobalTensor:
                state = tensor._state
                if state.origin is not None and (root := state.origin.root)._state.full is not None:
                    self.take_back(root, by_array=by_array and root._state.is_lent)
                if state.full is not None:
                    self.take_back(tensor, by_array=by_array and state.is_lent)
            elif type(tensor) is list or type(tensor) is tuple:
                self.take_back_all(tensor, by_array=by_array)

    def take_back(self, root: GlobalTensor, *, by_array: bool = False) -> bool:
        """Copy to the part ``(b, …)`` what the cell has written into the full tensor ``(B, …)``: ``image = x[0]; image *= 2``.

        Parameters
        ----------
        root : GlobalTensor
        by_array : bool
            Whether to copy also without a new version, as writes through NumPy arrays bump none.

        Returns
        -------
        bool
            Whether more writes may follow, because the cell holds samples of the full tensor.
        """
        kept = root._state.full
        if kept is None:
            return False
        whole = kept.tensor
        is_current = kept.version == version_of(root)  # else a model has written into the part
        with torch._C.DisableTorchFunctionSubclass(), torch.set_grad_enabled(whole.requires_grad):
            if whole._version != kept.full_version:
                root.copy_(self.part_of(whole, root.placement))
                self.keep_on(root)
            elif by_array and is_current:
                copy_uncounted(root, self.part_of(whole, root.placement))  # on all ranks, even if only another rank's part has changed
                self.keep_on(root)
        return bool(whole._use_count() > 1)  # type: ignore[attr-defined]  # which PyTorch does not declare


def counting_writes(read: Callable[[Any, GlobalTensor], torch.Tensor]) -> Callable[[Any, GlobalTensor], torch.Tensor]:
    """Wrap `read`, which returns a full tensor, so that one made in inference mode counts the cell's writes to it, too."""

    @wraps(read)
    def called(rules: Any, tensor: GlobalTensor) -> torch.Tensor:
        if not torch.is_inference_mode_enabled():
            return read(rules, tensor)
        with torch._C.DisableTorchFunctionSubclass():
            is_counted = not tensor.is_inference()
        with torch.inference_mode(mode=not is_counted), torch.no_grad():
            return read(rules, tensor)

    return called


def origin_of(tensor: GlobalTensor) -> Origin:
    """Return the root whose storage a shard shares, and the views between; if there is none, make `tensor` its own root."""
    origin = _origin_now(tensor)
    if origin is None:
        with torch._C.DisableTorchFunctionSubclass():
            origin = tensor._state.origin = Origin(from_local(tensor.detach(), tensor.placement), ())
    return origin


def root_of(tensor: GlobalTensor) -> GlobalTensor:
    """Return the tensor that caches the full tensor for `tensor`: its root or, if it has none (of a graph: no cached one), itself."""
    if requires_grad(tensor):
        base = base_of(tensor)
        return tensor if base is None or base.root._state.full is None else base.root
    origin = _origin_now(tensor)
    return tensor if origin is None else origin.root


def base_of(tensor: GlobalTensor) -> Origin | None:
    """Return the tensor in the cell's graph that `tensor`, which requires gradients, is a view of.

    ``None``: it is no view, or its base is much larger and not cached.
    """
    base = tensor._state.base
    if base is None or not requires_grad(base.root) or not have_one_memory(tensor, base.root):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return base if base.root.numel() <= _MUCH * tensor.numel() or base.root._state.full is not None else None


def _origin_now(tensor: GlobalTensor) -> Origin | None:
    origin = tensor._state.origin
    if origin is not None and not have_one_memory(tensor, origin.root):  # after `root.data = …`
        origin = tensor._state.origin = None
    return origin


def _described(root: GlobalTensor) -> torch.Tensor:
    """Return a meta tensor with the shape and strides of the full tensor of `root`."""
    placement = root._state.placement
    assert isinstance(placement, Shard)
    with torch._C.DisableTorchFunctionSubclass():
        return described(to_local(root).detach(), placement.dim, placement.total)


def _shaped(value: Any) -> Any:
    """Return an argument to record: a global tensor is replaced by a meta tensor of its shape, as ``expand_as`` needs no more."""
    return torch.empty(global_shape(value), dtype=value.dtype, device="meta") if type(value) is GlobalTensor else value
