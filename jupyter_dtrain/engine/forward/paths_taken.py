"""What calls of a model have run: expressions of the user's code, and modules.

They are noted by a trace function, once for each way in which a model is called.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from torch import nn

_CALL = "_call_impl"
"""The method of modules that calls ``forward``."""
_Place = tuple[str, int, int]  # file, and line and column of an expression's end


class PathsTaken:
    """The expressions and modules that calls of a model have run."""

    def __init__(self) -> None:
        self.modules: set[int] = set()
        self._instructions: dict[int, tuple[CodeType, set[int]]] = {}
        self._ends: dict[_Place, set[tuple[int, int]]] | None = None

    @contextmanager
    def noted(self, model: nn.Module, files: Iterable[str]) -> Iterator[None]:
        """Note what is run in `files`; nothing under another tracer (a debugger), or where TorchDynamo compiles the model."""
        self._files, self._ends = frozenset(files), None
        if not self._files or sys.gettrace() is not None or hasattr(model, "_orig_mod"):
            yield
            return
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(None)

    def has(self, filename: str, node: ast.AST) -> bool:
        """Return whether an expression has been run."""
        if self._ends is None:
            self._ends = defaultdict(set)
            for code, offsets in self._instructions.values():
                positions = list(code.co_positions())
                for line, end_line, column, end_column in (positions[offset // 2] for offset in offsets):
                    if None not in (line, end_line, column, end_column):
                        self._ends[code.co_filename, end_line, end_column].add((line, column))  # type: ignore[index, arg-type]
        # A call in a chain of methods over several lines begins, for Python, where the method's name is.
        begun = self._ends.get((filename, node.end_lineno, node.end_col_offset), ())  # type: ignore[attr-defined]
        return any(place >= (node.lineno, node.col_offset) for place in begun)  # type: ignore[attr-defined]

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Any:
        code = frame.f_code
        if code.co_name == _CALL and isinstance(called := frame.f_locals.get("self"), nn.Module):
            self.modules.add(id(called))
        if code.co_filename not in self._files:
            return None
        offsets = self._instructions.setdefault(id(code), (code, set()))[1]

        def note(frame: FrameType, event: str, _arg: Any) -> Any:
            if event == "opcode":
                offsets.add(frame.f_lasti)
            return note

        frame.f_trace = note  # since Python 3.12 opcodes are traced only where a tracer is set already
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return note
