"""The objects that code can reach and change: from a model or a data set, through attributes, containers, functions and their globals.

Left out are objects of libraries that have nothing of a sample (loggers, data frames). An object that cannot be restored (an iterator, a
file that is written) makes what reaches it unverifiable; :attr:`Reachable.obstacle` names it.
"""

from __future__ import annotations

import functools
import io
import logging
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    GeneratorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from ...analysis.code_objects import names_in
from ...serialization.python_reducers import attribute_holders
from ...serialization.shared_values import is_shared_value
from ..rng.generators import state_of
from ..user_frames import is_users, is_users_module
from .contents import Cell, ClassValues, Globals

MOST = 300_000
"""Most objects that are visited."""
WIDEST = 20_000
"""Most entries of a container that are visited; of a larger one only their identity is recorded."""

_IMMUTABLE: tuple[type, ...] = (
    *(int, float, complex, str, bytes, type(None), type(...), range, slice, Enum, PurePath, CodeType, torch.jit.ScriptFunction),
    *(MethodDescriptorType, WrapperDescriptorType, torch.dtype, torch.device, torch.Size, torch.layout, np.generic, np.dtype),
    *(logging.Logger, DataLoader, weakref.ref, type(threading.Lock()), type(threading.RLock()), torch.cuda.Stream),
)
_SKIPPED = frozenset(("pandas", "polars", "pyarrow", "matplotlib", "IPython", "jupyter_dtrain", "asyncio", "concurrent", "typing", "abc"))
_COMPILER = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.fx", "torch.export")
"""Objects in which compilers keep their own data, nothing of samples."""
_TELLING = frozenset(("wandb", "mlflow", "tensorboard", "tensorboardX", "sqlite3", "socket", "_csv", "subprocess", "ipywidgets"))
"""Libraries whose objects report each call elsewhere."""
_OPAQUE = frozenset(("_queue", "_contextvars", "mmap", "zlib", "_bz2", "_lzma", "_ctypes", "_hashlib", "_blake2", "_sha3"))
"""Modules in C whose objects change and cannot be restored."""
_SHOWING = frozenset(("display", "input"))


@dataclass(frozen=True, slots=True)
class Holder:
    """An object that contains others by key or index. `where` is its name for the user: `` `Net` ``; `of` formats an entry's place."""

    content: Any
    where: str
    by_name: bool = False

    def place(self, key: object) -> str:
        """Return the name of an entry for the user."""
        return f"{self.where}.{key}" if self.by_name and self.where else str(key) if self.by_name else self.where


class Reachable:
    """The objects that code can reach and change.

    Parameters
    ----------
    roots : iterable of (str, object)
        The first objects, each with its name for the user.

    Attributes
    ----------
    holders : list of Holder
        Attributes, containers, globals, closures: each with contents that can be restored.
    tensors, arrays : list of (str, object)
        With their names for the user.
    generators : list
        Random generators.
    caches : list of (MutableMapping, str)
        Mappings and names of functions with ``functools.lru_cache``.
    files : list
        Files open for reading.
    obstacle : str
        An object that can change and cannot be restored; empty if there is none.
    """

    def __init__(self, roots: Iterable[tuple[str, object]]) -> None:
        self.holders: list[Holder] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []
        self.arrays: list[tuple[str, np.ndarray[Any, Any]]] = []
        self.generators: list[Any] = []
        self.caches: list[tuple[MutableMapping[str, Any], str]] = []
        self.files: list[Any] = []
        self.obstacle = ""
        self.numbers: dict[int, int] = {}  # of objects, in the order in which they are come to
        self._kept: list[object] = []
        self._names: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}  # globals of modules that functions use
        self._pending: list[tuple[str, object]] = list(roots)[::-1]
        while self._pending and not self.obstacle:
            where, value = self._pending.pop()
            if len(self._kept) > MOST:
                self.obstacle = "too many objects"
            elif not isinstance(value, _IMMUTABLE) and id(value) not in self.numbers:
                self.numbers[id(value)] = len(self._kept)
                self._kept.append(value)
                self._look(where, value)
        self._hold_globals()

    def _look(self, where: str, value: Any) -> None:
        match value:
            case torch.Tensor() if value.is_nested:  # writes into its samples are not seen
                self.obstacle = f"{where} (a nested tensor)"
            case torch.Tensor():
                self.tensors.append((where, value))
            case np.ndarray():
                self.arrays.append((where, value))
                if value.dtype.hasobject and value.size <= WIDEST:
                    self._push((where, item) for item in value.ravel().tolist())
            case dict() | list() | deque() | set() | bytearray() | array():
                self._hold(Holder(value, where))
            case memoryview():
                self._push(((where, value.obj),))
            case tuple() | frozenset():
                self._push((where, item) for item in value) if len(value) <= WIDEST else None
            case FunctionType():
                self._look_at_function(where, value)
            case MethodType():
                self._push(((where, value.__func__), (where, value.__self__)))
            case BuiltinMethodType() | MethodWrapperType():  # `log = notes.append`
                self._push(((where, value.__self__),) if not isinstance(value.__self__, ModuleType) else ())
            case functools.partial():
                self._push((where, part) for part in (value.func, value.args, value.keywords))
            case classmethod() | staticmethod():
                self._push(((where, value.__func__),))
            case property():
                self._push((where, part) for part in (value.fget, value.fset) if part is not None)
            case type():
                self._look_at_class(value)
            case ModuleType():
                if value.__name__.partition(".")[0] in _TELLING:
                    self.obstacle = f"`{value.__name__}`"
            case torch.jit.ScriptModule():  # its attributes are not Python's
                self._push((where, tensor) for tensor in (*value.parameters(), *value.buffers()))
            case io.IOBase():
                self._look_at_file(where, value)
            case _:
                self._look_at_object(where, value)

    def _push(self, parts: Iterable[tuple[str, object]]) -> None:
        self._pending.extend(list(parts)[::-1])

    def _hold(self, holder: Holder) -> None:
        self.holders.append(holder)
        content = holder.content
        if len(content) > WIDEST or isinstance(content, bytearray | array):
            return
        if isinstance(content, Mapping):
            for key, value in content.items():
                if isinstance(value, functools._lru_cache_wrapper):
                    self.caches.append((content, key))  # type: ignore[arg-type]  # one that can be written to
            self._push((holder.place(key), value) for key, value in list(content.items()))
        else:
            self._push((holder.where, value) for value in list(content))

    def _look_at_object(self, where: str, value: Any) -> None:
        kind = type(value)
        library = kind.__module__.partition(".")[0]
        if state_of(value) is not None:
            self.generators.append(value)
        elif is_shared_value(value):
            self.obstacle = f"{where} (a `multiprocessing.Value`)"
        elif isinstance(value, functools._lru_cache_wrapper):
            self._push(((where, value.__wrapped__),))
        elif library in _TELLING or {library, type(kind).__module__} & _OPAQUE or _is_iterator(value, library):
            self.obstacle = f"{where} (a `{kind.__name__}`)"
        elif library not in _SKIPPED and (library != "torch" or isinstance(value, nn.Module) or not kind.__module__.startswith(_COMPILER)):
            name = f"`{kind.__name__}`"
            for attributes in attribute_holders(value):
                self._hold(Holder(attributes, name, by_name=True))
            self._push(((name, kind),))

    def _look_at_class(self, kind: type) -> None:
        if is_users_module(str(kind.__module__)) and kind.__module__ != "builtins":
            self._hold(Holder(ClassValues(kind), f"`{kind.__name__}`", by_name=True))
            special = [value for name, value in vars(kind).items() if name.startswith("__") and isinstance(value, FunctionType)]
            self._push((f"`{kind.__name__}`", part) for part in (*kind.__bases__, *special))

    def _look_at_function(self, where: str, function: FunctionType) -> None:
        code = function.__code__
        if not is_users(code.co_filename):
            return
        names = names_in(code)
        if shown := _SHOWING.intersection(names):
            self.obstacle = f"`{min(shown)}` in `{function.__name__}`"
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            if id(cell) not in self.numbers:
                self.numbers[id(cell)] = len(self._kept)
                self._kept.append(cell)
                self._hold(Holder(Cell(cell, name), "", by_name=True))
        if vars(function):
            self._hold(Holder(vars(function), f"`{function.__name__}`", by_name=True))
        self._push((where, part) for part in (function.__defaults__, function.__kwdefaults__) if part)
        self._use(function.__globals__, names)

    def _use(self, module: dict[str, Any], names: set[str]) -> None:
        used = self._names.setdefault(id(module), (module, {}))[1]
        for name in sorted(names.difference(used)):
            used[name] = None  # one that is not there yet, too: the function may assign it
            value = module.get(name)
            if isinstance(value, ModuleType) and is_users_module(value.__name__) and value.__name__ != "__main__":
                self._use(vars(value), names)
            else:
                self._pending.append((name, value))

    def _hold_globals(self) -> None:
        """Record the globals that functions use, once all are known; their values have been visited."""
        for module, names in self._names.values():
            content = Globals(module, names)
            self.holders.append(Holder(content, "", by_name=True))
            self.caches += [(content, name) for name in names if isinstance(module.get(name), functools._lru_cache_wrapper)]

    def _look_at_file(self, where: str, file: Any) -> None:
        try:
            if file.closed:
                return
            if file.writable() or not file.seekable():
                self.obstacle = f"{where} (an open file)"
            else:
                self.files.append(file)
        except Exception:
            self.obstacle = f"{where} (an open file)"


def _is_iterator(value: object, library: str) -> bool:
    return (isinstance(value, GeneratorType) or hasattr(type(value), "__next__")) and library in ("builtins", "itertools", "_csv")
