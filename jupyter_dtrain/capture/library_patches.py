"""Attributes that a notebook has set in libraries: ``np.float = float``, ``nn.Module.count = count``, ``@add_to_class(Trainer)``.

Libraries have thousands of attributes. The code that was run, in the notebook and in modules of its folder, tells which of these were set;
their current values are sent.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

from ..serialization.copy_restore import DEFAULTS
from ..serialization.module_reducers import is_dynamic

_OF_THE_PROCESS = frozenset({"__main__", "IPython", "ipykernel", "os", "sys", __name__.partition(".")[0]})
_MISSING = object()
_ORIGINALS: dict[int, Any] = {}  # id of a value that was set → the library's own value


@dataclass(eq=False)
class Patch:
    """An attribute of a library's module, class or function that the notebook has set."""

    owner: Any
    name: str
    value: Any


def patches(namespace: Mapping[str, Any], modules: Iterable[ModuleType]) -> list[Patch]:
    """Return the patches that cells run in `namespace` and `modules` of its folder have made."""
    texts = [(text, namespace) for text in namespace.get("In", ()) if isinstance(text, str)]
    texts += [(text_of(module), vars(module)) for module in modules]
    found: dict[tuple[int, str], Patch] = {}
    for text, names in texts:
        for path, name in _assigned(text):
            owner = _resolve(path, names)
            value = _now(owner, name)
            if value is not _MISSING and _is_librarys(owner) and not _is_its_own(value, owner, name):
                found[id(owner), name] = Patch(owner, name, value)
    return list(found.values())


@contextmanager
def in_place(objects: Iterable[object]) -> Iterator[None]:
    """Apply the patches among `objects` to libraries within the ``with`` block."""
    made = [patch for patch in objects if isinstance(patch, Patch)]
    before = [_now(patch.owner, patch.name) for patch in made]
    try:
        for patch, value in zip(made, before, strict=True):
            _ORIGINALS[id(patch.value)] = value
            setattr(patch.owner, patch.name, patch.value)
        yield
    finally:
        _ORIGINALS.clear()
        for patch, value in zip(made, before, strict=True):
            if value is not _MISSING:
                setattr(patch.owner, patch.name, value)
            elif patch.name in vars(patch.owner):
                delattr(patch.owner, patch.name)


def original(function: Any) -> Any:
    """Return the library's own function if `function` is a patch of the notebook's, else `function` itself."""
    found = _ORIGINALS.get(id(function), _MISSING)
    return function if found is _MISSING else found


def _is_librarys(owner: Any) -> bool:
    if not (type(owner) in (ModuleType, FunctionType) or isinstance(owner, type)) or is_dynamic(owner):
        return False
    home = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return home.partition(".")[0] not in _OF_THE_PROCESS


def _now(owner: Any, name: str) -> Any:
    if type(owner) is FunctionType and name in DEFAULTS:
        return getattr(owner, name)
    return getattr(owner, "__dict__", {}).get(name, _MISSING)


def _is_its_own(value: Any, owner: Any, name: str) -> bool:
    """Return whether `value` is the library's original attribute: the assignment has not run, or was undone."""
    if not isinstance(value, FunctionType):
        return False
    home, path = (owner, name) if isinstance(owner, ModuleType) else (sys.modules.get(owner.__module__), f"{owner.__qualname__}.{name}")
    return home is not None and value.__globals__ is vars(home) and value.__qualname__ == path


def _resolve(path: tuple[str, ...], names: Mapping[str, Any]) -> Any:
    """Return the module or class at `path`, ``None`` if there is another object."""
    found = names.get(path[0])
    for name in path[1:]:
        if not isinstance(found, ModuleType | type):
            return None
        found = getattr(found, name, None)
    return found


def text_of(module: ModuleType) -> str:
    """Return the source text of a module, an empty one if there is none."""
    try:
        return inspect.getsource(module)
    except (OSError, TypeError):
        return ""


@lru_cache(maxsize=1000)
def _assigned(text: str) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the attributes that a text sets: the path to the owner of each, and its name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ()
    set_there = [pair for node in ast.walk(tree) for pair in _set_by(node)]
    return tuple({(path, name): None for owner, name in set_there if (path := _path(owner))})


def _set_by(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    match node:
        case ast.Attribute(value=owner, attr=name, ctx=ast.Store()):
            yield owner, name
        case ast.Subscript(value=ast.Attribute(value=owner, attr="__kwdefaults__" as name), ctx=ast.Store()):
            yield owner, name
        case ast.Call(func=ast.Name("setattr"), args=[owner, ast.Constant(value=str(name)), _]):
            yield owner, name
        case ast.FunctionDef(name=name, args=arguments, decorator_list=[_, *_]):
            for decorator in node.decorator_list:
                for owner in decorator.args if isinstance(decorator, ast.Call) else ():
                    yield owner, name
            for first in arguments.args[:1]:
                if first.annotation is not None:  # fastcore's `@patch`
                    yield first.annotation, name


def _path(expression: ast.expr) -> tuple[str, ...]:
    match expression:
        case ast.Name(id=name):
            return (name,)
        case ast.Attribute(value=owner, attr=name) if path := _path(owner):
            return (*path, name)
    return ()
