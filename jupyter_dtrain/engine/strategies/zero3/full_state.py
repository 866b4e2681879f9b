"""Full parameters, gradients and optimizer state, for a snapshot and for the end of the cell.

No rank has all of it at once. For a snapshot, one rank gathers each tensor straight into its file (:mod:`...snapshot.put_together`). The
others pickle a placeholder, without its bytes (:mod:`...dedup`). So a snapshot looks the same under any strategy: a run can resume from
it under another one, or on another number of engines. At the end of the cell rank 0 gathers tensor after tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import torch

from ...dedup import Apart, Held, shared_out
from ...tensor.placement_types import GlobalTensor
from ...timing import COMMUNICATION, Counted
from .optimizers import ShardedSteps
from .parameter_shard import ParameterShard
from .parameter_store import ParameterStore
from .sharded_rows import put_together, quiet


class FullState:
    """Gathers sharded parameters, gradients and optimizer state.

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
        """Put a placeholder in the place of each sharded tensor, with the rank that writes the full one. Collective."""
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
                        gradient, to = shard.memory_for_gradient(), of_gradient[shard.number]
                        hold(gradient, to, partial(self._gather, shard, rows_of_gradient, to))
                        gradient = shard.as_seen(gradient)
                    stack.enter_context(shard.shown(numbers, gradient))
                for (_, shard, key, of, rows, old), owner in zip(sharded, owners[len(sizes) :], strict=True):
                    full = torch.empty(shard.shape, dtype=rows.rows.dtype, device="cpu")
                    hold(full, owner, rows.read_into)
                    stack.enter_context(_shown(of, key, full, old))
            yield Apart(frozenset(id(optimizer) for optimizer, *_ in sharded), tuple(held))

    def _gather(self, shard: ParameterShard, gradient: torch.Tensor, owner: int, into: torch.Tensor | None) -> None:
        """Gather a gradient, of which `gradient` are the rows of this rank, in `into` on the `owner`. Collective."""
        put_together(shard.storage.kind, self._store.memory, gradient, into if owner == self._store.rank else None)

    # -- where it is returned ----------------------------------------------------------------------------------------

    def make_whole(self, *, on: int | None = None) -> list[tuple[GlobalTensor, torch.Tensor | None]]:
        """Make parameters plain, full ones on rank `on`, or on all ranks; the other ranks lose their gradients. Collective.

        Returns
        -------
        list of tuple of GlobalTensor and Tensor, optional
            Each gradient that the cell has read, and the parameter's own now, if it has one.
        """
        self._store.sync()
        views = []
        is_here = on is None or on == self._store.rank
        if is_here:
            self._steps.make_whole()
        for shard in self._store.shards():
            gradient, view = None, shard.gradient_view
            if shard.gradient is not None:
                gradient = shard.memory_for_gradient() if is_here else None
                self._gather(shard, shard.gradient, self._store.rank if on is None else on, gradient)
            if is_here:
                self._store.remove(shard, None if gradient is None else shard.as_seen(gradient))
            elif shard.gradient is not None:
                shard.set_gradient(None)  # else it would be one that spans the ranks here, and is none on the rank that has it whole
            if view is not None:
                views.append((view, shard.parameter.grad))
        self._store.memory.barrier(0)  # what the ranks had is read
        return views

    def make_whole_alone(self) -> bool:
        """Gather all but gradients on this rank without a collective, as others may have left; return whether nothing is missing.

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
        for optimizer, shard, key, kept, *_ in sharded:
            kept.pop(key, None)
            if (came := self._steps.as_it_came(optimizer, shard, key)) is not None:
                kept[key] = came
        for shard in shards:
            shard.be_as_it_came()
        return False


def _read(like: torch.Tensor, read: Callable[[torch.Tensor | None], None], flat: torch.Tensor | None) -> None:
    """Let `read` fill `flat`, the bytes of a tensor with the dtype and shape of `like`."""
    with quiet(), torch.no_grad(), Counted(COMMUNICATION):
        read(None if flat is None else flat.view(like.dtype).view(like.shape))


@contextmanager
def _shown(of: dict[object, object], key: object, full: torch.Tensor, old: torch.Tensor | None) -> Iterator[None]:
    """Put `full` in the place of an optimizer state, in the notebook's own tensor if there is one, in the ``with`` block."""
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
