"""Replace device names from the notebook by the rank's own device while the cell runs.

``torch.device`` objects are replaced as they arrive, wherever they are (`capture.pickling`). Strings like ``"cuda:0"`` are replaced only
where they clearly name a device: the value of a name, an entry or an attribute called ``device``. They are restored afterwards, so that the
notebook gets its own values back.

A notebook without a GPU says ``"cpu"`` where it would have said ``"cuda"``. On a rank with a GPU this means the GPU, and its models and
their optimizers move there. A notebook that names no device stays on the CPU, because nothing in it would move the data to the models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...serialization.python_reducers import SlotValues

_CUDA = re.compile(r"cuda(:\d+)?")
_CALLED_DEVICE = re.compile(r"(.*_)?dev(ice)?", re.IGNORECASE)


class DeviceNames:
    """The places in the notebook's values that name a device.

    Parameters
    ----------
    namespace : dict
        The notebook's names.
    tracked : iterable of object
        The objects that came with them.
    device : torch.device
        The rank's device.
    """

    def __init__(self, namespace: dict[str, Any], tracked: Iterable[object], device: torch.device) -> None:
        self._namespace, self._tracked = namespace, list(tracked)
        self._device = device
        holders: list[Any] = [obj for obj in self._tracked if obj is not namespace]
        values = [(namespace, key, value) for key, value in namespace.items()]
        named = [(holder, key, value) for holder in holders for key, value in _entries(holder)]
        knows_gpu = any(_kind(value) == "cuda" for _, _, value in (*values, *named)) or any(
            tensor.device.type == "cuda" for tensor in holders if isinstance(tensor, torch.Tensor)
        )
        means_gpu = device.type == "cuda" and not knows_gpu
        if means_gpu:
            places = [place for place in (*values, *named) if _kind(place[2]) == "cpu" and _CALLED_DEVICE.fullmatch(place[1])]
        else:
            places = [place for place in (*values, *named) if isinstance(place[2], str) and _kind(place[2]) == "cuda"]
        self._places = [(holder, key, value, self._instead(value)) for holder, key, value in places]
        self.from_cpu = means_gpu and bool(places)
        """Whether values on the notebook's CPU are on the rank's GPU."""

    @property
    def names(self) -> dict[str, object]:
        """The cell's names whose values are replaced while the cell runs, with their replacements."""
        return {key: instead for holder, key, _, instead in self._places if holder is self._namespace}

    def move_models(self) -> None:
        """Move models, optimizer state and trainable leaf tensors to the rank's device, if the notebook names no device but ``cpu``."""
        if not self.from_cpu:
            return
        for obj in self._tracked:
            if isinstance(obj, nn.Module):
                for tensor in (*obj.parameters(), *obj.buffers()):
                    self._move(tensor)
            elif isinstance(obj, Optimizer):
                for state in getattr(obj, "state", {}).values():  # a wrapper around another optimizer may have no state
                    for key, value in state.items() if isinstance(state, dict) else ():
                        if isinstance(value, torch.Tensor) and key != "step":  # PyTorch keeps `step` on the CPU
                            self._move(value)
            elif isinstance(obj, torch.Tensor) and obj.requires_grad and obj.is_leaf:
                self._move(obj)

    def _move(self, tensor: torch.Tensor) -> None:
        tensor.data = tensor.data.to(self._device)
        if tensor.is_leaf and tensor.grad is not None:
            tensor.grad.data = tensor.grad.data.to(self._device)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let all places name the rank's device until the end of the ``with`` block."""
        for holder, key, _, instead in self._places:
            _set(holder, key, instead)
        try:
            yield
        finally:
            for holder, key, value, instead in self._places:
                if _get(holder, key) is instead:  # the cell has not changed it
                    _set(holder, key, value)

    def _instead(self, value: object) -> object:
        # A new string object, so that equal strings of the cell's code are not taken for it.
        return self._device if isinstance(value, torch.device) else "".join([*str(self._device)])


def _kind(value: object) -> str | None:
    """Return ``"cuda"`` or ``"cpu"`` if `value` is such a device, or a string that could name one."""
    if isinstance(value, torch.device):
        return value.type
    if isinstance(value, str):
        return "cuda" if _CUDA.fullmatch(value) else "cpu" if value == "cpu" else None
    return None


def _entries(holder: Any) -> list[tuple[str, object]]:
    """Return the entries of a dict, or the attributes and slots of an object or class, that are called a device and name one."""
    if isinstance(holder, dict):
        items = list(dict.items(holder))
    else:
        items = [*getattr(holder, "__dict__", {}).items(), *SlotValues(holder).items()]
    return [(key, value) for key, value in items if isinstance(key, str) and _kind(value) and _CALLED_DEVICE.fullmatch(key)]


def _get(holder: Any, key: str) -> object:
    if isinstance(holder, dict):
        return dict.get(holder, key)
    slots = SlotValues(holder)
    return slots[key] if key in slots else getattr(holder, "__dict__", {}).get(key)


def _set(holder: Any, key: str, value: object) -> None:
    if isinstance(holder, dict):
        dict.__setitem__(holder, key, value)
    elif isinstance(holder, type):
        type.__setattr__(holder, key, value)
    elif key in (slots := SlotValues(holder)):
        slots[key] = value
    else:
        vars(holder)[key] = value


# Names as they arrive.


class Unsent(Enum):
    """Stands for the notebook's value of a name that the cell binds before it reads it."""

    VALUE = "not sent"


def bind(namespace: dict[str, Any], values: dict[str, Any], *, unsent: Iterable[str]) -> None:
    """Bind the names of `values`, and `unsent` ones, so that one of these which the cell deletes is missed at its end."""
    namespace.update(values)
    for name in unsent:
        namespace.setdefault(name, Unsent.VALUE)  # a function may have brought its value with it


# Optimizers.


def is_stepping(frame: FrameType | None) -> bool:
    """Return whether a thread at `frame` is within an optimizer's step, when weights and optimizer state may be inconsistent."""
    while frame is not None:
        if frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), Optimizer):
            return True
        frame = frame.f_back
    return False
