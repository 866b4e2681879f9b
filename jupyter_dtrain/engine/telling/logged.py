"""What the cell logs goes to the handlers of the notebook, in the order of what it prints.

A record travels as a display of a type of its own, so what was logged before a restart is not logged again (:mod:`.shown`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ...capture.loggers import RECORD, ROOT, Loggers, written


@contextmanager
def logged_at_home(loggers: Loggers, *, rank: int) -> Iterator[None]:
    """Let records go to the notebook's `loggers` within the ``with`` block: those of rank 0, the others log the same."""
    with loggers.installed() as handled:
        # What a library has given its own logger when it was imported here, it has given it in the notebook: records would be shown twice.
        known = [logging.getLogger(name) for name in loggers.settings if name != ROOT and not f"{name}.".startswith(_PREFIXES)]
        aside = [(logger, logger.handlers.copy()) for logger in known if logger.handlers]
        for logger, _ in aside:
            logger.handlers = []
        added = [(logging.getLogger(name), _Sender(name) if rank == 0 else logging.NullHandler()) for name in handled]
        for logger, handler in added:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for logger, handler in added:
                logger.removeHandler(handler)
            for logger, handlers in aside:
                logger.handlers = [*handlers, *(handler for handler in logger.handlers if handler not in handlers)]


_OF_THE_ENGINE = ("asyncio", "ipykernel", "ipyparallel", "torch.distributed", "torch.nn.parallel", "tornado", "traitlets")
"""Loggers that speak of how the cell is run and not of what it does, and that the notebook's root logger would hear as well."""
_PREFIXES = tuple(f"{name}." for name in _OF_THE_ENGINE)


class _Sender(logging.Handler):
    """Stands on the engine for all handlers of a logger of the notebook."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._logger = name
        self.addFilter(lambda record: not f"{record.name}.".startswith(_PREFIXES))

    def emit(self, record: logging.LogRecord) -> None:
        from IPython.display import publish_display_data

        try:
            publish_display_data({RECORD: written(record, self._logger)})
        except Exception:
            self.handleError(record)
