"""The parameters of models, sharded by rows over the ranks: who needs all of one gets it, for as long as it is needed.

Inside a model what is used together, a block or a layer's own parameters, is fetched for its call and let go after it; a backward pass
fetches it again when it comes to what the graph has kept of it. In the cell an operation on a parameter fetches that one. Ranks read each
other's rows where these lie (:mod:`...comm.arena`), so none waits for another, and they meet only before and after somebody writes.

What is written to a parameter stays whole on all ranks until they are at one place: before a model is called by the cell, a backward pass,
a step (:meth:`ParameterStore.sync`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from ...comm.shared_memory import SharedMemory
from ...comm.transforms import in_transform, outside_transforms
from ...forward.sharded_call import ShardedCall
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted
from .aliased_memory import SetMemory
from .buffers import BufferPool
from .parameter import Zero3Parameter
from .parameter_registry import ParameterRegistry
from .parameter_shard import ParameterShard
from .saved import SavedParameters
from .write_counts import WriteCounts


class ParameterStore(ParameterRegistry):
    """The sharded parameters of one rank.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    options
        As of :class:`.ParameterRegistry`.
    """

    sums_by = 1
    """Neighbouring ranks whose gradients are added up before those of others."""

    def __init__(self, memory: SharedMemory, **options: Any) -> None:
        super().__init__(memory, **options)
        self.writes = WriteCounts(memory)
        self.gradients = BufferPool()
        self._set_memory = SetMemory(memory, self.own)
        self.depth = 0  # calls of models that are under way
        self.saved = SavedParameters(self.fetch_again)
        self._whole: dict[int, weakref.ref[ParameterShard]] = {}  # by number, what is not let go yet
        self.full_tensor: Callable[[Any], Any] = lambda value: value  # of what spans the ranks
        self.before_replicating: Callable[[], None] = lambda: None  # what optimizers keep has the rows of parameters

    @property
    def buffered(self) -> int:
        """Bytes of buffers for whole parameters, and for rows of their gradients."""
        return self._pool.num_bytes + self.gradients.num_bytes

    def fetch(self, shards: Iterable[ParameterShard]) -> None:
        """Have all of some parameters."""
        with Counted(COMMUNICATION), outside_transforms():
            for shard in shards:
                if shard.full is None:
                    shard.fetch()
                    self._whole[shard.number] = weakref.ref(shard)
                    self.saved.follow(shard)

    def fetch_new(self, shard: ParameterShard) -> None:
        """Let go what a step has made old, or, where somebody holds it, let it be what it is now."""
        shard.note()
        self.let_go(shard, is_stale=True)
        if shard.full is not None:
            with Counted(COMMUNICATION):
                shard.refresh()

    def fetch_again(self, shard: ParameterShard) -> None:
        """Have all of what a graph has kept something of, and what goes with it; what was fetched before is let go."""
        self.sweep(keep=shard.unit)
        self.fetch(shard.unit)

    def let_go(self, shard: ParameterShard, *, is_stale: bool = False) -> None:
        """Have the rows alone, unless it is not to be."""
        if shard.full is None or in_transform():
            return
        storage = shard.full.untyped_storage()._cdata
        if shard.let_go(is_stale=is_stale):
            self._whole.pop(shard.number, None)
            self.saved.forget(storage)

    def sweep(self, keep: Sequence[ParameterShard] = ()) -> None:
        """Let go what nobody needs."""
        for shard in self.now_whole():
            if shard not in keep:
                self.let_go(shard)
        self._pool.trim(2 * self._largest)

    def now_whole(self) -> list[ParameterShard]:
        """Return those of which this rank has all, in an order that all ranks agree on."""
        return [shard for _, reference in sorted(self._whole.items()) if (shard := reference()) is not None]

    def follow_moved(self, shards: Iterable[ParameterShard]) -> None:
        """Know those that have other memory than they had, as the cell has set it."""
        for shard in shards:
            if shard.has_moved():
                assert shard.full is not None
                self.saved.forget(shard.full.untyped_storage()._cdata)
                shard.replaced()
                self.saved.follow(shard)

    def _settle(self) -> None:
        """Let parameters whose memory the cell has set have memory of their own, or be whole on all ranks. Collective, if there are any."""
        whole = self.now_whole()
        set_now = [shard for shard in whole if shard.is_set]
        if set_now:
            shared = self._set_memory.settle(set_now, whole)
            with self.in_use(shared):  # or they would be let go: nothing tells who looks into an array
                self.replicate([shard.parameter for shard in shared], "something else looks into what the cell has set their `data` to")
            for shard in set_now:
                self.saved.follow(shard)

    def sync(self) -> None:
        """Let the rows be what the cell has written to parameters. Collective, where it has."""
        self._settle()
        written = [shard for shard in self.now_whole() if shard.is_written()]
        if written:
            all_ranks_come()
            with Counted(COMMUNICATION), self.writing(written):
                for shard in written:
                    shard.write_back()
                    self.saved.follow(shard)
        self.sweep()

    def writing(self, shards: Sequence[ParameterShard]) -> AbstractContextManager[None]:
        """Let each rank write to its rows of `shards`, which nobody reads, until the end of the ``with`` block. Collective."""
        return self.writes.writing(sum(shard.number for shard in shards))

    def reduce_scatter(self, shard: ParameterShard, gradient: torch.Tensor, rows: torch.Tensor) -> None:
        """Put this rank's rows of the mean of all ranks' `gradient`, (R, ...), into `rows`, (r, ...). Collective."""
        parts = [gradient[share.start : share.stop] for share in shard.shares]
        self.memory.reduce_scatter(parts, rows, factor=1.0 / self.world_size, by=self.sums_by)

    def before_call(self, module: nn.Module) -> None:  # noqa: ARG002  # of whichever
        """Do what :meth:`sync` does."""
        self.sync()

    def replicate(self, parameters: Iterable[torch.Tensor], why: str) -> None:
        """Keep parameters whole on all ranks from now on, with their gradients. Collective."""
        found = [shard for parameter in parameters if (shard := self._shards.get(parameter)) is not None]
        if not found:
            return
        self.before_replicating()
        self.sync()
        for shard in found:
            self.remove(shard, None if shard.gradient is None else self.full_tensor(shard.read_gradient()).detach())
        self.memory.barrier(len(found))  # what the ranks had is read
        self._say(f"`--strategy {self.strategy}` keeps {len(found)} parameters on every engine from now on: {why}.")

    def remove(self, shard: ParameterShard, gradient: torch.Tensor | None) -> None:
        """Let a parameter be plain and whole on this rank from now on; `gradient` is all of the one that is sharded."""
        if shard.full is not None:
            self.saved.forget(shard.full.untyped_storage()._cdata)  # whose address another tensor may have later
        super().remove(shard, gradient)
        self._whole.pop(shard.number, None)

    @contextmanager
    def in_use(self, shards: Sequence[ParameterShard]) -> Iterator[None]:
        """Let parameters be plain and whole until the end of the ``with`` block."""
        self.fetch(shards)
        for shard in shards:
            shard.uses += 1
            shard.parameter.__class__ = nn.Parameter
        try:
            yield
        finally:
            for shard in shards:
                shard.uses -= 1
                if not shard.uses and self._shards.get(shard.parameter) is shard:
                    shard.parameter.__class__ = Zero3Parameter

    def as_now(self, given: Iterable[Any]) -> Callable[[], AbstractContextManager[None]]:
        """Return what lets parameters be, in a ``with`` block of a backward pass, as they are now for what is given some of them."""
        whole = [shard for value in given if (shard := self.shard_of(value)) is not None]
        return lambda: self.in_use(whole)

    # -- in models ---------------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Let a model be called by the cell, until the end of the ``with`` block."""
        self.depth += 1
        try:
            with self.followed():
                yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.sweep()

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module in a model, which may be one that owns parameters."""
        unit = self._units.get(module)
        if not unit:
            return original(module, *args, **kwargs)
        unit = list(unit)
        try:
            with self.in_use(unit):
                return original(module, *args, **kwargs)
        finally:
            for shard in unit:
                if not shard.uses:
                    self.let_go(shard)

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return what makes a model's call: the rank by itself."""
        return sharded.own_call

    def on_full_batch(self, module: nn.Module) -> None:
        """Fetch parameters in such a call as in any."""

    def followed(self) -> Any:
        """Return what graphs of parameters are made within.

        Where the cell has hooks of its own for what graphs keep (checkpointing, ``save_on_cpu``), these go on to see all of it.
        """
        is_due = torch.is_grad_enabled() and not in_transform() and not self.saved.has_others()
        return self.saved.followed() if is_due else nullcontext()
