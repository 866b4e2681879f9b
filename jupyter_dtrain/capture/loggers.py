"""Logging settings of the notebook: levels of its loggers, and which have handlers.

The handlers stay in the notebook, with their files and streams. An engine sends them the log records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

RECORD = "application/vnd.jupyter-dtrain.log-record"
"""MIME type of displays that carry log records to the notebook's handlers."""
ROOT = "root"
_OF_THE_KERNEL = frozenset({"IPKernelApp", "traitlets"})  # log the kernel's own activity


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
        found = {name: _settings(logger) for name, logger in _loggers() if name not in _OF_THE_KERNEL}
        unset = LoggerSettings(logging.NOTSET, propagate=True, disabled=False, handled=False)
        return cls({name: settings for name, settings in found.items() if settings != unset}, logging.root.manager.disable)

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
        if logger.level != one.level:  # setting it clears the caches of all loggers
            logger.setLevel(one.level)
        logger.propagate, logger.disabled = one.propagate, one.disabled
    if logging.root.manager.disable != disabled:  # this clears them as well
        logging.disable(disabled)


def written(record: logging.LogRecord, logger: str) -> dict[str, Any]:
    """Return a record for the handlers of `logger` as plain values, with its message formatted, as its arguments may be any objects."""
    values = {**vars(record), "msg": record.getMessage(), "args": None}
    if record.exc_info and not record.exc_text:
        values["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {"logger": logger, "values": {key: value for key, value in values.items() if isinstance(value, str | int | float | None)}}


def handle(written: Mapping[str, Any]) -> None:
    """Pass a record to the handlers that it is for, or to ``logging.lastResort`` if there are none."""
    record = logging.makeLogRecord(written["values"])
    last = [logging.lastResort] if logging.lastResort is not None else []
    for handler in logging.getLogger(written["logger"]).handlers or last:
        if record.levelno >= handler.level:
            handler.handle(record)
