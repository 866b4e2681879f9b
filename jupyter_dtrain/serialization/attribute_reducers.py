"""Reduce values of modules and other objects that are written by their attributes."""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable
from io import IOBase
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.utils import parametrize
from torch.optim import Optimizer

from ..integrations.registry import reduced_by_library
from .archives import gives_up_what_it_shares, reduced_archive
from .container_reducers import set_attributes
from .custom_reduce import reduced_as_it_is
from .linked_attributes import link, linked_dict
from .python_reducers import (
    bare,
    slots_of,
    wants_arguments,
)


def as_it_was(obj: Any) -> Any:
    """Return a reduce value with all attributes of `obj`, if its own way would lose some or could not be read; else ``NotImplemented``.

    ``__getstate__`` may remove attributes from the object itself; these are kept. The unpickler looks up ``__setstate__``, for which a
    ``__getattr__`` may ask attributes that are not set yet. It would also call ``__setattr__`` for slots, which may forbid it.
    """
    kind: Any = type(obj)
    if kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not object.__reduce__ or kind in copyreg.dispatch_table:
        return NotImplemented
    custom_reduce = hasattr(kind, "__getattr__") or (kind.__setattr__ is not object.__setattr__ and bool(slots_of(kind)))
    asks = custom_reduce and not hasattr(kind, "__setstate__") and not isinstance(obj, type)
    linked = linked_dict(obj)  # before the next line refers to it
    own: Any = getattr(obj, "__dict__", None)
    takes_away = type(own) is dict and isinstance(getattr(kind, "__getstate__", None), FunctionType)
    is_made = wants_arguments(kind)
    if not (asks or takes_away or is_made or linked is not None):
        return NotImplemented
    before = dict(own) if takes_away else {}
    function, args, state, *rest = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    function = bare if is_made else function
    changed = [value for name, value in before.items() if own.get(name, before) is not value] if takes_away else []
    if any(isinstance(value, IOBase) and value.closed for value in changed):
        pass  # a lazily read file (an image) was read and closed: its earlier state is gone
    elif takes_away and (changed or own.keys() != before.keys()):
        become(obj, before)
        return function, args, before, None, None, become
    if linked is not None and not takes_away:
        slots = state[1] if isinstance(state, tuple) else None
        return function, args, (linked, slots), *rest, _link
    return function, args, state, *rest, *((set_attributes,) if asks else ())


def _link(obj: Any, state: tuple[dict[str, Any], dict[str, Any] | None]) -> None:
    own, slots = state
    link(obj, own)
    set_attributes(obj, (None, slots))


_WAYS_OF_LAYERS: tuple[Callable[[Any], Any], ...] = (reduced_by_library, reduced_as_it_is, reduced_archive, as_it_was)


def goes_by_attributes(obj: Any) -> bool:
    """Return whether an object must be written by its attributes, whatever its class defines."""
    if isinstance(obj, Optimizer) and "defaults" not in vars(obj):  # a wrapper that never called ``Optimizer.__init__``
        return True
    kind: Any = type(obj)
    reduces = kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__
    return reduces and gives_up_what_it_shares(obj)


def module_of_layers(module: nn.Module) -> Any:
    """Return the reduce value of a module that needs a special one, else ``NotImplemented``."""
    if parametrize.is_parametrized(module):
        return _parametrized(module)
    return next((found for way in _WAYS_OF_LAYERS if (found := way(module)) is not NotImplemented), NotImplemented)


def _parametrized(module: nn.Module) -> tuple[Any, ...]:
    """Return the reduce value of a parametrized module: torch gave it a dynamic class and refuses to pickle that."""
    return _new_parametrized, (type(module).__mro__[1],), module.__dict__, None, None, _parametrize


def _new_parametrized(kind: type[nn.Module]) -> nn.Module:
    module: nn.Module = kind.__new__(kind)
    parametrize._inject_new_class(module)
    return module


def _parametrize(module: nn.Module, state: dict[str, Any]) -> None:
    module.__dict__.update(state)
    for name in module.parametrizations:  # type: ignore[union-attr]
        parametrize._inject_property(module, name)


def become(obj: Any, attributes: dict[str, Any]) -> None:
    """Replace all attributes of `obj` by `attributes`."""
    vars(obj).clear()
    vars(obj).update(attributes)
