"""Sends events to the kernel: the training thread collects them, and another thread sends batches a few times a second.

They use ipyparallel's own IOPub channel, so they arrive wherever the engine can be reached. The channel merges data with the same key, so
each batch has a key of its own. Values that are still on a device (losses) are read by the sending thread: the training thread does not
wait for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from ...protocol import Message

Publish = Callable[[dict[str, Any]], None]
KEY = "dtrain:{run_id}:{rank}:{count}"
MANY, SELDOM = 100, timedelta(seconds=2)
"""Ranks above which each sends more seldom, as a message costs the kernel 0.2 ms whatever it holds; and how seldom it does at most."""


def interval_for(world_size: int, usual: timedelta) -> timedelta:
    """Return the time between two batches of each of so many ranks: the kernel gets no more than `MANY` in the `usual` one."""
    return min(usual * max(1.0, world_size / MANY), SELDOM)


class Emitter:
    """Sends events of a rank in the background.

    Parameters
    ----------
    publish : callable
        Sends a dict to the notebook kernel.
    run_id : str
    rank : int
    interval : timedelta
        Time between two batches.
    """

    def __init__(self, publish: Publish, *, run_id: str, rank: int, interval: timedelta) -> None:
        self._publish = publish
        self._run_id, self._rank = run_id, rank
        self._interval = interval.total_seconds()
        self._sources: list[Callable[[], list[Message]]] = []
        self._pending: list[Message] = []
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._stop = threading.Event()
        self._count = 0
        self._asks = True
        self._thread = threading.Thread(target=self._run, name="dtrain-emit", daemon=True)

    def add_source(self, source: Callable[[], list[Message]]) -> None:
        """Call `source` for new messages before each batch, on the sending thread."""
        self._sources.append(source)

    def start(self) -> None:
        """Start sending."""
        self._thread.start()

    @contextmanager
    def asking_nobody(self) -> Iterator[None]:
        """Ask no source, on any thread, until the end of the ``with`` block; what is emitted is sent all the same."""
        with self._flush_lock:
            self._asks = False
        try:
            yield
        finally:
            self._asks = True

    def emit(self, message: Message) -> None:
        """Send `message` with the next batch."""
        with self._lock:
            self._pending.append(message)

    def close(self) -> None:
        """Send what is left, and stop."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self.flush()

    def flush(self) -> None:
        """Send the present messages."""
        with self._flush_lock:
            found = [message for source in self._sources for message in source()] if self._asks else []
            with self._lock:
                messages, self._pending = self._pending + found, []
            if messages:
                self._count += 1
                key = KEY.format(run_id=self._run_id, rank=self._rank, count=self._count)
                self._publish({key: [message.to_json() for message in messages]})

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.flush()


def publisher() -> Publish:
    """Return a function that publishes data as part of the task that is running now; any thread may call it."""
    from ipykernel.zmqshell import ZMQInteractiveShell
    from ipyparallel.serialize import serialize_object

    channel = ZMQInteractiveShell.instance().data_pub
    parent = channel.parent_header  # of this task: the channel's own changes with the next message

    def publish(data: dict[str, Any]) -> None:
        channel.session.send(
            channel.pub_socket,
            "data_message",
            content={"keys": list(data)},
            parent=parent,
            buffers=serialize_object(data),
            ident=channel.topic,
        )

    return publish
