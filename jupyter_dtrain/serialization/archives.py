"""Objects that pickle as an archive of their contents: written by their attributes instead.

A Keras model reduces to the bytes of a file, wrappers of other libraries to those of ``torch.save``. Unpickled, they have new parameters
that the optimizer does not refer to: the cell would train one set and the notebook keep another. If an object's reduce value lacks
tensors, modules, optimizers or schedulers that the object holds, its attributes are written instead.
"""

from __future__ import annotations

import copyreg
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from .python_reducers import bare, is_of_python
from .weak_references import PROXIES

_SHARED = (torch.Tensor, nn.Module, Optimizer, LRScheduler)  # types whose instances another object may hold as well
_OURS = f"{__name__.partition('.')[0]}."
_PLAIN = (dict, list, tuple, set, frozenset, deque)
_as_they_say: WeakValueDictionary[int, Any] = WeakValueDictionary()  # objects whose attributes cannot be written, by id
_met: WeakValueDictionary[int, Any] = WeakValueDictionary()  # objects that were written by their attributes, by id


def reduced_archive(obj: Any) -> Any:
    """Return a reduce value by attributes if the object's own one would lose shared objects, else ``NotImplemented``."""
    kind = type(obj)
    if str(kind.__module__).startswith(_OURS):  # for example RNG states, of which each snapshot has several
        return NotImplemented
    if not has_a_way_of_its_own(kind) or _as_they_say.get(id(obj)) is obj or not gives_up_what_it_shares(obj):
        return NotImplemented
    with suppress(TypeError):  # it cannot be weakly referenced
        _met[id(obj)] = obj
    make = bare if is_of_python(kind) else copyreg.__newobj__  # type: ignore[attr-defined]
    return make, (kind,), dict(vars(obj)), None, None, _become


def has_a_way_of_its_own(kind: type) -> bool:
    """Return whether `kind` or ``copyreg`` customizes how its objects are pickled."""
    anything: Any = kind
    return bool(
        anything.__reduce_ex__ is not object.__reduce_ex__
        or anything.__reduce__ is not object.__reduce__
        or anything.__getstate__ is not object.__getstate__
        or kind in copyreg.dispatch_table
    )


def gives_up_what_it_shares(obj: Any) -> bool:
    """Return whether the reduce value of `obj` lacks a shared object that `obj` holds."""
    own = getattr(obj, "__dict__", None)
    if type(own) is not dict or not (given_up := {id(part) for part in _shared_in(own)}):
        return False
    before = dict(own)
    try:
        found = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception:  # the class refuses to be pickled, for reasons of its own
        return True
    finally:
        if own.keys() != before.keys() or any(own[key] is not value for key, value in before.items()):
            own.clear()
            own.update(before)
    for part in _shared_in(found):
        given_up.discard(id(part))
    return bool(given_up)


def go_back_to_archives(cannot_be_written: Callable[[Any], bool]) -> bool:
    """Let objects pickle in their own way if their attributes cannot be written.

    Returns whether there is one that was not known before.
    """
    found = [obj for obj in list(_met.values()) if _as_they_say.get(id(obj)) is not obj and cannot_be_written(obj)]
    _as_they_say.update((id(obj), obj) for obj in found)
    return bool(found)


def _shared_in(holder: Any) -> Iterator[Any]:
    """Yield the shared objects in a dict or tuple and in built-in containers nested in it."""
    todo, met = deque([holder]), {id(holder)}
    while todo:
        found = todo.popleft()
        for part in (*found.keys(), *found.values()) if isinstance(found, dict) else found:
            if isinstance(part, _PLAIN):
                if id(part) not in met:
                    met.add(id(part))
                    todo.append(part)
            elif type(part) not in PROXIES and isinstance(part, _SHARED):
                yield part


def _become(obj: Any, attributes: dict[str, Any]) -> None:
    vars(obj).clear()
    vars(obj).update(attributes)
