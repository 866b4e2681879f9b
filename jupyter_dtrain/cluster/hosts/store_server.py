"""Rendezvous of ranks on several hosts: a key-value store in the notebook's process, reached over CURVE.

PyTorch's ``TCPStore`` neither authenticates nor encrypts. Here only clients with the server's key can send requests, and engines get that
key with their task. `RemoteStore` (``remote_store.py``) is the ranks' side.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import zmq

from ..endpoint import Endpoint

KEPT = 4
"""Number of meetings that are kept: of a group and its successor, and the same for a group of another size."""
_WAIT = 200  # milliseconds between checks whether to end


@dataclass(frozen=True)
class StoreEndpoint(Endpoint):
    """A store that no other generation uses.

    Attributes
    ----------
    url : str
    server_key : bytes
        The server's public key, which only ranks are told.
    meeting : str
        Id of the rendezvous.
    """

    url: str
    server_key: bytes = field(repr=False)
    meeting: str = field(repr=False)
    spans_hosts = True

    def open(self, world_size: int, limit: timedelta) -> Any:  # noqa: ARG002  # the world size is not needed
        """Return the ``torch.distributed.Store``."""
        from .remote_store import RemoteStore

        return RemoteStore(self.url, self.server_key, self.meeting, limit)


class StoreServer:
    """Serve ranks at a port of `address`, on a separate thread.

    Parameters
    ----------
    address : str
        This host's address, as the others reach it.
    """

    def __init__(self, address: str) -> None:
        public, secret = zmq.curve_keypair()
        self._key = public
        self._meetings: dict[str, dict[str, bytes]] = {}
        self._ended = threading.Event()
        self._socket: Any = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        port: int = self._socket.bind_to_random_port(f"tcp://{address}")
        self.url, self.port = f"tcp://{address}:{port}", port
        self._thread = threading.Thread(target=self._serve, name="dtrain-store", daemon=True)
        self._thread.start()

    def endpoint(self) -> StoreEndpoint:
        """Return a new rendezvous."""
        meeting = secrets.token_hex(16)
        self._meetings[meeting] = {}
        for old in list(self._meetings)[:-KEPT]:
            del self._meetings[old]
        return StoreEndpoint(self.url, self._key, meeting)

    def close(self) -> None:
        """Stop serving."""
        self._ended.set()
        self._thread.join()

    def _serve(self) -> None:
        with contextlib.closing(self._socket):
            while not self._ended.is_set():
                if self._socket.poll(_WAIT):
                    identity, _, request, *values = self._socket.recv_multipart()
                    self._socket.send_multipart([identity, b"", *self._answer(request, values)])

    def _answer(self, request: bytes, values: list[bytes]) -> list[bytes]:
        try:
            meeting, action, *keys = json.loads(request)
            return [b"ok", *_ACTIONS[action](self._meetings[meeting], keys, values)]
        except (KeyError, ValueError, IndexError, TypeError):
            return [b"over"]  # a request of an earlier generation


def _add(stored: dict[str, bytes], keys: list[str], values: list[bytes]) -> list[bytes]:
    stored[keys[0]] = str(int(stored.get(keys[0], b"0")) + int(values[0])).encode()
    return [stored[keys[0]]]


def _compare_set(stored: dict[str, bytes], keys: list[str], values: list[bytes]) -> list[bytes]:
    """Behave like PyTorch's stores: a missing key equals an empty `expected`; otherwise `expected` is returned for it."""
    expected, desired = values
    found = stored.get(keys[0])
    if (found is None and not expected) or found == expected:
        stored[keys[0]] = found = desired
    return [expected if found is None else found]


def _set(stored: dict[str, bytes], keys: list[str], values: list[bytes]) -> list[bytes]:
    stored[keys[0]] = values[0]
    return []


_ACTIONS: dict[str, Callable[[dict[str, bytes], list[str], list[bytes]], list[bytes]]] = {
    "set": _set,
    "get": lambda stored, keys, _: [stored[key] for key in keys if key in stored],
    "check": lambda stored, keys, _: [b"1" if all(key in stored for key in keys) else b""],
    "add": _add,
    "compare_set": _compare_set,
    "delete": lambda stored, keys, _: [b"1" if stored.pop(keys[0], None) is not None else b""],
    "count": lambda stored, *_: [str(len(stored)).encode()],
}
