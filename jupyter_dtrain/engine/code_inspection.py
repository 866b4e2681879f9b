"""Inspect code without running it: find the names that it uses, and those in the functions that it calls.

The names tell what code may do: compute a statistic, write in place, ask for gradients. Functions are followed as code refers to them: as
globals, closure variables, members of modules beside the notebook, and attributes of objects that a model keeps.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, pairwise
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from ..analysis.code_objects import closed_over, everything, names_in, original_code
from .module_tree import modules_in
from .user_frames import is_users, is_users_module

TORCH = ("torch.", "torchvision.")
OWN = f"{__name__.partition('.')[0]}."  # this package, whose patches are in the way of what user code calls
_PLAIN = frozenset({type(None), bool, int, float, str, tuple, list, dict, set})
_MAKING = ("init", "reset")
_BY_NAME = frozenset(("getattr", "methodcaller", "attrgetter", "__getattribute__", "__dict__", "vars"))
_LOOKED_AT = 100  # most items visited in a container of a model, which may be data
NO_CALL = (
    nn.Module,
    torch.Tensor,
    type,
    ModuleType,
)  # calls of these run no code of their own, or code that is inspected otherwise


def model_uses(model: nn.Module, has: Callable[[CodeType, set[str]], bool], *, in_calls: bool = False) -> bool:
    """Return whether `has` is true for any code in `model` that is not PyTorch's, or that it calls, with the names in that code.

    With `in_calls`, code that only constructs the model is left out: ``__init__`` and its weight initialization, which no call runs.
    """
    parts = modules_in(model)
    kinds = {kind for module in parts for kind in type(module).__mro__}
    methods = [(name, value) for kind in kinds for name, value in vars(kind).items() if not _is_torchs_or_plain(value)]
    kept = [("", value) for part in parts for value in _kept(part) if not _is_torchs_or_plain(value)]
    is_made = not any(issubclass(kind, LazyModuleMixin) for kind in kinds)  # the first call of a lazy module initializes parameters
    left_out = _names_of_making(methods, kept) if in_calls and is_made else frozenset()
    seen: set[FunctionType] = set()
    return any(_uses(value, has, seen, methods=True) for name, value in chain(methods, kept) if name not in left_out)


def _names_of_making(methods: list[tuple[str, object]], kept: list[tuple[str, object]]) -> frozenset[str]:
    """Return the names of methods that only construct a model: no other code names them, and no code looks up methods by computed names."""
    found = {name for name, _ in methods if name == "__init__" or (any(word in name for word in _MAKING) and not name.startswith("__"))}
    while True:
        words: set[str] = set()
        seen: set[FunctionType] = set()
        for name, value in chain(methods, kept):
            if name not in found:
                _uses(value, partial(_note_words, words), seen, methods=True)
        named = found & words - {"__init__"} if words.isdisjoint(_BY_NAME) else found - {"__init__"}
        if not named:
            return frozenset(found)
        found -= named


def _note_words(words: set[str], code: CodeType, names: set[str]) -> bool:
    words.update(names, (const for part in everything(code) for const in part.co_consts if isinstance(const, str)))
    return False


def code_uses(function: object, has: Callable[[CodeType, set[str]], bool]) -> bool:
    """Return whether `has` is true for the code of `function`, or of functions that it calls, with the names in that code."""
    return _uses(function, has, set())


def call_uses(function: object, has: Callable[[CodeType, set[str]], bool]) -> bool:
    """Return as :func:`code_uses` for a call of `function`, following methods by name: of its own object and of user-defined objects."""
    return _uses(function, has, set(), methods=True)


def catches(code: CodeType) -> bool:
    """Return whether `code` is user code with an ``except``, so that a sample may be handled without raising an error."""
    if not is_users(code.co_filename):
        return False
    for part in everything(original_code(code) or code):
        names = [instruction.opname for instruction in dis.get_instructions(part)]
        if "CHECK_EXC_MATCH" in names or "CHECK_EG_MATCH" in names or ("PUSH_EXC_INFO", "POP_TOP") in pairwise(names):
            return True
    return False


def _is_torchs_or_plain(value: object) -> bool:
    """Return whether `value` has no code to inspect, decided quickly, since this holds for most class attributes of modules."""
    return f"{value.__module__}.".startswith(TORCH) if isinstance(value, FunctionType) else type(value) in _PLAIN


def _kept(module: nn.Module) -> Iterator[object]:
    """Yield callable candidates among a module's attributes, and the class members of user-defined objects in them."""
    for value in list(vars(module).values()):
        several = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else (value,)
        for one in islice(several, _LOOKED_AT):
            yield one
            kind = type(one)
            if not isinstance(one, NO_CALL) and kind.__module__ != "builtins" and is_users_module(kind.__module__):
                yield from vars(kind).values()


def _uses(
    value: object, has: Callable[[CodeType, set[str]], bool], seen: set[FunctionType], *, methods: bool = False, owner: object = None
) -> bool:
    function = function_of(value)
    if function is None or function in seen or f"{function.__module__}.".startswith(TORCH):
        return False
    seen.add(function)  # not its code object, which all functions of one decorator share
    if f"{function.__globals__.get('__name__')}.".startswith(OWN):  # not its module, which `functools.wraps` replaces
        return any(_uses(other, has, seen, methods=methods, owner=owner) for other in closed_over(function))
    names, owner = names_in(function.__code__), owner_of(value) or owner
    called = chain(_called(function, names), _methods(function, names, owner) if methods else ())
    return has(function.__code__, names) or any(_uses(other, has, seen, methods=methods, owner=owner) for other in called)


def owner_of(value: object) -> object:
    """Return the object that a call of `value` passes as ``self``; ``None`` if there is none."""
    while isinstance(value, partial):
        value = value.func
    if isinstance(value, MethodType):
        return value.__self__
    return None if isinstance(value, FunctionType | classmethod | staticmethod | property) else value


def _methods(function: FunctionType, names: set[str], owner: object) -> Iterator[object]:
    around = (*closed_over(function), *(function.__globals__.get(name) for name in names))
    for kind in (value for value in around if isinstance(value, type) and is_users_module(value.__module__)):
        yield from (vars(part)[name] for part in kind.__mro__ for name in names if name in vars(part))
    for known in (owner, *(value for value in around if is_users_module(type(value).__module__))):
        for name in names:
            yield getattr(known, "__dict__", {}).get(name)
            method = _in_class(known, name)
            yield MethodType(method, known) if isinstance(method, FunctionType) else method


def function_of(value: Any) -> FunctionType | None:
    """Return the Python function that a call of `value` runs, if any."""
    while not isinstance(value, FunctionType):
        if isinstance(value, partial):
            value = value.func
        elif isinstance(value, MethodType | classmethod | staticmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = value.fget
        else:
            call = None if isinstance(value, NO_CALL) else _in_class(value, "__call__")
            return call if isinstance(call, FunctionType) else None
    return value


def _called(function: FunctionType, names: set[str]) -> Iterator[object]:
    """Yield values that a function may call, given the names in its code."""
    yield from closed_over(function)
    for name in names:
        value = function.__globals__.get(name)
        yield value
        if isinstance(value, ModuleType) and is_users_module(value.__name__):
            yield from (vars(value).get(other) for other in names)


def _in_class(value: object, name: str) -> object:
    return next((vars(kind)[name] for kind in type(value).__mro__ if name in vars(kind)), None)
