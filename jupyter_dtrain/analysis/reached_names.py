"""Find the names in functions of a library that a notebook may reach: only these can differ from the library's defaults.

A large library has thousands of objects in its modules. The notebook can have changed only those that it mentions, or that a function that
it mentions does: ``sklearn.set_config(…)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from .code_objects import names_in

_MOST = 60  # number of functions whose callees are followed, as a function that sets something is close
_WORD = re.compile(r"[A-Za-z_]\w*")


@lru_cache(maxsize=1000)
def words_of(text: str) -> frozenset[str]:
    """Return all words of a text, including those in strings."""
    return frozenset(_WORD.findall(text))


def reached_names(package: str, modules: Sequence[ModuleType], words: Iterable[str]) -> frozenset[str]:
    """Return `words`, and the names in the functions of `modules` with these names and in those that they call."""
    known = _functions.get(package)
    if known is None or known[0] != len(modules):
        known = _functions[package] = len(modules), _by_name(modules)
        _reached.cache_clear()
    words = frozenset(words)
    return words | _reached(package, words.intersection(known[1]))


_functions: dict[str, tuple[int, dict[str, list[FunctionType]]]] = {}


@lru_cache(maxsize=200)
def _reached(package: str, names: frozenset[str]) -> frozenset[str]:
    by_name = _functions[package][1]
    todo, met = list(names), set(names)
    found: set[str] = set()
    num_functions = 0
    for name in todo:
        for function in by_name[name]:
            num_functions += 1
            used = names_in(function.__code__)
            found |= used
            if num_functions <= _MOST:
                more = (used & by_name.keys()) - met
                met |= more
                todo.extend(more)
    return frozenset(found)


def _by_name(modules: Sequence[ModuleType]) -> dict[str, list[FunctionType]]:
    """Return the functions of `modules` by name, and class and static methods also by the names of their classes."""
    found: dict[str, dict[int, FunctionType]] = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            for alias, function in _functions_in(name, value, module.__name__):
                found.setdefault(alias, {})[id(function)] = function
    return {name: list(functions.values()) for name, functions in found.items()}


def _functions_in(name: str, value: Any, home: str) -> Iterator[tuple[str, FunctionType]]:
    if type(value) is FunctionType and value.__module__ == home:
        while value is not None:  # the original of a decorated function
            if type(value) is FunctionType:
                yield name, value
            value = getattr(value, "__wrapped__", None)
    elif issubclass(type(value), type) and vars(value).get("__module__") == home:
        for part, method in list(vars(value).items()):
            if type(method) in (classmethod, staticmethod) and type(method.__func__) is FunctionType:
                yield from ((alias, method.__func__) for alias in (name, part))
