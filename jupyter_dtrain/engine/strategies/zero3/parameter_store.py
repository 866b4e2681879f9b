"""The parameters of models, sharded by rows over the ranks: who needs all of one gets it, for as long as it is needed.

Inside a model what is used together, a block or a layer's own parameters, is fetched for its call and let go after it; a backward pass
fetches it again when it comes to what the graph has kept of it. In the cell an operation on a parameter fetches that one. Ranks read each
other's rows where these lie (:mod:`...comm.arena`), so none waits for another, and they meet only before and after somebody writes.

What is written to a parameter stays whole on all ranks until they are at one place: before a model is called by the cell, a backward pass,
a step (:meth:`ParameterStore.sync`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ...comm.arena import Arena
from ...comm.collectives import all_gather_object
from ...comm.shared_memory import SharedMemory
from ...comm.transforms import in_transform, outside_transforms
from ...forward.activation_checkpoint import blocks_in
from ...forward.sharded_call import ShardedCall
from ...module_tree import IdentityMap, modules_in
from ...tensor.batch_shard import BatchShard, share_of
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted
from .buffers import BufferPool, FreedMemory
from .eligibility import why_not, why_replicated
from .parameter import ParameterShard, Zero3Parameter
from .saved import SavedParameters
from .sharded_rows import Kind, SharedRows, allocate, quiet

_WORD = torch.int64
_SAID = 0x53414944
LEAST = 1 << 16
"""Bytes of a parameter that is worth it."""


class ParameterStore:
    """The sharded parameters of one rank.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    say : callable
        Tells the user something.
    least : int
        Bytes of a parameter that is sharded.
    homes : collection of int
        Storages of parameters that came from the notebook, by their address: something else holds these in any case.
    """

    strategy: ClassVar[str] = "zero3"
    """Which messages name."""
    sums_by = 1
    """Neighbouring ranks whose gradients are added up before those of others."""

    def __init__(
        self, memory: SharedMemory, *, say: Callable[[str], None] = lambda _: None, least: int = LEAST, homes: Collection[int] = ()
    ) -> None:
        self.memory, self._say, self._least, self.homes = memory, say, least, homes
        self._words = Arena(memory, 2 * _WORD.itemsize)  # of each rank: writes begun and ended, and what it says
        self._writes, self._said = self._words.own(0, 2 * _WORD.itemsize).view(_WORD).split(1)
        self.rank, self.world_size = memory.rank, memory.num_ranks
        self._shards: IdentityMap[ParameterShard] = IdentityMap()
        self._known: IdentityMap[bool] = IdentityMap()  # modules that were looked through
        self._units: IdentityMap[list[ParameterShard]] = IdentityMap()  # by module
        self._number = 0
        self._pool, self.gradients = BufferPool(), BufferPool()
        self.freed = FreedMemory()
        self._largest = 0  # bytes of a unit
        self.depth = 0  # calls of models that are under way
        self.saved = SavedParameters(self.fetch_again)
        self._whole: dict[int, weakref.ref[ParameterShard]] = {}  # by number, what is not let go yet
        self.full_tensor: Callable[[Any], Any] = lambda value: value  # of what spans the ranks
        self.before_replicating: Callable[[], None] = lambda: None  # what optimizers keep has the rows of parameters

    # -- which -------------------------------------------------------------------------------------------------------

    def adopt(self, module: nn.Module) -> None:
        """Shard the parameters of `module` that can be. Collective, where there are any that are not known."""
        if self._known.get(module):
            return
        self._known.set(module, True)
        reasons = why_replicated(module)
        found: dict[int, tuple[str, nn.Parameter]] = {}
        named: list[tuple[str, Any]] = list(module.named_parameters())
        lazy = {id(parameter): name for name, parameter in named if is_lazy(parameter)}
        self._tell(module, [(name, "they have no shape yet") for name in lazy.values()])
        for name, parameter in named:
            if id(parameter) in lazy or self._shards.get(parameter) is not None:
                continue
            if self._is_wanted(parameter):
                found.setdefault(id(parameter), (name, parameter))
        if found:
            why = self._agreed([reasons.get(id(p)) or why_not(p, self.world_size, self.homes, self._dim(p)) for _, p in found.values()])
            self._tell(module, [(name, reason) for (name, _), reason in zip(found.values(), why, strict=True) if reason])
            new = [parameter for (_, parameter), reason in zip(found.values(), why, strict=True) if reason is None]
            if new:
                self._shard(new)
        self._find_units(module)

    def _is_wanted(self, parameter: nn.Parameter) -> bool:
        return parameter.dim() > 0 and parameter.nbytes >= self._least

    def _agreed(self, reasons: list[str | None]) -> list[str | None]:
        """Return for each parameter the first reason that a rank has: who else holds one is not the same everywhere. Collective."""
        all_ranks_come()
        of_ranks = all_gather_object(reasons, self.memory)
        return [next((reason for reason in of_all if reason is not None), None) for of_all in zip(*of_ranks, strict=True)]

    def _tell(self, module: nn.Module, replicated: Sequence[tuple[str, str]]) -> None:
        for why in dict.fromkeys(reason for _, reason in replicated):
            names = [name for name, reason in replicated if reason == why]
            some = ", ".join(f"`{name}`" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            self._say(f"`--strategy {self.strategy}` keeps {some} of `{type(module).__name__}` on every engine: {why}.")

    def _shard(self, parameters: Sequence[nn.Parameter]) -> None:
        kinds = [Kind(tuple(parameter.shape), parameter.dtype, self._shares(parameter), self._dim(parameter)) for parameter in parameters]
        for parameter, storage in zip(parameters, allocate(self.memory, kinds), strict=True):
            self._number += 1
            with quiet():
                home = parameter.data if parameter.untyped_storage()._cdata in self.homes else None
            shard = self._new_shard(parameter, storage, rank=self.rank, number=self._number, pool=self._pool, home=home)
            shard.cut_gradient()
            self._shards.set(parameter, shard)
        self.freed.know([parameter.nbytes for parameter in parameters])
        self.memory.barrier(self._number)  # all have copied their rows

    def _dim(self, parameter: nn.Parameter) -> int:  # noqa: ARG002
        """Return the dim along which a parameter is sharded."""
        return 0

    def _shares(self, parameter: nn.Parameter) -> tuple[BatchShard, ...]:
        return tuple(share_of(parameter.shape[self._dim(parameter)], rank, (1.0,) * self.world_size) for rank in range(self.world_size))

    def _new_shard(self, parameter: nn.Parameter, storage: SharedRows, **options: Any) -> ParameterShard:
        return ParameterShard(parameter, storage, **options)

    def _find_units(self, module: nn.Module) -> None:
        blocks = blocks_in(module)
        inside = {id(part) for block in blocks for part in block.modules()}
        for part in [*blocks, *(part for part in modules_in(module) if id(part) not in inside)]:
            found = part.parameters() if id(part) in inside else [p for p in part._parameters.values() if p is not None]
            unit = [shard for p in {id(p): p for p in found}.values() if (shard := self._shards.get(p)) is not None]
            if unit and self._units.get(part) is None:
                self._units.set(part, unit)
                self._largest = max(self._largest, sum(shard.nbytes for shard in unit))
                for shard in unit:
                    if len(shard.unit) == 1 or len(shard.unit) > len(unit):
                        shard.unit = unit

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
        shard.return_home(gradient)
        shard.uses = 0
        self._shards.remove(shard.parameter)
        self._whole.pop(shard.number, None)
        for unit in [unit for _, unit in self._units.items()]:
            if shard in unit:
                unit.remove(shard)

    def shard_of(self, value: object) -> ParameterShard | None:
        """Return the shard of a parameter, ``None`` where it has none."""
        return self._shards.get(value) if isinstance(value, Zero3Parameter) or type(value) is nn.Parameter else None

    def shards(self) -> list[ParameterShard]:
        """Return all of them, in an order that all ranks agree on."""
        return sorted((shard for _, shard in self._shards.items()), key=lambda shard: shard.number)

    # -- whole, and not ----------------------------------------------------------------------------------------------

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

    def sync(self) -> None:
        """Let the rows be what the cell has written to parameters. Collective, where it has."""
        written = [shard for shard in self.now_whole() if shard.is_written()]
        if written:
            all_ranks_come()
            tag = sum(shard.number for shard in written)
            with Counted(COMMUNICATION), self.writing(tag):
                for shard in written:
                    shard.write_back()
                    self.saved.follow(shard)
        self.sweep()

    @contextmanager
    def writing(self, tag: int) -> Iterator[None]:
        """Let each rank write to its rows, which nobody reads, until the end of the ``with`` block. Collective.

        Who is interrupted there leaves a count that says so: what others have written belongs to nothing then.
        """
        self.barrier(tag)
        self._writes += 1
        yield
        self._writes += 1
        self.barrier(tag)

    def is_consistent(self) -> bool:
        """Return whether the rows of all ranks are of one moment. No collective: others may have left."""
        own = int(self._writes)
        return own % 2 == 0 and all(word == own for word in self._words_of_others(0))

    def any_says(self, what: bool) -> bool:
        """Return whether any rank says so. Collective; what is said stands until the next barrier but one."""
        self._said.fill_(what)
        self.barrier(_SAID)
        return what or any(self._words_of_others(1))

    def _words_of_others(self, index: int) -> list[int]:
        found = torch.empty(_WORD.itemsize, dtype=torch.uint8)
        words = []
        for rank in range(self.world_size):
            if rank != self.rank:
                self._words.read(rank, index * _WORD.itemsize, found)
                words.append(int(found.view(_WORD)))
        return words

    def barrier(self, tag: int) -> None:
        """Wait for all ranks."""
        all_ranks_come()
        with Counted(COMMUNICATION):
            self.memory.barrier(tag)

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

    def shards_in(self, values: Iterable[Any], found: dict[int, ParameterShard]) -> dict[int, ParameterShard]:
        """Add to `found` the sharded parameters in `values`, by their ``id``, and return it."""
        for value in values:
            if isinstance(value, Zero3Parameter):
                shard = self._shards.get(value)
                if shard is not None:
                    found[id(value)] = shard
            elif isinstance(value, list | tuple):
                self.shards_in(value, found)
            elif isinstance(value, dict):
                self.shards_in(value.values(), found)
        return found
