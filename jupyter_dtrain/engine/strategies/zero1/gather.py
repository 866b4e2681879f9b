"""Gathers sharded optimizer state: where the cell reads it, at the end of the cell, and for a snapshot.

First the ranks exchange the outlines of their state, with small values in them. Large tensors follow as bytes, for the ranks that want
them. For a snapshot they are not exchanged: other ranks write placeholders without bytes, and the bytes are in the part of the rank that
has them (:mod:`...dedup`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from ...comm.collectives import exchange
from ...dedup import Held
from ...identity_map import IdentityMap
from ...tensor.redistribute import Exchange
from ...timing import COMMUNICATION, Counted
from .partition import Owners, parameters_of
from .tensor_meta import bytes_of, kept_from, large_in, large_outlines, outline_of, sizes_of

_CPU = torch.device("cpu")
Old = IdentityMap[dict[Any, Any]]
"""State of the notebook's optimizer that this rank does not keep, by parameter."""


@dataclass(frozen=True)
class Kept:
    """The state of one parameter on a rank, without the values of large tensors."""

    optimizer: Optimizer
    parameter: torch.Tensor
    outline: Any


def state_of(optimizer: Optimizer) -> MutableMapping[Any, Any]:
    """Return the state that an optimizer has on this rank."""
    state: MutableMapping[Any, Any] = vars(optimizer)["state"]
    return state


def all_kept(optimizers: Mapping[int, Optimizer], owners: Owners, *, rank: int) -> list[list[Kept]]:
    """Return the state that each rank has, of the same optimizers in the same order. Collective.

    Parameters
    ----------
    optimizers : mapping of int to Optimizer
        By numbers that all ranks have for them. One that nobody uses any more may be gone on some of the ranks, and counts no more.
    """
    own: dict[int, dict[int, Any]] = {}
    parameters: dict[int, list[torch.Tensor]] = {}
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for number, optimizer in optimizers.items():
            state, of = state_of(optimizer), owners.of(optimizer)
            parameters[number] = parameters_of(optimizer)
            there = [index for index, p in enumerate(parameters[number]) if of[id(p)] == rank and p in state]
            own[number] = {index: outline_of(state[parameters[number][index]]) for index in there}
        found = Exchange.objects(own)
    numbers = [number for number in sorted(own) if all(number in of_rank for of_rank in found)]
    return [
        [Kept(optimizers[number], parameters[number][index], outline) for number in numbers for index, outline in of_rank[number].items()]
        for of_rank in found
    ]


def fill(
    kept: Sequence[Sequence[Kept]], *, rank: int, reads: bool, order: Mapping[int, Sequence[int]], old: Mapping[int, Old] | None = None
) -> None:
    """Gather the full state of optimizers on this rank, if it `reads`. Collective.

    Parameters
    ----------
    kept : sequence of sequence of Kept
        Of each rank.
    order : mapping of int to sequence of int
        By the ``id`` of an optimizer: as :func:`put_in_order` takes it.
    old : mapping of int to Old, optional
        By the ``id`` of an optimizer: what is changed to be what is kept.
    """
    parts: list[list[torch.Tensor]] = []
    filled = {id(one.optimizer): one.optimizer for of_rank in kept for one in of_rank}
    with torch._C.DisableTorchFunction(), torch.no_grad():
        for source, of_rank in enumerate(kept):
            flat: list[torch.Tensor] = []
            for one in of_rank:
                state = state_of(one.optimizer)
                if source != rank and reads:
                    before = None if old is None else old[id(one.optimizer)].get(one.parameter)
                    state[one.parameter] = kept_from(one.outline, near=one.parameter, old=before)
                if source == rank or reads:
                    flat += map(bytes_of, large_in(state[one.parameter]))
                else:
                    flat += [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes_of(one.outline)]
            parts.append(flat)
        with Counted(COMMUNICATION):
            exchange(parts, device=way_of(one.parameter for of_rank in kept for one in of_rank))
    if reads:
        for optimizer in filled.values():
            put_in_order(optimizer, order[id(optimizer)])


def way_of(parameters: Iterator[torch.Tensor]) -> torch.device:
    """Return the device by which the state of `parameters` is sent to other ranks."""
    return next((parameter.device for parameter in parameters if parameter.device.type != "cpu"), _CPU)


def put_in_order(optimizer: Optimizer, order: Sequence[int]) -> None:
    """Order the state of an optimizer as one process would have it.

    Parameters
    ----------
    order : sequence of int
        The ``id`` of each parameter that a step has updated, in the order of their first steps. Others follow in the order of the groups.
    """
    state = state_of(optimizer)
    before = {id(key): key for key in state}
    found = {before[key]: state[before[key]] for key in order if key in before}
    found.update((parameter, state[parameter]) for parameter in parameters_of(optimizer) if parameter in state)
    found.update(state)
    state.clear()
    state.update(found)


@contextmanager
def standing_in(
    kept: Sequence[Sequence[Kept]], *, rank: int, order: Mapping[int, Sequence[int]], old: Mapping[int, Old]
) -> Iterator[list[Held]]:
    """Put placeholders in each optimizer for state that other ranks have, in the ``with`` block.

    Returns
    -------
    list of Held
        The large tensors of all ranks, which are in each rank's state now, in one order.
    """
    held: list[Held] = []
    optimizers = {id(one.optimizer): one.optimizer for of_rank in kept for one in of_rank}
    before = [(state_of(optimizer), dict(state_of(optimizer))) for optimizer in optimizers.values()]
    changed: list[tuple[dict[Any, Any], dict[Any, Any], list[tuple[torch.Tensor, torch.Tensor]]]] = []
    try:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for source, of_rank in enumerate(kept):
                for one in of_rank:
                    state = state_of(one.optimizer)
                    if source != rank:
                        stands = kept_from(one.outline, near=one.parameter, device=_CPU)
                        notebooks = old[id(one.optimizer)].get(one.parameter)
                        if notebooks is not None:  # the tensors that came from there are known to be those
                            changed.append((notebooks, dict(notebooks), _data_of(notebooks)))
                            stands = in_place_of(notebooks, stands)
                        state[one.parameter] = stands
                    pairs = zip(large_in(state[one.parameter]), large_outlines(one.outline), strict=True)
                    held += [Held(tensor.untyped_storage(), source, outline.device) for tensor, outline in pairs]
        for optimizer in optimizers.values():
            put_in_order(optimizer, order[id(optimizer)])
        yield held
    finally:
        for state, items in before:
            state.clear()
            state.update(items)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for notebooks, items, data in changed:
                notebooks.clear()
                notebooks.update(items)
                for tensor, numbers in data:
                    tensor.data = numbers


def _data_of(kept: Mapping[Any, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(value, value.data) for value in kept.values() if isinstance(value, torch.Tensor)]


def in_place_of(old: dict[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return `old` with the values of `new`; tensors get new memory."""
    for key, value in new.items():
        if isinstance(value, torch.Tensor) and isinstance(old.get(key), torch.Tensor):
            old[key].data = value
        else:
            old[key] = value
    for key in [key for key in old if key not in new]:
        del old[key]
    return old
