"""Collectives over memory that ranks share: on one host directly, between hosts as copies of what each rank shows (``host_peers.py``).

Gloo uses a TCP connection with two threads on each side: on two engines, a sum of a few kilobytes takes a millisecond, a sixth of a small
model's step. Here each rank copies its tensor to memory that all can read, sends a message, and sums up what it reads.

Everything happens within the call. Each rank writes to `SLOTS` slots in turn. It reuses a slot when the exchange after the slot's is under
way on all ranks, so that no rank reads the slot any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import torch

from .failures import FailedElsewhere
from .meeting_place import NOTE, MeetingPlace
from .peers import Peers

SLOT = 1 << 21  # bytes that fit into a processor's cache
SLOTS = 2
TOGETHER = 1 << 16  # bytes above which each of three or more ranks sums up only a part


class SharedMemory(MeetingPlace):
    """Collectives of the ranks that `peers` connects. All ranks call the same ones in the same order.

    Parameters
    ----------
    peers : Peers
        With `SIZE` bytes of memory each.
    """

    SIZE = SLOT * SLOTS + NOTE

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers, notes=SLOT * SLOTS)
        self._bytes = [torch.frombuffer(memory, dtype=torch.uint8) for memory in peers.memory]
        self._typed: dict[torch.dtype, list[list[torch.Tensor]]] = {}

    def close(self) -> None:
        """Leave, so that ranks waiting for this one get an error."""
        self._peers.close()
        self._bytes, self._typed = [], {}

    def all_reduce(self, tensor: torch.Tensor, *, factor: float | None = None) -> None:
        """Replace `tensor` by the sum over all ranks, always added in rank order.

        Parameters
        ----------
        tensor : Tensor
            Contiguous, on the CPU.
        factor : float, optional
            Each rank's tensor is multiplied by its own `factor` first.
        """
        self._in_parts(tensor, lambda piece: self._sum(piece, factor))

    def reduce_scatter(self, parts: Sequence[torch.Tensor], out: torch.Tensor, *, factor: float, by: int = 1) -> None:
        """Write the sum of all ranks' parts for this rank, each times the sender's `factor`, to `out`, added in rank order.

        `parts` has a CPU tensor for each rank, with `out`'s dtype and the same shapes on all ranks. The parts of `by` consecutive ranks are
        summed first, and then these sums.
        """
        flat, result = [part.reshape(-1) for part in parts], out.view(-1)
        length = SLOT // out.element_size() // len(parts)
        own = self._peers.rank
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                for start in range(0, max(map(len, flat)), length):
                    pieces = [part[start : start + length] for part in flat]
                    slots = [list(typed[self._number % SLOTS].split(length)) for typed in self._of_type(out.dtype)]
                    for rank, (piece, slot) in enumerate(zip(pieces, slots[own], strict=False)):
                        torch.mul(piece, factor, out=slot[: len(piece)])
                        self._show(self._number, rank * length * piece.itemsize, piece.nbytes, to=(rank,))
                    self._number += 1
                    self._meet(sum(piece.nbytes for piece in pieces))
                    size = len(pieces[own])
                    self.num_read += (self.num_ranks - 1) * pieces[own].nbytes
                    if size:
                        _add_up([slot[own][:size] for slot in slots], result[start : start + size], by)
        except FailedElsewhere:
            raise
        except BaseException:  # as in `_in_parts`
            self._peers.close()
            raise

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by that of rank 0; it is contiguous, on the CPU."""
        self._in_parts(tensor, lambda piece: piece.copy_(self._share(piece, shows=self._peers.rank == 0)[0]))
        self.num_read += tensor.nbytes if self._peers.rank else 0

    def all_gather(self, parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        """Fill `parts` with each rank's `own`, in rank order; all are of one size, contiguous and on the CPU."""
        flat = [part.view(-1) for part in parts]
        done = 0

        def gather(piece: torch.Tensor) -> None:
            nonlocal done
            slots = self._share(piece)
            for part, slot in zip(flat, slots, strict=True):
                part[done : done + piece.numel()].copy_(slot)
            done += piece.numel()

        self._in_parts(own, gather)
        self.num_read += (self.num_ranks - 1) * own.nbytes

    def exchange(self, parts: Sequence[Sequence[torch.Tensor]]) -> None:
        """Copy each rank's tensors to all ranks.

        Parameters
        ----------
        parts : sequence of sequence of Tensor
            For each rank flat tensors of bytes, of the same sizes on all ranks. Those of this rank are sent, those of the others are
            written to, except those on the ``meta`` device, which are skipped.
        """
        pieces = [in_pieces(of_rank, SLOT) for of_rank in parts]
        total = sum(tensor.numel() for of_rank in parts for tensor in of_rank)
        own = self._peers.rank
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                for index in range(max(map(len, pieces))):
                    there = [of_rank[index] if index < len(of_rank) else [] for of_rank in pieces]
                    slots = [memory.narrow(0, self._number % SLOTS * SLOT, SLOT) for memory in self._bytes]
                    if there[own]:
                        torch._foreach_copy_(_cut(slots[own], there[own]), there[own])
                        self._show(self._number, 0, sum(tensor.numel() for tensor in there[own]))
                    self._number += 1
                    self._meet(total & 0xFFFFFFFF)
                    for rank, tensors in enumerate(there):
                        places = [] if rank == own else zip(tensors, _cut(slots[rank], tensors), strict=True)
                        wanted = [pair for pair in places if pair[0].device.type != "meta"]  # a piece may contain tensors of both kinds
                        if wanted:
                            torch._foreach_copy_([tensor for tensor, _ in wanted], [place for _, place in wanted])
                            self.num_read += sum(tensor.numel() for tensor, _ in wanted)
        except FailedElsewhere:
            raise
        except BaseException:  # as in `_in_parts`
            self._peers.close()
            raise

    def _in_parts(self, tensor: torch.Tensor, do: Callable[[torch.Tensor], object]) -> None:
        # None of these operations belong to the cell: modes that observe or record operations must not see them.
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                flat = tensor.view(-1)
                for piece in [flat] if flat.nbytes <= SLOT else flat.split(SLOT // flat.element_size()):
                    do(piece)
        except FailedElsewhere:  # all ranks know, and stay in step
            raise
        except BaseException:  # an interrupt, for example: ranks are out of step from now on
            self._peers.close()
            raise

    def _sum(self, piece: torch.Tensor, factor: float | None) -> None:
        if self.num_ranks == 2 or piece.nbytes <= TOGETHER:
            slots = self._share(piece, factor=factor)
            _add_up(slots, piece)
            self.num_read += (len(slots) - 1) * piece.nbytes
            return
        bounds = [piece.numel() * rank // self.num_ranks for rank in range(self.num_ranks + 1)]
        spans = [slice(*both) for both in pairwise(bounds)]
        rank = self._peers.rank
        mine = spans[rank]
        number, slots = self._number, self._share(piece, factor=factor, spans=spans)
        _add_up([slot[mine] for slot in slots], piece[mine])
        slots[rank][mine].copy_(piece[mine])  # no other rank reads this part of the slot before the message
        self._show(number, mine.start * piece.itemsize, piece[mine].nbytes)
        self._meet(piece.nbytes)
        for other, span in enumerate(spans):
            if other != rank:
                piece[span].copy_(slots[other][span])
        self.num_read += (len(slots) - 2) * piece[mine].nbytes + piece.nbytes

    def _share(
        self, piece: torch.Tensor, *, shows: bool = True, factor: float | None = None, spans: Sequence[slice] | None = None
    ) -> list[torch.Tensor]:
        """Show `piece` times `factor` to all ranks if this rank `shows` it, and return each rank's slot.

        With `spans`, each rank is sent only its own span.
        """
        place, size = self._number % SLOTS, piece.numel()
        slots = [typed[place][:size] for typed in self._of_type(piece.dtype)]
        if shows and factor is not None:
            torch.mul(piece, factor, out=slots[self._peers.rank])
        elif shows:
            slots[self._peers.rank].copy_(piece)
        if shows and spans is None:
            self._show(self._number, 0, piece.nbytes)
        for rank, span in enumerate(spans or ()):
            self._show(self._number, span.start * piece.itemsize, (span.stop - span.start) * piece.itemsize, to=(rank,))
        self._number += 1
        self._meet(piece.nbytes)
        return slots

    def _show(self, number: int, start: int, num_bytes: int, to: Collection[int] | None = None) -> None:
        """Show bytes written at `start` of the slot of exchange `number` to other ranks, if memory is not shared."""
        begin = number % SLOTS * SLOT + start
        self._peers.show(begin, begin + num_bytes, to)

    def _of_type(self, dtype: torch.dtype) -> list[list[torch.Tensor]]:
        """Return each rank's slots as tensors of `dtype`."""
        found = self._typed.get(dtype)
        if found is None:
            with torch.inference_mode(mode=False):  # they are written to in other modes, too
                found = self._typed[dtype] = [list(memory.view(dtype).split(SLOT // dtype.itemsize)) for memory in self._bytes]
        return found


def in_pieces(tensors: Sequence[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    """Split and group flat tensors of bytes into pieces of `size` bytes; the last may be smaller."""
    pieces: list[list[torch.Tensor]] = []
    left = 0
    for tensor in tensors:
        done, num_bytes = 0, tensor.numel()
        while done < num_bytes:
            if not left:
                pieces.append([])
                left = size
            length = min(left, num_bytes - done)
            pieces[-1].append(tensor if length == num_bytes else tensor.narrow(0, done, length))
            done, left = done + length, left - length
    return pieces


def _cut(slot: torch.Tensor, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return consecutive views of `slot` with the sizes of `tensors`."""
    sizes = [tensor.numel() for tensor in tensors]
    return list(slot[: sum(sizes)].split(sizes))


def _add_up(slots: Sequence[torch.Tensor], out: torch.Tensor, by: int = 1) -> None:
    by = by if by > 1 else len(slots)
    torch.add(slots[0], slots[1], out=out)
    for slot in slots[2:by]:
        out.add_(slot)
    for start in range(by, len(slots), by):
        total = slots[start].clone()
        for slot in slots[start + 1 : start + by]:
            total.add_(slot)
        out.add_(total)
