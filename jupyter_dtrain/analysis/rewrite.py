"""The text of a cell, and of the functions that travel with it, rewritten so that a run can jump to a place in it.

While a run is live the rewritten text does what the original does: a statement costs a comparison more, a loop's
iteration a call more. While it jumps, the number in ``__dtrain__.at`` says where to: what lies before is skipped, and the
statements and loops around the place are entered without being evaluated, because the values that they made are in the
snapshot. Lines and columns stay, so errors are reported as they were. Only loops that can be resumed are touched: not
those in generators, coroutines, comprehensions, class bodies, handlers, ``finally`` and ``match``.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Set

from .ast_nodes import Numbers
from .bindings import FUNCTIONS, is_generator, shared_names
from .resume_points import Unit
from .rewritten_body import RewrittenBody

# Who calls the first ones needs what they make; a model's `forward` is called by PyTorch.
_NOT_RESUMED = frozenset({"__init__", "__new__", "__init_subclass__", "__set_name__", "forward"})


class Rewriting:
    """One text, rewritten.

    Parameters
    ----------
    tree : ast.Module
        It is left as it is.
    filename : str
    first_number : int
        The numbers of places begin here; a run gives each text numbers of its own.
    is_cell : bool
        Whether the text itself is run, and not its functions alone.
    shared : set of str
        Names that functions of other texts assign with ``global``.
    skip : set of str
        Functions of these names are left as they are.

    Attributes
    ----------
    tree : ast.Module
    units : list of Unit
        The cell and the functions that have places.
    end : int
        The first number that is not used.
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
        unit.index = self.numbers.next + len(self.units)  # a number of its own
        RewrittenBody(unit, self.numbers, self.shared).rewrite(node)
        if unit.has_places or is_cell:
            self.units.append(unit)
