"""Parse messages from JSON objects."""

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
    """Return the flat message in `data`: engine events, orders and commands. Nested messages are only sent to JupyterLab.

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
        # All fields are there, as in messages that come hundreds of times a second. The constructor of a frozen class takes three times as
        # long.
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


def parse_command(data: object) -> Command:
    """Return `data` as a command; raise a `ProtocolError` if it is none."""
    if not isinstance(data, dict):
        raise ProtocolError(f"a command is an object and not {type(data).__name__}")
    command = parse(data)
    if not isinstance(command, Command):
        raise ProtocolError(f"{command.type!r} is not a command")
    if not isinstance(command.id, str):
        raise ProtocolError(f"the id of a command is a text and not {command.id!r}")
    for name in ("num_engines", "rank", "first", "last", "limit", "step"):
        number = getattr(command, name)
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise ProtocolError(f"{name} is a whole number and not {number!r}")
    for name in ("run_id", "other_run_id", "curve", "text"):
        text = getattr(command, name)
        if text is not None and not isinstance(text, str):
            raise ProtocolError(f"{name} is a text and not {text!r}")
    if command.pinned is not None and not isinstance(command.pinned, bool):
        raise ProtocolError(f"pinned is true or false and not {command.pinned!r}")
    return command
