"""The texts of cells and of the functions that were made from them, and what is mentioned in these."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from types import FunctionType

from .installed import installed_folders


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
