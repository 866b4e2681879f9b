"""Handlers and filters of the notebook's loggers that a cell reaches: they take part in the cell's logging on the engines.

A handler of the user's own class, or one that writes into a ``StringIO``, handles records there as an object like any other: the cell
sees what it has collected, and its state comes home. Any other one (a console, a file, a library's handler) writes in the notebook. But
what the cell has set of it (level, filters, formatter) is asked on the engine. Of handlers that no value of the cell leads to, nothing
is sent: they get the records in the notebook.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ipykernel.iostream import OutStream

from ..serialization.module_reducers import is_dynamic
from .loggers import OF_THE_KERNEL, loggers_now


@dataclass(eq=False)
class Attached:
    """A handler or filter of a logger.

    Attributes
    ----------
    logger : str
    index, number : int
        Its place among the logger's handlers or filters, and how many of these there are.
    part : object
    is_filter : bool
    runs : bool
        Whether it handles records on the engine.
    """

    logger: str
    index: int
    number: int
    part: Any
    is_filter: bool
    runs: bool = True

    @property
    def place(self) -> tuple[str, bool, int]:
        """Its logger and its place there."""
        return self.logger, self.is_filter, self.index


def attached(objects: Iterable[object]) -> Iterator[Attached]:
    """Yield the handlers and filters of each logger that `objects` lead to; of handlers of libraries, only those among the objects."""
    reached = set(map(id, objects))
    for name, logger in loggers_now():
        both = (False, logger.handlers), (True, logger.filters)
        if name in OF_THE_KERNEL or reached.isdisjoint(id(part) for _, parts in both for one in parts for part in _parts_of(one)):
            continue
        for is_filter, parts in both:
            for index, part in enumerate(parts):
                runs = is_filter or _runs_on_engines(part)
                if runs or type(part) in _PLAIN or id(part) in reached:
                    yield Attached(name, index, len(parts), part, is_filter, runs)


_PLAIN = (logging.StreamHandler, logging.FileHandler)


def _runs_on_engines(handler: Any) -> bool:
    if type(handler) is logging.StreamHandler:
        return type(handler.stream) is io.StringIO
    return is_dynamic(type(handler)) and not isinstance(handler, logging.FileHandler)  # whose files stay in the notebook


def _parts_of(one: object) -> Iterator[object]:
    """Yield a handler, filter or formatter, and what it leads to: its attributes, and objects that its class's functions name."""
    todo, met = [one], {id(one)}
    for part in todo:
        yield part
        if len(todo) > _MOST:
            continue
        own = [*getattr(part, "__dict__", {}).values(), *getattr(part, "filters", ())]
        functions = [part, *vars(type(part)).values()] if is_dynamic(type(part)) or isinstance(part, FunctionType) else []
        named = [other for function in functions if isinstance(function, FunctionType) for other in _named_by(function)]
        yield from named
        for other in own:
            if id(other) not in met and not isinstance(other, _ATOMIC):
                met.add(id(other))
                todo.append(other)


def _named_by(function: FunctionType) -> list[object]:
    found = [function.__globals__.get(name) for name in function.__code__.co_names]
    return [one for one in found if not isinstance(one, _ATOMIC)]


_MOST = 100  # objects that are looked at for one handler
_ATOMIC = (type, ModuleType, FunctionType, BuiltinFunctionType, OutStream, str, int, float, bool, type(None), logging.Logger)


def handling(here: Sequence[Attached], send: Send, but: tuple[str, ...]) -> Callable[[logging.Handler, logging.LogRecord], Any]:
    """Return the ``handle`` of handlers on an engine; those `here` get no records of loggers with the prefixes `but`.

    One that does not run here sends the records that pass its level and its filters, as its formatter puts them.
    """
    handle, known = logging.Handler.handle, {id(one.part): one for one in here if not one.is_filter}

    def handled(self: logging.Handler, record: logging.LogRecord) -> Any:
        one = known.get(id(self))
        if one is not None and f"{record.name}.".startswith(but):
            return False
        if one is None or one.runs:
            return handle(self, record)
        passes: Any = self.filter(record)
        if passes:
            record = passes if isinstance(passes, logging.LogRecord) else record  # Python 3.12: a filter may return another one
            try:
                text = self.format(record) if isinstance(self, logging.StreamHandler) else None
                send(record, one.logger, {"handler": one.index, "text": text})
            except Exception:
                self.handleError(record)
        return passes

    return handled


Send = Callable[[logging.LogRecord, str, "dict[str, Any] | None"], None]
