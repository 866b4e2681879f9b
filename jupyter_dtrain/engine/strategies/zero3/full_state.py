"""Parameters, gradients and what optimizers keep of them, as one process has them: in a snapshot, and where they are returned.

Nobody has all of it at once. For a snapshot each tensor is put together by one rank, which writes it for all, in the file where it is to
lie (:mod:`...snapshot.put_together`); something stands for it that takes no memory, and is written without its bytes (:mod:`...dedup`). So
what is written is what any strategy writes, and a run can go on from it under another one, or on another number of engines. What is
returned is put together on rank 0, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import torch

from ...dedup import Apart, Held, shared_out
from ...timing import COMMUNICATION, Counted
from .optimizers import ShardedSteps
from .parameter_shard import ParameterShard
from .parameter_store import ParameterStore
from .sharded_rows import give_back, put_together, quiet


class FullState:
    """What the ranks have of sharded parameters, put together.

    Parameters
    ----------
    store : ParameterStore
    steps : ShardedSteps
    """

    def __init__(self, store: ParameterStore, steps: ShardedSteps) -> None:
        self._store, self._steps = store, steps

    # -- in a snapshot -----------------------------------------------------------------------------------------------

    @contextmanager
    def standing_in(self) -> Iterator[Apart]:
        """Let there be what stands for each tensor, and who is to read all of it, until the end of the ``with`` block. Collective."""
        self._store.sync()
        with self._steps.quiet.on(), ExitStack() as stack:
            shards, sharded = self._store.shards(), self._steps.sharded()
            kept = [rows.rows.dtype.itemsize * shard.parameter.numel() for _, shard, _, _, rows, _ in sharded]
            with_gradient = [shard for shard in shards if shard.gradient is not None]
            sizes = [shard.nbytes for shard in (*shards, *with_gradient)]
            owners = shared_out([*sizes, *kept], self._store.world_size, {})
            of_gradient = dict(zip((shard.number for shard in with_gradient), owners[len(shards) :], strict=False))
            held: list[Held] = []

            def hold(tensor: torch.Tensor, owner: int, read: Callable[[torch.Tensor | None], None]) -> None:
                held.append(Held(tensor.untyped_storage(), owner, "cpu", trained=True, read=partial(_read, tensor, read)))

            with quiet(), torch.no_grad():
                for shard, owner in zip(shards, owners, strict=False):
                    numbers, rows_of_gradient, gradient = shard.for_snapshot(), shard.gradient, None
                    if (
                        numbers.untyped_storage().nbytes() == shard.nbytes
                    ):  # else the cell has it in memory of its own: it is written as that
                        hold(numbers, owner, shard.storage.read_into)
                    if rows_of_gradient is not None:
                        gradient, to = torch.empty(shard.shape, dtype=shard.dtype), of_gradient[shard.number]
                        hold(gradient, to, partial(self._gather, shard, rows_of_gradient, to))
                    stack.enter_context(shard.shown(numbers, gradient))
                for (_, shard, key, of, rows, old), owner in zip(sharded, owners[len(sizes) :], strict=True):
                    full = torch.empty(shard.shape, dtype=rows.rows.dtype)
                    hold(full, owner, rows.read_into)
                    stack.enter_context(_shown(of, key, full, old))
            yield Apart(frozenset(id(optimizer) for optimizer, *_ in sharded), tuple(held))

    def _gather(self, shard: ParameterShard, gradient: torch.Tensor, owner: int, into: torch.Tensor | None) -> None:
        """Put all rows of a gradient, of which this rank has `gradient`, into what the `owner` gives. Collective."""
        put_together(shard.storage.kind, self._store.memory, gradient, into if owner == self._store.rank else None)

    # -- where it is returned ----------------------------------------------------------------------------------------

    def make_whole(self, *, on: int | None = None) -> None:
        """Let a rank, or all, have all of it, and plain parameters; the others have no gradients any more. Collective."""
        self._store.sync()
        is_here = on is None or on == self._store.rank
        if is_here:
            self._steps.make_whole()
        for shard in self._store.shards():
            gradient = None
            if shard.gradient is not None:
                gradient = torch.empty(shard.shape, dtype=shard.dtype) if is_here else None
                self._gather(shard, shard.gradient, self._store.rank if on is None else on, gradient)
            if is_here:
                self._store.remove(shard, gradient)
            elif shard.gradient is not None:
                shard.set_gradient(None)  # else it would be one that spans the ranks here, and is none on the rank that has it whole
        self._store.memory.barrier(0)  # what the ranks had is read

    def make_whole_alone(self) -> bool:
        """Let this rank have all but gradients without a collective, as others may have left; return whether nothing is missing.

        Where others were writing, there is again what came from the notebook.
        """
        shards, sharded = self._store.shards(), self._steps.sharded()
        with suppress(RuntimeError):  # a rank of another host has gone, and with it the memory that has its rows
            if self._store.writes.is_consistent():
                self._steps.make_whole()
                for shard in shards:
                    with quiet():
                        if shard.gradient is not None:
                            shard.set_gradient(None)
                    self._store.remove(shard, None)
                if self._store.writes.is_consistent():
                    return True
        for _, _, key, kept, _, old in sharded:
            kept.pop(key, None)
            if old is not None:
                give_back(old)
                kept[key] = old
        for shard in shards:
            shard.be_as_it_came()
        return False


def _read(like: torch.Tensor, read: Callable[[torch.Tensor | None], None], flat: torch.Tensor | None) -> None:
    """Let `read` fill the bytes of `flat`, which are those of a tensor that is `like` another."""
    with quiet(), torch.no_grad(), Counted(COMMUNICATION):
        read(None if flat is None else flat.view(like.dtype).view(like.shape))


@contextmanager
def _shown(of: dict[object, object], key: object, full: torch.Tensor, old: torch.Tensor | None) -> Iterator[None]:
    """Let a state have `full`, in the notebook's own tensor if there is one, until the end of the ``with`` block."""
    rows, numbers = of[key], None if old is None else old.data
    if old is not None:
        old.data = full
    of[key] = full if old is None else old
    try:
        yield
    finally:
        of[key] = rows
        if old is not None and numbers is not None:
            old.data = numbers
