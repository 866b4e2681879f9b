"""Average parameters, and gradients of each rank's share of a batch, over the ranks.

What is averaged at a moment must follow from the cell's code, not from what only this rank knows. Of objects that may be garbage-collected
on one rank and not yet on another, ranks exchange which exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import increment_version

from ...backward.gradient_exchange import average
from ...comm.collectives import all_reduce
from ...identity_map import IdentityMap
from ...tensor.rank0_guard import all_ranks_come
from ...timing import COMMUNICATION, Counted
from ..zero3.aliased_memory import OwnMemory
from ..zero3.sharded_rows import quiet


@dataclass(eq=False)
class ModelNote:
    """Record of a model: its number, equal on all ranks, and whether the cell accesses parameters between call and backward pass."""

    number: int
    each_call: bool = False


@dataclass(eq=False)
class Note:
    """Record of a parameter.

    Attributes
    ----------
    number : int
        Equal on all ranks.
    model : ModelNote
    is_ahead : bool
        This rank has stepped on it.
    is_graded : bool
        Its gradient is of this rank's share of the batch.
    has_own_state : bool
        Its optimizer state comes from such gradients.
    is_lent : bool
        Something else may share its storage, and would see this rank's values.
    handed : callable
        Returns the gradient that the cell holds; a pass must add to it what all ranks have in common.
    """

    number: int
    model: ModelNote
    is_ahead: bool = False
    is_graded: bool = False
    has_own_state: bool = False
    is_lent: bool = False
    handed: Callable[[], torch.Tensor | None] = lambda: None


class ParameterMeans:
    """Records of parameters, and their averages over ranks.

    Parameters
    ----------
    homes : frozenset of int
        Storages of parameters from the notebook, which have one more holder.
    say : callable
        Shows the user a message, with the place in the cell.

    Attributes
    ----------
    own : OwnMemory
        Storages that belong to nobody else.
    """

    def __init__(self, *, homes: frozenset[int], say: Callable[[str], None]) -> None:
        self._homes, self._say = homes, say
        self.own = OwnMemory()
        self.check_replicas: Callable[[Sequence[torch.Tensor]], None] = lambda _: None
        self._notes: IdentityMap[Note] = IdentityMap()
        self._count = self._num_models = 0

    def note_of(self, parameter: torch.Tensor) -> Note | None:
        """Return the record of a parameter, ``None`` if it is not local."""
        return self._notes.get(parameter)

    def all(self) -> list[nn.Parameter]:
        """Return the local parameters of this rank."""
        return [parameter for parameter, _ in self._notes.items()]

    @property
    def is_any_ahead(self) -> bool:
        """Whether this rank has parameters that differ from those of other ranks."""
        return any(note.is_ahead for note in self._notes.values())

    def zeroed(self, parameters: Iterable[torch.Tensor]) -> None:
        """Note that `parameters` have no gradients of this rank's share any more."""
        for parameter in parameters:
            if (note := self._notes.get(parameter)) is not None:
                note.is_graded = False

    def average(self, parameters: Sequence[torch.Tensor]) -> None:
        """Average those of `parameters` that are ahead; the argument must be the same on all ranks. Collective, if any is ahead."""
        notes = {id(p): note for p in parameters if (note := self._notes.get(p)) is not None and note.is_ahead}
        ahead = list({id(p): p for p in parameters if id(p) in notes}.values())
        if ahead:
            with quiet():
                self._mean([parameter.detach() for parameter in ahead])
                for parameter in ahead:
                    increment_version(parameter)  # makes backward passes through graphs with the old values fail
            for note in notes.values():
                note.is_ahead = False

    def average_held(self, parameters: Sequence[torch.Tensor]) -> None:
        """Average those of `parameters` that are ahead and share their storage. Collective, if any may."""
        lent = [(p, note) for p in parameters if (note := self._notes.get(p)) is not None and note.is_lent and note.is_ahead]
        for (_, note), is_held in zip(lent, any_rank([self._is_held(p) for p, _ in lent]), strict=True):
            note.is_lent = is_held
        held = [parameter for parameter, note in lent if note.is_lent]
        if held:
            self._say(f"`--sync-every` averages {len(held)} parameters in every step, because other tensors share their memory")
        self.average(held)

    def reduce_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        """Average the rank's own gradients of `parameters`, which must be the same on all ranks. Collective, if there are any."""
        graded = [p for p in parameters if (note := self._notes.get(p)) is not None and note.is_graded]
        if not graded:
            return
        with quiet(), torch.no_grad():
            reached = any_rank([parameter.grad is not None for parameter in graded])
            there = [parameter for parameter, is_reached in zip(graded, reached, strict=True) if is_reached]
            for parameter in there:
                if parameter.grad is None:  # only another rank's share has reached it
                    parameter.grad = torch.zeros_like(parameter)
            self._mean([parameter.grad for parameter in there if parameter.grad is not None])
        self.zeroed(graded)

    def _mean(self, tensors: list[torch.Tensor]) -> None:
        all_ranks_come()
        with quiet(), torch.no_grad(), Counted(COMMUNICATION):
            average(tensors)

    def _common(self, of: Callable[[Note], bool]) -> list[nn.Parameter]:
        """Return the parameters selected by `of` that exist on all ranks. Collective."""
        there = {note.number: parameter for parameter, note in self._notes.items() if of(note)}
        lacking = any_rank([number not in there for number in range(1, self._count + 1)])
        return [there[number] for number, lacks in enumerate(lacking, 1) if not lacks]

    def finish(self) -> None:
        """Make the parameters and gradients of all ranks equal. Collective."""
        found = self._common(lambda _: True)
        self.average(found)
        self.reduce_gradients(found)

    def _is_held(self, parameter: torch.Tensor) -> bool:
        """Return whether something else holds the storage of a parameter."""
        with quiet():
            return self.own.is_looked_into(parameter.untyped_storage(), self._homes)


def any_rank(flags: Sequence[bool]) -> list[bool]:
    """Return for each of `flags` whether it is set on any rank. Collective, unless empty."""
    if not flags:
        return []
    all_ranks_come()
    found = torch.tensor(flags, dtype=torch.long, device="cpu")
    with Counted(COMMUNICATION):
        all_reduce(found)
    return [bool(number) for number in found.tolist()]
