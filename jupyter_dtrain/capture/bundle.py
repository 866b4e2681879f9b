"""From names to what is sent: the notebook's values in one pickle, and an error that names what cannot be.

Functions and classes defined in the notebook travel by value, and so do modules that lie beside it: engines then
always run the text as it is now, edited a moment ago or not.
"""

from __future__ import annotations

import random
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch

from ..errors import CaptureError
from .names import CellNames
from .pickling import Packed, Packer, Unpacker, trackable

_MAX_DEPTH = 8  # how far a value is searched for what cannot be sent


@dataclass
class Bundle:
    """The notebook's values as they are sent.

    Attributes
    ----------
    packed : Packed
        Two graphs: a dict of the values by name, and the list `tracked`.
    tracked : list of object
        The notebook's objects that the engines work on copies of, in the order that both sides count them.
    left_out : dict of str to str
        Names that may be read but could not be sent, with the reason.
    """

    packed: Packed
    tracked: list[object]
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RandomState:
    """The notebook's random streams: the cell continues them on the engines, and the notebook continues after it."""

    torch_cpu: torch.Tensor
    numpy_legacy: tuple[Any, ...]
    python: tuple[Any, ...]

    @classmethod
    def now(cls) -> RandomState:
        """Return the state of this process."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())  # type: ignore[arg-type]

    def set(self) -> None:
        """Make it the state of this process."""
        torch.set_rng_state(self.torch_cpu)
        np.random.set_state(self.numpy_legacy)
        random.setstate(self.python)


def pack(names: CellNames, namespace: dict[str, Any]) -> Bundle:
    """Pickle the values of `names` in `namespace`.

    Raises
    ------
    CaptureError
        A value that the cell needs cannot be sent. The message names it and what in it is the cause.
    """
    values = {name: namespace[name] for name in names if name in namespace}
    left_out: dict[str, str] = {}
    with _ByValue(_modules_beside_the_notebook()):
        try:
            return _pack(values, namespace, left_out)
        except Exception as error:
            # Find the names at fault, one by one: only now, so that what can be sent is pickled once.
            for name in list(values):
                reason = _why_not(values[name], namespace)
                if reason is None:
                    continue
                if name in names.needed:
                    raise CaptureError(_message(name, names.needed[name], values[name], reason), name=name) from error
                left_out[name] = reason
                del values[name]
            if not left_out:
                raise CaptureError(f"the cell's values cannot be sent together: {error}", name="") from error
            return _pack(values, namespace, left_out)


def _pack(values: Mapping[str, object], namespace: dict[str, Any], left_out: dict[str, str]) -> Bundle:
    packer = Packer(namespace=namespace)
    packer.dump(dict(values))
    tracked = trackable(packer.seen)
    packer.dump(tracked)
    return Bundle(packer.packed(), tracked, left_out)


def unpack(unpacker: Unpacker) -> tuple[dict[str, Any], list[object]]:
    """Return the values by name and the tracked objects that a bundle's `packed` holds."""
    return unpacker.load(), unpacker.load()


def _message(name: str, line: int, value: object, reason: str) -> str:
    return (
        f"line {line} uses {name!r} (a {type(value).__name__}), which cannot be sent to the engines: {reason}.\n"
        f"Make {name!r} inside the cell instead, or pass what it is made from (a path, an address, a seed)."
    )


def _why_not(value: object, namespace: dict[str, Any]) -> str | None:
    """Return why `value` cannot be sent, ``None`` if it can."""
    error = _failure(value, namespace)
    if error is None:
        return None
    path, culprit = _narrow(value, namespace)
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"its {path} is a {type(culprit).__name__} ({text})" if path else text


def _failure(value: object, namespace: dict[str, Any]) -> Exception | None:
    try:
        Packer(namespace=namespace).dump(value)
    except Exception as error:
        return error
    return None


def _narrow(value: object, namespace: dict[str, Any]) -> tuple[str, object]:
    """Follow `value` down to the part that cannot be sent; return the way there as the user would write it."""
    path = ""
    for _ in range(_MAX_DEPTH):
        for step, part in _parts(value):
            if _failure(part, namespace) is not None:
                path, value = path + step, part
                break
        else:
            break
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    closure = getattr(value, "__closure__", None)
    if closure:
        for name, cell in zip(value.__code__.co_freevars, closure, strict=True):
            yield f" variable {name!r}", cell.cell_contents
        return
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and not isinstance(value, type | ModuleType):
        yield from ((f".{key}", part) for key, part in attributes.items())


def _modules_beside_the_notebook() -> list[ModuleType]:
    """Return the imported modules that lie under the working directory and are not installed."""
    here = Path.cwd().resolve()
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    found = []
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or module.__name__ == "__main__" or module.__name__.partition(".")[0] == __name__.partition(".")[0]:
            continue
        path = Path(file)
        if here in path.parents and not any(folder in path.parents for folder in installed) and "site-packages" not in path.parts:
            found.append(module)
    return found


class _ByValue:
    """While entered, cloudpickle sends `modules` by value."""

    def __init__(self, modules: list[ModuleType]) -> None:
        self._modules = [m for m in modules if m.__name__ not in cloudpickle.list_registry_pickle_by_value()]

    def __enter__(self) -> None:
        for module in self._modules:
            cloudpickle.register_pickle_by_value(module)

    def __exit__(self, *_: object) -> None:
        for module in self._modules:
            cloudpickle.unregister_pickle_by_value(module)
