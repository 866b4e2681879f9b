"""The kernel's end of the comms: what runs report goes out on one, controls come in on another.

Why two: a comm's messages are handled on the kernel subshell that the kernel remembers for it, and ipykernel 7.4
remembers the subshell of the message that was being handled when the comm was last *written to*. A comm that is written to
while a cell runs is from then on handled by the main shell, and a Stop would wait for the end of the cell that it is
to stop. So the command comm is written to by its handler alone, and the telemetry comm expects nothing. A third one, served like
that for commands, is for questions about past runs, whose answers may take their time.

The telemetry comm is written to by one thread, in the context in which the comm was opened. The kernel
therefore takes the opening for the parent of what is sent: it never looks like output of the cell that happens to run, and the comm
stays with the subshell that it was opened on, so that its closing is noticed while a cell runs.
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
"""Seconds between two batches at least: 5 a second look alive, and are no load."""
RETRY = 5.0
"""Seconds until the next try after the source has failed."""
MAX_LISTENERS = 16
"""Telemetry comms at once. A browser that is reloaded or shut leaves its comm open; the oldest are closed."""

_log = logging.getLogger(__name__)


class Views(Protocol):
    """Where telemetry comes from."""

    def snapshot(self) -> Snapshot:
        """Return everything that earlier calls of :meth:`drain` have returned, and nothing that a later one will."""

    def drain(self) -> list[Message]:
        """Return what is new since the last call."""


class Source(Views, Protocol):
    """Where telemetry comes from and commands go."""

    def command(self, command: Command) -> Reply:
        """Carry out `command`, or set about it, and return quickly: this runs on a kernel subshell."""


@dataclass(eq=False)
class _Listener:
    """An open telemetry comm, and the context of its opening."""

    comm: BaseComm
    context: Context
    is_new: bool = True


class Telemetry:
    """Serves every front end that opens the comms, until :meth:`close`.

    A telemetry comm gets ``{"messages": [...]}``: first a snapshot, then what is new, at most every `interval` seconds.
    A command comm gets one reply for each command, with the command's id.

    Parameters
    ----------
    source : Source
        Given commands, from any thread, and the first `views`.
    interval : float
        Seconds between two batches.

    Attributes
    ----------
    views : Views
        Asked for telemetry, from one thread only.
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
        """Register the comm targets with the kernel. Where there is no kernel, nobody will open them."""
        comm_targets.register(self._targets)
        self._thread.start()

    @property
    def _targets(self) -> comm_targets.Targets:
        return {TELEMETRY_TARGET: self._open_telemetry, COMMAND_TARGET: self._open_commands, RECORD_TARGET: self._open_commands}

    def notify(self) -> None:
        """Say that :meth:`Views.drain` has something new. Any thread may call this, as often as it likes."""
        with self._condition:
            self._has_news = True
            self._condition.notify()

    @property
    def num_listeners(self) -> int:
        """Front ends that are listening."""
        with self._condition:
            return len(self._listeners)

    def close(self) -> None:
        """Send what is left, close the telemetry comms, and accept no new ones."""
        comm_targets.unregister(self._targets)  # and not those of a later one, after a reload of the extension
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
        """Send a batch to those who listen, and a snapshot to those who are new; return False if the source failed."""
        with self._condition:
            listeners = list(self._listeners)
            self._has_news = False
        new, views = [listener for listener in listeners if listener.is_new], self.views
        try:
            # In this order: the snapshot has what was drained, so a new listener misses nothing and gets nothing twice. Where nobody
            # listens it is drained all the same, and gone: it would be kept for as long as the kernel lives.
            self._send([listener for listener in listeners if not listener.is_new], views.drain())
            if new:
                self._send(new, [views.snapshot()])
        except Exception:  # the next batch may do better; without this thread there is none
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
        """Return the reply to what a front end sent, whatever it is."""
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
    """Return `value` without numbers that are not finite: browsers do not read them, and one would cost the whole batch."""
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, list):
        return value if _are_finite(value) else [_json(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _are_finite(values: list[Any]) -> bool:
    """Return whether all are numbers and finite: by their sum, for a column of curves may have a hundred thousand."""
    try:
        return math.isfinite(sum(values))
    except (TypeError, OverflowError):  # what is no number, or more than a float can be: to be looked at one by one
        return False
