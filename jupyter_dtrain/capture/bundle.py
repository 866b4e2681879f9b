"""From names to what is sent: the notebook's values in one pickle, and an error that names what cannot be.

Functions and classes defined in the notebook travel by value, and so do modules that lie beside it: engines then
always run the text as it is now, edited a moment ago or not.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
import xxhash

from ..analysis.code_objects import installed_folders
from ..analysis.dynamic_names import with_dynamic_names
from ..analysis.imports import asked_for
from ..analysis.names import CellNames
from ..errors import CaptureError
from ..integrations.registry import look
from ..serialization.copy_restore import attributes_of
from ..serialization.custom_reduce import go_back
from ..serialization.library_state import library_states, stays
from ..serialization.pickler import Packed, Packer, trackable
from ..serialization.reducers import reduced
from ..serialization.torch_reducers import operators
from ..serialization.unpickler import Unpacker
from ..system import cuda_random
from ..system.interpreter import collection_paused
from .import_effects import imported_for_effect
from .library_patches import patches

_MAX_DEPTH = 8  # how far a value is searched for what cannot be sent
_OURS = __name__.partition(".")[0]


@dataclass
class Bundle:
    """The notebook's values as they are sent.

    Attributes
    ----------
    packed : Packed
        A dict of the values by name; tuples of what goes along, modules that the cell imports and states of libraries, and an empty one;
        and the list `tracked`.
    tracked : list of object
        The notebook's objects that the engines work on copies of, in the order that both sides count them.
    names : CellNames
        What was asked for, with the names that code looks up by a text.
    left_out : dict of str to str
        Names that may be read but could not be sent, with the reason.
    seen : list of object
        Every object that is in `packed`.
    own_modules : frozenset of str
        Modules that lie beside the notebook: what is in `packed` of them is there by value.
    """

    packed: Packed
    tracked: list[object]
    names: CellNames
    left_out: dict[str, str] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)
    own_modules: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RandomState:
    """The notebook's random streams: the cell continues them on the engines, and the notebook continues after it.

    `torch_cuda` is that of the current GPU, ``None`` where there is none.
    """

    torch_cpu: torch.Tensor
    numpy_legacy: tuple[Any, ...]
    python: tuple[Any, ...]
    torch_cuda: torch.Tensor | None = None

    @classmethod
    def now(cls) -> RandomState:
        """Return the state of this process."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate(), cuda_random.state())  # type: ignore[arg-type]

    def __reduce__(self) -> tuple[Any, ...]:
        # Arrays: a tensor takes a millisecond to pickle.
        of_gpu = None if self.torch_cuda is None else self.torch_cuda.numpy()
        return _random_state, (self.torch_cpu.numpy(), self.numpy_legacy, self.python, of_gpu)

    def set(self) -> None:
        """Make it the state of this process."""
        torch.set_rng_state(self.torch_cpu)
        np.random.set_state(self.numpy_legacy)
        random.setstate(self.python)
        cuda_random.set_state(self.torch_cuda)

    def with_gpu(self) -> RandomState:
        """Return this with a stream of GPUs, which follows from that of the CPU where the notebook has no GPU."""
        if self.torch_cuda is not None:
            return self
        return replace(self, torch_cuda=cuda_random.seeded(xxhash.xxh3_64_intdigest(self.torch_cpu.numpy().tobytes())))

    def digest(self) -> str:
        """Return a short text that is the same where the next numbers are the same, those of a GPU aside."""
        digest = xxhash.xxh3_64(self.torch_cpu.numpy().tobytes())
        digest.update(self.numpy_legacy[1].tobytes())
        digest.update(repr((self.numpy_legacy[2:], self.python)).encode())
        return digest.hexdigest()

    def equals(self, other: RandomState) -> bool:
        """Return whether the next numbers are the same."""
        keys, other_keys = self.numpy_legacy[1], other.numpy_legacy[1]
        return (
            torch.equal(self.torch_cpu, other.torch_cpu)
            and self.python == other.python
            and self.numpy_legacy[2:] == other.numpy_legacy[2:]
            and np.array_equal(keys, other_keys)
            and cuda_random.is_same(self.torch_cuda, other.torch_cuda)
        )


def _random_state(
    torch_cpu: np.ndarray[Any, Any],
    numpy_legacy: tuple[Any, ...],
    python: tuple[Any, ...],
    torch_cuda: np.ndarray[Any, Any] | None = None,
) -> RandomState:
    return RandomState(torch.from_numpy(torch_cpu), numpy_legacy, python, None if torch_cuda is None else torch.from_numpy(torch_cuda))


def pack(names: CellNames, namespace: dict[str, Any], *, by_text: bool = True) -> Bundle:
    """Pickle the values of `names` in `namespace`, and unless `by_text` is false those of names that their code looks up by a text.

    Raises
    ------
    CaptureError
        A value that the cell needs cannot be sent. The message names it and what in it is the cause.
    """
    look()
    bundle = _pack(names, namespace)
    if not by_text or (all_names := with_dynamic_names(names, bundle.seen, namespace)) is names:
        return bundle
    return _pack(all_names, namespace)


def _pack(names: CellNames, namespace: dict[str, Any]) -> Bundle:
    values = {name: namespace[name] for name in names if name in namespace}
    left_out: dict[str, str] = {}
    modules = modules_beside(Path.cwd())
    imported: list[ModuleType] = []
    states: list[object] = []
    of_libraries: list[object] = []
    refused: dict[int, object] = {}

    def packer() -> Packer:
        return Packer(namespace=namespace, modules=modules, words=names.attributes)

    def packed() -> Bundle:
        with collection_paused():
            whole = packer()
            whole.dump(dict(values))
            imported.clear()
            while more := [m for m in asked_for(names.imports, whole.seen, modules) if m not in imported and m.__name__ not in left_out]:
                imported.extend(more)
                whole.dump(tuple(more))
            used = [*whole.seen, *(sys.modules[name] for name in names.imports if name in sys.modules)]
            of_libraries[:] = [*imported_for_effect(namespace, used, modules), *library_states(used)]
            of_libraries[:] = [state for state in of_libraries if id(state) not in refused]
            if going_along := (*of_libraries, *states):
                whole.dump(going_along)
            whole.dump(())  # there are no more
            tracked = trackable(whole.seen)
            whole.dump(tracked)
        own_modules = frozenset(module.__name__ for module in modules)
        return Bundle(whole.packed(), tracked, names, left_out, whole.seen, own_modules)

    with _by_value(modules):
        states += (*operators(), *patches(namespace, modules))
        try:
            return packed()
        except Exception as error:
            if go_back(lambda obj: _Search(packer).why_not(obj) is not None):
                return _pack(names, namespace)
            # Find the names at fault, one by one: only now, so that what can be sent is pickled once.
            for name in list(values):
                reason = _Search(packer).why_not(values[name])
                if reason is None:
                    continue
                if name in names.needed:
                    raise CaptureError(_message(name, names.needed[name], values[name], reason), name=name) from error
                left_out[name] = reason
                del values[name]
            for module in imported:  # or else the engine reads its file
                if (reason := _Search(packer).why_not(module)) is not None:
                    left_out[module.__name__] = reason
            stay = [state for state in (*of_libraries, *states) if _Search(packer).why_not(state) is not None]  # the engine has its own
            stays(stay)
            refused.update((id(state), state) for state in stay)
            states[:] = [state for state in states if id(state) not in refused]
            if not left_out and not stay:
                raise CaptureError(f"the cell's values cannot be sent together: {error}", name="") from error
            return packed()


def unpack(unpacker: Unpacker) -> tuple[dict[str, Any], list[object]]:
    """Return the values by name and the tracked objects that a bundle's `packed` holds."""
    with collection_paused():
        values = unpacker.load()
        while unpacker.load() != ():
            pass  # they are among what is tracked
        return values, unpacker.load()


def _message(name: str, line: int, value: object, reason: str) -> str:
    return (
        f"line {line} uses {name!r} (a {type(value).__name__}), which cannot be sent to the engines: {reason}.\n"
        f"Make {name!r} inside the cell instead, or pass what it is made from (a path, an address, a seed)."
    )


class _Search:
    """Looks in a value for what cannot be sent."""

    def __init__(self, packer: Callable[[], Packer]) -> None:
        self._packer = packer

    def why_not(self, value: object) -> str | None:
        """Return why `value` cannot be sent, ``None`` if it can."""
        error = self._failure(value)
        if error is None:
            return None
        path, culprit, error = self._narrow(value, error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return f"its {path.strip()} is a {type(culprit).__name__} ({text})" if path else text

    def _failure(self, value: object) -> Exception | None:
        try:
            self._packer().dump(value)
        except Exception as error:
            return error
        return None

    def _narrow(self, value: object, error: Exception) -> tuple[str, object, Exception]:
        """Follow `value` down to the part that cannot be sent; return the way there as the user would write it."""
        path = ""
        met = {id(value)}
        for _ in range(_MAX_DEPTH):
            for step, part in _parts(value) if not _is_refused(value) else ():
                if id(part) not in met and (failure := self._failure(part)) is not None:
                    met.add(id(part))
                    path, value, error = path + step, part, failure
                    break
            else:
                break
        return path, value, error


def _is_refused(value: object) -> bool:
    """Return whether it is `value` that is not to be sent, whatever it is made of."""
    try:
        reduced(value, ())
    except Exception:
        return True
    return False


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """Yield what `value` is made of, each with the way to it."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, partial):
        yield ".func", value.func
        yield from ((f".args[{index}]", part) for index, part in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", part) for key, part in value.keywords.items())
    if isinstance(value, type):
        yield from ((f".{key}", part) for key, part in vars(value).items())
    else:
        yield from ((f".{key}", part) for key, part in (attributes_of(value) or {}).items())
        if type(value).__module__ == "__main__":  # its methods go along, with the globals that they use
            yield f" class {type(value).__name__}", type(value)


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a variable that has no value yet
            yield f" variable {name!r}", cell.cell_contents
    for name in cloudpickle.cloudpickle._extract_code_globals(function.__code__):
        if name in function.__globals__:
            yield f" global {name!r}", function.__globals__[name]
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from ((" default", part) for part in defaults)


def modules_beside(folder: Path) -> list[ModuleType]:
    """Return the imported modules whose files lie under `folder` and are not installed."""
    here = f"{folder.resolve()}{os.sep}"
    found = []
    for name in sorted(sys.modules.keys() - _installed):
        module = sys.modules.get(name)
        # Some modules make up attributes when asked for them.
        attributes = getattr(module, "__dict__", {})
        file = attributes.get("__file__")
        if module is None or not isinstance(file, str) or attributes.get("__name__") != name or name == "__main__":
            continue
        if name.partition(".")[0] == _OURS or file.startswith(installed_folders()) or "site-packages" in file:
            _installed.add(name)
        elif os.path.realpath(file).startswith(here):
            found.append(module)
    return found


_installed: set[str] = set()
"""Names of imported modules that are: there are thousands, and each cell asks several times."""


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Let cloudpickle write `modules` by value."""
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
