"""Counts the output of a cell: steps that are recomputed after a restart do not show it again."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TextIO

from ...capture.attached import Attached, handling
from ...capture.log_records import RECORD, written
from ...capture.loggers import ROOT, Loggers, changes_noted
from ...system.patches import patched
from ...system.stream_proxy import StreamProxy


@dataclass(frozen=True)
class Count:
    """Numbers of lines printed to ``stdout``, and of rich displays."""

    lines: int = 0
    displays: int = 0


Held = tuple[str, Any]
"""``"stdout"`` and a text, or ``"display"`` and the content of a message, with `update` in it."""


class Shown:
    """Counts the output of the cell, and passes on what is new.

    Parameters
    ----------
    before : Count
        The output at the place from which the cell resumes.
    seen : Count
        The output that the notebook has.

    Attributes
    ----------
    is_muted : bool
        Whether the cell is still on its way to the place from which it resumes: that output was shown before.
    """

    def __init__(self, before: Count = Count(), seen: Count = Count()) -> None:
        self.count = before
        self._seen = seen
        self.held: list[Held] = []
        self.holds = False
        self.is_muted = False

    def buffer(self) -> None:
        """Collect further output in `held`, without counting it: if another engine was lost, it is recomputed."""
        self.holds = True

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Count the output in the ``with`` block."""
        from IPython import get_ipython

        publisher = get_ipython().display_pub
        publish = publisher.publish

        def counted(*args: Any, **kwargs: Any) -> None:
            if self.is_muted:
                return
            if self.holds:
                self.held.append(("display", _content(*args, **kwargs)))
                return
            if kwargs.get("update"):
                publish(*args, **kwargs)
                return
            self.count = replace(self.count, displays=self.count.displays + 1)
            if self.count.displays > self._seen.displays:
                publish(*args, **kwargs)

        publisher.publish = counted
        try:
            with contextlib.redirect_stdout(_Lines(sys.stdout, self)):
                yield
        finally:
            del publisher.publish  # the method of the class is back

    def text(self, text: str) -> str:
        """Count `text`, and return the part that is new."""
        if self.is_muted:
            return ""
        if self.holds:
            self.held.append(("stdout", text))
            return ""
        known = self._seen.lines - self.count.lines
        lines = text.count("\n")
        self.count = replace(self.count, lines=self.count.lines + lines)
        if known <= 0:
            return text
        return text.split("\n", known)[known] if lines >= known else ""


def _content(data: dict[str, Any], metadata: dict[str, Any] | None = None, *_: Any, **options: Any) -> dict[str, Any]:
    """Return the content of a display message."""
    return {"data": data, "metadata": metadata or {}, "transient": options.get("transient") or {}, "update": bool(options.get("update"))}


class _Lines(StreamProxy):
    """Passes on to a stream what of the output is new."""

    def __init__(self, stream: TextIO, shown: Shown) -> None:
        super().__init__(stream)
        self._shown = shown

    def write(self, text: str) -> int:
        new = self._shown.text(text)
        if new:
            self._stream.write(new)
        return len(text)


# What the cell logs goes to the handlers of the notebook, in the order of what it prints.
#
# A record travels as a display of a type of its own, so what was logged before a restart is not logged again.


@contextmanager
def logged_at_home(loggers: Loggers, *, rank: int, tracked: Iterable[object] = ()) -> Iterator[None]:
    """Send log records of rank 0 to the notebook's `loggers` in the ``with`` block; the other ranks log the same.

    Handlers and filters among the `tracked` objects take part here.
    """
    here = [one for one in tracked if isinstance(one, Attached)]
    with loggers.installed() as handled:
        # What a library has given its own logger when it was imported here, it has given it in the notebook: records would be shown twice.
        known = [logging.getLogger(name) for name in loggers.settings if name != ROOT and not f"{name}.".startswith(_PREFIXES)]
        aside = [(logger, logger.handlers.copy()) for logger in known if logger.handlers]
        for logger, _ in aside:
            logger.handlers = []
        send = _Sending(here, sends=rank == 0)
        senders = [(logging.getLogger(name), _Sender(name, send)) for name in handled if not send.reaches_all(name)]
        for logger, sender in senders:
            logger.addHandler(sender)
        for one in here:
            (logging.getLogger(one.logger).addFilter if one.is_filter else logging.getLogger(one.logger).addHandler)(one.part)
        handle = patched(logging.Handler, "handle", handling(here, send, _PREFIXES)) if here else nullcontext()
        try:
            with handle, changes_noted(_PREFIXES, [one.part for one in here]):
                yield
        finally:
            for one in here:
                logging.getLogger(one.logger).removeFilter(one.part)
                logging.getLogger(one.logger).removeHandler(one.part)
            for logger, sender in senders:
                logger.removeHandler(sender)
            for logger, handlers in aside:
                logger.handlers = [*handlers, *(handler for handler in logger.handlers if handler not in handlers)]


_OF_THE_ENGINE = ("asyncio", "ipykernel", "ipyparallel", "torch.distributed", "torch.nn.parallel", "tornado", "traitlets")
"""Loggers about running the cell rather than its work, whose records would reach the notebook's root logger."""
_PREFIXES = tuple(f"{name}." for name in _OF_THE_ENGINE)


class _Sending:
    """Sends records to handlers of the notebook, beside those that are `here`.

    A record's message is put together on all ranks: what it is made of may be values over the batch, which all read together.
    """

    def __init__(self, here: Sequence[Attached], *, sends: bool) -> None:
        self._here, self._sends = here, sends

    def reaches_all(self, name: str) -> bool:
        """Return whether all handlers of a logger are here."""
        here = [one for one in self._here if one.logger == name and not one.is_filter]
        return bool(here) and len(here) == here[0].number

    def __call__(self, record: logging.LogRecord, logger: str, more: Mapping[str, Any] | None = None) -> None:
        from IPython.display import publish_display_data

        to = more or {"but": [one.index for one in self._here if one.logger == logger and not one.is_filter]}
        filtered = [one.index for one in self._here if one.is_filter and one.logger == record.name]
        data = {RECORD: {**written(record, logger), **to, "filtered": filtered}}
        if self._sends:
            publish_display_data(data)


class _Sender(logging.Handler):
    """Stands, on the engine, for the handlers of a logger of the notebook that are not here."""

    def __init__(self, name: str, send: _Sending) -> None:
        super().__init__()
        self._logger, self._send = name, send
        self.addFilter(lambda record: not f"{record.name}.".startswith(_PREFIXES))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(record, self._logger)
        except Exception:
            self.handleError(record)
