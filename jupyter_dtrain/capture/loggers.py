"""Logging settings of the notebook: levels of its loggers, and which have handlers.

The handlers stay in the notebook, with their files and streams (:mod:`.attached` has exceptions). An engine sends them the log records.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

ROOT = "root"
OF_THE_KERNEL = frozenset({"IPKernelApp", "traitlets"})  # log the kernel's own activity


@dataclass(frozen=True)
class LoggerSettings:
    """Settings of one logger; `handled`: it has handlers."""

    level: int
    propagate: bool
    disabled: bool
    handled: bool


@dataclass(frozen=True)
class Loggers:
    """Settings of the loggers of one process.

    Attributes
    ----------
    settings : mapping of str to LoggerSettings
        By name, of the root logger and all loggers with a setting.
    disabled : int
        Level up to which ``logging.disable`` has disabled all loggers.
    """

    settings: Mapping[str, LoggerSettings] = field(default_factory=dict)
    disabled: int = logging.NOTSET

    @classmethod
    def now(cls) -> Loggers:
        """Return the settings of this process."""
        found = {name: _settings(logger) for name, logger in loggers_now() if name not in OF_THE_KERNEL}
        return cls({name: settings for name, settings in found.items() if settings != _UNSET}, logging.root.manager.disable)

    @contextmanager
    def installed(self) -> Iterator[list[str]]:
        """Apply the settings within the ``with`` block; yield the names of loggers that have handlers in the notebook."""
        loggers = {name: logging.getLogger(name) for name in self.settings}
        before = {name: _settings(logger) for name, logger in loggers.items()}
        disabled = logging.root.manager.disable
        _set(loggers, self.settings, self.disabled)
        try:
            yield [name for name, settings in self.settings.items() if settings.handled]
        finally:
            _set(loggers, before, disabled)


class LoggerChange:
    """What a cell has changed of one logger, to be changed in the notebook when it is unpickled there.

    Parameters
    ----------
    name : str
    settings : LoggerSettings
        New ones; without `handled`, the cell has removed the notebook's handlers.
    handlers, filters : list
        That it has added.
    removed : list
        Handlers and filters of the notebook that it has removed.
    """

    def __init__(
        self, name: str, settings: LoggerSettings, handlers: list[logging.Handler], filters: list[Any], removed: list[Any]
    ) -> None:
        self.parts = name, settings, handlers, filters, removed

    def __reduce__(self) -> Any:
        return _changed, self.parts


def _changed(name: str, settings: LoggerSettings, handlers: list[logging.Handler], filters: list[Any], removed: list[Any]) -> LoggerChange:
    change = LoggerChange(name, settings, handlers, filters, removed)
    if _is_put_off:
        _to_make.append(change)
        return change
    logger = _logger(name)
    _set({name: logger}, {name: settings}, logging.root.manager.disable)
    if not settings.handled:
        logger.handlers.clear()
    for one in removed:
        logger.removeHandler(one)
        logger.removeFilter(one)
    for handler in handlers:
        logger.addHandler(handler)
    for one in filters:
        logger.addFilter(one)
    return change


@dataclass(frozen=True)
class _Before:
    """Loggers when a cell began; `but`: prefixes of loggers that are left alone; `ours`: ids of parts that are the notebook's too."""

    but: tuple[str, ...]
    parts: Mapping[str, tuple[LoggerSettings, list[logging.Handler], list[Any]]]
    ours: frozenset[int] = frozenset()

    def changes(self) -> Iterator[LoggerChange]:
        for name, logger in loggers_now():
            is_librarys = _is_librarys(name)  # which may have made the handlers when it was imported, as it will in the notebook
            if name in OF_THE_KERNEL or f"{name}.".startswith(self.but) or (name not in self.parts and is_librarys):
                continue
            first, handlers, filters = self.parts.get(name, (_UNSET, [], []))
            there = {*map(id, logger.handlers), *map(id, logger.filters)}
            removed = [one for one in (*handlers, *filters) if id(one) in self.ours and id(one) not in there]
            new = [] if is_librarys else [handler for handler in logger.handlers if handler not in handlers]
            new_filters = [] if is_librarys else [one for one in logger.filters if one not in filters]
            handlers = [*logger.handlers] if is_librarys else handlers
            kept = not handlers or any(handler in logger.handlers for handler in handlers)
            now = replace(_settings(logger), handled=kept)
            if new or new_filters or removed or replace(first, handled=True) != now:
                yield LoggerChange(name, now, new, new_filters, removed)

    def undo(self, change: LoggerChange) -> None:
        """Take back what the cell has added."""
        name, _, new, *_ = change.parts
        logger = _logger(name)
        _close_files(new)
        if not _is_librarys(name):
            _, logger.handlers[:], logger.filters[:] = self.parts.get(name, (_UNSET, [], []))


_before: _Before | None = None  # of the cell that runs
_changes: list[LoggerChange] = []  # of the cell that has ended last
_to_make: list[LoggerChange] = []  # of a cell that resumes
_is_put_off = False  # whether unpickled changes go there


def logger_changes() -> list[LoggerChange]:
    """Return what the cell that runs, or else that has ended last, has changed of loggers."""
    return [*_changes] if _before is None else [*_before.changes()]


@contextmanager
def changes_forgotten() -> Iterator[None]:
    """Forget the noted changes after the ``with`` block: a handler of the user's class keeps the memory of its cell."""
    try:
        yield
    finally:
        _changes.clear()
        _to_make.clear()


@contextmanager
def made_in_the_cell() -> Iterator[None]:
    """Make changes that are unpickled in the ``with`` block only when the cell goes on: they are its own."""
    global _is_put_off
    _to_make.clear()
    _is_put_off = True
    try:
        yield
    finally:
        _is_put_off = False


@contextmanager
def changes_noted(but: tuple[str, ...], ours: Iterable[object] = ()) -> Iterator[None]:
    """Note what is changed of loggers in the ``with`` block, and undo what it adds to them.

    Not of loggers with the prefixes `but`. `ours` are handlers and filters of the notebook.
    """
    global _before
    _changes.clear()
    parts = {name: (_settings(logger), [*logger.handlers], [*logger.filters]) for name, logger in loggers_now()}
    _before = _Before(but, parts, frozenset(map(id, ours)))
    try:
        for change in _to_make:
            _changed(*change.parts)
        yield
    finally:
        _to_make.clear()
        _changes.extend(_before.changes())
        for change in _changes:
            _before.undo(change)
        _before = None


def _close_files(handlers: list[logging.Handler]) -> None:
    """Close the files of handlers, which open them again to append when they next write, in the notebook."""
    for handler in handlers:
        if isinstance(handler, logging.FileHandler) and handler.stream is not None:
            handler.stream.close()
            handler.stream, handler.mode = None, "a"  # as with `delay`


def _is_librarys(name: str) -> bool:
    package = name.partition(".")[0]
    return package != "__main__" and package in sys.modules


_UNSET = LoggerSettings(logging.NOTSET, propagate=True, disabled=False, handled=False)


def loggers_now() -> Iterator[tuple[str, logging.Logger]]:
    """Yield the loggers of this process, with their names."""
    yield ROOT, logging.root
    for name, logger in logging.root.manager.loggerDict.copy().items():
        if isinstance(logger, logging.Logger):
            yield name, logger


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _settings(logger: logging.Logger) -> LoggerSettings:
    return LoggerSettings(logger.level, logger.propagate, logger.disabled, bool(logger.handlers))


def _set(loggers: Mapping[str, logging.Logger], settings: Mapping[str, LoggerSettings], disabled: int) -> None:
    for name, logger in loggers.items():
        one = settings[name]
        if logger.level != one.level:  # setting it clears the caches of all loggers
            logger.setLevel(one.level)
        logger.propagate, logger.disabled = one.propagate, one.disabled
    if logging.root.manager.disable != disabled:  # this clears them as well
        logging.disable(disabled)
