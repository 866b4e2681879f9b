"""The syntax tree of a function, with the positions that its code object has.

``inspect.getsource`` returns whole lines. Of a lambda, these may be a part of a statement, or have several lambdas. So the whole file is
parsed, and the function found in it. If the file cannot be parsed (lines for IPython), the lines of the function are.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from .code_objects import original_code

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def tree_of(code: CodeType) -> ast.AST | None:
    """Return the syntax tree of the function that `code` was compiled from; ``None`` if there is no source of it."""
    return _tree_of(original_code(code) or code)


@lru_cache(maxsize=512)
def _tree_of(code: CodeType) -> ast.AST | None:
    found = [node for node in _functions_in("".join(linecache.getlines(code.co_filename))) if _is_of(node, code)]
    if len(found) > 1:
        found = [node for node in found if not isinstance(node, ast.Lambda) or _span(node.body) in set(code.co_positions())]
    if found:
        return found[0]
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError, TypeError):  # no source, or only part of a statement
        return None


@lru_cache(maxsize=64)
def _functions_in(text: str) -> tuple[Function, ...]:
    try:
        return tuple(node for node in ast.walk(ast.parse(text)) if isinstance(node, Function))
    except SyntaxError:
        return ()


def _is_of(node: Function, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    return code.co_name == node.name and code.co_firstlineno in _first_lines(node)


def _first_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[int]:
    yield node.lineno
    yield from (decorator.lineno for decorator in node.decorator_list)


def _span(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
