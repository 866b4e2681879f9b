"""The kernel's end of the comms: telemetry goes out on one, commands come in on another.

A comm's messages are handled on the subshell that the kernel remembers for it. ipykernel 7.4 remembers the subshell that handled a message
when the comm was last *written to*. A comm that is written to while a cell runs moves to the main shell, and a Stop would wait for the
end of the cell. So only its own handler writes to the command comm, and the telemetry comm receives nothing. A third comm, served
like the command comm, is for questions about past runs, whose answers may take long.

One thread writes to the telemetry comm, in the context in which the comm was opened. So its messages have the opening as parent, and do not
look like output of the running cell. The comm also stays on its subshell, so that its closing is noticed while a cell runs.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .. import protocol
from ..errors import DtrainError
from ..protocol import COMMAND_TARGET, RECORD_TARGET, TELEMETRY_TARGET
from . import comm_targets
from .busy import keep_busy

if TYPE_CHECKING:
    from comm.base_comm import BaseComm

    from ..protocol import Command, Message, Reply, Snapshot

INTERVAL = 0.2
"""Shortest time between two batches, in seconds."""
RETRY = 5.0
"""Seconds until the next attempt after the source has failed."""
MAX_LISTENERS = 16
"""Most telemetry comms. A browser that is reloaded or closed leaves its comm open; the oldest ones are closed."""

_log = logging.getLogger(__name__)


class Views(Protocol):
    """Source of telemetry."""

    def snapshot(self) -> Snapshot:
        """Return the state: what earlier calls of :meth:`drain` returned, and nothing that a later call will return."""

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""


class Source(Views, Protocol):
    """Source of telemetry, and receiver of commands."""

    def command(self, command: Command) -> Reply:
        """Carry out `command` or start to, and return quickly, as this runs on a kernel subshell."""


@dataclass(eq=False)
class _Listener:
    """An open telemetry comm, and the context in which it was opened."""

    comm: BaseComm
    context: Context
    is_new: bool = True


class Telemetry:
    """Serve all front ends that open the comms, until :meth:`close`.

    A telemetry comm gets ``{"messages": [...]}``: first a snapshot, then news, at most every `interval` seconds. A command comm gets one
    reply for each command, with the command's id.

    Parameters
    ----------
    source : Source
        Gets commands, on any thread; also the first `views`.
    interval : float
        Seconds between two batches.

    Attributes
    ----------
    views : Views
        Source of telemetry, called by one thread only.
    """

    def __init__(self, source: Source, *, interval: float = INTERVAL) -> None:
        self._source = source
        self.views: Views = source
        self._interval = interval
        self._condition = threading.Condition()
        self._listeners: list[_Listener] = []
        self._has_news = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="dtrain-telemetry", daemon=True)

    def start(self) -> None:
        """Register the comm targets with the kernel, and start the serving thread."""
        comm_targets.register(self._targets)
        self._thread.start()

    @property
    def _targets(self) -> comm_targets.Targets:
        return {TELEMETRY_TARGET: self._open_telemetry, COMMAND_TARGET: self._open_commands, RECORD_TARGET: self._open_commands}

    def notify(self) -> None:
        """Announce that :meth:`Views.drain` has news. Any thread may call this, at any rate."""
        with self._condition:
            self._has_news = True
            self._condition.notify()

    @property
    def num_listeners(self) -> int:
        """Number of front ends that listen."""
        with self._condition:
            return len(self._listeners)

    def close(self) -> None:
        """Send the remaining news, close the telemetry comms, and accept no new ones."""
        comm_targets.unregister(self._targets)  # targets of a later instance, after a reload of the extension, stay
        self._closed.set()
        with self._condition:
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    # -- telemetry, out ----------------------------------------------------------------------------------------------

    def _open_telemetry(self, opened: BaseComm, _message: dict[str, Any]) -> None:
        listener = _Listener(opened, copy_context())

        def closed(_message: dict[str, Any]) -> None:
            keep_busy()
            self._drop(listener)

        opened.on_close(closed)
        keep_busy()
        with self._condition:
            self._listeners.append(listener)
            superfluous = self._listeners[:-MAX_LISTENERS]
            self._condition.notify()
        for old in superfluous:
            self._drop(old, close=True)

    def _drop(self, listener: _Listener, *, close: bool = False) -> None:
        with self._condition:
            if listener in self._listeners:
                self._listeners.remove(listener)
        if close:
            try:
                listener.context.copy().run(listener.comm.close)
            except Exception:
                _log.debug("a telemetry comm could not be closed", exc_info=True)

    def _serve(self) -> None:
        while not self._closed.is_set():
            with self._condition:
                self._condition.wait_for(self._has_work)
            self._closed.wait(self._interval if self._serve_once() else RETRY)
        self._serve_once()
        for listener in list(self._listeners):
            self._drop(listener, close=True)

    def _has_work(self) -> bool:
        if self._closed.is_set():
            return True
        return self._has_news or any(listener.is_new for listener in self._listeners)

    def _serve_once(self) -> bool:
        """Send a batch to listeners, and a snapshot to new ones; return False if the source failed."""
        with self._condition:
            listeners = list(self._listeners)
            self._has_news = False
        new, views = [listener for listener in listeners if listener.is_new], self.views
        try:
            # In this order: the snapshot includes what was drained, so a new listener misses nothing and gets nothing twice. Without
            # listeners the news are drained as well, as they would otherwise accumulate.
            self._send([listener for listener in listeners if not listener.is_new], views.drain())
            if new:
                self._send(new, [views.snapshot()])
        except Exception:  # keep the thread: the next batch may succeed
            _log.exception("telemetry could not be collected")
            return False
        for listener in new:
            listener.is_new = False
        return True

    def _send(self, listeners: list[_Listener], messages: Sequence[Message]) -> None:
        if not listeners or not messages:
            return
        data = {"messages": [_json(message.to_json()) for message in messages]}
        for listener in listeners:
            try:
                listener.context.run(listener.comm.send, data)
            except Exception:
                _log.debug("a telemetry comm could not be written to, and is dropped", exc_info=True)
                self._drop(listener)

    # -- commands, in ------------------------------------------------------------------------------------------------

    def _open_commands(self, opened: BaseComm, _message: dict[str, Any]) -> None:
        def answer(message: dict[str, Any]) -> None:
            keep_busy()
            reply = self._answer(message.get("content", {}).get("data"))
            try:
                opened.send(_json(reply.to_json()))
            except Exception:
                _log.debug("a command could not be answered", exc_info=True)

        opened.on_msg(answer)
        opened.on_close(lambda _message: keep_busy())
        keep_busy()

    def _answer(self, data: object) -> Reply:
        """Return the reply to a message of a front end, which may be invalid."""
        number = data.get("id") if isinstance(data, dict) else None
        number = number if isinstance(number, str) else ""
        try:
            return self._source.command(protocol.parse_command(data))
        except DtrainError as error:
            return protocol.Reply(id=number, ok=False, message=str(error))
        except Exception as error:
            _log.exception("a command failed")
            return protocol.Reply(id=number, ok=False, message=f"That did not work: {type(error).__name__}: {error}")


def _json(value: Any) -> Any:
    """Return `value` with ``None`` for numbers that are not finite: browsers cannot parse these, and would lose the batch."""
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return value if _are_finite(value) else [_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _are_finite(values: list[Any]) -> bool:
    """Return whether all values are finite numbers. Sums them, as a curve may have a hundred thousand."""
    try:
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):  # a non-number, or an integer beyond float: check one by one
        return False
