"""Messages from the JSON objects that they were on the wire."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

from ..errors import ProtocolError
from .commands import Command, CommandName, Reply
from .events import ENGINE_EVENTS
from .message import Message
from .orders import ORDERS
from .updates import UPDATES

_MESSAGES: tuple[type[Message], ...] = (*ENGINE_EVENTS, *ORDERS, *UPDATES, Reply, Command)
_BY_TYPE = {cls.type: cls for cls in _MESSAGES}
_NAMES = {cls: frozenset(f.name for f in fields(cls)) for cls in _MESSAGES}


def parse(data: dict[str, Any]) -> Message:
    """Return the flat message that `data` holds (engine events, orders and commands; nested ones only travel outward).

    Raises
    ------
    ProtocolError
        The type is unknown, a field is missing or extra, or a command's name is unknown.
    """
    cls = _BY_TYPE.get(str(data.get("type")))
    if cls is None:
        raise ProtocolError(f"message of unknown type {data.get('type')!r}: are both sides of the same version?")
    values = data.copy()
    del values["type"]
    names = _NAMES[cls]
    if values.keys() == names and cls is not Command:
        # All is there, as in what comes hundreds of times a second. A frozen class's own way, field by field, takes three times as long.
        message = cls.__new__(cls)
        message.__dict__.update(values)
        return message
    unknown = values.keys() - names
    if unknown:
        raise ProtocolError(f"message {cls.type!r} has unknown fields {sorted(unknown)}: are both sides of the same version?")
    if cls is Command and values.get("name") not in get_args(CommandName):
        raise ProtocolError(f"unknown command {values.get('name')!r}; known are {', '.join(get_args(CommandName))}")
    try:
        return cls(**values)
    except TypeError as error:
        raise ProtocolError(f"message {cls.type!r}: {error}") from error
