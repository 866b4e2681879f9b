"""Full tensors that reads have brought: kept, as a cell reads a batch entry by entry, and taken back, as it may write into what it reads.

Tensors of one memory have one full tensor: that of their root. A view of a batch is the same view of the batch's full tensor, so what the
cell writes to a batch, a view, a sample or an array is in all of them, as in one process.

What is written into a full tensor, or into a sample of it, another version of that says. What is written through an array of NumPy's,
nothing says: where the cell has had one, or a sample that it may have had one of, the part is copied anew when the tensor is used again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
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
"""By how much a tensor may have more numbers than its view, to be fetched for it."""
_MOST_VIEWED = 8
"""Tensors whose samples the cell may hold: older ones are asked only when the cell computes with them by name."""


@dataclass(kw_only=True)
class KeptFulls:
    """What is kept of the global tensors that the cell has read."""

    viewed: list[GlobalTensor] = field(default_factory=list)  # of whose wholes the cell may hold samples, which it may write into
    lent: list[weakref.ref[GlobalTensor]] = field(default_factory=list)  # of whose wholes the cell has arrays, or views
    is_first: bool = False  # of the ranks
    transforms: int = 0  # of torch.func that are under way, one in another

    def keep(self, root: GlobalTensor, whole: torch.Tensor) -> None:
        """Keep the whole of `root`, of which the cell may take samples, until the tensor is changed."""
        root._state.full = KeptFull(version_of(root), whole, whole._version)
        if isinstance(root.placement, Shard):
            self.viewed = [*(other for other in self.viewed[1 - _MOST_VIEWED :] if other is not root), root]

    def part_of(self, whole: torch.Tensor, placement: Placement) -> torch.Tensor:
        """Return the rank's part of a whole tensor ``(B, …)``, or what it adds to one that is a sum of all ranks'."""
        if isinstance(placement, Shard):
            return whole[at(placement.dim, placement.loaded)]
        return whole.clone() if placement.weight is not None or self.is_first else nothing_of(whole)

    @staticmethod
    def keep_on(root: GlobalTensor) -> None:
        """Keep what is kept: the tensor has another version, and the same numbers, or those that were written into its whole."""
        kept = root._state.full
        if kept is not None:
            root._state.full = KeptFull(version_of(root), kept.tensor, kept.tensor._version)

    def is_read(self, tensor: Any) -> bool:
        """Return whether the whole of `tensor` is kept as it is now: the cell may hold samples of it, which are to change with it."""
        if type(tensor) is not GlobalTensor:
            return False
        root = root_of(tensor)
        kept = root._state.full
        return kept is not None and kept.version == self.version_to_keep(root)

    def version_to_keep(self, tensor: GlobalTensor) -> int | None:
        """Return the version of a tensor whose whole may be kept until there is another, ``None`` if it may not."""
        with torch._C.DisableTorchFunctionSubclass():
            if tensor.is_inference() or forward_ad._current_level >= 0:
                return None
            if tensor.requires_grad and (
                tensor.is_leaf or self.transforms or not torch.is_grad_enabled() or not isinstance(tensor.placement, Shard)
            ):
                return None
            return version_of(tensor)

    def lend(self, result: Any, operands: Any) -> None:
        """Note of which of `operands` the cell has got a view, or several."""
        view = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(view, torch.Tensor):
            for root in map(root_of, globals_in(operands)):
                if root._state.full is not None and have_one_memory(view, root._state.full.tensor):
                    self.note_lent(root)

    def note_lent(self, root: GlobalTensor) -> None:
        """Note that the cell may write into the whole of `root` uncounted."""
        root._state.is_lent = True
        self.lent = [*(other for other in self.lent if other() is not None and other() is not root), weakref.ref(root)]

    def take_back_lent(self) -> None:
        """Take back what the cell has written into all that it has: a backward pass goes by what batches are then, ``x.numpy()[:] = 0``."""
        for root in [other() for other in self.lent]:
            if root is not None:
                self.take_back(root, by_array=True)

    @staticmethod
    def trace(result: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return `result`, of which is noted whether it, or several in it, are views of the shard ``args[0]``."""
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
                with torch._C.DisableTorchFunctionSubclass():  # all samples together lie in memory so that it is a copy
                    return from_local(view.clone(), view._state.placement)
            if has_graph:
                if view is not source and source.requires_grad:
                    view._state.base = Origin(root, (*views, call))
                continue
            if view is not source:
                view._state.origin = Origin(root, (*views, call))
        return result

    def bring_up_to_date(self) -> None:
        """Let samples with a graph be what was written to their tensor in a way that graphs are not told. A collective then.

        ``out.data *= 2`` is such a way. All others are followed where they happen.
        """
        for root in self.viewed:
            kept = root._state.full
            if kept is None or not kept.tensor.requires_grad or kept.version == version_of(root):
                continue
            with torch.no_grad():
                kept.tensor.detach().copy_(Exchange().full_tensor(root).detach())
            self.keep_on(root)

    def take_back_all(self, operands: Iterable[Any], *, by_array: bool = True) -> None:
        """Take back what the cell has written into the whole of any of `operands`."""
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
        """Write into the part ``(b, …)`` what the cell has written into the whole ``(B, …)``: ``image = x[0]; image *= 2``.

        `by_array`: also what nothing counts.

        Returns
        -------
        bool
            Whether there may be more to come: the cell holds samples of the whole.
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
                copy_uncounted(root, self.part_of(whole, root.placement))  # on all ranks, though another's part alone may be another
                self.keep_on(root)
        return bool(whole._use_count() > 1)  # type: ignore[attr-defined]  # which PyTorch does not declare


def origin_of(tensor: GlobalTensor) -> Origin:
    """Return whose memory a shard has, and by which views."""
    origin = _origin_now(tensor)
    if origin is None:
        with torch._C.DisableTorchFunctionSubclass():
            origin = tensor._state.origin = Origin(from_local(tensor.detach(), tensor.placement), ())
    return origin


def root_of(tensor: GlobalTensor) -> GlobalTensor:
    """Return the tensor whose whole is kept for `tensor`: itself, if it is a sum, or nothing was read of it yet."""
    if requires_grad(tensor):
        base = base_of(tensor)
        return tensor if base is None or base.root._state.full is None else base.root
    origin = _origin_now(tensor)
    return tensor if origin is None else origin.root


def base_of(tensor: GlobalTensor) -> Origin | None:
    """Return which tensor of the cell's graph one that requires gradients is a view of.

    ``None``: of none, or of one that is much larger and of which nothing was read.
    """
    base = tensor._state.base
    if base is None or not requires_grad(base.root) or not have_one_memory(tensor, base.root):
        return None
    with torch._C.DisableTorchFunctionSubclass():
        return base if base.root.numel() <= _MUCH * tensor.numel() or base.root._state.full is not None else None


def _origin_now(tensor: GlobalTensor) -> Origin | None:
    origin = tensor._state.origin
    if origin is not None and not have_one_memory(tensor, origin.root):  # `x.set_`, which tells nobody
        origin = tensor._state.origin = None
    return origin


def _described(root: GlobalTensor) -> torch.Tensor:
    """Return a tensor without memory that has the shape and the strides of the whole of `root`: the same on ranks with one sample."""
    placement = root._state.placement
    assert isinstance(placement, Shard)
    with torch._C.DisableTorchFunctionSubclass():
        return described(to_local(root).detach(), placement.dim, placement.total)


def _shaped(value: Any) -> Any:
    """Return an argument as it is kept: a tensor that spans the ranks lends its shape (``expand_as``)."""
    return torch.empty(global_shape(value), dtype=value.dtype, device="meta") if type(value) is GlobalTensor else value
