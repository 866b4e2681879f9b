"""Saved tensors of the autograd graph that are views of sharded parameters: saved as a reference to the shard, without the values."""

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
    """Return PyTorch's error for a saved tensor that was modified in place after it was saved at version `then`."""
    return RuntimeError(_CHANGED.format(what=what, now=now, then=then))


class _Part(NamedTuple):
    """A view of a sharded parameter, and its version when it was saved."""

    shard: ParameterShard
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    version: int


class _Tensor(NamedTuple):
    """Another tensor. With saved-tensor hooks PyTorch does not check its version by itself."""

    tensor: torch.Tensor
    version: int


class SavedParameters:
    """Recognizes sharded parameters among saved tensors by their storage.

    Parameters
    ----------
    fetch : callable
        Lets a parameter be whole again.
    """

    def __init__(self, fetch: Callable[[ParameterShard], None]) -> None:
        self._fetch = fetch
        self._by_storage: dict[int, ParameterShard] = {}

    def follow(self, shard: ParameterShard) -> None:
        """Recognize a parameter that has just been gathered."""
        if shard.full is not None:
            self._by_storage[shard.full.untyped_storage()._cdata] = shard

    def forget(self, storage: int | None) -> None:
        """Recognize a storage no more, as it is freed."""
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
        """Return the saved-tensor hooks within which the forward pass runs."""
        return saved_tensors_hooks(self._pack, self._unpack)

    def has_others(self) -> bool:
        """Return whether saved-tensor hooks other than these are active."""
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return hooks is not None and hooks[0] != self._pack

    def full(self, shard: ParameterShard) -> torch.Tensor:
        """Return the full parameter, gathered if need be; its memory stays for as long as something references it."""
        if shard.full is None:
            self._fetch(shard)
        assert shard.full is not None
        return shard.full

    def is_own(self, hooks: saved_tensors_hooks) -> bool:
        """Return whether these hooks are those of :meth:`followed`."""
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
