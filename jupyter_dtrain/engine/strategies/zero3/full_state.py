"""Parameters, gradients and what optimizers keep of them, as one process has them: in a snapshot, and where they are returned.

Nobody has all of it at once. For a snapshot each tensor is put together on one rank, which writes it for all; on the others something
stands for it that takes no memory, and is written without its bytes (:mod:`...dedup`). So what is written is what any strategy writes, and
a run can go on from it under another one, or on another number of engines. What is returned is put together on rank 0, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch

from ...comm.collectives import exchange
from ...dedup import Apart, Held, shared_out
from ...timing import COMMUNICATION, Counted
from .optimizers import ShardedSteps
from .parameter_store import ParameterStore
from .sharded_rows import give_back, quiet

_CPU = torch.device("cpu")


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
        """Let each tensor be whole on the rank that copies it, and on others what stands for it, until the end of the block. Collective."""
        self._store.sync()
        with self._steps.quiet.on(), ExitStack() as stack:
            shards, sharded = self._store.shards(), self._steps.sharded()
            kept = [rows.rows.dtype.itemsize * shard.parameter.numel() for _, shard, _, _, rows, _ in sharded]
            with_gradient = [shard for shard in shards if shard.gradient is not None]
            sizes = [shard.nbytes for shard in (*shards, *with_gradient)]
            owners = shared_out([*sizes, *kept], self._store.world_size, {})
            of_gradient = dict(zip((shard.number for shard in with_gradient), owners[len(shards) :], strict=False))
            gradients = self._gathered(of_gradient)
            held: list[Held] = []

            def hold(tensor: torch.Tensor, owner: int) -> None:
                held.append(Held(tensor.untyped_storage(), owner, "cpu", trained=True))

            with quiet(), torch.no_grad(), Counted(COMMUNICATION):
                for shard, owner in zip(shards, owners, strict=False):
                    numbers = shard.for_snapshot(is_owner=owner == self._store.rank)
                    gradient = gradients.get(shard.number)
                    stack.enter_context(shard.shown(numbers, gradient))
                    hold(numbers, owner)
                    if gradient is not None:
                        hold(gradient, of_gradient[shard.number])
                for (_, shard, key, of, rows, old), owner in zip(sharded, owners[len(sizes) :], strict=True):
                    full = torch.empty(shard.shape, dtype=rows.rows.dtype)
                    if owner == self._store.rank:
                        rows.read(full)
                    hold(full, owner)
                    stack.enter_context(_shown(of, key, full, old))
            yield Apart(frozenset(id(optimizer) for optimizer, *_ in sharded), tuple(held))

    def _gathered(self, owners: Mapping[int, int]) -> dict[int, torch.Tensor]:
        """Return by the numbers of parameters their gradients, each whole on its owner and nothing elsewhere. Collective."""
        rank, fulls = self._store.rank, {}
        parts: list[list[torch.Tensor]] = [[] for _ in range(self._store.world_size)]
        with quiet(), torch.no_grad(), Counted(COMMUNICATION):
            for shard in self._store.shards():
                owner = owners.get(shard.number)
                if owner is None or shard.gradient is None:
                    continue
                full = fulls[shard.number] = torch.empty(shard.shape, dtype=shard.dtype)
                if owner == rank:
                    full[shard.own].copy_(shard.gradient)
                for source, share in enumerate(shard.shares):
                    rows = full[share.start : share.stop]
                    if owner != rank:
                        rows = shard.gradient.contiguous() if source == rank else torch.empty_like(rows, device="meta")
                    parts[source].append(rows.reshape(-1).view(torch.uint8))
            if owners:
                exchange(parts, device=_CPU)
        return fulls

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
                gradient = self._gathered({shard.number: self._store.rank if on is None else on})[shard.number]
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
        if self._store.is_consistent():
            self._steps.make_whole()
            for shard in shards:
                with quiet():
                    if shard.gradient is not None:
                        shard.set_gradient(None)
                self._store.remove(shard, None)
            if self._store.is_consistent():
                return True
        for _, _, key, kept, _, old in sharded:
            kept.pop(key, None)
            if old is not None:
                give_back(old)
                kept[key] = old
        for shard in shards:
            shard.be_as_it_came()
        return False


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
