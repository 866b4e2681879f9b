"""Call a function in a new Python process where a fork would not do.

A fork of a process that has used a GPU can use neither the GPU nor autograd. So the fork only reads the data set, and packs the function
with what it is called on. Of parameters, buffers and all that is on a GPU the shapes go along without the data.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch

from ..serialization.leaves import Leaf
from ..serialization.pickler import Packed, Packer
from ..serialization.unpickler import Unpacker
from .forked import call_in, call_in_fork


def call_in_new_process(prepare: Callable[[], tuple[Callable[[], Any], Iterable[torch.Tensor]]], *, limit: timedelta) -> Any:
    """Return what a function returns in a new process. Tensors have their shapes there, and zeros for data that was left out.

    Parameters
    ----------
    prepare : callable
        Returns the function, and the tensors on any device whose data it does not need. Called in a fork of this process.
    limit : timedelta
        Limit for each of the two processes.

    Raises
    ------
    UsageError
        As in :func:`.call_in_fork`.
    """
    return call_in(
        multiprocessing.get_context("spawn"), partial(_unpack_and_call, call_in_fork(lambda: _pack(*prepare()), limit=limit)), limit=limit
    )


ON_CPU, WHERE_IT_IS = 1, 0
"""Where zeros take the place of data that is left out. On the CPU they take no memory as long as nobody touches them."""


class _ShapePacker(Packer):
    """Packs what is on a GPU without its data."""

    def _storage(self, storage: torch.UntypedStorage) -> int:
        if storage.device.type != "cpu":
            self._elsewhere = {storage._cdata: WHERE_IT_IS, **self._elsewhere}
        return super()._storage(storage)


def _pack(function: Callable[[], Any], without_data: Iterable[torch.Tensor]) -> bytes:
    packer = _ShapePacker(namespace={}, elsewhere={tensor.untyped_storage()._cdata: ON_CPU for tensor in without_data})
    packer.dump(function)
    packed = packer.packed()
    return pickle.dumps((packed.stream, _leaves(packed), [bytes(buffer) for buffer in packed.buffers], set(packed.elsewhere)))


def _leaves(packed: Packed) -> list[Leaf]:
    """Return the leaves with the device that each gets in the new process."""
    return [replace(leaf, device="cpu") if packed.elsewhere.get(index) == ON_CPU else leaf for index, leaf in enumerate(packed.leaves)]


def _unpack_and_call(packed: bytes) -> Any:
    stream, leaves, data, left_out = pickle.loads(packed)
    buffers = [
        np.zeros(leaf.shape[0], np.uint8).data if index in left_out else memoryview(bytearray(data[index]))
        for index, leaf in enumerate(leaves)
    ]
    return Unpacker(Packed(stream, leaves, buffers), namespace={}).load()()
