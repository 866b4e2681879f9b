"""Telling the controller of a death, as an engine's nanny would."""

from __future__ import annotations

from typing import Any


def unregister(client: Any, engine_id: int) -> None:
    """Send the controller what an engine's nanny sends when the engine has died."""
    import zmq

    link: Any = zmq.Context.instance().socket(zmq.DEALER)  # the client's own sockets belong to its thread
    link.linger = 3000  # milliseconds
    with link:
        link.connect(client._config["registration"])
        client.session.clone().send(link, "unregistration_request", content={"id": engine_id})
