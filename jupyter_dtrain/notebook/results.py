"""Apply a cell's changes on the engines to the notebook's own objects and names."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..capture.warning_filters import find_classes
from ..engine.result_pickler import Head
from ..engine.task import Outcome
from ..serialization.copy_restore import restore_all
from ..serialization.iterator_moves import CannotPlace
from ..serialization.loader_workers import take_over_workers
from ..serialization.partial_reader import Pieces, UnreadableError
from ..serialization.pickler import Packed
from .coming_modules import ComingModules

_NOTHING: Any = object()
_KEEP = frozenset({"In", "Out", "exit", "quit", "get_ipython", "open"})


def apply_outcome(
    outcome: Outcome, returned: Packed | None, tracked: Sequence[object], namespace: dict[str, Any]
) -> tuple[object, dict[str, str]]:
    """Write changed contents into the notebook's objects, bind and delete names, and set the RNG and process state.

    Parameters
    ----------
    outcome : Outcome
        Of rank 0.
    returned : Packed, optional
        What rank 0 sent back, if anything.
    tracked : sequence of object
        The notebook's objects that were sent for the run.
    namespace : dict
        The notebook's.

    Returns
    -------
    value : object
        Value of the cell's last expression.
    unread : dict of str to str
        Names of what could not be unpickled here → the reason.
    """
    if returned is None:
        return None, {}
    gpu = home_gpu(tracked, from_cpu=outcome.from_cpu)
    coming = ComingModules()
    pieces = Pieces(
        returned,
        namespace=namespace,
        known=tracked,
        device_for=lambda kind: gpu if kind == "cuda" else torch.device(kind),
        module_for=coming.named,
    )
    unread: dict[str, str] = {}

    def read(what: object) -> Any:
        try:
            return pieces.read()
        except UnreadableError as error:
            unread[what if isinstance(what, str) else _name_of(what, namespace)] = str(error)
            return _NOTHING

    head: Head = pieces.read()
    others = {index: new for index in head.others if (new := read(tracked[index])) is not _NOTHING}
    changed = {**head.changes.changed, **others}
    for index, new in changed.items():
        obj = tracked[index]
        if isinstance(obj, torch.Tensor) and outcome.device == "cuda" and isinstance(new.items, torch.Tensor):
            _follow(obj, new.items)
    try:
        restore_all([tracked[index] for index in changed], list(changed.values()))
    except CannotPlace as error:
        unread |= {_name_of_any(iterators, namespace): reason for iterators, reason in error.why}
    for index in changed:
        if isinstance(loader := tracked[index], DataLoader):
            take_over_workers(loader)
    for name in head.changes.deleted:
        namespace.pop(name, None)
    if outcome.random_state is not None:
        outcome.random_state.set()
    if outcome.surroundings is not None:
        outcome.surroundings.set()
    coming.complete([one for name in head.modules if (one := read(name)) is not _NOTHING])
    bound = {name: read(name) for name in head.names}
    namespace.update({name: obj for name, obj in bound.items() if name not in _KEEP and obj is not _NOTHING})
    namespace.setdefault("__builtins__", builtins)
    find_classes()
    read("what libraries keep")  # unpickling sets it in the libraries
    value = read("the value of the last line")
    if outcome.random_state is not None:
        outcome.random_state.set()  # again, as modules that were imported here may have drawn numbers
    return None if value is _NOTHING else value, unread


def _name_of(obj: object, namespace: dict[str, Any]) -> str:
    return next((name for name, value in namespace.items() if value is obj), f"a {type(obj).__name__}")


def _name_of_any(iterators: Sequence[object], namespace: dict[str, Any]) -> str:
    """Return how the notebook refers to the first of `iterators` that it refers to by a name, or by a part of what has a name."""
    for one in iterators:
        for name, value in namespace.items():
            if value is one:
                return name
            parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
            for key, part in parts if name not in _KEEP else ():
                if part is one:
                    return f"{name}[{key!r}]"
            for key, part in getattr(value, "__dict__", {}).items():
                if part is one:
                    return f"{name}.{key}"
    return f"an iterator ({type(iterators[0]).__name__})"


def device_here(kind: str) -> torch.device:
    """Return the device here for tensors that another notebook had on a device of this `kind`."""
    return torch.device("cpu") if kind == "cuda" and not torch.cuda.is_available() else torch.device(kind)


def home_gpu(objects: Iterable[object], *, from_cpu: bool) -> torch.device:
    """Return the notebook's device for tensors that an engine has on its GPU.

    Parameters
    ----------
    objects : iterable of object
        The notebook's objects that were sent.
    from_cpu : bool
        The notebook's tensors are on the CPU, and the engine has moved them to its GPU.
    """
    if from_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    devices = (obj if isinstance(obj, torch.device) else getattr(obj, "device", None) for obj in objects if _has_device(obj))
    return next((device for device in devices if device is not None and device.type == "cuda"), torch.device("cuda"))


def _has_device(obj: object) -> bool:
    return isinstance(obj, torch.Tensor | torch.device)


def _follow(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Move `tensor` to the device to which the cell has moved it (``model.to(device)``)."""
    if tensor.device.type != new.device.type and tensor.layout == new.layout == torch.strided:
        tensor.data = torch.empty_like(tensor, device=new.device)
