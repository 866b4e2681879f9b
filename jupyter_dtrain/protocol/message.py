"""What all messages have in common, and the words that several of them use."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

PROTOCOL_VERSION = 2
TELEMETRY_TARGET = "jupyter_dtrain:telemetry"
COMMAND_TARGET = "jupyter_dtrain:commands"
RECORD_TARGET = "jupyter_dtrain:record"  # for commands about past runs: a long answer keeps no other command waiting
WIDGET_MODULE = "jupyter-dtrain"  # where widgets of ours come from: what the JupyterLab extension registers
HOST_VARIABLE = "JUPYTER_DTRAIN_HOST"  # of the environment of engines on another host than the notebook's: what that is called
CLUSTER_VARIABLE = "JUPYTER_DTRAIN_CLUSTER"  # of the environment: who has it is a process of the cluster that it names

ClusterPhase = Literal["stopped", "starting", "running", "stopping"]
RunPhase = Literal["starting", "running", "paused", "stopping", "finished", "stopped", "pruned", "failed"]
Value = str | int | float | bool | None
"""Of a hyperparameter. Sequences are texts, as Python writes them, and so are numbers that JSON or JavaScript cannot say."""
RUN_PHASES_ENDED: frozenset[str] = frozenset({"finished", "stopped", "pruned", "failed"})


@dataclass(frozen=True, kw_only=True)
class Message:
    """Base of everything on the wire."""

    type: ClassVar[str]

    def __init_subclass__(cls) -> None:
        cls.type = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def to_json(self) -> dict[str, Any]:
        """Return the message as a JSON object with its ``type``."""
        return {"type": self.type, **asdict(self)}
