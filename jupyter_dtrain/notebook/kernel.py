"""The running cell in the kernel: its Python source, its name in tracebacks, and its place in the notebook."""

from __future__ import annotations
import __future__

import ast
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from ..analysis.code_objects import is_future, keep_text
from ..errors import CellError
from ..runs.record import CellOrigin

_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_ANNOTATIONS = __future__.annotations.compiler_flag
_FUTURE = "from __future__ import annotations as __import_annotations;"  # under a name that is not returned (`cell_results`)
NOTEBOOK = "JPY_SESSION_NAME"  # set by Jupyter's server: the notebook's path when the kernel was started


def origin_of_cell(shell: InteractiveShell) -> CellOrigin:
    """Return the running cell's id and notebook name, as far as the front end has sent them."""
    kernel = getattr(shell, "kernel", None)
    message = kernel.get_parent("shell") if kernel is not None else {}
    cell_id = message.get("metadata", {}).get("cellId")
    notebook = Path(os.environ.get(NOTEBOOK, "")).name
    return CellOrigin(cell_id=cell_id if isinstance(cell_id, str) else None, notebook=notebook if notebook.endswith(".ipynb") else None)


def compiled(cell: str, number: int, shell: InteractiveShell) -> tuple[str, str, ast.Module]:
    """Return a cell's Python source with an empty line for the magic, its file name, and its syntax tree."""
    source = "\n" + shell.transform_cell(cell)
    filename = shell.compile.cache(source, number)
    keep_text(filename, source)
    with _errors_told(shell, filename):
        tree = ast.parse(source, filename)
        futures = [node for node in tree.body if is_future(node)]
        # IPython remembers the import of an earlier cell, as it holds in all later ones.
        postponed = "annotations" not in {name.name for node in futures for name in node.names} and shell.compile.flags & _ANNOTATIONS
        if postponed or not _are_first(futures, tree):
            source = (_FUTURE if postponed else "") + _with_first(futures, source, filename)
            keep_text(filename, source)
            tree = ast.parse(source, filename)
        shell.compile.flags |= compile(source, filename, "exec", flags=_AWAIT, dont_inherit=True).co_flags & _ANNOTATIONS
    return source, filename, tree


def _are_first(futures: list[ast.ImportFrom], tree: ast.Module) -> bool:
    begin = 0 if ast.get_docstring(tree, clean=False) is None else 1
    return tree.body[begin : begin + len(futures)] == futures


def _with_first(futures: list[ast.ImportFrom], source: str, filename: str) -> str:
    """Return a cell's source with its imports from ``__future__`` on the magic's line: IPython accepts them anywhere, Python does not."""
    lines = [line.encode() for line in source.split("\n")]
    for node in reversed(futures):
        compile(ast.Module([node], []), filename, "exec", dont_inherit=True)  # an error is told at its own line
        last = (node.end_lineno or node.lineno) - 1
        rest = lines[last][node.end_col_offset :]
        lines[node.lineno - 1] = lines[node.lineno - 1][: node.col_offset] + b"pass"
        for index in range(node.lineno - 1, last):
            lines[index] = (lines[index] if index == node.lineno - 1 else b"") + b"\\"
        lines[last] = (lines[last] if last == node.lineno - 1 else b"") + rest
    return "".join(f"{ast.unparse(node)};" for node in futures) + "\n".join(line.decode() for line in lines)


@contextmanager
def _errors_told(shell: InteractiveShell, filename: str) -> Iterator[None]:
    """Raise an error in the cell's text as an error of the cell."""
    try:
        yield
    except SyntaxError as error:
        place = f"{cell_names(shell, filename)[filename]}, line {error.lineno}"
        lines = [place]
        if error.text:
            lines.append(f"    {error.text.rstrip()}")
            if error.offset:
                lines.append("    " + " " * (error.offset - 1) + "^")
        raise CellError.of("SyntaxError", str(error.msg), lines=[*lines, f"SyntaxError: {error.msg}"], ranks=[]) from None


def number_of_cell(shell: InteractiveShell) -> int:
    """Return the execution number of the running cell; the shell's own counter may be one ahead."""
    return len(shell.history_manager.input_hist_parsed) - 1  # type: ignore[union-attr]


def cell_names(shell: InteractiveShell, current: str) -> dict[str, str]:
    """Return file names of the notebook's cells → their display names."""
    numbers = getattr(shell.compile, "_filename_map", {})
    return {filename: f"Cell In[{number}]" for filename, number in numbers.items()} | {current: f"Cell In[{number_of_cell(shell)}]"}


# A cell that waits for a detached run stops waiting when the kernel shuts down.


def is_leaving() -> bool:
    """Return whether this kernel was asked to shut down, which its control thread learns while a cell runs."""
    kernel = getattr(get_ipython(), "kernel", None)
    return getattr(kernel, "_shutdown_message", None) is not None
