"""Inspect code objects, and map rewritten ones to their originals, as only the originals leave the process."""

from __future__ import annotations

import ast
import functools
import linecache
import os
import sysconfig
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import TypeGuard

_FUTURE_FLAGS = 0x1FF0000  # flags of a code object for its imports from __future__


def definitions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of every ``def`` and ``class`` inside `code`.

    Lambdas and comprehensions contain nothing that is rewritten, and several may be on one line.
    """
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if not constant.co_name.startswith("<"):
                yield constant
            yield from definitions(constant)


def key_of(code: CodeType) -> tuple[str, int]:
    """Return a key that identifies a function within its source text."""
    return code.co_name, code.co_firstlineno


_originals: dict[int, tuple[weakref.ref[CodeType], CodeType]] = {}


def remember_original(code: CodeType, original: CodeType) -> None:
    """Store the code that `code` was rewritten from, for the lifetime of `code`."""
    key = id(code)
    _originals[key] = weakref.ref(code, lambda _: _originals.pop(key, None)), original


def original_code(code: CodeType) -> CodeType | None:
    """Return the code that `code` was rewritten from; ``None`` if it is not rewritten."""
    found = _originals.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def future_flags(code: CodeType) -> int:
    """Return the flags of imports from ``__future__`` in `code`, for :func:`compile`."""
    return code.co_flags & _FUTURE_FLAGS


def without_futures(text: str, filename: str) -> ast.Module:
    """Return the tree of a cell's text without imports from ``__future__``, whose flags are given to :func:`compile` instead.

    IPython compiles each statement for itself, so that in a cell they may follow others, for which Python itself refuses a text.
    """
    tree = ast.parse(text, filename)
    tree.body = [node for node in tree.body if not is_future(node)]
    return tree


def is_future(node: ast.stmt) -> TypeGuard[ast.ImportFrom]:
    """Return whether a statement is an import from ``__future__``."""
    return isinstance(node, ast.ImportFrom) and node.module == "__future__" and not node.level


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield the code directly inside `code`: of functions, classes, lambdas and comprehensions."""
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def everything(code: CodeType) -> Iterator[CodeType]:
    """Yield `code` and all code inside it, at any depth."""
    yield code
    for inner in nested(code):
        yield from everything(inner)


def names_in(code: CodeType) -> set[str]:
    """Return the global names and attributes that `code` uses, including code inside it."""
    return {name for part in everything(code) for name in part.co_names}


def closed_over(function: FunctionType) -> Iterator[object]:
    """Yield the values of a function's closure."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # the variable has no value yet
            yield cell.cell_contents


# Folders of the standard library and of installed packages, which are not the user's code.


@functools.cache
def installed_folders() -> tuple[str, ...]:
    """Return the path prefixes of files in these folders, with and without links resolved."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{path}{os.sep}" for path in libraries | {os.path.realpath(path) for path in libraries})


# Source texts of cells and of functions, and the names that they mention.


def keep_text(filename: str, text: str) -> None:
    """Store the `text` of a cell where tracebacks and ``inspect.getsource`` find it."""
    # With mtime None, the cache entry is not checked against a file.
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


def sources_of(objects: Iterable[object]) -> dict[str, str]:
    """Return the source texts of functions among `objects` by file name, without those of installed packages."""
    not_the_users = (*installed_folders(), "<frozen")
    found: dict[str, str] = {}
    for obj in objects:
        if isinstance(obj, FunctionType):
            filename = obj.__code__.co_filename
            if filename not in found and not filename.startswith(not_the_users):
                lines = linecache.getlines(filename, obj.__globals__)
                if lines:
                    found[filename] = "".join(lines)
    return found


def mentioned(*nodes: ast.AST) -> set[str]:
    """Return the names and attributes in syntax nodes."""
    parts = (part for node in nodes for part in ast.walk(node))
    return {part.id if isinstance(part, ast.Name) else part.attr for part in parts if isinstance(part, ast.Name | ast.Attribute)}


def compiled_by_torch(tree: ast.AST) -> set[str]:
    """Return the names passed to ``torch.compile``. Compiled code must not be rewritten, as it could not call the run."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="compile")):
                found |= mentioned(node)
            case ast.FunctionDef() | ast.ClassDef() if "compile" in mentioned(*node.decorator_list):
                found.add(node.name)
    return found
