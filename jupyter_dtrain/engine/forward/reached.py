"""Find what a call of a model may change in place besides registered parameters and buffers.

A model can keep state anywhere: a tensor or array in an attribute, a meter, a dict of the notebook, a class. None of these is registered
with PyTorch. This module finds them by following references: attributes, items, and the globals and closure variables of functions.
"""

from __future__ import annotations

import array
import dis
import io
import logging
import random
import weakref
from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ...analysis.code_objects import closed_over, everything, names_in
from ...serialization.item_restore import is_frame
from ...serialization.python_reducers import attribute_holders
from ...serialization.shared_values import is_shared_value
from ..module_tree import modules_in
from ..tensor.materialize import attributes_worth_a_look
from ..tensor.placement_types import GlobalTensor
from ..user_frames import is_users, is_users_module
from .holders import Holder, ModuleAttributes, Variables, globals_in, is_code, variables_around, variables_of_class

_PLAIN = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, slice)
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_NO_STATE = (*_GENERATORS, torch.optim.Optimizer, DataLoader, _BaseDataLoaderIter, logging.Logger, weakref.ref, io.IOBase)
"""Objects that other code tracks, or that a model's call does not change."""
_SERVICES = frozenset(("_thread", "threading", "queue", "_queue", "socket", "_io", "asyncio.locks", "concurrent.futures.thread"))
_CONTAINERS = (list, dict, set, deque)
_BUFFERS = (bytearray, array.array, io.StringIO, io.BytesIO)
_MOST_ITEMS, _MOST = 100_000, 20_000


@dataclass
class Reached:
    """What a model's call can change.

    Attributes
    ----------
    modules : list of nn.Module
        The model's modules, and others that it refers to.
    holders : list
        Containers, attributes of objects, and variables.
    tensors : list of tensor
        Tensors that are not registered in the model.
    arrays : list of ndarray
    others : list of object
        Objects that hold bytes, text or tables.
    iterators : list of object
        Generators and the like. Their items cannot be produced twice, so a call that consumes them must not be repeated.
    """

    modules: list[nn.Module] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    arrays: list[np.ndarray[Any, Any]] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)
    iterators: list[Any] = field(default_factory=list)


def reached_from(model: nn.Module) -> Reached:
    """Return what a call of `model` can change besides its parameters and buffers."""
    own = modules_in(model)
    registered = {id(t) for part in own for t in (*part._parameters.values(), *part._buffers.values())}
    return Walk(own, registered).found


class Walk:
    """A breadth-first walk over all objects reachable from `roots`.

    Parameters
    ----------
    roots : iterable of object
    registered : set of int
        Ids of tensors to leave out.
    """

    def __init__(self, roots: Iterable[Any], registered: Set[int] = frozenset()) -> None:
        self.found = Reached()
        self.seen: dict[int, Any] = {}  # references keep ids unique during the walk
        self._registered = registered
        level = list(roots)
        while level and len(self.seen) < _MOST:
            following: list[Any] = []
            for value in level:
                if not isinstance(value, _PLAIN) and id(value) not in self.seen:
                    self.seen[id(value)] = value
                    following += self._look(value)
            level = following

    def _hold(self, holder: Holder) -> None:
        if not isinstance(holder, Variables) or holder.names:
            self.found.holders.append(holder)

    def _look(self, value: Any) -> Iterable[Any]:
        """Record `value` if a call can change it, and return the objects that it refers to."""
        match value:
            case torch.Tensor():
                if not isinstance(value, GlobalTensor) and id(value) not in self._registered:
                    self.found.tensors.append(value)
                return vars(value).values() if type(value) is nn.Parameter else ()
            case np.ndarray():
                self.found.arrays.append(value)
                return value.ravel().tolist() if value.dtype.hasobject and value.size <= _MOST_ITEMS else ()
            case nn.Module():
                return self._of_module(value)
            case list() | dict() | set() | deque():
                if len(value) > _MOST_ITEMS:
                    return ()
                self._hold(value)
                items = list(dict.values(value)) if isinstance(value, dict) else list(value)
                return items if type(value) in _CONTAINERS else [*items, *self._of_object(value)]
            case tuple() | frozenset():
                return value if len(value) <= _MOST_ITEMS else ()
            case FunctionType():
                return self._of_function(value)
            case MethodType():
                return value.__self__, value.__func__
            case BuiltinMethodType() | MethodWrapperType():  # `log = notes.append`
                return (value.__self__,)
            case classmethod() | staticmethod():
                return (value.__func__,)
            case property():
                return value.fget, value.fset
            case partial():
                return value.func, value.args, value.keywords
            case CellType():
                return ()
            case type():
                return self._of_class(value)
            case _ if isinstance(value, _BUFFERS) or is_frame(value) or is_shared_value(value):
                self.found.others.append(value)
                return ()
            case _ if isinstance(value, (*_NO_STATE, ModuleType)):
                return ()
            case _ if is_iterator(value):
                self.found.iterators.append(value)
                return ()
        return self._of_object(value)

    def _of_module(self, module: nn.Module) -> Iterable[Any]:
        if isinstance(module, torch.jit.ScriptModule):
            return ()  # it has no attributes that Python code could change
        self.found.modules.append(module)
        attributes = ModuleAttributes(module)
        self._hold(attributes)
        members = (module.__dict__.get(name, {}).values() for name in ("_parameters", "_buffers", "_modules"))
        return [*attributes.values(), *(value for values in members for value in values), type(module)]

    def _of_object(self, value: Any) -> Iterable[Any]:
        kind = type(value)
        holders: list[Any] = attribute_holders(value) if isinstance(value, _CONTAINERS) else list(attributes_worth_a_look(value))
        if is_users_module(str(kind.__module__)):
            holders = holders or attribute_holders(value)
        elif any(type(item).__module__ in _SERVICES for holder in holders for item in holder.values()):
            return ()  # a library's threads may change it at any time
        for holder in holders:
            self._hold(holder)
        return [*(item for holder in holders for item in holder.values()), kind]

    def _of_class(self, kind: type) -> Iterable[Any]:
        if not is_users_module(str(kind.__module__)):
            # A library's class may have base classes from the notebook.
            return [base for base in kind.__mro__[1:] if is_users_module(str(base.__module__))]
        self._hold(variables_of_class(kind))
        return [*vars(kind).values(), *kind.__bases__]

    def _of_function(self, function: FunctionType) -> Iterable[Any]:
        if not is_users(function.__code__.co_filename):
            return [wrapped for wrapped in (vars(function).get("__wrapped__"),) if isinstance(wrapped, FunctionType)]
        namespace, names = function.__globals__, names_in(function.__code__)
        stored, bound = _stores(function.__code__)
        if stored:
            self._hold(globals_in(namespace, stored))
        if bound:
            self._hold(variables_around(function, bound))
        if vars(function):
            self._hold(vars(function))
        found: list[Any] = [*vars(function).values(), *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        found += closed_over(function)
        for name in names:
            value = namespace.get(name)
            if not isinstance(value, ModuleType):
                found.append(value)
            elif is_users_module(value.__name__):
                used = [other for other in names if other in vars(value)]
                self._hold(globals_in(vars(value), [other for other in used if not is_code(vars(value)[other])]))
                found += [vars(value)[other] for other in used]
        return found


def is_iterator(value: object) -> bool:
    """Return whether `value` keeps its position out of reach of Python code: a generator, ``itertools.count()``, ``iter(…)``."""
    return hasattr(type(value), "__next__") and not attribute_holders(value)


@lru_cache(1024)
def _stores(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the globals, and the closure variables, that `code` binds."""
    stored: set[str] = set()
    bound: set[str] = set()
    for part in everything(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                stored.add(instruction.argval)
            elif instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in code.co_freevars:
                bound.add(instruction.argval)
    return frozenset(stored), frozenset(bound)
