"""Code objects: what is in them, and what those that were rewritten for a run were before: only that leaves the process."""

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

_FUTURE_FLAGS = 0x1FF0000  # of a code object: what its file imports from __future__


def definitions(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of every ``def`` and ``class`` in a text's code.

    Lambdas and comprehensions hold nothing that is rewritten, and several may stand on one line.
    """
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if not constant.co_name.startswith("<"):
                yield constant
            yield from definitions(constant)


def key_of(code: CodeType) -> tuple[str, int]:
    """Return what tells the functions of one text apart."""
    return code.co_name, code.co_firstlineno


_originals: dict[int, tuple[weakref.ref[CodeType], CodeType]] = {}


def remember_original(code: CodeType, original: CodeType) -> None:
    """Remember what `code` was before it was rewritten, as long as it is there."""
    key = id(code)
    _originals[key] = weakref.ref(code, lambda _: _originals.pop(key, None)), original


def original_code(code: CodeType) -> CodeType | None:
    """Return what `code` was before it was rewritten; ``None`` if it was not."""
    found = _originals.get(id(code))
    return found[1] if found is not None and found[0]() is code else None


def future_flags(code: CodeType) -> int:
    """Return what the text of `code` imports from ``__future__``, as :func:`compile` wants it."""
    return code.co_flags & _FUTURE_FLAGS


def nested(code: CodeType) -> Iterator[CodeType]:
    """Yield the code that stands directly in `code`: of functions, classes, lambdas and comprehensions."""
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def everything(code: CodeType) -> Iterator[CodeType]:
    """Yield `code` and all that is in it, however deep."""
    yield code
    for inner in nested(code):
        yield from everything(inner)


def names_in(code: CodeType) -> set[str]:
    """Return the global names and attributes that code uses, and what is defined in it."""
    return {name for part in everything(code) for name in part.co_names}


def closed_over(function: FunctionType) -> Iterator[object]:
    """Yield what a function uses from around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it has no value yet
            yield cell.cell_contents


# Where Python's own library lies, and what is installed beside it: not the user's code.


@functools.cache
def installed_folders() -> tuple[str, ...]:
    """Return the beginnings of the names of files in there, links followed and not."""
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{path}{os.sep}" for path in libraries | {os.path.realpath(path) for path in libraries})


# The texts of cells and of the functions that were made from them, and what is mentioned in these.


def keep_text(filename: str, text: str) -> None:
    """Keep the `text` of a cell where tracebacks and ``inspect.getsource`` find it."""
    # mtime None keeps it from being checked against a file
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)


def sources_of(objects: Iterable[object]) -> dict[str, str]:
    """Return the texts that functions among `objects` were made from, by the names of their files. Those of libraries are left out."""
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
    """Return the names and attributes in a text, or in parts of it."""
    parts = (part for node in nodes for part in ast.walk(node))
    return {part.id if isinstance(part, ast.Name) else part.attr for part in parts if isinstance(part, ast.Name | ast.Attribute)}


def compiled_by_torch(tree: ast.AST) -> set[str]:
    """Return the names of what a text gives to ``torch.compile``, which knows no run that rewritten code could ask."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="compile")):
                found |= mentioned(node)
            case ast.FunctionDef() | ast.ClassDef() if "compile" in mentioned(*node.decorator_list):
                found.add(node.name)
    return found
