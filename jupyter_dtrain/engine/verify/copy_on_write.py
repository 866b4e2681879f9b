"""Copies the memory of tensors when something is about to write into it, which is rare."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_STATISTICS = frozenset(("running_mean", "running_var"))
"""Arguments that batch normalization writes into, which its schema does not say."""


class CopyOnWrite(TorchDispatchMode):
    """Copies the memory of tensors before something writes into it.

    Parameters
    ----------
    tensors : iterable of torch.Tensor
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known = {address for tensor in tensors for address in storages_of(tensor) if address}
        self._copies: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Run `func`, after copying what it writes into."""
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):
            if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in _STATISTICS:
                value = args[number] if number < len(args) else kwargs.get(argument.name)
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(tensor, torch.Tensor):
                        self.copy(tensor)
        return func(*args, **kwargs)

    def copy(self, tensor: torch.Tensor) -> None:
        """Copy the memory of `tensor`, unless it was copied before."""
        for address, storage in storages_of(tensor).items():
            if address in self._known and address not in self._copies:
                self._copies[address] = storage, storage.clone()

    def has(self, tensor: torch.Tensor) -> bool:
        """Return whether memory of `tensor` was copied."""
        return not self._copies.keys().isdisjoint(storages_of(tensor))

    def restore(self) -> None:
        """Restore the copies."""
        for storage, copy in self._copies.values():
            if storage.nbytes() != copy.nbytes():  # those of observers are empty until they are called
                storage.resize_(copy.nbytes())
            storage.copy_(copy)


def storages_of(tensor: torch.Tensor) -> dict[int, torch.UntypedStorage]:
    """Return the memory of `tensor` by address: of a sparse one that of its indices and of its values."""
    match tensor.layout:
        case torch.strided:
            parts = [tensor]
        case torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        case torch.sparse_csr | torch.sparse_bsr:
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        case torch.sparse_csc | torch.sparse_bsc:
            parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        case _:
            parts = []
    try:
        return {(storage := part.untyped_storage()).data_ptr(): storage for part in parts}
    except (RuntimeError, NotImplementedError):  # a tensor without memory of its own
        return {}
