"""Which rank has the optimizer state of each parameter: the largest parameters first, each to the rank with the least so far.

PyTorch's ZeroRedundancyOptimizer partitions in the same way. A parameter keeps its owner when others are added later. All ranks call this
at the same places, so they agree.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch.optim import Optimizer

from ....system.patches import put
from ...identity_map import IdentityMap, cached_by_class


class Owners:
    """Assigns the parameters of all optimizers to ranks.

    Parameters
    ----------
    world_size : int
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._total = [0] * world_size  # numbers of all optimizers
        self._of: IdentityMap[tuple[list[int], IdentityMap[int]]] = IdentityMap()

    def of(self, optimizer: Optimizer) -> dict[int, int]:
        """Return the rank that owns each parameter of an optimizer, by its ``id``, in the order of the param groups."""
        found = self._of.get(optimizer) or self._of.set(optimizer, ([0] * self._world_size, IdentityMap()))
        loads, known = found
        owners: dict[int, int] = {}
        new: list[torch.Tensor] = []
        for parameter in parameters_of(optimizer):
            owner = known.get(parameter)
            owners[id(parameter)] = -1 if owner is None else owner
            if owner is None:
                new.append(parameter)
        if new:
            # Parameters that share memory, as views of one tensor, go together: two ranks would write over each other's.
            there = [(parameter, known.get(parameter)) for parameter in parameters_of(optimizer)]
            together = {parameter.untyped_storage()._cdata: owner for parameter, owner in there if owner is not None}
            self._divide(new, loads, known, together)
            owners = {id(parameter): _there(known.get(parameter)) for parameter, _ in there}
        return owners

    def _divide(self, new: list[torch.Tensor], loads: list[int], known: IdentityMap[int], together: dict[int, int]) -> None:
        sizes = [parameter.numel() if parameter.requires_grad else 0 for parameter in new]
        for index in sorted(range(len(new)), key=lambda index: -sizes[index]):
            memory = new[index].untyped_storage()._cdata
            owner = together.get(memory)
            if owner is None:
                owner = min(range(self._world_size), key=lambda rank: (loads[rank], self._total[rank]))
            together[memory] = known.set(new[index], owner)
            loads[owner] += sizes[index]
            self._total[owner] += sizes[index]


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters of an optimizer, each once, in the order of its param groups."""
    return list({id(parameter): parameter for group in optimizer.param_groups for parameter in group["params"]}.values())


def _there(owner: int | None) -> int:
    assert owner is not None
    return owner


# Which optimizers update each parameter by itself, so that what they keep of it may be on one rank alone.
#
# Those of PyTorch that are known to. Nothing is tried out: an optimizer that takes a norm over all its parameters would run as well with a
# part of them, and come to something else. So one that is not known, a class of the notebook's with an own ``step`` say, keeps everything.

Step = Callable[..., Any]
_NAMES = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
    "SparseAdam",
)
KINDS: frozenset[type[Optimizer]] = frozenset(getattr(torch.optim, name) for name in _NAMES if hasattr(torch.optim, name))
_FOLDER = str(Path(torch.__file__).parent)
# What a class that only gives its own defaults has of its own.
_HARMLESS = frozenset(
    {"__module__", "__qualname__", "__doc__", "__init__", "__annotations__", "__annotate_func__", "__annotations_cache__"}
    | {"__firstlineno__", "__static_attributes__", "__slotnames__", "__type_params__"}
)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def has_parts(optimizer: Optimizer) -> bool:
    """Return whether `optimizer` updates each of its parameters independently, and all ranks have equal ones."""
    return has_known_step(optimizer) and all(
        not group.get("differentiable") and all(type(parameter) in _PLAIN and _is_dense(parameter) for parameter in group["params"])
        for group in optimizer.param_groups
    )


def _is_dense(parameter: torch.Tensor) -> bool:
    return parameter.layout == torch.strided and parameter.device.type in ("cpu", "cuda")


def has_known_step(optimizer: Optimizer) -> bool:
    """Return whether the step of `optimizer` is that of one of `KINDS`, with no class in between that overrides a part of it."""
    kind: Any = type(optimizer)
    return _is_known(kind)


def has_step_of(optimizer: Optimizer, kinds: Collection[type[Any]]) -> bool:
    """Return whether an optimizer has the step of its class in `kinds`; ``AdamW`` may have that of ``Adam``."""
    owner = next((base for base in type(optimizer).__mro__ if "step" in vars(base)), None)
    return owner in kinds and has_known_step(optimizer) and not any(group.get("differentiable") for group in optimizer.param_groups)


@cached_by_class
def _is_known(kind: type[Any]) -> bool:
    classes = kind.__mro__
    first = next((index for index, base in enumerate(classes) if base in KINDS), None)
    return first is not None and all(_HARMLESS.issuperset(vars(base)) for base in classes[:first])


def is_pytorchs(step: object) -> bool:
    """Return whether a function, and all that it wraps, are PyTorch's own, and not patched by the notebook."""
    return all(function.__code__.co_filename.startswith(_FOLDER) for function in _wrapped(step))


def original_step(kind: type[Optimizer]) -> Step:
    """Return the step of a PyTorch optimizer class without the wrapper that calls hooks, which the first instance of the class adds."""
    if not getattr(kind.step, "hooked", False):
        hooked: Any = Optimizer.profile_hook_step(kind.step)
        hooked.hooked = True
        put(kind, "step", hooked)
    original: Step = vars(kind)["step"].__wrapped__
    return original


def step_by(original: Step, instead: Callable[..., Any]) -> Step:
    """Return a step method that calls ``instead(original, optimizer, ...)``, with the hooks and the name of PyTorch's.

    By its name, interrupts are put off within (:mod:`...arrival.objects`).
    """

    @wraps(original)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        return instead(original, self, *args, **kwargs)

    hooked = Optimizer.profile_hook_step(step)
    hooked.hooked = True  # type: ignore[attr-defined]  # as PyTorch marks it
    return hooked


class Quiet(threading.local):
    """Whether this thread sees only this rank's part of optimizer state."""

    is_on = False

    @contextmanager
    def on(self) -> Iterator[None]:
        """Let this thread see only that, in the ``with`` block."""
        before, self.is_on = self.is_on, True
        try:
            yield
        finally:
            self.is_on = before


def _wrapped(step: object) -> Iterator[FunctionType]:
    while isinstance(step, FunctionType):
        yield step
        step = getattr(step, "__wrapped__", None)
