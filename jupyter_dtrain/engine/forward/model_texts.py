"""The sources of the functions that a call of a model may run, with the names by which code refers to them.

Functions are followed as code refers to them: as globals, closure variables, attributes, items of containers that code or modules hold,
and methods whose names code computes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from ...analysis.ast_nodes import name_of
from ...analysis.code_objects import names_in
from ...analysis.function_source import tree_of
from ..code_inspection import function_of, owner_of
from ..user_frames import is_users, is_users_module
from .code_changes import CONTAINERS, MOST_ITEMS, places_in, places_of

_LOOKS_UP = frozenset(("globals", "eval", "exec"))


@dataclass(eq=False)
class Text:
    """The source of a function that a model may call.

    Attributes
    ----------
    filename : str
    tree : ast.AST
    names : set of str
        The names by which code refers to it.
    is_held : bool
        Whether it is an item of a container, or looked up by a computed name, so that a value chooses it.
    is_forward : bool
        Whether it is the ``forward`` of a module.
    """

    filename: str
    tree: ast.AST
    names: set[str] = field(default_factory=set)
    is_held: bool = False
    is_forward: bool = False


class ModelTexts:
    """The sources of the functions that a call of a model may run.

    Parameters
    ----------
    modules : iterable of module
        The model's modules.

    Attributes
    ----------
    texts : dict of CodeType to Text
    places : list of callable
        Where code may be bound anew, as :meth:`CodeChanges.follow` takes them.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.texts: dict[CodeType, Text] = {}
        self.places: list[Callable[[], Any]] = []
        self._looked_at: set[Any] = set()
        self._collect(modules)

    def _add_places(self, function: FunctionType, owner: Any, names: set[str]) -> None:
        """Record where the names in a function are bound to code."""
        kinds = [kind for kind in type(owner).__mro__ if is_users_module(kind.__module__)] if owner is not None else []
        for namespace in (function.__globals__, *map(vars, kinds)):
            new = {name for name in names if (id(namespace), name) not in self._looked_at}
            self._looked_at |= {(id(namespace), name) for name in new}
            self.places += places_in(namespace, sorted(new))
        new = {name for name in names if (id(owner), name) not in self._looked_at}
        self._looked_at |= {(id(owner), name) for name in new}
        self.places += places_of(owner, sorted(new))

    def _collect(self, modules: Iterable[nn.Module]) -> None:
        """Find the sources of all functions that a call may run."""
        waiting: list[tuple[Any, str, bool, Any]] = []  # values, with their names, whether something chooses them, and their owner
        for module in modules:
            waiting.append((module.forward, "forward", False, module))
            for name, value in list(vars(module).items()):
                if name not in ("_parameters", "_buffers", "_modules") and not isinstance(value, nn.Module):
                    waiting.append((value, name, False, module))
        seen: set[Any] = set()
        while waiting:
            value, name, is_held, owner = waiting.pop()
            if isinstance(value, CONTAINERS):
                items = value.values() if isinstance(value, dict) else value
                if id(value) not in seen:
                    seen.add(id(value))
                    waiting += [(item, name, True, owner) for item in islice(items, MOST_ITEMS)]
                continue
            function = function_of(value)
            if is_held and is_users_module(type(value).__module__) and not isinstance(value, nn.Module | type | FunctionType):
                methods = {other for kind in type(value).__mro__ if is_users_module(kind.__module__) for other in vars(kind)}
                waiting += [(member, other, True, own) for member, other, _, own in _members(value, methods) if other != "__init__"]
            if function is None or not is_users(function.__code__.co_filename):
                continue
            tree = tree_of(function.__code__)
            if tree is not None:
                text = self.texts.setdefault(function.__code__, Text(function.__code__.co_filename, tree))
                text.names |= {name, function.__name__}
                text.is_held |= is_held
                text.is_forward |= name == "forward"
            own = owner_of(value) or owner
            if (key := (function, id(own), is_held)) not in seen:
                seen.add(key)
                waiting += self._referred(function, own, tree)

    def _referred(self, function: FunctionType, owner: Any, tree: ast.AST | None) -> Iterator[tuple[Any, str, bool, Any]]:
        names = names_in(function.__code__)
        self._add_places(function, owner, names)
        around = [(name, function.__globals__.get(name)) for name in names]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                around.append((name, cell.cell_contents))
            except ValueError:  # the variable has no value yet
                continue
        for name, value in around:
            if isinstance(value, ModuleType):
                if is_users_module(value.__name__):
                    yield from ((vars(value).get(other), other, False, None) for other in names)
            elif isinstance(value, type):
                if is_users_module(value.__module__):
                    yield from ((_in_class(value, other), other, False, None) for other in names)
            elif value is not None:
                yield value, name, False, None
                if is_users_module(type(value).__module__) and not isinstance(value, nn.Module):
                    yield from _members(value, names)
        if not _LOOKS_UP.isdisjoint(names):
            yield from ((value, name, True, None) for name, value in function.__globals__.items() if isinstance(value, FunctionType))
        if owner is not None:
            yield from _members(owner, names)
            chosen = None if tree is None else _computed_names(tree)
            if chosen is not None and isinstance(owner, nn.Module):
                for other in {name for kind in type(owner).__mro__ if is_users_module(kind.__module__) for name in vars(kind)}:
                    if all(part in other for part in chosen) and not other.startswith("__") and other != "forward":
                        yield from ((value, name, True, own) for value, name, _, own in _members(owner, {other}))


def _members(owner: Any, names: Iterable[str]) -> Iterator[tuple[Any, str, bool, Any]]:
    attributes = getattr(owner, "__dict__", {})
    for name in names:
        if name in attributes:
            yield attributes[name], name, False, owner
        value = _in_class(type(owner), name)
        yield (MethodType(value, owner) if isinstance(value, FunctionType) else value), name, False, owner


def _in_class(kind: type, name: str) -> Any:
    return next((vars(part)[name] for part in kind.__mro__ if name in vars(part) and is_users_module(part.__module__)), None)


def _computed_names(tree: ast.AST) -> list[str] | None:
    """Return the texts in the names by which a function looks up attributes; ``None`` if it computes no name."""
    found: list[str] | None = None
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or name_of(node) not in ("getattr", "methodcaller", "attrgetter", "__getattribute__"):
            continue
        name = node.args[-1] if name_of(node) != "getattr" else node.args[1] if len(node.args) > 1 else None
        if name is not None and not isinstance(name, ast.Constant):
            parts = [part.value for part in ast.walk(name) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            found = parts if found is None and isinstance(name, ast.JoinedStr | ast.BinOp) else []
    return found
