"""Modules that a cell, or a function that goes with it, imports by itself.

Where the notebook has imported such a module too, and it lies beside the notebook, it goes along: the notebook may have changed it
(``config.LR = 0.1``), and an engine would read its file. So does the module of a function that sets a global of it: else the new value
would not come home.
"""

from __future__ import annotations

import ast
import dis
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .code_objects import everything, installed_folders

_OURS = __name__.partition(".")[0]
_IMPORTS, _SETS = dis.opmap["IMPORT_NAME"], dis.opmap["STORE_GLOBAL"]


Stamp = tuple[int, int]  # time of a file's last change in ns, and its size in bytes
_brought: dict[str, Stamp] = {}  # modules that only cells on engines import: how their files were when they came home with a name


def stamp_of(module: ModuleType) -> Stamp:
    """Return what tells whether the file of `module` is another than before. No clock is asked: a file's may be another than Python's."""
    try:
        found = os.stat(str(getattr(module, "__dict__", {}).get("__file__")))  # noqa: PTH116  # a text, as Python has it
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


@contextmanager
def brought() -> Iterator[None]:
    """Take note of modules that are imported within the ``with`` block: it was not the notebook that imported them."""
    before = set(sys.modules)
    try:
        yield
    finally:
        _brought.update({name: stamp_of(module) for name in set(sys.modules) - before if (module := sys.modules.get(name)) is not None})


def _is_outdated(module: ModuleType) -> bool:
    """Return whether a module that came home with a name was edited since: the cell reads it again."""
    return module.__name__ in _brought and stamp_of(module) != _brought[module.__name__]


def imported_for(source: str, name: str) -> Any:
    """Return the module `name` of a library, imported if `source` has its name in it; ``None`` where it is not here."""
    if name.rpartition(".")[2] in source and name not in sys.modules:
        with suppress(ImportError):  # the cell says so itself
            return importlib.import_module(name)
    return sys.modules.get(name)


def imported_names(tree: ast.AST) -> frozenset[str]:
    """Return the names of the modules that the statements of `tree` may import."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def asked_for(names: Iterable[str], objects: Iterable[object], modules: Iterable[ModuleType]) -> list[ModuleType]:
    """Return those of `modules` that are imported by the `names` of a cell or by functions among `objects`, or set by these."""
    by_name = {module.__name__: module for module in modules}
    if not by_name:
        return []
    found = set(names)
    for obj in objects:
        if isinstance(obj, FunctionType):
            found |= set(_of_function(obj, by_name))
    with_parents = {name[:end] for name in found for end in (*(i for i, letter in enumerate(name) if letter == "."), len(name))}
    return [module for name, module in by_name.items() if name in with_parents and not _is_outdated(module)]


def _of_function(function: FunctionType, modules: Mapping[str, ModuleType]) -> Iterator[str]:
    own = str(function.__globals__.get("__name__"))
    sets = own in modules and function.__globals__ is vars(modules[own])
    for code in everything(function.__code__):
        instructions = code.co_code[::2]  # a look at these spares a list of them for nearly every function
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
    """Return the imported modules whose files lie under `folder` and are not installed."""
    here = f"{folder.resolve()}{os.sep}"
    found = []
    for name in sorted(sys.modules.keys() - _installed):
        module = sys.modules.get(name)
        # Some modules make up attributes when asked for them.
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
"""Names of imported modules that are: there are thousands, and each cell asks several times."""
