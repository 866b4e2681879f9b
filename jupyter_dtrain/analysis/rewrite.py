"""Rewrite the source of a cell and of the functions that are sent with it, so that a run can jump to a place in it.

In normal execution the rewritten code does what the original does: a statement costs one more comparison, a loop iteration one more call.
In a jump, the number in ``__dtrain__.at`` is the target: statements before it are skipped, and the statements and loops around it are
entered without evaluating their headers, because the values are in the snapshot. Lines and columns are kept, so errors are reported as
before. Only loops that can be resumed are rewritten: not those in generators, coroutines, comprehensions, class bodies, handlers,
``finally`` and ``match``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Set

from .ast_nodes import Numbers
from .bindings import FUNCTIONS, is_generator, shared_names
from .resume_points import Unit
from .rewritten_body import RewrittenBody

# The callers of the first four need their results; a model's `forward` is called by PyTorch.
_NOT_RESUMED = frozenset({"__init__", "__new__", "__init_subclass__", "__set_name__", "forward"})


class Rewriting:
    """Rewrite one source text.

    Parameters
    ----------
    tree : ast.Module
        Not modified.
    filename : str
    first_number : int
        First number of its places; each text of a run has numbers of its own.
    is_cell : bool
        Whether the text itself is run, and not only its functions.
    shared : set of str
        Names that functions of other texts declare ``global``.
    skip : set of str
        Names of functions that are not rewritten.

    Attributes
    ----------
    tree : ast.Module
        The rewritten copy.
    units : list of Unit
        The cell and the functions that have places.
    end : int
        First unused number.
    """

    def __init__(
        self,
        tree: ast.Module,
        filename: str,
        *,
        first_number: int = 0,
        is_cell: bool = False,
        shared: frozenset[str] = frozenset(),
        skip: Set[str] = frozenset(),
    ) -> None:
        self.filename = filename
        self.tree = copy.deepcopy(tree)
        self.shared = shared | shared_names(tree)
        self.numbers = Numbers(self.tree, first_number)
        self.first_number = first_number
        self.units: list[Unit] = []
        functions = [node for node in ast.walk(self.tree) if isinstance(node, FUNCTIONS) and not is_generator(node)]
        if is_cell:
            self._unit("<module>", 1, self.tree, is_cell=True)
        for node in functions:
            if node.name not in _NOT_RESUMED and node.name not in skip:
                self._unit(node.name, min([node.lineno, *(part.lineno for part in node.decorator_list)]), node, is_cell=False)

        self.end = self.numbers.next + len(self.units)

    def _unit(self, name: str, line: int, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef, *, is_cell: bool) -> None:
        unit = Unit(self.filename, (name, line), self.first_number, is_cell=is_cell)
        unit.index = self.numbers.next + len(self.units)  # a unique number
        RewrittenBody(unit, self.numbers, self.shared).rewrite(node)
        if unit.has_places or is_cell:
            self.units.append(unit)
