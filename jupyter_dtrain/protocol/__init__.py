"""Events, orders, updates and commands: everything that crosses a process boundary while a run goes on, defined once.

Four roads use these types. Engines send *events* to the notebook's kernel (over ipyparallel's IOPub channel, in batches), which sends them
*orders* (over the control channel). The kernel sends *updates* to JupyterLab (over the telemetry comm) and gets *commands* back (over the
command comm). Each message is a frozen dataclass; on the wire it is a JSON object whose ``type`` names the class in snake case.
``labextension/src/protocol.ts`` is generated from this package, and a test fails when they differ.

Columns (lists of equal length) rather than rows carry what comes many times a second: one step is then a few
numbers and not a few objects.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .commands import (
        Change,
        CheckpointCommand,
        CheckpointInfo,
        Command,
        CommandName,
        Comparison,
        CurveSummary,
        FunctionChange,
        PastRun,
        Reply,
        RunCell,
        RunOutput,
        SessionCommand,
        Sweep,
    )
    from .events import (
        ENGINE_EVENTS,
        RECORDED_EVENTS,
        DeviceUse,
        Extent,
        Homeward,
        Hyperparameters,
        Notice,
        Paused,
        Progress,
        RankStarted,
        Scalars,
        ShardLeft,
        SnapshotTaken,
        Standing,
        StateSize,
        Steps,
        TimeSplit,
    )
    from .message import (
        CLUSTER_VARIABLE,
        COMMAND_TARGET,
        HOST_VARIABLE,
        PROTOCOL_VERSION,
        RECORD_TARGET,
        RUN_PHASES_ENDED,
        TELEMETRY_TARGET,
        WIDGET_MODULE,
        ClusterPhase,
        Message,
        RunPhase,
        Value,
    )
    from .orders import (
        ORDERS,
        EndPause,
        LeaveGroup,
        Order,
        Pause,
        ReturnResults,
        SetShares,
        Stop,
        StopToReturn,
        TakeSnapshot,
        TellStanding,
    )
    from .parsing import parse, parse_command
    from .updates import UPDATES, ClusterUpdate, DetachedRun, EngineInfo, Points, RunUpdate, Snapshot, TrialRun, TrialRuns

__all__ = [
    "CLUSTER_VARIABLE",
    "COMMAND_TARGET",
    "ENGINE_EVENTS",
    "HOST_VARIABLE",
    "ORDERS",
    "PROTOCOL_VERSION",
    "RECORDED_EVENTS",
    "RECORD_TARGET",
    "RUN_PHASES_ENDED",
    "TELEMETRY_TARGET",
    "UPDATES",
    "WIDGET_MODULE",
    "Change",
    "CheckpointCommand",
    "CheckpointInfo",
    "ClusterPhase",
    "ClusterUpdate",
    "Command",
    "CommandName",
    "Comparison",
    "CurveSummary",
    "DetachedRun",
    "DeviceUse",
    "EndPause",
    "EngineInfo",
    "Extent",
    "FunctionChange",
    "Homeward",
    "Hyperparameters",
    "LeaveGroup",
    "Message",
    "Notice",
    "Order",
    "PastRun",
    "Pause",
    "Paused",
    "Points",
    "Progress",
    "RankStarted",
    "Reply",
    "ReturnResults",
    "RunCell",
    "RunOutput",
    "RunPhase",
    "RunUpdate",
    "Scalars",
    "SessionCommand",
    "SetShares",
    "ShardLeft",
    "Snapshot",
    "SnapshotTaken",
    "Standing",
    "StateSize",
    "Steps",
    "Stop",
    "StopToReturn",
    "Sweep",
    "TakeSnapshot",
    "TellStanding",
    "TimeSplit",
    "TrialRun",
    "TrialRuns",
    "Value",
    "parse",
    "parse_command",
]
_MODULES = ("message", "events", "orders", "updates", "commands", "parsing")
"""In the order in which they import each other. A name belongs to the first module that has it."""


def __getattr__(name: str) -> Any:
    """Import the module of a name when the name is first used."""
    for module in _MODULES if name in __all__ else ():
        names = vars(import_module(f"{__name__}.{module}"))
        if name in names:
            globals()[name] = names[name]
            return names[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
