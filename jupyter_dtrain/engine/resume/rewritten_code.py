"""The rewritten code of the cell and of the functions that came with it, in whose loops a run can be resumed."""

from __future__ import annotations

import ast
import gc
import pickle
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from ...analysis.bindings import shared_names
from ...analysis.code_objects import (
    closed_over,
    compiled_by_torch,
    definitions,
    future_flags,
    key_of,
    mentioned,
    original_code,
    remember_original,
    without_futures,
)
from ...analysis.resume_points import LoopPlace, Unit
from ...analysis.rewrite import Rewriting

_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_KEPT = 64


class _Text(NamedTuple):
    """How a source text is rewritten."""

    tree: bytes
    filename: str
    is_cell: bool
    shared: frozenset[str]
    skip: frozenset[str]


_rewritten: dict[_Text, Rewriting] = {}
"""Rewritten texts of this process's latest runs, the latest last."""


class Texts:
    """Rewritten texts by file, and the functions that run rewritten code at present."""

    _next_number = 0  # of this process: code of one run may still be there in the next

    def __init__(self) -> None:
        self.loops: dict[int, LoopPlace] = {}
        self.units: dict[int, Unit] = {}
        self._unit_of: dict[int, tuple[CodeType, Unit]] = {}
        self._by_key: dict[tuple[str, tuple[str, int]], tuple[CodeType, Unit]] = {}
        self._texts: dict[tuple[str, int], dict[tuple[str, int], tuple[CodeType, CodeType]]] = {}
        self._sources: dict[str, str] = {}
        self._cell = ""
        self._shared: frozenset[str] = frozenset()
        self._skip: set[str] = set()
        self._waiting: dict[str, list[FunctionType]] = {}  # by the names that they are called by
        self._compiled: set[str] = set()  # names of functions that torch.compile was given
        self._adopted: list[tuple[weakref.ref[FunctionType], CodeType]] = []

    def unit_of(self, code: CodeType) -> Unit | None:
        """Return the places of a code object, ``None`` if it was not rewritten."""
        found = self._unit_of.get(id(code))
        return found[1] if found is not None else None

    def find(self, filename: str, name: str, first_line: int) -> tuple[CodeType, Unit] | None:
        """Return the code and the places of the function of this name."""
        return self._by_key.get((filename, (name, first_line)))

    def rewrite(self, tree: ast.Module, filename: str, *, is_cell: bool) -> Rewriting:
        """Return `tree` rewritten, with numbers that no other text uses."""
        self._shared |= shared_names(tree)
        text = _Text(pickle.dumps(tree), filename, is_cell, self._shared, frozenset(self._skip))
        rewriting = _rewritten.pop(text, None)  # cells are run again, as they are
        if rewriting is None or any(unit.index in self.units for unit in rewriting.units):
            rewriting = Rewriting(tree, filename, first_number=self._next_number, is_cell=is_cell, shared=self._shared, skip=self._skip)
            Texts._next_number = rewriting.end
        _rewritten[text] = rewriting
        while len(_rewritten) > _KEPT:
            del _rewritten[next(iter(_rewritten))]
        for unit in rewriting.units:
            self.loops.update(unit.loops)
            self.units[unit.index] = unit
        return rewriting

    def compile(self, tree: ast.Module, filename: str, *, is_cell: bool, flags: int = 0) -> CodeType:
        """Compile the rewritten `tree`."""
        original: CodeType = compile(tree, filename, "exec", flags=flags | _AWAIT, dont_inherit=True)
        rewriting = self.rewrite(tree, filename, is_cell=is_cell)
        code: CodeType = compile(rewriting.tree, filename, "exec", flags=flags | _AWAIT, dont_inherit=True)
        units = {unit.key: unit for unit in rewriting.units if not unit.is_cell}
        originals = {key_of(part): part for part in definitions(original)}
        pairs = self._texts[filename, future_flags(original)] = {}
        for part in definitions(code):
            key = key_of(part)
            if key in units and key in originals:
                self._know(part, units[key])
            if key in originals and part != originals[key]:  # also where only functions inside have places
                remember_original(part, originals[key])
                pairs[key] = originals[key], part
        if is_cell:
            self._know(code, next(unit for unit in rewriting.units if unit.is_cell))
        return code

    def _know(self, code: CodeType, unit: Unit) -> None:
        self._unit_of[id(code)] = code, unit
        self._by_key[unit.filename, unit.key] = code, unit

    # -- functions that are there already ----------------------------------------------------------------------------

    def adopt(self, objects: Iterable[object], sources: Mapping[str, str]) -> None:
        """Let functions run rewritten code from `compile_cell` on, if they were made from these sources."""
        self._sources.update(sources)
        for obj in objects:
            if isinstance(obj, FunctionType) and (compiled := getattr(obj, "_torchdynamo_orig_callable", None)) is not None:
                self._compiled.add(compiled.__name__)
            for name, function in _functions_of(obj):
                self._waiting.setdefault(name, []).append(function)

    def knows(self, function: FunctionType, cell: str) -> bool:
        """Return whether the source of a function is known, or is the cell's."""
        filename = function.__code__.co_filename
        return filename == cell or filename in self._sources

    def compile_cell(self, tree: ast.Module, filename: str, namespace: Mapping[str, Any], *, is_resumed: bool = False) -> CodeType:
        """Compile the rewritten cell, and let functions that it may call by name run rewritten code.

        Functions that only a library calls (a model's ``forward``) cannot be on the path of a jump, and keep their code. A cell that
        `is_resumed` has the functions of its snapshot, with the code from which they were made.
        """
        if is_resumed:
            self.adopt((obj for obj in gc.get_objects() if type(obj) is FunctionType and self.knows(obj, filename)), {})
        self._cell = filename
        self._skip = self._inside_models(tree)
        functions = self._callable_from(mentioned(tree), namespace)
        self._waiting.clear()
        for function in functions:  # what they share with the cell decides on its places
            self._pairs(function.__code__.co_filename, future_flags(function.__code__))
        code = self.compile(tree, filename, is_cell=True)
        for function in functions:
            self._adopt(function)
        return code

    def _inside_models(self, tree: ast.Module) -> set[str]:
        """Return the names of functions that models use: PyTorch calls them, and may compile them."""
        own: dict[str, list[ast.AST]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                own.setdefault(node.name, []).append(node)
        pending = ["forward", *self._compiled, *compiled_by_torch(tree)]
        seen = set(pending)
        while pending:
            name = pending.pop()
            inside = mentioned(*own.get(name, ())).union(*(_names_in(function.__code__) for function in self._waiting.get(name, ())))
            pending += inside - seen
            seen |= inside
        return seen

    def _callable_from(self, names: Iterable[str], namespace: Mapping[str, Any]) -> list[FunctionType]:
        pending = [*names, "__call__"]
        seen = set(pending)
        found: dict[int, FunctionType] = {}
        while pending:
            name = pending.pop()
            of_name = [*self._waiting.get(name, ()), *_function_in(namespace.get(name))]
            while of_name:
                function = of_name.pop()
                if id(function) not in found and self.knows(function, self._cell):
                    found[id(function)] = function
                    of_name += (inner for value in closed_over(function) for inner in _function_in(value))
                    more = _names_in(function.__code__) - seen
                    seen |= more
                    pending += more
        return list(found.values())

    def _adopt(self, function: FunctionType) -> None:
        code = function.__code__
        if original_code(code) is not None:
            return
        pairs = self._pairs(code.co_filename, future_flags(code))
        original, rewritten = pairs.get(key_of(code), (None, None))
        if rewritten is not None and original is not None and _is_same(original, code):
            function.__code__ = rewritten
            self._adopted.append((weakref.ref(function), code))

    def _pairs(self, filename: str, flags: int) -> Mapping[tuple[str, int], tuple[CodeType, CodeType]]:
        if (filename, flags) not in self._texts:
            self._texts[filename, flags] = {}
            if filename in self._sources and filename != self._cell:
                try:
                    tree = without_futures(self._sources[filename], filename)
                except SyntaxError:  # not Python as it was run
                    return {}
                self.compile(tree, filename, is_cell=False, flags=flags)
        return self._texts[filename, flags]

    def release(self) -> None:
        """Restore the original code of functions."""
        for reference, code in self._adopted:
            function = reference()
            if function is not None and original_code(function.__code__) == code:
                function.__code__ = code
        self._adopted.clear()
        self._waiting.clear()


def _is_same(code: CodeType, other: CodeType) -> bool:
    """Return whether two code objects are of the same source. Bytecode may differ: a notebook compiles a cell statement by statement."""

    def told(code: CodeType) -> tuple[object, ...]:
        constants = [constant for constant in code.co_consts if not isinstance(constant, CodeType)]
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        return (code.co_qualname, code.co_firstlineno, code.co_argcount, repr(constants), *names)

    return told(code) == told(other)


def _functions_of(obj: object) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions that a function, class or object of the user refers to, with the names by which they are called."""
    if isinstance(obj, FunctionType):
        yield obj.__name__, obj
        yield obj.__code__.co_name, obj
    elif isinstance(obj, type) or type(obj).__module__ == "__main__":
        for name, value in getattr(obj, "__dict__", {}).items():
            if isinstance(value, staticmethod | classmethod):
                value = value.__func__
            if isinstance(value, FunctionType):
                yield name, value


def _function_in(obj: object) -> Iterator[FunctionType]:
    """Yield the function that a call of `obj` calls."""
    while isinstance(obj, partial | MethodType):
        obj = obj.func if isinstance(obj, partial) else obj.__func__
    if isinstance(obj, FunctionType):
        yield obj


def _names_in(code: CodeType) -> set[str]:
    names = {*code.co_names, *code.co_varnames}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names_in(constant)
    return names
