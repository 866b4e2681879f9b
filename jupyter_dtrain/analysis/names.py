"""Determine the names that a cell's text needs from the notebook.

The analysis follows the order of the statements. A name that the cell always assigns before it reads it is not needed, so its old value (a
loss with its autograd graph, an iterator that cannot be pickled) is not sent. Where the order is unknown (branches, function bodies, after
a loop), a name is *maybe* needed: it is sent if it can be pickled, and omitted otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from .code_objects import everything
from .imports import imported_names
from .name_flow import NameFlow, global_reads

_WORD = re.compile(r"[^\W\d]\w*")
_IN_COMMAND = re.compile(r"[{$]\s*([^\W\d]\w*)")
_IN_QUERY = re.compile(r"@([^\W\d]\w*)")


@dataclass(frozen=True)
class CellNames:
    """Names that a cell reads from the notebook, each with the line of its first read.

    Attributes
    ----------
    needed : dict of str to int
        Read before any assignment in the cell.
    maybe : dict of str to int
        Read where an assignment in the cell may or may not have come first.
    attributes, imports, magics : set of str
        Attributes that the cell uses of any object, modules that it may import, and magics that it calls.
    deleted : set of str
        Names that it may delete, also where a handler's ``as`` ends.
    """

    needed: dict[str, int]
    maybe: dict[str, int]
    attributes: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()
    magics: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[str]:
        yield from self.needed
        yield from self.maybe


def find_names(tree: ast.Module) -> CellNames:
    """Return the names that the statements of `tree`, which must compile, read before they assign them."""
    flow = NameFlow()
    flow.statements(tree.body, assigned=set())
    in_magics = dict(reversed(list(_words_in_magics(tree))))
    in_texts = dict(reversed(list(_words_in_queries(tree)))) | in_magics | dict(_main_by_name(tree))
    deleted = frozenset(_deleted_in(tree))
    in_texts |= {name: line for name, line in _declared_global(tree) if name in deleted}  # which a function takes along when it is pickled
    maybe = {name: line for name, line in (in_texts | flow.maybe).items() if name not in flow.needed}
    attributes = frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return CellNames(
        needed=flow.needed,
        maybe=maybe,
        attributes=attributes | in_magics.keys(),
        imports=imported_names(tree),
        magics=frozenset(_magics_in(tree)),
        deleted=deleted,
    )


@lru_cache(maxsize=64)
def names_in_text(text: str) -> CellNames:
    """Return the names of a source text that compiles; cached, as cells are run repeatedly."""
    return find_names(ast.parse(text))


def all_global_reads(code: CodeType) -> set[str]:
    """Return the global names that `code` and functions within it read."""
    return {name for inner in everything(code) for name, _, _ in global_reads(inner)}


def _main_by_name(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield ``globals`` where the cell accesses the notebook as a module (``sys.modules[__name__]``), which has the same effect."""
    for node in ast.walk(tree):
        match node:
            case ast.alias(name="__main__"):
                yield "globals", node.lineno
            case ast.Call(func=ast.Attribute(attr="run_line_magic"), args=[ast.Constant(value="who" | "whos" | "who_ls" | "psearch"), *_]):
                yield "globals", node.lineno
            case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Name("__name__") | ast.Constant("__main__")):
                yield "globals", node.lineno


def _words_in_queries(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (word, line) for possible names in queries of a table: ``frame.query("loss < @best")``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="query" | "eval")):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for word in re.findall(_IN_QUERY, part.value):
                            yield word, node.lineno


def _words_in_magics(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (word, line) for possible names in the text of a magic (``%time train(x)``) or a shell command (``!ls {folder}``)."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name("get_ipython")), attr=attr)):
                text = "\n".join(part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str))
                for word in re.findall(_IN_COMMAND if attr in ("system", "getoutput") else _WORD, text):
                    yield word, node.lineno


def _magics_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names of the magics that the cell calls."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="run_line_magic" | "run_cell_magic"), args=[ast.Constant(value=str(name)), *_]):
                yield name


def _declared_global(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, line) for each name in a ``global`` statement."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            for name in node.names:
                yield name, node.lineno


def _deleted_in(tree: ast.Module) -> Iterator[str]:
    """Yield the names that the cell may delete, among them local ones of its functions."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Del()):
                yield node.id
            case ast.ExceptHandler(name=str(name)):
                yield name
