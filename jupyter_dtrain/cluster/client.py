"""Calls to engines with their output, and control messages to busy engines.

A thin layer over ipyparallel's client. It passes on a task's IOPub messages as they arrive, as ipyparallel's own results collect them
without bound. It also uses the control channel, which engines serve from a thread of their own while a cell occupies the main thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from ipyparallel.error import EngineError, NoEnginesRegistered

OnMessage = Callable[[str, dict[str, Any]], None]


class EngineChannel:
    """The connection to a cluster's engines.

    Parameters
    ----------
    client : ipyparallel.Client
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def call(self, engine_id: int, function: Callable[..., Any], *args: Any, on_message: OnMessage | None = None) -> Task:
        """Call an importable `function` on an engine.

        Parameters
        ----------
        on_message : callable
            Takes type and content of each message that the task publishes (``stream``, ``display_data``, ``data_message``, …) as it
            arrives, on the client's IO thread.
        """

        def listen(future: Any) -> None:
            if on_message is not None:
                future.iopub_callbacks.append(self._relay(on_message))

        try:
            ident = self._client._build_targets([engine_id])[0][0]
        except (KeyError, NoEnginesRegistered):
            return Task(_lost(engine_id))
        future = self._client.send_apply_request(self._client._mux_stream, function, args, ident=ident, message_future_hook=listen)
        return Task(future)

    def command(self, engine_ids: Sequence[int], message_type: str, content: dict[str, Any]) -> None:
        """Send a control message, which engines handle even while they are busy; dead engines are skipped. Does not block."""
        for engine_id in engine_ids:
            with contextlib.suppress(KeyError, NoEnginesRegistered):  # it has died
                self._client._send_control_request(targets=[engine_id], msg_type=message_type, content=content, block=False)

    def _relay(self, on_message: OnMessage) -> Callable[[Any], None]:
        def relay(message: dict[str, Any]) -> None:
            kind = message["msg_type"]
            collected = self._client.metadata.get(message["parent_header"].get("msg_id"))
            if kind == "data_message":
                data = dict(collected["data"]) if collected is not None else {}
                on_message(kind, data)
            else:
                on_message(kind, message["content"])
            if collected is not None:  # ipyparallel keeps all output of a task until its end, which would fill the memory in a long run
                collected["data"].clear()
                collected["outputs"].clear()
                for name in ("stdout", "stderr"):
                    collected[name] = ""

        return relay


def _lost(engine_id: int) -> Any:
    """Return the future of a call to a dead engine."""
    future: Any = Future()
    future.set_exception(EngineError(f"engine {engine_id} has died"))
    future.output = Future()
    future.output.set_result(None)
    return future


class Task:
    """A call in progress on one engine."""

    def __init__(self, future: Any) -> None:
        self._future = future

    @property
    def done(self) -> bool:
        """Whether the engine has answered or died."""
        return bool(self._future.done())

    @property
    def output_done(self) -> bool:
        """Whether all output of the task has arrived."""
        return bool(self._future.output.done())

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the task is done, on any thread."""
        self._future.add_done_callback(lambda _: callback())

    def on_output_done(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all output has arrived, on any thread."""
        self._future.output.add_done_callback(lambda _: callback())

    def result(self) -> Any:
        """Return the function's result or raise its error (``ipyparallel.error.EngineError``: the engine died)."""
        future: Future[Any] = self._future
        value = future.result()
        if isinstance(value, BaseException):
            raise value
        return value


# Report a death to the controller, as an engine's nanny would.


def unregister(client: Any, engine_id: int) -> None:
    """Send the controller the message that an engine's nanny sends when the engine has died."""
    import zmq

    link: Any = zmq.Context.instance().socket(zmq.DEALER)  # the client's own sockets belong to its IO thread
    link.linger = 3000  # milliseconds
    if client.curve_serverkey:
        keys = (client.curve_serverkey, client.curve_publickey, client.curve_secretkey)
        link.curve_serverkey, link.curve_publickey, link.curve_secretkey = keys
    with link:
        link.connect(client._config["registration"])
        client.session.clone().send(link, "unregistration_request", content={"id": engine_id})
