"""The parameters of models, sharded by rows over the ranks. A full parameter is gathered where it is used, and freed after that.

Inside a model the unit is a block, or a layer's own parameters: it is gathered for the forward call, and again in the backward pass when
autograd unpacks what it has saved of it. In the cell, an operation on a parameter gathers that parameter. A rank reads the rows of the
others from their memory (:mod:`...comm.arena`), so gathering is no collective: ranks synchronize only before and after a write.

A parameter that the cell has written to stays full on all ranks until they reach a common place: before the cell calls a model, before a
backward pass, before an optimizer step (:meth:`ParameterStore.sync`).
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
    """Number of neighbouring ranks whose gradients are summed first, before these sums are."""

    def __init__(self, memory: SharedMemory, **options: Any) -> None:
        super().__init__(memory, **options)
        self.writes = WriteCounts(memory)
        self.gradients = BufferPool()
        self._set_memory = SetMemory(memory, self.own)
        self.depth = 0  # of nested calls of models
        self.saved = SavedParameters(self.fetch_again)
        self._whole: dict[int, weakref.ref[ParameterShard]] = {}  # by number: those whose full tensor is not freed yet
        self.full_tensor: Callable[[Any], Any] = lambda value: value  # of a global tensor
        self.before_replicating: Callable[[], None] = lambda: None  # optimizer state is sharded as the parameters are
        self.before_sync: Callable[[], None] = lambda: None

    @property
    def buffered(self) -> int:
        """Bytes of the buffers for full parameters and for rows of gradients."""
        return self._pool.num_bytes + self.gradients.num_bytes

    def fetch(self, shards: Iterable[ParameterShard]) -> None:
        """Gather the full tensors of some parameters."""
        with Counted(COMMUNICATION), outside_transforms():
            for shard in shards:
                if shard.full is None and not shard.is_gone:
                    shard.fetch()
                    self._whole[shard.number] = weakref.ref(shard)
                    self.saved.follow(shard)

    def fetch_new(self, shard: ParameterShard) -> None:
        """Free a full tensor that an optimizer step has made stale, or gather it again where something still references it."""
        shard.note()
        self.let_go(shard, is_stale=True)
        if shard.full is not None:
            with Counted(COMMUNICATION):
                shard.refresh()

    def fetch_again(self, shard: ParameterShard) -> None:
        """Gather a parameter that the autograd graph has saved, with the rest of its unit; free units that were gathered before."""
        self.sweep(keep=shard.unit)
        self.fetch(shard.unit)

    def let_go(self, shard: ParameterShard, *, is_stale: bool = False) -> None:
        """Free the full tensor of a parameter, unless it is in use."""
        if shard.full is None or shard.is_gone or in_transform():
            return
        storage = shard.full.untyped_storage()._cdata
        if shard.let_go(is_stale=is_stale):
            self._whole.pop(shard.number, None)
            self.saved.forget(storage)

    def sweep(self, keep: Sequence[ParameterShard] = ()) -> None:
        """Free the full tensors that are not in use, except those in `keep`."""
        for shard in self.now_whole():
            if shard not in keep:
                self.let_go(shard)
        self._pool.trim(2 * self._largest)

    def now_whole(self) -> list[ParameterShard]:
        """Return those whose full tensor this rank has, in an order that all ranks agree on."""
        return [shard for _, reference in sorted(self._whole.items()) if (shard := reference()) is not None and not shard.is_gone]

    def follow_moved(self, shards: Iterable[ParameterShard]) -> None:
        """Follow parameters that the cell has given other memory (``p.data = …``)."""
        for shard in shards:
            if shard.has_moved():
                assert shard.full is not None
                self.saved.forget(shard.full.untyped_storage()._cdata)
                shard.replaced()
                self.saved.follow(shard)

    def _settle(self) -> None:
        """Give parameters whose ``data`` the cell has set memory of their own, or replicate them. Collective, if there are any."""
        whole = self.now_whole()
        set_now = [shard for shard in whole if shard.is_set]
        if set_now:
            shared = self._set_memory.settle(set_now, whole)
            with self.in_use(shared):  # else they would be freed: a NumPy array that shares their memory holds no reference to it
                self.replicate([shard.parameter for shard in shared], "something else looks into what the cell has set their `data` to")
            self.convert(set_now)
            for shard in set_now:
                self.saved.follow(shard)

    def sync(self) -> None:
        """Write what the cell has written to full parameters back to their rows. Collective, if it has written to any."""
        with outside_transforms():
            self.before_sync()
            self._settle()
            if written := [shard for shard in self.now_whole() if shard.is_written()]:
                all_ranks_come()
                self.check_replicas([shard.full for shard in written if shard.full is not None])
                with Counted(COMMUNICATION), self.writing(written):
                    for shard in written:
                        shard.write_back()
                        self.saved.follow(shard)
        self.sweep()

    def writing(self, shards: Sequence[ParameterShard], after_error: Callable[[], None] | None = None) -> AbstractContextManager[None]:
        """Let each rank write to its rows of `shards` in the ``with`` block; no rank reads them there. Collective.

        An error of all ranks is raised after `after_error`, as in :meth:`.WriteCounts.writing`.
        """
        return self.writes.writing(
            sum(shard.number for shard in shards),
            finish=self._finish_write(shards),
            after_error=after_error,
            progress=lambda: [shard.num_writes for shard in shards],
        )

    def _finish_write(self, shards: Sequence[ParameterShard]) -> Callable[[], None] | None:  # noqa: ARG002  # of the others there is nothing
        """Return what is to be done when all ranks have written to `shards`."""
        return None

    def reduce_scatter(self, shard: ParameterShard, gradient: torch.Tensor, rows: torch.Tensor) -> None:
        """Reduce-scatter the mean of all ranks' `gradient`, (R, ...), into `rows`, (r, ...). Collective."""
        parts = [gradient[share.start : share.stop] for share in shard.shares]
        self.memory.reduce_scatter(parts, rows, factor=1.0 / self.world_size, by=self.sums_by)

    def before_call(self, module: nn.Module) -> None:
        """Do what :meth:`sync` does."""
        self.sync()
        super().before_call(module)

    def replicate(self, parameters: Iterable[torch.Tensor], why: str) -> None:
        """Replicate parameters and their gradients on all ranks from now on. Collective."""
        found = [shard for parameter in parameters if (shard := self._shards.get(parameter)) is not None]
        if not found:
            return
        self.before_replicating()
        self.sync()
        for shard in found:
            self.remove(shard, None if shard.gradient is None else self.full_tensor(shard.read_gradient()).detach())
        self.memory.barrier(len(found))  # no rank reads the rows any more
        self._say(f"`--strategy {self.strategy}` keeps {len(found)} parameters on every engine from now on: {why}.")

    def remove(self, shard: ParameterShard, gradient: torch.Tensor | None) -> None:
        """Make a parameter a plain, full one on this rank from now on; `gradient` is the full gradient, if that was sharded."""
        if shard.full is not None:
            self.saved.forget(shard.full.untyped_storage()._cdata)  # another tensor may have this address later
        super().remove(shard, gradient)
        self._whole.pop(shard.number, None)

    @contextmanager
    def in_use(self, shards: Sequence[ParameterShard]) -> Iterator[None]:
        """Make parameters plain, full ones in the ``with`` block."""
        used = [(shard, shard.parameter) for shard in shards if not shard.is_gone]  # a model may replace its parameters in the call
        self.fetch(shards)
        for shard, parameter in used:
            shard.uses += 1
            parameter.__class__ = nn.Parameter
        try:
            yield
        finally:
            for shard, parameter in used:
                shard.uses -= 1
                if not shard.uses and self._shards.get(parameter) is shard:
                    parameter.__class__ = Zero3Parameter

    def as_now(self, given: Iterable[Any]) -> Callable[[], AbstractContextManager[None]]:
        """Return a context manager for the backward pass, in which parameters among `given` are plain and full as they are now."""
        whole = [shard for value in given if (shard := self.shard_of(value)) is not None]
        return lambda: self.in_use(whole)

    # -- in models ---------------------------------------------------------------------------------------------------

    @contextmanager
    def calling(self, module: nn.Module) -> Iterator[None]:
        """Follow a call of a model by the cell, in the ``with`` block."""
        self.depth += 1
        try:
            with self.followed(), self.as_written(module):
                yield
        finally:
            self.depth -= 1
            if not self.depth:
                self.sweep()

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module inside a model, with the parameters of its unit gathered."""
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
        """Return the function that makes a model's call: here the rank makes it by itself."""
        return sharded.own_call

    def on_full_batch(self, module: nn.Module) -> None:
        """Do nothing: parameters are gathered as in any call."""

    def followed(self) -> Any:
        """Return the context manager in which autograd saves parameters by reference to their shards.

        Where the cell has its own saved-tensor hooks (checkpointing, ``save_on_cpu``), these still get the full tensors.
        """
        is_due = torch.is_grad_enabled() and not in_transform() and not self.saved.has_others()
        return self.saved.followed() if is_due else nullcontext()
