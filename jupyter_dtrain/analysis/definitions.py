"""Extract the source of each function and class of the notebook, by which runs with the same cell text are compared.

A function is located by the first line of its code, and represented by the top-level statement that contains this line. So a class is
included completely, and a lambda with the assignment that names it.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterable
from types import FunctionType

from .code_objects import installed_folders, original_code

MAX_TEXT = 1 << 20
"""Maximum characters of all definitions that are recorded for a cell."""


def definitions_of(objects: Iterable[object]) -> dict[str, str]:
    """Return the source of the user's functions among `objects` by name, prefixed with the module's name for other modules."""
    not_the_users = (*installed_folders(), "<frozen")
    found: dict[str, str] = {}
    size = 0
    for function in objects:
        if not isinstance(function, FunctionType):
            continue
        code = original_code(function.__code__) or function.__code__
        if code.co_filename.startswith(not_the_users):
            continue
        lines = linecache.getlines(code.co_filename, function.__globals__)
        for first, last, name in _statements("".join(lines)):
            if first <= code.co_firstlineno <= last:
                text = "".join(lines[first - 1 : last])
                module = function.__module__
                shown = name if module in (None, "__main__") else f"{module}.{name}"
                if shown not in found and size + len(text) <= MAX_TEXT:
                    size += len(text)
                    found[shown] = text
                break
    return dict(sorted(found.items()))


@functools.lru_cache(maxsize=64)
def _statements(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return first line, last line and name of definitions and assignments at the top level of a text."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found = []
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                first = min((node.lineno, *(decorator.lineno for decorator in node.decorator_list)))
                found.append((first, node.end_lineno or first, node.name))
            case ast.Assign(targets=[ast.Name(id=name), *_]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.append((node.lineno, node.end_lineno or node.lineno, name))
    return tuple(found)
