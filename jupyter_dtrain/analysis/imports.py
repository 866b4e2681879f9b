"""Find modules that a cell, or a function that is sent with it, imports by itself.

If the notebook has imported such a module too, and its file is beside the notebook, it is sent: the notebook may have changed it
(``config.LR = 0.1``), and an engine would read its file. The module of a function that sets one of its globals is sent too; otherwise the
new value would not be returned.
"""

from __future__ import annotations

import ast
import dis
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .code_objects import everything, installed_folders

_OURS = __name__.partition(".")[0]
_IMPORTS, _SETS = dis.opmap["IMPORT_NAME"], dis.opmap["STORE_GLOBAL"]


Stamp = tuple[int, int]  # modification time of a file in ns, and its size in bytes
_brought: dict[str, tuple[Stamp, object]] = {}
"""Modules that this package imported and the notebook has not: stamps of their files, and their specs, which are new after a reload."""


def stamp_of(module: ModuleType) -> Stamp:
    """Return a value that changes with the file of `module`. It uses no clock, as the file system's may differ from Python's."""
    try:
        found = os.stat(str(getattr(module, "__dict__", {}).get("__file__")))  # noqa: PTH116  # `os.stat` as `__file__` is a string
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


@contextmanager
def brought() -> Iterator[None]:
    """Record modules that are imported in the ``with`` block, not by the notebook itself, and hide what they print."""
    before = set(sys.modules)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        note_brought(set(sys.modules) - before)


def note_brought(names: Iterable[str]) -> None:
    """Record that the notebook itself has not imported the modules of these names."""
    found = {name: module for name in names if (module := sys.modules.get(name)) is not None}
    _brought.update({name: (stamp_of(module), _spec_of(module)) for name, module in found.items()})


def _spec_of(module: ModuleType) -> object:
    return getattr(module, "__dict__", {}).get("__spec__")


def outdated(modules: Iterable[ModuleType]) -> frozenset[str]:
    """Return the names of the `modules` that cells have brought if one was edited since: a cell imports them again from their files.

    All of them, as others may have imported names from that one.
    """
    brought = {module.__name__: module for module in modules if _brought.get(module.__name__, (None, _brought))[1] is _spec_of(module)}
    is_edited = any(stamp_of(module) != _brought[name][0] for name, module in brought.items())
    return frozenset(brought if is_edited else ())


def imported_for(source: str, name: str) -> Any:
    """Return the module `name` of a library, imported if `source` mentions it; ``None`` if it is not available."""
    if name.rpartition(".")[2] in source and name not in sys.modules:
        with suppress(ImportError):  # the cell raises the error itself
            return importlib.import_module(name)
    return sys.modules.get(name)


def imported_names(tree: ast.AST) -> frozenset[str]:
    """Return the names of the modules that `tree` may import."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def asked_for(names: Iterable[str], objects: Iterable[object], modules: Iterable[ModuleType]) -> list[ModuleType]:
    """Return those of `modules` that the `names` of a cell or functions among `objects` import, or whose globals these set."""
    by_name = {module.__name__: module for module in modules}
    if not by_name:
        return []
    found = set(names)
    for obj in objects:
        if isinstance(obj, FunctionType):
            found |= set(_of_function(obj, by_name))
    with_parents = {name[:end] for name in found for end in (*(i for i, letter in enumerate(name) if letter == "."), len(name))}
    old = outdated(by_name.values())
    return [module for name, module in by_name.items() if name in with_parents and name not in old]


def _of_function(function: FunctionType, modules: Mapping[str, ModuleType]) -> Iterator[str]:
    own = str(function.__globals__.get("__name__"))
    sets = own in modules and function.__globals__ is vars(modules[own])
    for code in everything(function.__code__):
        instructions = code.co_code[::2]  # checking opcodes first avoids disassembling nearly every function
        if sets and _SETS in instructions and any(step.opcode == _SETS for step in dis.get_instructions(code)):
            yield own
        if _IMPORTS in instructions:
            yield from _imports(code, function.__globals__.get("__package__") or "")


def _imports(code: CodeType, package: str) -> Iterator[str]:
    steps = list(dis.get_instructions(code))
    for position, step in enumerate(steps):
        if step.opcode != _IMPORTS or position < 2:
            continue
        level, parts, name = steps[position - 2].argval, steps[position - 1].argval, str(step.argval)
        if level:
            try:
                name = importlib.util.resolve_name("." * level + name, package)
            except ImportError:
                continue
        yield name
        yield from (f"{name}.{part}" for part in parts or ())


def modules_beside(folder: Path) -> list[ModuleType]:
    """Return the imported modules whose files are under `folder` and not installed."""
    here = f"{folder.resolve()}{os.sep}"
    found = []
    for name in sorted(sys.modules.keys() - _installed):
        module = sys.modules.get(name)
        # Read `__dict__`, as some modules create attributes on access.
        attributes = getattr(module, "__dict__", {})
        file = attributes.get("__file__")
        if module is None or not isinstance(file, str) or attributes.get("__name__") != name or name == "__main__":
            continue
        if name.partition(".")[0] == _OURS or file.startswith(installed_folders()) or "site-packages" in file:
            _installed.add(name)
        elif os.path.realpath(file).startswith(here):
            found.append(module)
    return found


_installed: set[str] = set()
"""Cache of names of installed modules: there are thousands, and each cell asks several times."""
