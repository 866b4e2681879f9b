"""Hooks of all modules and all optimizers, which PyTorch keeps by number in its own modules. Those of the notebook hold in its cells."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

from torch.nn.modules import module as of_modules
from torch.optim import optimizer as of_optimizers

from .library_changes import Place, is_the_notebooks

_HOOKS = (
    *((of_modules, f"_global_{kind}_hooks") for kind in ("forward_pre", "forward", "backward_pre", "backward")),
    *((of_modules, f"_global_{kind}_registration_hooks") for kind in ("module", "parameter", "buffer")),
    *((of_optimizers, f"_global_optimizer_{kind}_hooks") for kind in ("pre", "post")),
)
_FLAGS = tuple((of_modules, f"_global_forward_hooks_{kind}") for kind in ("always_called", "with_kwargs"))
_FULL = "_global_is_full_backward_hook"
_PLACES: dict[int, Place] = {id(vars(module)[name]): (module.__name__, "", name) for module, name in (*_HOOKS, *_FLAGS)}
HOOKS = frozenset(_PLACES.values())


_come: set[Place] = set()  # places with hooks that came from another process


def own_hooks() -> Iterator[tuple[Place, dict[int, Any]]]:
    """Yield the places with hooks of the notebook or the cell, and these by their numbers; also where the last one was removed."""
    numbers = {number for module, name in _HOOKS for number, hook in vars(module)[name].items() if is_the_notebooks(hook)}
    for module, name in (*_HOOKS, *_FLAGS):
        place = (module.__name__, "", name)
        own = {number: hook for number, hook in vars(module)[name].items() if number in numbers}
        if own or place in _come:
            yield place, own


def set_hooks(place: Place, hooks: dict[int, Any]) -> None:
    """Set the notebook's hooks among those of this process."""
    registry = registry_at(place)
    for number in dict(own_hooks()).get(place, {}).keys() - hooks.keys():
        del registry[number]
    registry.update(hooks)
    _come.add(place)
    if hooks and place[2] == "_global_backward_hooks":
        setattr(of_modules, _FULL, True)


def drop_hooks() -> None:
    """Remove the hooks of a cell that has ended: the next one comes with those of the notebook."""
    for place, own in list(own_hooks()):
        for number in own:
            del registry_at(place)[number]
    _come.clear()


def registry_at(place: Place) -> dict[int, Any]:
    """Return PyTorch's own dict of hooks."""
    found: dict[int, Any] = vars(sys.modules[place[0]])[place[2]]
    return found


def place_of_registry(obj: object) -> Place | None:
    """Return the place of a dict of hooks, to which handles refer; ``None`` for another object."""
    return _PLACES.get(id(obj))  # PyTorch never replaces these dicts


def reduced_registry(obj: object) -> Any:
    """Return the reduce value of a dict of hooks of all modules or optimizers, to which their handles refer."""
    place = place_of_registry(obj)
    return NotImplemented if place is None else (registry_at, (place,))


def line_about_hooks(places: Iterable[Place]) -> list[str]:
    """Return a line that says which hooks are not called, as they cannot be sent."""
    names = sorted(place[2].removeprefix("_global_") for place in places if place in HOOKS)
    return [f"Hooks of the notebook are not called in this cell, because they cannot be sent: {', '.join(names)}."] if names else []
