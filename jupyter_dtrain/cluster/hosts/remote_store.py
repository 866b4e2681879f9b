"""The ranks' side of a store in the notebook's process (``store_server.py``)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import zmq
from torch.distributed import DistNetworkError, DistStoreError, Store  # type: ignore[attr-defined]  # not in torch's own list of exports

SILENCE = timedelta(seconds=10)
"""Time for the notebook's process to answer."""
_LOOK, _SELDOM = 0.001, 0.01  # seconds between checks, at first and later
_SLICE = 100  # milliseconds of a wait that interrupts cannot break


class RemoteStore(Store):
    """A ``torch.distributed.Store``; any thread may use it.

    Parameters
    ----------
    url : str
    server_key : bytes
    meeting : str
        Id of the rendezvous that keys belong to.
    limit : timedelta
        Time that a key is waited for.
    """

    def __init__(self, url: str, server_key: bytes, meeting: str, limit: timedelta) -> None:
        super().__init__()
        self._url, self._server_key, self._meeting, self._limit = url, server_key, meeting, limit
        self._keys = zmq.curve_keypair()
        self._own = threading.local()  # sockets, one per thread

    def _ask(self, action: str, keys: Sequence[str], *values: bytes) -> list[bytes]:
        link = self._link()
        try:
            link.send_multipart([json.dumps([self._meeting, action, *keys]).encode(), *values])
            end = time.monotonic() + SILENCE.total_seconds()
            while not link.poll(_SLICE):
                if time.monotonic() > end:
                    raise DistNetworkError(f"The notebook's process has not answered for {SILENCE.total_seconds():g} s.")
            status, *found = link.recv_multipart()
        except BaseException:  # also after an interrupt: a late answer must not be taken for the next one
            link.close(linger=0)
            self._own.link = None
            raise
        if status != b"ok":
            raise DistStoreError("The ranks have begun another rendezvous without this one.")
        return list(found)

    def _link(self) -> Any:
        link: Any = getattr(self._own, "link", None)
        if link is None:
            link = self._own.link = zmq.Context.instance().socket(zmq.REQ)
            link.linger = 0
            link.curve_serverkey = self._server_key
            link.curve_publickey, link.curve_secretkey = self._keys
            link.connect(self._url)
        return link

    # Methods that PyTorch calls.

    def set(self, key: str, value: str | bytes) -> None:
        """Store `value` under `key`."""
        self._ask("set", [key], _bytes(value))

    def get(self, key: str) -> bytes:
        """Return the value of `key`; waits for it."""
        while not (found := self._ask("get", [key])):
            self.wait([key])
        return found[0]

    def check(self, keys: Sequence[str]) -> bool:
        """Return whether all `keys` exist."""
        return self._ask("check", keys) == [b"1"]

    def add(self, key: str, number: int) -> int:
        """Add to a counter, and return its value."""
        return int(self._ask("add", [key], str(number).encode())[0])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Store `desired` if the value is `expected`, and return the value."""
        return self._ask("compare_set", [key], _bytes(expected), _bytes(desired))[0]

    def delete_key(self, key: str) -> bool:
        """Remove `key`; return whether it existed."""
        return self._ask("delete", [key]) == [b"1"]

    def num_keys(self) -> int:
        """Return the number of keys."""
        return int(self._ask("count", [])[0])

    deleteKey, getNumKeys = delete_key, num_keys  # noqa: N815 - as PyTorch calls them from C++

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all `keys` exist."""
        limit = self._limit if timeout is None else timeout
        end, pause = time.monotonic() + limit.total_seconds(), _LOOK
        while not self.check(keys):
            if time.monotonic() > end:
                raise DistStoreError(f"Waited {limit.total_seconds():g} s for the rendezvous keys {', '.join(keys)}.")
            time.sleep(pause)
            pause = min(pause * 1.2, _SELDOM)

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the time that keys are waited for."""
        self._limit = timeout

    @property
    def timeout(self) -> timedelta:
        """The time that keys are waited for."""
        return self._limit


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
