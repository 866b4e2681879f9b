"""What a graph keeps of sharded parameters for its backward pass: which rows of which, and not the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import saved_tensors_hooks

from .parameter_shard import ParameterShard
from .sharded_rows import quiet

_CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation: {what}. It is at version {now}; "
    "expected version {then} instead."
)


def changed_in_place(what: str, *, now: int, then: int) -> RuntimeError:
    """Return PyTorch's error for what has been written to since a graph kept it, at version `then`."""
    return RuntimeError(_CHANGED.format(what=what, now=now, then=then))


class _Part(NamedTuple):
    """A view of a parameter, and the version of its numbers."""

    shard: ParameterShard
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    version: int


class _Tensor(NamedTuple):
    """Another tensor. Hooks of saved tensors turn off PyTorch's own look at its version."""

    tensor: torch.Tensor
    version: int


class SavedParameters:
    """Knows sharded parameters by their memory where a graph keeps one.

    Parameters
    ----------
    fetch : callable
        Lets a parameter be whole again.
    """

    def __init__(self, fetch: Callable[[ParameterShard], None]) -> None:
        self._fetch = fetch
        self._by_storage: dict[int, ParameterShard] = {}

    def follow(self, shard: ParameterShard) -> None:
        """Know a parameter that is whole."""
        if shard.full is not None:
            self._by_storage[shard.full.untyped_storage()._cdata] = shard

    def forget(self, storage: int | None) -> None:
        """Know nothing of memory that is let go."""
        if storage is not None:
            self._by_storage.pop(storage, None)

    def _of_memory(self, tensor: torch.Tensor) -> ParameterShard | None:
        storage = tensor.untyped_storage()._cdata
        shard = self._by_storage.get(storage)
        if shard is None or (shard.full is not None and shard.full.untyped_storage()._cdata == storage):
            return shard
        del self._by_storage[storage]  # the parameter has got other memory since, and `tensor` the address of what it had
        return None

    def followed(self) -> saved_tensors_hooks:
        """Return what graphs are made within."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def has_others(self) -> bool:
        """Return whether hooks of somebody else's are told of what graphs keep."""
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return hooks is not None and hooks[0] != self._pack

    def full(self, shard: ParameterShard) -> torch.Tensor:
        """Return all of a parameter, fetched where it is away, in memory that stays for as long as somebody holds it."""
        if shard.full is None:
            self._fetch(shard)
        assert shard.full is not None
        return shard.full

    def is_own(self, hooks: saved_tensors_hooks) -> bool:
        """Return whether these are what :meth:`followed` has returned."""
        return bool(hooks.pack_hook == self._pack)

    def _pack(self, tensor: torch.Tensor) -> Any:
        with quiet():
            if tensor.layout != torch.strided or tensor.is_inference():
                return tensor
            shard = self._of_memory(tensor)
            if shard is None:
                # Without its graph. What a node keeps of its own result would hold that node for ever, where no pass comes to it; and a
                # leaf that the model has made and nobody holds is known by that (:mod:`...backward.graph`).
                is_plain = tensor.requires_grad and type(tensor) is torch.Tensor
                return _Tensor(tensor.detach() if is_plain else tensor, tensor._version)
            return _Part(shard, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), shard.parameter._version)

    def _unpack(self, kept: Any) -> torch.Tensor:
        with quiet():
            if isinstance(kept, _Part):
                shard = kept.shard
                if shard.parameter._version != kept.version:
                    raise changed_in_place(f"a parameter of shape {shard.shape}", now=shard.parameter._version, then=kept.version)
                return self.full(shard).as_strided(kept.shape, kept.stride, kept.offset)
            if isinstance(kept, _Tensor):
                if kept.tensor._version != kept.version:
                    shape = tuple(kept.tensor.shape)
                    raise changed_in_place(f"a tensor of shape {shape}", now=kept.tensor._version, then=kept.version)
                return kept.tensor
            result: torch.Tensor = kept
            return result
