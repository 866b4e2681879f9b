"""Log records on their way from an engine to the notebook's handlers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

RECORD = "application/vnd.jupyter-dtrain.log-record"
"""MIME type of displays that carry log records to the notebook's handlers."""


def written(record: logging.LogRecord, logger: str) -> dict[str, Any]:
    """Return a record for the handlers of `logger` as plain values, with its message formatted, as its arguments may be any objects."""
    values = {**vars(record), "msg": record.getMessage(), "args": None}
    if record.exc_info and not record.exc_text:
        values["exc_text"] = logging.Formatter().formatException(record.exc_info)
    return {"logger": logger, "values": {key: value for key, value in values.items() if isinstance(value, str | int | float | None)}}


def handle(written: Mapping[str, Any]) -> None:
    """Pass a record to the handlers that it is for, or to ``logging.lastResort`` if there are none."""
    record = _filtered(logging.makeLogRecord(written["values"]), written.get("filtered", ()))
    handlers = logging.getLogger(written["logger"]).handlers
    if record is None:
        return
    if "handler" in written:
        if written["handler"] < len(handlers):
            _emit(handlers[written["handler"]], record, written.get("text"))
        return
    last = [logging.lastResort] if logging.lastResort is not None else []
    for index, handler in enumerate(handlers or last):
        if record.levelno >= handler.level and index not in written.get("but", ()):
            handler.handle(record)


def _filtered(record: logging.LogRecord, but: Collection[int]) -> logging.LogRecord | None:
    """Return what the filters of its logger make of a record, ``None`` if one refuses it; `but`: those that were asked on the engine."""
    logger = logging.getLogger(record.name)
    rest = logging.Filterer()
    rest.filters = [one for index, one in enumerate(logger.filters) if index not in but]
    found: Any = rest.filter(record)
    if isinstance(found, logging.LogRecord):  # Python 3.12: a filter may return another one
        return found
    return record if found else None


def _emit(handler: logging.Handler, record: logging.LogRecord, text: str | None) -> None:
    """Let a handler write a record that its copy on the engine has let through, as that has formatted it."""
    handler.acquire()
    formatter = handler.formatter
    try:
        if text is not None:
            handler.formatter = Said(text)
        handler.emit(record)
    finally:
        handler.formatter = formatter
        handler.release()


class Said(logging.Formatter):
    """A formatter whose work is done."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def format(self, _: logging.LogRecord) -> str:
        """Return the text."""
        return self._text
