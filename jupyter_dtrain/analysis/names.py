"""From a cell's text to the names that it needs from the notebook.

The analysis follows the order of the statements: a name that the cell always assigns before it reads it is not
needed, so what an earlier run left behind under that name (a loss with its whole graph, an iterator that cannot be
sent) stays at home. Where the order cannot be known (branches, function bodies, after a loop) a name counts as
*maybe* needed: it is sent when it can be, and left out when it cannot.
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
    """Names that a cell reads from the notebook, each with the line where it is first read.

    Attributes
    ----------
    needed : dict of str to int
        Read before any assignment in the cell.
    maybe : dict of str to int
        Read where an assignment in the cell may or may not have come first.
    attributes, imports : set of str
        Attributes that the cell uses of anything, and modules that it may import.
    """

    needed: dict[str, int]
    maybe: dict[str, int]
    attributes: frozenset[str] = frozenset()
    imports: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[str]:
        yield from self.needed
        yield from self.maybe


def find_names(tree: ast.Module) -> CellNames:
    """Return the names that the statements of `tree` read before they assign them. `tree` is one that compiles."""
    flow = NameFlow()
    flow.statements(tree.body, assigned=set())
    in_magics = dict(reversed(list(_words_in_magics(tree))))
    in_texts = dict(reversed(list(_words_in_queries(tree)))) | in_magics | dict(_main_by_name(tree))
    maybe = {name: line for name, line in (in_texts | flow.maybe).items() if name not in flow.needed}
    attributes = frozenset(node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return CellNames(needed=flow.needed, maybe=maybe, attributes=attributes | in_magics.keys(), imports=imported_names(tree))


@lru_cache(maxsize=64)
def names_in_text(text: str) -> CellNames:
    """Return the same for a text, which compiles: cells are run again as they are."""
    return find_names(ast.parse(text))


def all_global_reads(code: CodeType) -> set[str]:
    """Return the global names that `code` reads, and those that the functions within it do."""
    return {name for inner in everything(code) for name, _, _ in global_reads(inner)}


def _main_by_name(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return ``globals`` where the cell takes the notebook for a module (``sys.modules[__name__]``), which comes to the same."""
    for node in ast.walk(tree):
        match node:
            case ast.alias(name="__main__"):
                yield "globals", node.lineno
            case ast.Subscript(value=ast.Attribute(attr="modules"), slice=ast.Name("__name__") | ast.Constant("__main__")):
                yield "globals", node.lineno


def _words_in_queries(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return (word, line) for what may be a name in a query of a table: ``frame.query("loss < @best")``."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="query" | "eval")):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        for word in re.findall(_IN_QUERY, part.value):
                            yield word, node.lineno


def _words_in_magics(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Return (word, line) for what may be a name in the text of a magic (``%time train(x)``) or a shell command (``!ls {folder}``)."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name("get_ipython")), attr=attr)):
                text = "\n".join(part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str))
                for word in re.findall(_IN_COMMAND if attr in ("system", "getoutput") else _WORD, text):
                    yield word, node.lineno
