"""How the notebook logs: which records its loggers make, and which of them have handlers.

The handlers themselves stay in the notebook, with the files and streams that they write to; an engine sends them the records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

RECORD = "application/vnd.jupyter-dtrain.log-record"
"""The type of a display that is a record on its way to the notebook's handlers."""
ROOT = "root"
_OF_THE_KERNEL = frozenset({"IPKernelApp", "traitlets"})  # speak of its own doings


@dataclass(frozen=True)
class LoggerSettings:
    """What is set of one logger; `handled`: it has handlers."""

    level: int
    propagate: bool
    disabled: bool
    handled: bool


@dataclass(frozen=True)
class Loggers:
    """What is set of the loggers of one process.

    Attributes
    ----------
    settings : mapping of str to LoggerSettings
        By name, of the root logger and those of which anything is set.
    disabled : int
        The level up to which ``logging.disable`` has switched off all of them.
    """

    settings: Mapping[str, LoggerSettings] = field(default_factory=dict)
    disabled: int = logging.NOTSET

    @classmethod
    def now(cls) -> Loggers:
        """Return those of this process."""
        found = {name: _settings(logger) for name, logger in _loggers() if name not in _OF_THE_KERNEL}
        unset = LoggerSettings(logging.NOTSET, propagate=True, disabled=False, handled=False)
        return cls({name: settings for name, settings in found.items() if settings != unset}, logging.root.manager.disable)

    @contextmanager
    def installed(self) -> Iterator[list[str]]:
        """Let this process's loggers be set so within the ``with`` block; give the names of those that have handlers in theirs."""
        loggers = {name: logging.getLogger(name) for name in self.settings}
        before = {name: _settings(logger) for name, logger in loggers.items()}
        disabled = logging.root.manager.disable
        _set(loggers, self.settings, self.disabled)
        try:
            yield [name for name, settings in self.settings.items() if settings.handled]
        finally:
            _set(loggers, before, disabled)


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield ROOT, logging.root
    for name, logger in logging.root.manager.loggerDict.copy().items():
        if isinstance(logger, logging.Logger):
            yield name, logger


def _settings(logger: logging.Logger) -> LoggerSettings:
    return LoggerSettings(logger.level, logger.propagate, logger.disabled, bool(logger.handlers))


def _set(loggers: Mapping[str, logging.Logger], settings: Mapping[str, LoggerSettings], disabled: int) -> None:
    for name, logger in loggers.items():
        one = settings[name]
        if logger.level != one.level:  # which makes all loggers forget what they are enabled for
            logger.setLevel(one.level)
        logger.propagate, logger.disabled = one.propagate, one.disabled
    if logging.root.manager.disable != disabled:  # so does this
        logging.disable(disabled)


def written(record: logging.LogRecord, logger: str) -> dict[str, Any]:
    """Return a record for the handlers of `logger` as plain values: its message put together, for its arguments may be anything."""
    values = {**vars(record), "msg": record.getMessage(), "args": None}
    if record.exc_info and not record.exc_text:
        values["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {"logger": logger, "values": {key: value for key, value in values.items() if isinstance(value, str | int | float | None)}}


def handle(written: Mapping[str, Any]) -> None:
    """Give a record to the handlers that it was written for, or show it if that is worth a warning and there are none."""
    record = logging.makeLogRecord(written["values"])
    last = [logging.lastResort] if logging.lastResort is not None else []
    for handler in logging.getLogger(written["logger"]).handlers or last:
        if record.levelno >= handler.level:
            handler.handle(record)
