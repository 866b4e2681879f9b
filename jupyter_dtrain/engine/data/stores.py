"""Find what a function writes to besides its own objects: an escape analysis of its source.

Fetching a sample usually creates new objects (``image = Image.open(path)``, ``target = {}``), and writes to these are harmless. Writes to
objects from elsewhere (an attribute, a global, a closure) persist. Therefore each expression gets a kind: entirely new, a new container of
old objects, given by the caller, or shared. If the source says too little, the kind is shared: the caller then takes the slower way, which
is always right.
"""

from __future__ import annotations

import ast
import dis
import inspect
import textwrap
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from ...analysis.code_objects import everything, original_code
from ..side_effects.asked_paths import is_for_writing
from .method_names import ANYTHING, FILES, MUTATES_ARGUMENTS, MUTATING, SHOWS
from .value_kinds import Function, Kind, ValueKinds, arguments_of, called_name


@dataclass
class Writes:
    """Effects of a function on objects that it did not create.

    Attributes
    ----------
    shared : bool
        Whether it writes to an existing object, prints, or writes a file.
    given : bool
        Whether it writes to its arguments.
    calls : dict of str to Kind
        By called name: the most shared kind among the arguments of these calls.
    """

    shared: bool = False
    given: bool = False
    calls: dict[str, Kind] = field(default_factory=dict)


_STORING = ("STORE_ATTR", "STORE_GLOBAL", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR", "DELETE_GLOBAL")


def writes_of(function: FunctionType, *, first: Kind, others: Kind, own: Set[str] = frozenset()) -> Writes:
    """Return what a call of `function` writes to.

    Parameters
    ----------
    function : FunctionType
    first, others : Kind
        Kinds of its first and of its other arguments.
    own : set of str
        Names of user-defined functions, whose results may be anything.
    """
    code = original_code(function.__code__) or function.__code__
    of_code = _known.setdefault(code, {})
    asked = (first, others, own)
    if asked not in of_code:
        of_code[asked] = _writes_of(code, function, first, others, own)
    return of_code[asked]


_known: WeakKeyDictionary[CodeType, dict[Any, Writes]] = WeakKeyDictionary()


def _writes_of(code: CodeType, function: FunctionType, first: Kind, others: Kind, own: Set[str]) -> Writes:
    tree = _tree_of(code)
    if tree is None:
        may = any(_may_write(part) for part in everything(code))
        names = {name for part in everything(code) for name in part.co_names}
        return Writes(shared=may, given=may, calls=dict.fromkeys(names, Kind.SHARED))
    modules = {name for name, value in function.__globals__.items() if isinstance(value, ModuleType)}
    return _WrittenTo(tree, ValueKinds(tree, modules, own, first=first, others=others)).result()


def _tree_of(code: CodeType) -> Function | None:
    """Return the function's syntax tree; ``None`` if its source is missing, or if a line has several lambdas."""
    try:
        module = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None
    if code.co_name == "<lambda>":
        found = [node for node in ast.walk(module) if isinstance(node, ast.Lambda)]
        return found[0] if len(found) == 1 else None
    return next((node for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)), None)


def _may_write(code: CodeType) -> bool:
    names = {*code.co_names}
    if not names.isdisjoint(MUTATING | MUTATES_ARGUMENTS | SHOWS | FILES | ANYTHING) or any(map(_is_in_place, names)):
        return True
    steps = dis.get_instructions(code)
    return any(step.opname in _STORING or (step.opname == "BINARY_OP" and step.argrepr.endswith("=")) for step in steps)


def _is_in_place(name: str) -> bool:
    """Return whether a method of this name writes to its tensor, by PyTorch's naming convention."""
    return name.endswith("_") and not name.startswith("_")


class _WrittenTo:
    """Finds what one function's source writes to."""

    def __init__(self, tree: Function, kinds: ValueKinds) -> None:
        self._kinds = kinds
        named = [*tree.args.posonlyargs, *tree.args.args]
        self._made_once = {id(made) for node in kinds.nodes if isinstance(node, ast.If) for made in _made_once(node, named)}

    def result(self) -> Writes:
        """Return the writes and calls found."""
        found = Writes()
        for node in self._kinds.nodes:
            for kind in self._written(node):
                found.shared |= kind is Kind.SHARED
                found.given |= kind is Kind.GIVEN
            if isinstance(node, ast.Call):
                name, given = called_name(node.func), [self._kinds.of(part) for part in arguments_of(node)]
                found.calls[name] = max([found.calls.get(name, Kind.NEW), *given])
        return found

    def _written(self, node: ast.AST) -> Iterator[Kind]:
        """Yield the kinds of the objects that a node writes to."""
        match node:
            case ast.Assign() if id(node) in self._made_once:
                pass
            case ast.Assign():
                yield from (kind for target in node.targets for kind in self._stored(target))
            case ast.AnnAssign(value=ast.expr()) | ast.For() | ast.AsyncFor() | ast.comprehension():
                yield from self._stored(node.target)
            case ast.AugAssign():
                yield self._kinds.of(node.target) if isinstance(node.target, ast.Name) else max(self._stored(node.target))
                yield from self._stored(node.target)
            case ast.Delete():
                yield from (kind for target in node.targets for kind in self._stored(target))
            case ast.withitem(optional_vars=ast.expr() as target):
                yield from self._stored(target)
            case ast.Call():
                yield from self._written_by_call(node)
            case ast.FunctionDef() | ast.ClassDef() if node.name in self._kinds.outer:
                yield Kind.SHARED

    def _stored(self, target: ast.expr) -> Iterator[Kind]:
        match target:
            case ast.Name():
                yield Kind.SHARED if target.id in self._kinds.outer else Kind.NEW
            case ast.Attribute() | ast.Subscript():
                yield self._kinds.of(target.value)
            case ast.Tuple() | ast.List():
                yield from (kind for part in target.elts for kind in self._stored(part))
            case ast.Starred():
                yield from self._stored(target.value)

    def _written_by_call(self, node: ast.Call) -> Iterator[Kind]:
        name = called_name(node.func)
        if name in SHOWS or name in FILES or name in ANYTHING or (name == "open" and _opens_to_write(node)):
            yield Kind.SHARED
        of_module = not isinstance(node.func, ast.Attribute) or self._kinds.is_module(node.func.value)
        if of_module and (name in MUTATES_ARGUMENTS or _is_in_place(name)):
            yield from map(self._kinds.of, arguments_of(node))
        elif not of_module and (name in MUTATING or _is_in_place(name)):
            assert isinstance(node.func, ast.Attribute)
            yield self._kinds.of(node.func.value)
        elif name in MUTATES_ARGUMENTS:  # `self.rng.shuffle(self.order)`
            yield from map(self._kinds.of, arguments_of(node))
        yield from (self._kinds.of(keyword.value) for keyword in node.keywords if keyword.arg == "out")
        if any(keyword.arg == "inplace" for keyword in node.keywords) and isinstance(node.func, ast.Attribute):
            yield self._kinds.of(node.func.value)
            yield from map(self._kinds.of, node.args)


def _made_once(node: ast.If, arguments: list[ast.arg]) -> Iterator[ast.Assign]:
    """Yield lazy initializations that do not depend on the sample: ``if self.file is None: self.file = open(…)``."""
    asked = {part.attr for part in ast.walk(node.test) if isinstance(part, ast.Attribute)}
    asked.update(part.value for part in ast.walk(node.test) if isinstance(part, ast.Constant) and isinstance(part.value, str))
    owner = arguments[0].arg if arguments else ""
    for made in node.body:
        match made:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name), attr=attribute)]) if name == owner and attribute in asked:
                names = {part.id for part in ast.walk(made.value) if isinstance(part, ast.Name)}
                if len(node.body) == 1 and isinstance(made.value, ast.Call) and names.isdisjoint({one.arg for one in arguments[1:]}):
                    yield made


def _opens_to_write(node: ast.Call) -> bool:
    modes = [*node.args[1:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    return any(not isinstance(mode, ast.Constant) or is_for_writing(str(mode.value)) for mode in modes)
