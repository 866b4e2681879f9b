"""Collectives of ranks over memory that they share: that of one host, or between hosts copies of what each shows (``host_peers.py``).

Gloo takes a TCP connection for them, with two threads on each side: on two engines a sum of some kilobytes takes a millisecond there,
which is a sixth of a step of a small model. Here each rank copies its part to where all can read it, says so, and adds up what it reads.

Everything is done within the call. Each rank has `SLOTS` places that it writes to in turn. One is written to again when the exchange after
it is under way everywhere, so when nobody reads it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise

import torch

from .failures import FailedElsewhere
from .meeting_place import NOTE, MeetingPlace
from .peers import Peers

SLOT = 1 << 21  # bytes: what a processor has room for in its cache
SLOTS = 2
TOGETHER = 1 << 16  # bytes above which each of three or more ranks adds up a part of it, and not all of it


class SharedMemory(MeetingPlace):
    """Collectives of the ranks that `peers` connects. All ranks call the same ones, in the same order.

    Parameters
    ----------
    peers : Peers
        Each with `SIZE` bytes.
    """

    SIZE = SLOT * SLOTS + NOTE

    def __init__(self, peers: Peers) -> None:
        super().__init__(peers, notes=SLOT * SLOTS)
        self._bytes = [torch.frombuffer(memory, dtype=torch.uint8) for memory in peers.memory]
        self._typed: dict[torch.dtype, list[list[torch.Tensor]]] = {}

    def close(self) -> None:
        """Leave, which frees ranks that wait for this one."""
        self._peers.close()
        self._bytes, self._typed = [], {}

    def all_reduce(self, tensor: torch.Tensor, *, factor: float | None = None) -> None:
        """Put the sum of all ranks' `tensor` in its place. It is added up in the order of the ranks, whatever its size.

        Parameters
        ----------
        tensor : Tensor
            Contiguous, on the CPU.
        factor : float, optional
            Each rank's is multiplied by it before.
        """
        self._in_parts(tensor, lambda piece: self._sum(piece, factor))

    def reduce_scatter(self, parts: Sequence[torch.Tensor], out: torch.Tensor, *, factor: float, by: int = 1) -> None:
        """Put the sum of what all ranks have for this one, times `factor` each, into `out`, added up as :meth:`all_reduce` does.

        `parts` is what this rank has for each, on the CPU: of `out`'s type, and of the same shapes on all ranks.
        Those of `by` neighbouring ranks are added up first, and then these sums.
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
        """Put rank 0's `tensor` in the place of the others'; it is contiguous, on the CPU."""
        self._in_parts(tensor, lambda piece: piece.copy_(self._share(piece, shows=self._peers.rank == 0)[0]))
        self.num_read += tensor.nbytes if self._peers.rank else 0

    def all_gather(self, parts: Sequence[torch.Tensor], own: torch.Tensor) -> None:
        """Put each rank's `own`, all of one size, in its place in `parts`. All of them are contiguous, on the CPU."""
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
        """Let all ranks have what each has.

        Parameters
        ----------
        parts : sequence of sequence of Tensor
            For each rank flat tensors of bytes, of the same sizes on all ranks. Those of this rank are shown, those of others written to;
            where they are on the device ``meta``, they are passed over.
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
                        wanted = [pair for pair in places if pair[0].device.type != "meta"]  # of one piece perhaps some and others not
                        if wanted:
                            torch._foreach_copy_([tensor for tensor, _ in wanted], [place for _, place in wanted])
                            self.num_read += sum(tensor.numel() for tensor, _ in wanted)
        except FailedElsewhere:
            raise
        except BaseException:  # as in `_in_parts`
            self._peers.close()
            raise

    def _in_parts(self, tensor: torch.Tensor, do: Callable[[torch.Tensor], object]) -> None:
        # Nothing of this is an operation of the cell's: what looks at those, or records them, is to see none.
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                flat = tensor.view(-1)
                for piece in [flat] if flat.nbytes <= SLOT else flat.split(SLOT // flat.element_size()):
                    do(piece)
        except FailedElsewhere:  # all ranks know of it, and what comes next
            raise
        except BaseException:  # an interrupt, for example: nobody knows any more what the next message belongs to
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
        slots[rank][mine].copy_(piece[mine])  # nobody else reads this part of it before that
        self._show(number, mine.start * piece.itemsize, piece[mine].nbytes)
        self._meet(piece.nbytes)
        for other, span in enumerate(spans):
            if other != rank:
                piece[span].copy_(slots[other][span])
        self.num_read += (len(slots) - 2) * piece[mine].nbytes + piece.nbytes

    def _share(
        self, piece: torch.Tensor, *, shows: bool = True, factor: float | None = None, spans: Sequence[slice] | None = None
    ) -> list[torch.Tensor]:
        """Show `piece`, multiplied by `factor`, to all ranks, if this one `shows` its own, and return that of each.

        With `spans` each rank needs no more than its own of these.
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
        """Let ranks see what was written for exchange `number` at `start` of its place, where they do not see it in any case."""
        begin = number % SLOTS * SLOT + start
        self._peers.show(begin, begin + num_bytes, to)

    def _of_type(self, dtype: torch.dtype) -> list[list[torch.Tensor]]:
        """Return the ranks' places as tensors of `dtype`."""
        found = self._typed.get(dtype)
        if found is None:
            found = self._typed[dtype] = [list(memory.view(dtype).split(SLOT // dtype.itemsize)) for memory in self._bytes]
        return found


def in_pieces(tensors: Sequence[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    """Return flat tensors of bytes cut and put together to pieces of `size`, the last one smaller."""
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
    """Return the places of `tensors` in `slot`, one behind the other."""
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
