"""What the cell logs goes to the handlers of the notebook, in the order of what it prints.

A record travels as a display of a type of its own, so what was logged before a restart is not logged again (:mod:`.shown`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from ..capture.loggers import RECORD, Loggers, written


@contextmanager
def logged_at_home(loggers: Loggers, *, rank: int) -> Iterator[None]:
    """Let records go to the notebook's `loggers` within the ``with`` block: those of rank 0, the others log the same."""
    with loggers.installed() as handled:
        added = [(logging.getLogger(name), _Sender(name) if rank == 0 else logging.NullHandler()) for name in handled]
        for logger, handler in added:
            logger.addHandler(handler)
        try:
            yield
        finally:
            for logger, handler in added:
                logger.removeHandler(handler)


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
