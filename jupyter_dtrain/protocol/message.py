"""The base class of all messages, and constants and types that several of them share."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Literal

PROTOCOL_VERSION = 2
TELEMETRY_TARGET = "jupyter_dtrain:telemetry"
COMMAND_TARGET = "jupyter_dtrain:commands"
RECORD_TARGET = "jupyter_dtrain:record"  # for commands about past runs, so that a long answer does not delay other commands
WIDGET_MODULE = "jupyter-dtrain"  # the module of our widgets, which the JupyterLab extension registers
HOST_VARIABLE = "JUPYTER_DTRAIN_HOST"  # environment variable of engines on another host than the notebook's: that host's name
CLUSTER_VARIABLE = "JUPYTER_DTRAIN_CLUSTER"  # environment variable of all processes of a cluster, with the cluster's name

ClusterPhase = Literal["stopped", "starting", "running", "stopping"]
RunPhase = Literal["starting", "running", "paused", "stopping", "finished", "stopped", "pruned", "failed"]
Value = str | int | float | bool | None
"""Value of a hyperparameter. Sequences are strings, as Python writes them, and so are numbers that JSON or JavaScript cannot represent."""
RUN_PHASES_ENDED: frozenset[str] = frozenset({"finished", "stopped", "pruned", "failed"})


@dataclass(frozen=True, kw_only=True)
class Message:
    """Base of everything on the wire."""

    type: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.type = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """Return the message as a JSON object with its ``type``."""
        return {"type": self.type, **_object(self)}


_PLAIN = str | int | float | bool | None
"""Types of values in columns, which may have a hundred thousand values."""


def _object(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as `dataclasses.asdict` does, which would copy each number of a column separately."""
    return {field.name: _nested(getattr(value, field.name)) for field in fields(value)}


def _nested(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return {key: _nested(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # All values of a column have such types.
        is_column = len(value) > 0 and isinstance(value[0], _PLAIN)
        return list(value) if is_column else [_nested(item) for item in value]
    return _object(value) if is_dataclass(value) else value
