"""What the cell did on the engines, done to the notebook's own objects and names."""

from __future__ import annotations

import builtins
from typing import Any

import torch

from ..capture.bundle import Bundle
from ..capture.copy_restore import restore
from ..capture.pickling import Packed, Unpacker
from ..engine.results import Bound, Changes
from ..engine.worker import Outcome
from ..errors import CaptureError

_KEEP = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})


def apply_outcome(outcome: Outcome, returned: Packed | None, bundle: Bundle, namespace: dict[str, Any]) -> object:
    """Write changed contents into the notebook's objects, bind and delete names, and continue its random streams.

    Parameters
    ----------
    outcome : Outcome
        Of rank 0.
    returned : Packed, optional
        What rank 0 sent back; ``None`` where there was nothing.
    bundle : Bundle
        What was sent for the run.
    namespace : dict
        The notebook's.

    Returns
    -------
    object
        The value of the cell's last line.
    """
    if returned is None:
        return None
    unpacker = Unpacker(returned, namespace=namespace, known=bundle.tracked, device_for=_device_here)
    changes: Changes = unpacker.load()
    for index, new in changes.changed.items():
        restore(bundle.tracked[index], new)
    for name in changes.deleted:
        namespace.pop(name, None)
    if outcome.random_state is not None:
        outcome.random_state.set()
    if outcome.surroundings is not None:
        outcome.surroundings.set()
    try:
        bound: Bound = unpacker.load()
    except Exception as error:
        raise CaptureError(
            f"what the cell changed is in the notebook, but the names that it assigned cannot be read here ({type(error).__name__}: "
            f"{error}).\nAt the end of the cell, delete names that only an engine can hold (connections, wrappers of a process group).",
            name="",
        ) from error
    namespace.update({name: obj for name, obj in bound.names.items() if name not in _KEEP})
    namespace.setdefault("__builtins__", builtins)
    return bound.value


def _device_here(kind: str) -> torch.device:
    """Return where tensors of an engine's `kind` of device live in the notebook's process."""
    if kind == "cuda" and not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device(kind)
