"""Collectives over shared memory if the ranks have it, otherwise over their process group.

The ranks are those over which batches are sharded (:mod:`.batch_ranks`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from ..timing import COMMUNICATION, Counted
from .batch_ranks import batch_memory, batch_rank, memory_of, num_batch_ranks
from .process_group import shared_memory
from .shared_memory import SharedMemory, in_pieces
from .transforms import outside_transforms

PIECE = 1 << 25
"""Most bytes that are concatenated for one broadcast."""
AT_ONCE, _LENGTH = 1 << 10, 8
"""Bytes of an object that go in the first broadcast of it, and those of them that say how many it has."""


def all_reduce(tensor: torch.Tensor) -> None:
    """Replace the contiguous `tensor` by the sum over all ranks."""
    shared = _shared_for(tensor)
    if shared is not None:
        shared.all_reduce(tensor)
    else:
        dist.all_reduce(tensor)


def all_gather(parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    """Fill `parts` with each rank's `own`, in rank order; all are contiguous and of one size.

    The number of `parts` selects the ranks: those over which batches are sharded, or all.
    """
    shared = memory_of(len(parts)) if own.device.type == "cpu" else None
    if shared is not None:
        shared.all_gather(parts, own)
    else:
        dist.all_gather(list(parts), own)


def broadcast(tensor: torch.Tensor) -> Callable[[], object]:
    """Begin to replace the contiguous `tensor` by that of rank 0; return the function that waits for completion."""
    shared = _shared_for(tensor)
    if shared is not None:
        shared.broadcast(tensor)
        return lambda: None
    work: Any = dist.broadcast(tensor, 0, async_op=True)
    end: Callable[[], object] = work.wait
    return end


def exchange(parts: Sequence[Sequence[torch.Tensor]], *, device: torch.device) -> None:
    """Send each rank's tensors to all ranks.

    Parameters
    ----------
    parts : sequence of sequence of Tensor
        As in :meth:`.SharedMemory.exchange`, but on any device.
    device : torch.device
        Device for the broadcasts, of the same type on all ranks.
    """
    shared = batch_memory()
    if shared is not None and device.type == "cpu":
        shared.exchange(parts)
        return
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for source, tensors in enumerate(parts):
            for piece in in_pieces(tensors, PIECE):
                _broadcast_from(source, piece, device)


def _broadcast_from(source: int, piece: Sequence[torch.Tensor], device: torch.device) -> None:
    sizes = [tensor.numel() for tensor in piece]
    if dist.get_rank() == source:
        dist.broadcast(torch.cat([tensor.to(device) for tensor in piece]), source)
        return
    flat = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
    dist.broadcast(flat, source)
    for tensor, values in zip(piece, flat.split(sizes), strict=True):
        if tensor.device.type != "meta":
            tensor.copy_(values)


def all_gather_object(value: Any, memory: SharedMemory | None = None) -> list[Any]:
    """Return the picklable `value` of every rank, in rank order: of those that `memory` connects, or over which batches are sharded."""
    with outside_transforms():
        shared = batch_memory() if memory is None else memory
        if shared is None:
            found: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(found, value)
            return found
        pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        sizes = [torch.empty(1, dtype=torch.long, device="cpu") for _ in range(shared.num_ranks)]
        shared.all_gather(sizes, torch.tensor([len(pickled)], device="cpu"))
        most = max(int(size) for size in sizes)
        texts = [torch.empty(most, dtype=torch.uint8, device="cpu") for _ in sizes]
        shared.all_gather(texts, torch.frombuffer(bytearray(pickled.ljust(most)), dtype=torch.uint8))
        return [pickle.loads(text.numpy().data) for text in texts]  # `loads` ignores the padding


def of_rank0(value: Any) -> Any:
    """Return rank 0's picklable `value`. A collective of all ranks; with shared memory, rank 0 does not wait for the others."""
    shared = shared_memory()
    if shared is not None:
        if shared.rank == 0:
            shared.of_rank0(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
            return value
        return pickle.loads(shared.of_rank0(b""))
    with outside_transforms():
        if dist.get_backend() == "gloo":
            return _told_by_rank0(value)
        found = [value]
        dist.broadcast_object_list(found, src=0)
        return found[0]


def _told_by_rank0(value: Any) -> Any:
    """Return rank 0's `value`, in one broadcast if it is small: between hosts each is a round trip, for every `time.time()`."""
    first = torch.zeros(AT_ONCE, dtype=torch.uint8, device="cpu")
    pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL) if dist.get_rank() == 0 else b""
    begin = len(pickled).to_bytes(_LENGTH, "little") + pickled[: AT_ONCE - _LENGTH]
    first[: len(begin)] = torch.frombuffer(bytearray(begin), dtype=torch.uint8)
    dist.broadcast(first, 0)
    begin = first.numpy().tobytes()
    size, begin = int.from_bytes(begin[:_LENGTH], "little"), begin[_LENGTH:]
    if size <= len(begin):
        return value if dist.get_rank() == 0 else pickle.loads(begin[:size])
    rest = torch.empty(size - len(begin), dtype=torch.uint8, device="cpu")
    if dist.get_rank() == 0:
        rest.copy_(torch.frombuffer(bytearray(pickled[len(begin) :]), dtype=torch.uint8))
    dist.broadcast(rest, 0)
    return value if dist.get_rank() == 0 else pickle.loads(begin + rest.numpy().tobytes())


def scatter_object(values: Sequence[Any] | None, source: int) -> Any:
    """Return this rank's entry of the picklable `values` that rank `source` has, one for each rank. Collective."""
    with outside_transforms():
        shared, rank, world_size = batch_memory(), batch_rank(), num_batch_ranks()
        if shared is None:
            found: list[Any] = [None]
            dist.scatter_object_list(found, None if values is None else list(values), src=source)
            return found[0]
        pickled = [pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL) for value in values or [None] * world_size]
        sizes = [torch.empty(world_size, dtype=torch.long, device="cpu") for _ in range(world_size)]
        all_gather(sizes, torch.tensor([len(text) for text in pickled], device="cpu"))
        for target, size in enumerate(sizes[source].tolist()):
            if target == source:
                continue
            if rank == source:
                text = torch.frombuffer(bytearray(pickled[target]), dtype=torch.uint8)
            else:
                text = torch.empty(size, dtype=torch.uint8, device="cpu" if rank == target else "meta")
            shared.exchange([[text] if shows == source else [] for shows in range(world_size)])
            if rank == target:
                own = pickle.loads(text.numpy().data)
        return values[rank] if rank == source and values is not None else own


def _shared_for(tensor: torch.Tensor) -> SharedMemory | None:
    return batch_memory() if tensor.device.type == "cpu" else None


def reducer_group() -> dist.ProcessGroup | None:
    """Return the group for PyTorch's reducer; ``None`` for the default group."""
    return None if batch_memory() is None else _ReducerGroup()


class _ReducerGroup(dist.ProcessGroup):
    """The default group with sums over shared memory; other collectives of the reducer use the default group."""

    def __init__(self) -> None:
        super().__init__(dist.get_rank(), dist.get_world_size())  # type: ignore[call-arg]  # as PyTorch's own tests do
        assert dist.group.WORLD is not None
        self._group = dist.group.WORLD

    def getBackendName(self) -> str:  # noqa: N802 - PyTorch's name
        return "shared_memory"  # PyTorch expects more methods of a backend that it knows

    def allreduce(self, tensors: Any, options: Any = None) -> dist.Work:  # type: ignore[override]
        is_sum = options is None or options.reduceOp == dist.ReduceOp.SUM
        if not is_sum or any(tensor.layout != torch.strided or not tensor.is_contiguous() for tensor in tensors):
            return self._group.allreduce(tensors, options)
        with Counted(COMMUNICATION):
            for tensor in tensors:
                all_reduce(tensor)
        return _Done(tensors)

    def broadcast(self, tensors: Any, options: Any = None) -> dist.Work:  # type: ignore[override]
        return self._group.broadcast(tensors, options)

    def allgather(self, outputs: Any, tensors: Any, options: Any = None) -> dist.Work:
        return self._group.allgather(outputs, tensors, options)


class _Done(dist.Work):
    """A completed collective."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._future: Future[list[torch.Tensor]] = Future()
        self._future.set_result(tensors)

    def wait(self, _timeout: Any = None) -> bool:
        return True

    def get_future(self) -> Future[list[torch.Tensor]]:
        return self._future
