"""Objects whose class customizes pickling in user code: written with all their attributes instead.

A ``__getstate__`` often drops what another process could rebuild (a cache, a counter, a history), and ``__setstate__`` or ``__reduce__``
resets it. A cell must find all of it on an engine, and the notebook what the cell has changed. So the attributes are written. If some
cannot be pickled (a connection, a generator, a thread), the class's own way is used, and the other attributes are written in addition.
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch.optim import Optimizer

from .archives import go_back_to_archives
from .cached_functions import leave_caches
from .container_reducers import BASES, empty_container, fill_container, set_attributes
from .python_reducers import bare, is_of_python, slots_of, wants_arguments
from .staying_attributes import as_classes_say, attributes_of, is_plain_data, is_users, leave_to_classes, to_stay

_WAYS = ("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__")


def reduced_as_it_is(obj: Any, without: frozenset[str] = frozenset()) -> Any:
    """Return a reduce value by attributes for an object whose pickling is customized by user code, else ``NotImplemented``.

    Parameters
    ----------
    without : frozenset of str
        Attributes that are meaningless in another process. They become ``None``; those of an optimizer are left out.
    """
    kind: Any = type(obj)
    if as_classes_say.get() or not reduces_by_users_code(kind) or isinstance(obj, type | FunctionType | MethodType | ModuleType):
        return NotImplemented
    found, base = attributes_of(obj), next((base for base in BASES if isinstance(obj, base)), None)
    if found is None or not (any(found) or (base is not None and len(obj))):
        return NotImplemented
    own, slots = ({name: value for name, value in part.items() if name not in without} for part in found)
    if not isinstance(obj, Optimizer):
        own.update(dict.fromkeys(without))
    held = {**own, **slots}
    stay = to_stay(obj, held)
    if stay or not (base is not None or is_of_python(kind)):
        return _reduced_by_class(obj, {name: value for name, value in held.items() if name not in stay}, bool(stay), without)
    if base is not None:
        function, args, contents = empty_container(obj, base)
        return function, args, (contents, (own, slots)), None, None, _fill
    return bare, (kind,), (own, slots) if slots else own, None, None, set_attributes


def reduces_by_users_code(kind: Any) -> bool:
    """Return whether user code customizes how objects of `kind` are pickled."""
    ways = (*(getattr(kind, name, None) for name in _WAYS), copyreg.dispatch_table.get(kind))
    return any(isinstance(way, FunctionType) and is_users(way.__code__.co_filename) for way in ways)


def reduced_by_own_class(obj: Any) -> Any:
    """Return the reduce value of the class's own way, and undo changes that this makes to the attributes of `obj`."""
    own: Any = getattr(obj, "__dict__", None)
    before = dict(own) if type(own) is dict else own
    way = copyreg.dispatch_table.get(type(obj))
    try:
        return obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if way is None else way(obj)
    finally:
        if type(own) is dict and not (own.keys() == before.keys() and all(own[key] is value for key, value in before.items())):
            own.clear()
            own.update(before)


def go_back(cannot_be_written: Callable[[Any], bool]) -> bool:
    """Fall back to the classes' own way for objects that cannot be written by attributes, and leave out caches of functions.

    Returns whether there is one that was not known before.
    """
    return leave_what_cannot_be_saved(cannot_be_written) or go_back_to_archives(cannot_be_written)


def leave_what_cannot_be_saved(cannot_be_written: Callable[[Any], bool]) -> bool:
    """Leave attributes to the classes, and leave out caches of functions; return whether there is one that was not known before."""
    return leave_to_classes(cannot_be_written) or leave_caches(cannot_be_written)


# -- by the class's own way, with the other attributes in addition -----------------------------------------------------------


def _reduced_by_class(obj: Any, beside: dict[str, Any], is_incomplete: bool, without: frozenset[str]) -> Any:
    found = reduced_by_own_class(obj)
    if isinstance(found, str):  # the name of a global
        return NotImplemented
    function, args, state, items, pairs, setter = (*found, *[None] * 6)[:6]
    if function is copyreg.__newobj__ and wants_arguments(type(obj)):  # type: ignore[attr-defined]
        function, args = bare, (type(obj),)
    if type(state) is dict and without:
        state = {name: value for name, value in state.items() if name not in without}
    said = _state_dict_of(state)
    if said is not None:
        # If some attributes stay with the class, a bool may describe just these ("is open"), so the class sets it.
        beside = {
            name: value
            for name, value in beside.items()
            if said.get(name, is_plain_data) is not value and not (is_incomplete and type(value) is bool)
        }
    contents = None
    if (base := next((base for base in BASES if isinstance(obj, base)), None)) is not None:
        contents = empty_container(obj, base)[2]
    return function, args, (setter, state, contents, beside), items, pairs, _restore_with_rest


def _state_dict_of(state: Any) -> dict[str, Any] | None:
    """Return the attributes that a state sets, ``None`` if that is unknown."""
    if type(state) is tuple and len(state) == 2 and all(part is None or type(part) is dict for part in state):
        return {**(state[0] or {}), **(state[1] or {})}
    return state if type(state) is dict else None


def _restore_with_rest(obj: Any, parts: tuple[Any, Any, Any, dict[str, Any]]) -> None:
    setter, state, contents, beside = parts
    if state is not None:
        if setter is not None:
            setter(obj, state)
        elif hasattr(type(obj), "__setstate__"):
            obj.__setstate__(state)
        else:
            set_attributes(obj, state)
    if contents is not None:
        fill_container(obj, contents)
    _set(obj, beside)


def _fill(obj: Any, parts: tuple[Any, tuple[dict[str, Any], dict[str, Any]]]) -> None:
    fill_container(obj, parts[0])
    set_attributes(obj, parts[1])


def _set(obj: Any, attributes: dict[str, Any]) -> None:
    """Set attributes of `obj`, bypassing its own ``__setattr__``."""
    slots = slots_of(type(obj))
    set_attributes(obj, ({k: v for k, v in attributes.items() if k not in slots}, {k: v for k, v in attributes.items() if k in slots}))


def leaves_out(obj: Any, name: str) -> bool | None:
    """Return whether the class of `obj` drops attribute `name` when pickled; ``None`` if no user code customizes that."""
    if not reduces_by_users_code(type(obj)):
        return None
    found = reduced_by_own_class(obj)
    said = _state_dict_of(found[2]) if not isinstance(found, str) and len(found) > 2 else None
    return said is None or said.get(name, is_plain_data) is not (attributes_of(obj) or ({}, {}))[0].get(name)
