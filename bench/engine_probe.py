"""What `bench.plans` looks at on engines, from a module: in a cell's own text, what hides tensors from a strategy is refused."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from jupyter_dtrain.engine.comm import process_group
from jupyter_dtrain.engine.comm.arena import Arena
from jupyter_dtrain.engine.comm.shared_memory import SharedMemory
from jupyter_dtrain.engine.strategies.zero3.buffers import BufferPool
from jupyter_dtrain.engine.strategies.zero3.parameter_shard import ParameterShard
from jupyter_dtrain.engine.strategies.zero3.sharded_rows import quiet


def num_read() -> int:
    """Return the bytes that this engine has read of the others."""
    connections = [process_group.shared_memory(), *process_group._among.values()]
    return sum(memory.num_read for memory in connections if memory is not None)


def held(apart: Sequence[torch.Tensor]) -> list[int]:
    """Return the bytes of tensors that this engine has to itself, and of its rows, which others may read.

    What came from the notebook lies once for all engines, as bytes: it is not counted, nor are data sets, `apart`. The places of exchanges
    are no tensors of the model: 4 MiB of each engine, whatever it trains.
    """
    with quiet():
        objects = gc.get_objects()
        kinds = [type(one) for one in objects]
        shards = [one for one in objects if isinstance(one, ParameterShard)]
        arenas = [one._own for one, kind in zip(objects, kinds, strict=True) if kind is Arena]
        blocks = [block for one, kind in zip(objects, kinds, strict=True) if kind is BufferPool for block in one._blocks]
        places = [place for one, kind in zip(objects, kinds, strict=True) if kind is SharedMemory for place in one._bytes]
        others = [*arenas, *places, *apart, *(tensor for one in shards for tensor in (one.away, one.rows, one.home) if tensor is not None)]
        seen = {one.untyped_storage()._cdata for one in others} | {block._cdata for block in blocks}
        found = {}
        for one, kind in zip(objects, kinds, strict=True):
            if issubclass(kind, torch.Tensor) and one.device.type == "cpu" and one.layout == torch.strided and one.dtype != torch.uint8:
                storage = one.untyped_storage()
                if storage._cdata not in seen:
                    found[storage._cdata] = storage.nbytes()
        return [sum(found.values()), sum(one.nbytes for one in arenas)]


class Allocated:
    """The most that PyTorch's allocator gives out above what was there as the ``with`` block began, and the most in buffers.

    Attributes
    ----------
    peak, buffers : int
        In bytes.
    """

    def __enter__(self) -> Allocated:
        pools = [one for one in gc.get_objects() if type(one) is BufferPool]
        self._empty = empty = BufferPool.empty
        self.buffers = sum(one.num_bytes for one in pools)

        def noted(pool: BufferPool, *args: Any) -> torch.Tensor:
            found = empty(pool, *args)
            self.buffers = max(self.buffers, sum(one.num_bytes for one in pools))
            return found

        BufferPool.empty = noted  # type: ignore[method-assign, assignment]
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._profile.stop()
        BufferPool.empty = self._empty  # type: ignore[method-assign]
        found: Any = self._profile.profiler
        events = sorted((one.start_ns(), one.nbytes()) for one in found.kineto_results.events() if one.name() == "[memory]")
        self.peak = max(accumulate(size for _, size in events), default=0)
        del self._profile
