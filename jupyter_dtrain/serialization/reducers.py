"""Reduce values for objects whose own pickling fails or loses something that a cell needs.

An optimizer loses the attributes of a subclass, a tensor its gradient and hooks; a DataLoader holds worker processes; a parametrized
module refuses. Each function here returns what ``__reduce_ex__`` should have returned.
"""

from __future__ import annotations

import copyreg
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.distributions import Transform
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.hooks import RemovableHandle

from ..integrations.registry import process_attributes, reduced_by_library
from .archives import reduced_archive
from .attribute_reducers import as_it_was, goes_by_attributes, module_of_layers
from .cached_functions import is_notebooks, reduced_cached
from .class_reducers import reduced_class
from .container_reducers import reduced_container, reduced_own, set_attributes
from .context_variables import reduced_variable
from .custom_reduce import leaves_out, reduced_as_it_is
from .dict_views import reduced_dict_view
from .enumerations import reduced_enumeration
from .exceptions import reduced_exception
from .global_hooks import reduced_registry
from .gpu_reducers import reduced_stream
from .itertools_parts import first_round_of, reduced_itertools
from .late_bound import reduced_late
from .library_constants import reduced_constant
from .loader_workers import set_loader, with_seed
from .locks import reduced_lock
from .memory_views import reduced_view
from .module_reducers import itself, reduced_python_module
from .open_files import reduced_file
from .operator_reducers import reduced_compiled, reduced_operator
from .progress_bars import is_progress_bar, reduced_bar
from .python_reducers import (
    reduced_library_function,
    reduced_renamed,
    reduced_value,
)
from .registries import registered
from .scheduler_steps import reduced_step
from .shared_attributes import reduced_sharing
from .shared_tensors import reduced_array
from .shared_values import reduced_shared_value
from .stand_ins import is_found_by_name, named, stands_for
from .torch_reducers import methods_of, reduced_function, reduced_module, reduced_profile, reduced_tensor, set_optimizer
from .weak_references import OWN, is_weak, is_weak_container, reduced_weak


def reduced(obj: Any, words: Collection[str]) -> Any:
    """Return the reduce value of `obj`, or ``NotImplemented`` if its own suffices.

    Parameters
    ----------
    words : collection of str
        Attributes that the code uses. For a module written by name, submodules of these names are imported with it.
    """
    if is_weak(obj):  # first: for a proxy, the checks below would see its target
        return reduced_weak(obj)
    match obj:
        case torch.Tensor():
            return reduced_tensor(obj)
        case DistributedDataParallel():
            return itself, (obj.module,)  # its process group belongs to this process, so only the module is sent
        case Optimizer() | DataLoader():
            return _without(obj, foreign_attributes(obj))
        case _ if of_the_process := process_attributes(obj):
            return _without(obj, of_the_process)
        case torch.jit.ScriptModule():
            return reduced_module(obj)
        case torch.jit.ScriptFunction():
            return reduced_function(obj)
        case nn.Module():
            return registered(obj, module_of_layers(obj))
        case RemovableHandle():
            hooks, number, more = obj.__getstate__()
            state = (hooks, number, tuple(some for some in more if some is not None))  # dead references could not be read
            return copyreg.__newobj__, (type(obj),), state  # type: ignore[attr-defined]
        case ModuleType():
            return reduced_python_module(obj, words)
        case dict() | list() | set() | deque():
            return next((found for way in _CONTAINERS if (found := way(obj)) is not NotImplemented), NotImplemented)
        case Transform() if type(obj).__getstate__ is Transform.__getstate__:  # its own state lacks the inverse
            return copyreg.__newobj__, (type(obj),), dict(vars(obj))  # type: ignore[attr-defined]
        case torch.finfo() | torch.iinfo():
            return type(obj), (getattr(torch, obj.dtype),)
        case cached_property():
            return _cached_property_of, (obj.func, obj.attrname)  # before Python 3.12 it holds a lock
        case _ if is_notebooks(obj):
            return reduced_cached(obj)
        case FunctionType() | type() if (found := _standing_in(obj)) is not None:
            return found
        case MethodType() if isinstance(obj.__self__, type) and is_found_by_name(obj):
            return getattr, (obj.__self__, obj.__name__)  # `MyFunction.apply`: the function behind it is a library's and not importable
        case GeneratorType() if obj.gi_frame is None:
            return _ended_generator, ()
        case _ if (why := _why_it_stays(obj)) is not None:
            raise TypeError(why)
    return next((found for way in _WAYS if (found := way(obj)) is not NotImplemented), NotImplemented)


def _standing_in(obj: FunctionType | type) -> Any:
    """Return the reduce value of a function or class in another's place, PyTorch's or ours; ``None`` for all else."""
    if isinstance(obj, FunctionType) and (found := reduced_step(obj)) is not None:
        return found
    value = stands_for(obj)
    return None if value is None else named(obj, value) or (itself, (value,))


def _of_other_class(obj: Any) -> Any:
    if type(obj) is not MethodType or reduced_file(obj.__self__) is NotImplemented:
        return NotImplemented
    return getattr, (obj.__self__, obj.__name__)  # `sys.stdout.write`: the stream has another class at the reader


def _why_it_stays(obj: Any) -> str | None:
    if is_progress_bar(obj) and not obj.disable:
        # Its display belongs to this process. A bar over a plain stream could be pickled, but not unpickled.
        return f"cannot pickle {type(obj).__name__!r} object: a progress bar stays where it was made"
    if isinstance(obj, _BaseDataLoaderIter):
        begins = "`iter(loader)` inside the cell begins a new one, with the first batch"
        return f"an iteration over a DataLoader stays in the process that has begun it; {begins}"
    if (inside := first_round_of(obj)) is not None:  # the reader could only make a cycle that holds another iterator
        return _why_it_stays(inside) or "cannot pickle 'itertools.cycle' object in its first round"
    return None


def forgets(obj: object, name: str) -> bool:
    """Return whether `obj` itself leaves attribute `name` out of its pickled state."""
    if (left := leaves_out(obj, name)) is not None:
        return left
    found = as_it_was(obj)
    if found is NotImplemented or len(found) < 3:
        return False
    state = found[2][0] if isinstance(found[2], tuple) else found[2]
    return isinstance(state, dict) and name not in state


_CONTAINERS: tuple[Callable[[Any], Any], ...] = (reduced_registry, reduced_own, reduced_by_library, reduced_as_it_is, reduced_container)
_WAYS: tuple[Callable[[Any], Any], ...] = (
    reduced_late,
    reduced_constant,
    reduced_bar,
    *(
        reduced_stream,
        reduced_view,
        reduced_lock,
        reduced_variable,
        reduced_shared_value,
        reduced_by_library,
        reduced_itertools,
        reduced_file,
        _of_other_class,
        reduced_own,
        reduced_sharing,
        reduced_dict_view,
    ),
    reduced_array,
    *(reduced_compiled, reduced_operator, reduced_profile, reduced_renamed, reduced_exception, reduced_value, reduced_library_function),
    reduced_enumeration,
    reduced_class,
    reduced_as_it_is,
    reduced_archive,
    as_it_was,
)


def _ended_generator() -> Iterator[Any]:
    generator = (item for item in tuple[Any, ...]())
    next(generator, None)
    return generator


def foreign_attributes(obj: object) -> frozenset[str]:
    """Return the attributes of `obj` that mean nothing in another process."""
    if isinstance(obj, DataLoader):
        return _ITERATOR  # the iterator of persistent workers; the reader starts its own
    if isinstance(obj, nn.RNNBase):
        return _REFERENCES  # weak references, which the module makes anew
    if isinstance(obj, torch.jit.ScriptModule):
        return methods_of(obj)
    if is_weak_container(obj):
        return OWN  # implied by its items
    return process_attributes(obj)


_ITERATOR, _REFERENCES = frozenset({"_iterator"}), frozenset({"_flat_weight_refs"})


def _without(obj: Any, names: frozenset[str]) -> tuple[Any, ...]:
    """Return the reduce value of `obj` without some of its attributes."""
    if type(found := reduced_as_it_is(obj, without=names)) is tuple:
        return found
    if goes_by_attributes(obj):
        own_state = {key: value for key, value in vars(obj).items() if key not in names}
        return copyreg.__newobj__, (type(obj),), own_state, None, None, set_attributes  # type: ignore[attr-defined]
    function, args, *more = obj.__reduce_ex__(4)
    if not more:  # its own reduce value has no state
        return function, args
    state, *rest = more
    own: Any = type(obj).__getstate__
    if own is object.__getstate__ or own is Optimizer.__getstate__:
        # Optimizer.__getstate__ knows only three attributes: a subclass would lose its own.
        state = obj.__dict__
    if isinstance(state, dict):
        state = {key: value for key, value in state.items() if key not in names}
        if not isinstance(obj, Optimizer):
            state.update(dict.fromkeys(names))
    if isinstance(obj, DataLoader) and own is object.__getstate__:
        return function, args, with_seed(obj, state), None, None, set_loader
    if isinstance(obj, Optimizer) and isinstance(state, dict) and not any(rest):
        return function, args, state, None, None, set_optimizer
    return (function, args, state, *rest)


def _cached_property_of(function: Callable[[Any], Any], name: str | None) -> cached_property[Any]:
    made = cached_property(function)
    made.attrname = name
    return made
