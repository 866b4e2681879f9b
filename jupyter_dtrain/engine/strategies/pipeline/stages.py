"""The parameters of models, each on the rank of its stage.

A stage's parameter is a sharded parameter of `zero3` with all rows on one rank. Reading parameters and gradients, and optimizer steps,
therefore work as with `zero3`: a read returns the full tensor, and a rank updates the rows it has. If activations of a model cannot be
handed on, each rank fetches its parameters block by block.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from ....planning.model_cut import atoms_of, owners_of
from ...comm.mesh import Mesh
from ...comm.shared_memory import SharedMemory
from ...forward.sharded_call import ShardedCall
from ...identity_map import IdentityMap
from ...module_tree import modules_in
from ...tensor.batch_shard import BatchShard, share_of
from ..zero3.eligibility import why_replicated
from ..zero3.parameter_shard import ParameterShard
from ..zero3.parameter_store import ParameterStore
from ..zero3.sharded_rows import SharedRows
from .calls import LOCAL, StageCalls
from .handover import Handover
from .stage_parameter import StageParameter
from .stage_plan import is_chain, modules_in_chain, versions

AXIS = "pp"


class StageStore(ParameterStore):
    """The parameters of one rank's stages, and the stage of each module.

    Parameters
    ----------
    memory, say, homes
        See :class:`.ParameterStore`.
    mesh : Mesh, optional
        Its axis `AXIS` has the stages. By default each rank is one stage.
    """

    strategy = "pipeline"

    def __init__(
        self,
        memory: SharedMemory,
        *,
        mesh: Mesh | None = None,
        say: Callable[[str], None] = lambda _: None,
        homes: Collection[int] = (),
    ) -> None:
        super().__init__(memory, say=say, least=0, homes=homes)
        self.mesh = Mesh(memory.rank, {AXIS: memory.num_ranks}) if mesh is None else mesh
        self.sums_by = self.mesh.degree(AXIS)  # sum as when activations are handed on, so that results are bitwise equal either way
        self.calls: StageCalls | None = None
        self.handover: Handover | None = None
        self._owners: dict[int, int] = {}  # stages of the parameters to be placed, by their ``id``
        self._stages: IdentityMap[int] = IdentityMap()  # of each module that one stage computes; -1: it has no parameters
        self._numbers: IdentityMap[int] = IdentityMap()  # of modules, the same on all ranks
        self._modules: list[nn.Module] = []
        self._in_place: IdentityMap[bool] = IdentityMap()  # modules that write to their inputs

    def adopt(self, module: nn.Module) -> None:
        """Place the parameters of `module` on the ranks of its stages. Collective, if some are new."""
        if self._known.get(module):
            return
        self._known.set(module, True)
        for part in modules_in(module):
            if self._numbers.get(part) is None:
                self._numbers.set(part, len(self._modules))
                self._modules.append(part)
        reasons = why_replicated(module)
        every: list[tuple[str, Any]] = list(module.named_parameters())
        lazy = {id(p): name for name, p in every if is_lazy(p)}
        self._tell(module, [(name, "they have no shape yet") for name in lazy.values()])
        named = [(name, p) for name, p in every if id(p) not in lazy]
        found = {id(p): (name, p) for name, p in named if self._shards.get(p) is None and p.dim() and self.was_whole.get(p) is None}
        if found:
            why = self._agreed([reasons.get(id(p)) or self._why_not(p, 1) for _, p in found.values()])
            self._tell_why(module, [(*each, reason) for each, reason in zip(found.values(), why, strict=True) if reason])
            self._owners = owners_of(module, self.mesh.degree(AXIS))
            new = [parameter for (_, parameter), reason in zip(found.values(), why, strict=True) if reason is None]
            if new:
                self._shard(new)
        for atom in atoms_of(module):
            if self._stages.get(atom) is None:
                stage = -1 if next(iter(atom.parameters()), None) is None else self._stage(atom)
                if stage is not None:
                    self._stages.set(atom, stage)
        self._find_units(module)

    def _shares(self, parameter: nn.Parameter) -> tuple[BatchShard, ...]:
        stage = self._owners[id(parameter)]
        is_owner = tuple(float(self.mesh.index(AXIS, rank) == stage) for rank in range(self.world_size))
        return tuple(share_of(parameter.shape[0], rank, is_owner) for rank in range(self.world_size))

    def _new_shard(self, parameter: nn.Parameter, storage: SharedRows, **options: Any) -> ParameterShard:
        return StageParameter(parameter, storage, owner=self._owners[id(parameter)], in_use=self.in_use, **options)

    def _stage(self, atom: nn.Module) -> int | None:
        """Return the stage that has all parameters of `atom`, or ``None`` if no single stage has."""
        shards = [self._shards.get(parameter) for parameter in atom.parameters()]
        owners = {shard.owner if isinstance(shard, StageParameter) else None for shard in shards}
        return next(iter(owners)) if len(owners) == 1 else None

    # -- where modules are computed ----------------------------------------------------------------------------------

    def number_of(self, module: nn.Module) -> int | None:
        """Return the number of a module, which is the same on all ranks."""
        return self._numbers.get(module)

    def module(self, number: int) -> nn.Module:
        """Return the module with a number."""
        return self._modules[number]

    def num_stages(self, module: nn.Module) -> int:
        """Return the number of stages of `module`."""
        stages = {self._stages.get(part) for part in modules_in(module)}
        return len(stages - {None, -1})

    def stage_parameters(self, modules: Sequence[nn.Module], stage: int) -> list[StageParameter] | None:
        """Return the parameters of `modules`, or ``None`` if the rank of `stage` cannot compute with them for others."""
        found: dict[int, StageParameter] = {}
        for module in modules:
            for parameter in module.parameters():
                shard = self._shards.get(parameter)
                if not isinstance(shard, StageParameter) or shard.owner != stage or shard.is_pinned or shard.uses:
                    return None
                if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                    return None
                found[id(shard)] = shard
        return list(found.values())

    def free_buffers(self) -> None:
        """Return unused buffers for full parameters and for gradient rows to the system, and let the allocator keep activations."""
        self.sweep()
        self._pool.trim(0)
        self.gradients.trim(0)
        self.freed.stop()  # activations that are allocated anew in each step cost page faults

    def computed_by(self, sharded: ShardedCall) -> Callable[[Any], Any]:
        """Return the function that calls a model: stage by stage, or on this rank alone."""
        return sharded.own_call if self.handover is None else self.handover.computed_by(sharded)

    def on_full_batch(self, module: nn.Module) -> None:
        """Say that a model is not handed on, because its `forward` needs the full batch."""
        if self.handover is not None:
            self.handover.on_full_batch(module)

    def call(self, original: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run `original`, the call of a module within a model, on this rank or on the rank of its stage."""
        calls = self.calls
        if calls is None or calls.call is None:
            if self._stages.get(module) is None:
                return super().call(original, module, args, kwargs)
            before = versions((args, kwargs))
            result = super().call(original, module, args, kwargs)
            if versions((args, kwargs)) != before:
                self._in_place.set(module, True)
            return result
        if calls.is_serving:
            return original(module, *args, **kwargs)
        if not calls.call.is_entered:
            return calls.entered(lambda: self._call_in_model(calls, original, module, args, kwargs))
        return self._call_in_model(calls, original, module, args, kwargs)

    def _call_in_model(self, calls: StageCalls, original: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stage = self._stages.get(module)
        if stage is None:
            if is_chain(module) and len(args) == 1 and not kwargs:
                return self._chain(calls, module, args[0])
        elif stage >= 0 and not self._in_place.get(module):
            result = calls.remote([module], stage, args, kwargs)
            if result is not LOCAL:
                return result
        return super().call(original, module, args, kwargs)

    def _chain(self, calls: StageCalls, module: nn.Module, value: Any) -> Any:
        """Call the modules of a sequence, consecutive ones of the same stage in one request."""
        for stage, parts in self._runs(module):
            result = LOCAL if stage is None else calls.remote(parts, stage, (value,), {})
            if result is not LOCAL:
                value = result
                continue
            for part in parts:
                value = part(value)
        return value

    def _runs(self, module: nn.Module) -> list[tuple[int | None, list[nn.Module]]]:
        """Group consecutive modules of a sequence by their stage."""
        runs: list[tuple[int | None, list[nn.Module]]] = []
        for part in modules_in_chain(module, self._stages):
            stage = self._stages.get(part)
            last = runs[-1][0] if runs else None
            if last is not None and stage in (-1, last):
                runs[-1][1].append(part)
            else:
                runs.append((None if stage == -1 or self._in_place.get(part) else stage, [part]))
        return runs
