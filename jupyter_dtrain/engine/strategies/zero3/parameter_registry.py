"""Which parameters of models are sharded over the ranks, and which are gathered together.

Parameters that are gathered together are a *unit*: all parameters of a block (:mod:`....planning.model_cut`), or a layer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ....planning.model_cut import blocks_in
from ...comm.collectives import all_gather_object
from ...comm.shared_memory import SharedMemory
from ...identity_map import IdentityMap
from ...module_tree import modules_in
from ...tensor.batch_shard import BatchShard, share_of
from ...tensor.compile import has_compiler
from ...tensor.rank0_guard import all_ranks_come
from .aliased_memory import OwnMemory
from .buffers import BufferPool, FreedMemory
from .eligibility import MAY_WRITE, is_compiled, why_not, why_replicated
from .parameter import Zero3Parameter
from .parameter_shard import ParameterShard
from .sharded_rows import Kind, SharedRows, allocate, quiet

_HELD = "the cell holds it"
LEAST = 1 << 16
"""The smallest size in bytes of a parameter that is sharded by default."""


class ParameterRegistry:
    """The shards of one rank, by parameter.

    Parameters
    ----------
    memory : SharedMemory
        Connects the ranks.
    say : callable
        Tells the user something.
    least : int
        The smallest size in bytes of a parameter that is sharded.
    homes : collection of int
        Addresses of the storages of parameters that came from the notebook, which other objects reference in any case.
    """

    strategy: ClassVar[str] = "zero3"
    """The strategy that messages name."""
    why_replicated: Callable[..., dict[int, str]] = staticmethod(why_replicated)

    def __init__(
        self, memory: SharedMemory, *, say: Callable[[str], None] = lambda _: None, least: int = LEAST, homes: Collection[int] = ()
    ) -> None:
        self.memory, self._say, self._least, self.homes = memory, say, least, homes
        self.rank, self.world_size = memory.rank, memory.num_ranks
        self._shards: IdentityMap[ParameterShard] = IdentityMap()
        self._known: IdentityMap[bool] = IdentityMap()  # modules that were looked through
        self._told_compiled: IdentityMap[bool] = IdentityMap()  # compiled ones of which the user was told
        self._units: IdentityMap[list[ParameterShard]] = IdentityMap()  # by module
        self._may_write: IdentityMap[list[tuple[str, nn.Parameter]]] = IdentityMap()  # by module: what is replicated, if it is not open
        self._called: IdentityMap[bool] = IdentityMap()  # such modules that were called
        self.was_whole: IdentityMap[bool] = IdentityMap()  # parameters that were not sharded in the run that is resumed
        self.stay_whole: IdentityMap[str] = IdentityMap()  # parameters that are not to be sharded, and why
        self._number = 0
        self._pool = BufferPool()
        self.freed = FreedMemory()
        self.own = OwnMemory(self._pool)
        self._largest = 0  # bytes of a unit
        self.check_replicas: Callable[[Sequence[torch.Tensor]], None] = lambda _: None
        self.held_gradients: Callable[[Sequence[torch.Tensor | None]], list[bool]] = lambda gradients: [False for _ in gradients]

    def adopt(self, module: nn.Module) -> None:
        """Shard the parameters of `module` that can be sharded. Collective, where there are any new ones."""
        if self._known.get(module):
            return
        self._known.set(module, True)
        reasons = self.why_replicated(module)
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
            why = self._agreed([reasons.get(id(p)) or self._why_not(p, self.world_size, self._dim(p)) for _, p in found.values()])
            self._tell_why(module, [(*each, reason) for each, reason in zip(found.values(), why, strict=True) if reason])
            new = [parameter for (_, parameter), reason in zip(found.values(), why, strict=True) if reason is None]
            if new:
                self._shard(new)
        self._find_units(module)

    def _why_not(self, parameter: nn.Parameter, num_parts: int, dim: int = 0) -> str | None:
        return self.stay_whole.get(parameter) or why_not(parameter, num_parts, homes=self.homes, own=self.own, dim=dim)

    def _is_wanted(self, parameter: nn.Parameter) -> bool:
        return parameter.dim() > 0 and parameter.nbytes >= self._least and self.was_whole.get(parameter) is None

    def whole(self) -> list[nn.Parameter]:
        """Return parameters of models that are large enough, but not sharded: they stay so in a run that resumes from here."""
        pending = {id(parameter) for found in self._may_write.values() for _, parameter in found}
        every = {id(p): p for module, _ in self._known.items() for p in module.parameters() if self._shards.get(p) is None}
        return [p for key, p in every.items() if key not in pending and not is_lazy(p) and p.dim() and p.nbytes >= self._least]

    def _agreed(self, reasons: list[str | None]) -> list[str | None]:
        """Return for each parameter the first reason that a rank has: who else holds one is not the same everywhere. Collective."""
        all_ranks_come()
        of_ranks = all_gather_object(reasons, self.memory)
        return [next((reason for reason in of_all if reason is not None), None) for of_all in zip(*of_ranks, strict=True)]

    def _tell_why(self, module: nn.Module, replicated: Sequence[tuple[str, nn.Parameter, str]]) -> None:
        """Say which parameters of `module` are replicated, and why; of a model that may write to its weights only once that is certain."""
        self._tell(module, [(name, reason) for name, _, reason in replicated if reason != MAY_WRITE])
        if may := [(name, parameter) for name, parameter, reason in replicated if reason == MAY_WRITE]:
            self._may_write.set(module, may)

    def before_call(self, module: nn.Module) -> None:
        """Say at a model's second call what of it is replicated as it may write to that: at the first, parts of an open one are sharded."""
        if (may := self._may_write.get(module)) is None:
            return
        if not self._called.get(module):
            self._called.set(module, True)
            return
        self._may_write.remove(module)
        self._tell(module, [(name, MAY_WRITE) for name, parameter in may if self._shards.get(parameter) is None])

    def _tell(self, module: nn.Module, replicated: Sequence[tuple[str, str]]) -> None:
        for why in dict.fromkeys(reason for _, reason in replicated):
            names = [name for name, reason in replicated if reason == why]
            some = ", ".join(f"`{name}`" for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            self._say(f"`--strategy {self.strategy}` keeps {some} of `{type(module).__name__}` on every engine: {why}.")

    @torch.inference_mode(mode=False)
    def _shard(self, parameters: Sequence[nn.Parameter]) -> None:
        self.check_replicas(parameters)
        kinds = [Kind(tuple(p.shape), p.dtype, self._shares(p), self._dim(p), self._groups(p)) for p in parameters]
        held = self._held_gradients(parameters)
        for parameter, storage, is_held in zip(parameters, self._allocate(kinds), held, strict=True):
            self._number += 1
            with quiet():
                home = parameter.data if parameter.untyped_storage()._cdata in self.homes else None
                came = parameter.grad is not None and parameter.grad.untyped_storage()._cdata in self.homes
            shard = self._new_shard(parameter, storage, rank=self.rank, number=self._number, pool=self._pool, home=home)
            if not is_held:
                shard.cut_gradient(is_home=came)
            self._shards.set(parameter, shard)
        self.freed.know([parameter.nbytes for parameter in parameters])
        self.memory.barrier(self._number)  # all have copied their rows

    def _held_gradients(self, parameters: Sequence[nn.Parameter]) -> list[bool]:
        """Return of which parameters the cell has the gradient under another name, and sees what is done to it later. Collective."""
        with quiet():
            gradients = [parameter.grad for parameter in parameters]
        return [reason is not None for reason in self._agreed([_HELD if held else None for held in self.held_gradients(gradients)])]

    @torch.inference_mode(mode=False)
    def convert(self, shards: Sequence[ParameterShard]) -> None:
        """Allocate memory for the rows of those `shards` whose type is new (``model.bfloat16()``). Collective, if there are any."""
        now = [(shard, shard.parameter.dtype) for shard in shards if self._shards.get(shard.parameter) is shard]
        new = [(shard, dtype) for shard, dtype in now if dtype != shard.dtype]
        if new:
            storages = self._allocate([shard.storage.kind._replace(dtype=dtype) for shard, dtype in new])
            for (shard, _), storage in zip(new, storages, strict=True):
                shard.store_in(storage)
            self.freed.know([shard.nbytes for shard, _ in new])

    def _allocate(self, kinds: Sequence[Kind]) -> Sequence[SharedRows]:
        """Allocate memory for the rows of parameters. Collective."""
        return allocate(self.memory, kinds)

    def _dim(self, parameter: nn.Parameter) -> int:  # noqa: ARG002
        """Return the dim along which a parameter is sharded."""
        return 0

    def _groups(self, parameter: nn.Parameter) -> int:  # noqa: ARG002
        """Return the number of parts of equal size along that dim, within each of which a parameter is sharded."""
        return 1

    def _shares(self, parameter: nn.Parameter) -> tuple[BatchShard, ...]:
        size = parameter.shape[self._dim(parameter)] // self._groups(parameter)
        return tuple(share_of(size, rank, (1.0,) * self.world_size) for rank in range(self.world_size))

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

    def as_written(self, module: nn.Module) -> AbstractContextManager[Any]:
        """Return a context in which a call of `module` is not compiled, if it has sharded parameters.

        Compiled code reads them in another order than code that runs as it is written, and what is compiled differs between ranks:
        it depends on what an engine has run before.
        """
        if not has_compiler() or all(self._shards.get(parameter) is None for parameter in module.parameters()):
            return nullcontext()
        if not self._told_compiled.get(module) and any(map(is_compiled, module.modules())):
            self._told_compiled.set(module, True)
            self._say(f"`--strategy {self.strategy}` runs `{type(module).__name__}` as it is written, not compiled: it is sharded.")
        stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance

    def remove(self, shard: ParameterShard, gradient: torch.Tensor | None) -> None:
        """Make a parameter a plain, full one on this rank from now on; `gradient` is the full gradient, if that was sharded."""
        shard.return_home(gradient)
        shard.uses = 0
        self._shards.remove(shard.parameter)
        for unit in [unit for _, unit in self._units.items()]:
            if shard in unit:
                unit.remove(shard)

    def shard_of(self, value: object) -> ParameterShard | None:
        """Return the shard of a parameter, ``None`` where it has none."""
        return self._shards.get(value) if isinstance(value, Zero3Parameter) or type(value) is nn.Parameter else None

    def shards(self) -> list[ParameterShard]:
        """Return all shards, in an order that all ranks agree on."""
        return sorted((shard for _, shard in self._shards.items()), key=lambda shard: shard.number)

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
