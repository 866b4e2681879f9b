"""Optimizer steps on the rows of sharded parameters, and the optimizer state, sharded in the same way.

An optimizer that updates each element by itself computes the same on rows as on full parameters, so its step gets the rows. When the cell
reads its state, it gets full tensors, until the next step. Other optimizers get full parameters and gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ....system.interpreter import num_references
from ....system.patches import patched
from ....system.resources import give_back as give_back_heap
from ...identity_map import IdentityMap
from ...timing import COMMUNICATION, Counted
from ..zero1.group_order import GroupOrder
from ..zero1.partition import KINDS, Quiet, Step, has_step_of, is_pytorchs, original_step, parameters_of, step_by
from .parameter_shard import ParameterShard
from .parameter_store import ParameterStore
from .row_steps import KeptState, is_state_of, num_lists, params_alone, rows_in_place
from .sharded_rows import Came, SharedRows, allocate, quiet
from .whole_steps import WholeSteps

_BY_NUMBER = frozenset(kind for kind in KINDS if kind.__name__ not in ("Adafactor", "Muon", "SparseAdam"))
_PIECES = 8
"""Number of groups of parameters for which an optimizer makes its state one after the other."""
_AFTER_STEP = Optimizer._optimizer_step_code.__code__  # when it is called, profilers look at the state


class ShardedSteps:
    """The optimizers of one rank, their state sharded.

    Parameters
    ----------
    store : ParameterStore
    arrived : sequence of object
        The objects that came from the notebook. The state of optimizers among them is referenced elsewhere too, to find what has changed.
    models : callable
        Returns the modules of the run, in an order that all ranks have.
    say : callable
        Tells the user something.
    """

    def __init__(
        self,
        store: ParameterStore,
        arrived: Sequence[object] = (),
        *,
        models: Callable[[], Iterable[nn.Module]],
        say: Callable[[str], None],
    ) -> None:
        self._store, self._say = store, say
        self._order = GroupOrder(models, strategy=store.strategy, memory=store.memory)
        self._kept: IdentityMap[KeptState] = IdentityMap()
        self._kinds: set[type[Any]] = set()  # whose step is ours
        self._whole = WholeSteps(store, self._shards_of, self._is_by_number, self.make_whole, self._order)
        self.quiet = Quiet()
        self._arrived: IdentityMap[bool] = IdentityMap()
        self._objects = arrived
        self._num_holders: int | None = None  # of a tensor, or of a dict with it, that came from the notebook
        came = frozenset(map(id, arrived))  # state that came with a snapshot is in no list
        for optimizer in arrived:
            for kept in vars(optimizer).get("state", {}).values() if isinstance(optimizer, Optimizer) else ():
                for value in kept.values() if isinstance(kept, dict) else ():
                    if isinstance(value, torch.Tensor) and id(value) in came:
                        self._arrived.set(value, True)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Make steps on rows in the ``with`` block."""
        with ExitStack() as stack:
            for kind in _BY_NUMBER:
                if "step" in vars(kind) and is_pytorchs(vars(kind)["step"]):
                    self._kinds.add(kind)
                    stack.enter_context(patched(kind, "step", step_by(original_step(kind), self._step)))
            stack.enter_context(patched(Optimizer, "state", property(self._read, self._replaced), create=True))
            stack.enter_context(self._whole.installed())
            yield

    # -- a step ------------------------------------------------------------------------------------------------------

    def _step(self, original: Step, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        if not self._shards_of(optimizer) or not self._is_by_number(optimizer):
            return original(optimizer, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._order.agree(optimizer)
        self._store.sync()
        shards = self._shards_of(optimizer)  # without those that are whole now, as something else has their memory
        if self._store.writes.any_says(self._is_held(optimizer)):
            strategy, kind = self._store.strategy, type(optimizer).__name__
            self._say(f"`--strategy {strategy}` does not shard the state of `{kind}` while the cell holds a part of it.")
            with self._whole.step(optimizer):
                original(optimizer)
            return loss
        for shard in shards:
            shard.check()
        try:
            with self.quiet.on(), self._store.writing(shards, after_error=partial(self._cut, optimizer)):
                self._cut(optimizer)
                with rows_in_place(shards):
                    for params in self._a_few(optimizer, shards):
                        with params_alone(optimizer, params):
                            original(optimizer)
                        self._cut(optimizer)  # what is new
        finally:
            if not self._store.writes.is_writing:  # else the rows are of no use
                for shard in shards:
                    self._store.fetch_new(shard)
        return loss

    def _a_few(self, optimizer: Optimizer, shards: Sequence[ParameterShard]) -> list[list[torch.Tensor] | None]:
        """Return groups of parameters to step on one after the other if the optimizer has no state of some yet; else `None`, for all.

        It makes it somewhere else than where the ranks have it: for a moment it is there twice.
        """
        state = vars(optimizer)["state"]
        new = [shard for shard in shards if shard.parameter not in state]
        most = sum(shard.nbytes for shard in new) // _PIECES  # not of this rank's rows: all ranks have the same pieces
        sizes = {id(shard.parameter): shard.nbytes for shard in new}
        pieces: list[list[torch.Tensor]] = [[]]
        done = 0
        for parameter in parameters_of(optimizer):  # in their order, which is that of the state
            if done > most:
                pieces.append([])
                done = 0
            pieces[-1].append(parameter)
            done += sizes.get(id(parameter), 0)
        return [*pieces] if new else [None]

    def _is_by_number(self, optimizer: Optimizer) -> bool:
        """Return whether `optimizer` updates each element of a parameter by itself."""
        return has_step_of(optimizer, self._kinds)

    def _shards_of(self, optimizer: Optimizer) -> list[ParameterShard]:
        return [shard for parameter in parameters_of(optimizer) if (shard := self._store.shard_of(parameter)) is not None]

    # -- what it keeps -----------------------------------------------------------------------------------------------

    def entries(self, optimizer: Optimizer) -> Iterator[tuple[ParameterShard, Any, dict[Any, Any]]]:
        """Yield the shard, the key and the dict of each state that has the shape of a sharded parameter, or of this rank's rows of it."""
        state = vars(optimizer)["state"]
        for shard in self._shards_of(optimizer):
            kept = state.get(shard.parameter)
            for key in list(kept) if isinstance(kept, dict) else ():
                if is_state_of(kept[key], shard.shape) or is_state_of(kept[key], tuple(shard.rows.shape)):
                    yield shard, key, kept

    def _is_held(self, optimizer: Optimizer) -> bool:
        """Return whether the cell references optimizer state, which then has to change in place with each step."""
        of = self._kept.get(optimizer)
        with quiet():
            for shard, key, kept in self.entries(optimizer):
                value = kept[key]
                rows = None if of is None else of.rows.get((shard.number, key))
                if tuple(value.shape) != shard.shape or (rows is not None and value is rows.rows):  # where a rank has all rows
                    continue
                came = self._holders(value) if self._arrived.get(value) is not None else 0
                # `value` and `kept` are held here too, the latter where it is yielded as well.
                if num_references(value) > 2 + came or num_references(kept) > 3 + came:
                    return True
                is_made = of is not None and of.is_put_together(shard.number, key, value)
                if self._store.own.is_looked_into(value.untyped_storage(), self._store.homes, is_made=is_made):
                    return True
        return False

    def _holders(self, value: torch.Tensor) -> int:
        """Return how many references this project's own code has to a tensor that came from the notebook."""
        if self._num_holders is None:
            self._num_holders = num_lists(value, self._objects) + 1  # and what its owner's attributes or dict are compared with
        return self._num_holders

    def _kept_of(self, optimizer: Optimizer) -> KeptState:
        return self._kept.get(optimizer) or self._kept.set(optimizer, KeptState())

    def _cut(self, optimizer: Optimizer) -> None:
        """Cut full state down to rows, and move new state to memory that all ranks can read. Collective, where there is new state."""
        of = self._kept_of(optimizer)
        with quiet(), torch.no_grad():
            found = list(self.entries(optimizer))
            new = [(shard, key, kept) for shard, key, kept in found if (shard.number, key) not in of.rows]
            if new:
                kinds = [shard.storage.kind._replace(dtype=kept[key].dtype) for shard, key, kept in new]
                memory = allocate(self._store.memory, kinds)
                of.rows.update({(shard.number, key): rows for (shard, key, _), rows in zip(new, memory, strict=True)})
            for shard, key, kept in found:
                value, rows = kept[key], of.rows[shard.number, key].rows
                if value is rows:
                    continue
                is_whole = tuple(value.shape) == shard.shape
                rows.copy_(value[shard.own] if is_whole else value)
                if is_whole and self._arrived.get(value) is not None:
                    of.old[shard.number, key] = value
                    if value.untyped_storage()._cdata in self._store.homes:
                        of.came[shard.number, key] = Came(value)
                kept[key] = rows
            if new:
                give_back_heap()  # what the optimizer has made: as much as it keeps

    def sharded(self) -> list[tuple[Optimizer, ParameterShard, Any, dict[Any, Any], SharedRows, torch.Tensor | None]]:
        """Return all sharded state: optimizer, parameter, key, the dict that has it, its rows, and the notebook's own tensor if any."""
        return [
            (optimizer, shard, key, kept, rows, of.old.get((shard.number, key)))
            for optimizer, of in self._kept.items()
            for shard, key, kept in self.entries(optimizer)
            if (rows := of.rows.get((shard.number, key))) is not None and kept[key] is rows.rows
        ]

    def as_it_came(self, optimizer: Optimizer, shard: ParameterShard, key: Any) -> torch.Tensor | None:
        """Return the notebook's own tensor of a state, with the values that it came with, if there is one."""
        of = self._kept_of(optimizer)
        old, came = of.old.get((shard.number, key)), of.came.get((shard.number, key))
        if old is not None and came is not None:
            came.restore(old)
        return old

    def make_whole(self, optimizer: Optimizer | None = None) -> None:
        """Gather the full state of an optimizer, or of all of them."""
        with quiet(), torch.no_grad(), Counted(COMMUNICATION):
            for one, shard, key, kept, rows, old in self.sharded():
                if optimizer is None or one is optimizer:
                    full = torch.empty(shard.shape, dtype=rows.rows.dtype, device="cpu") if old is None else old
                    rows.read(full)
                    kept[key] = full
                    self._kept_of(one).put_together(shard.number, key, full)

    def _read(self, optimizer: Optimizer) -> Any:
        state = vars(optimizer).get("state")
        if state is None:
            raise AttributeError(f"'{type(optimizer).__name__}' object has no attribute 'state'")
        if not self.quiet.is_on and self._kept.get(optimizer) is not None and sys._getframe(1).f_code is not _AFTER_STEP:
            self.make_whole(optimizer)
        return state

    def _replaced(self, optimizer: Optimizer, state: Any) -> None:
        vars(optimizer)["state"] = state
