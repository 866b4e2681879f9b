"""Programs interrupted at a boundary of their loops, and gone on with in a namespace made anew from what a snapshot holds."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np
import torch

from jupyter_dtrain.analysis.code_objects import sources_of
from jupyter_dtrain.capture.random_state import RandomState
from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.resume.loops import Loops
from jupyter_dtrain.engine.resume.position import Position
from jupyter_dtrain.serialization.copy_restore import Contents, restore
from jupyter_dtrain.serialization.item_restore import items_of
from jupyter_dtrain.serialization.pickler import Packer
from jupyter_dtrain.serialization.unpickler import Unpacker

Around = Callable[[Loops, dict[str, Any]], AbstractContextManager[Any]]
_HIDDEN = ("__builtins__", "__name__")


class Killed(BaseException):
    """The process has ended, as far as the program is concerned."""


@dataclass
class Snapshot:
    """What is saved of a program at one boundary."""

    position: Position
    packed: Any
    random_state: RandomState
    namespace_unsaved: set[str]
    unsaved: list[set[str]]


@dataclass
class Run:
    """A run of a program, and what was learned of its boundaries."""

    namespace: dict[str, Any]
    value: Any = None
    places: list[str] = field(default_factory=list)  # where each boundary is, or why it is no place
    said: list[str] = field(default_factory=list)
    snapshot: Snapshot | None = None
    resumed: int = 0


def new_namespace(setup: str) -> dict[str, Any]:
    """Return the names of a notebook in which `setup` was run."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(setup, "setup", namespace)
    return namespace


def plain(setup: str, program: str) -> Run:
    """Run a program as it is."""
    namespace = new_namespace(setup)
    return Run(namespace, run_cell(program, "program", namespace))


def _adopt(loops: Loops, namespace: dict[str, Any]) -> None:
    functions = [value for value in namespace.values() if isinstance(value, FunctionType | type)]
    methods = [method for kind in functions if isinstance(kind, type) for method in vars(kind).values()]
    loops.texts.adopt(functions, sources_of([*functions, *methods]))


def watched(setup: str, program: str, kill_at: int | None = None, around: Around = lambda *_: nullcontext()) -> Run:
    """Run a program with its loops watched; at boundary `kill_at`, take a snapshot if it is a place, and end it there.

    `around` is entered for the time of the run.
    """
    run = Run(new_namespace(setup))

    def on_boundary() -> None:
        position = loops.places.position()
        run.places.append(f"no: {loops.places.why_not}" if position is None else position.describe())
        if len(run.places) - 1 == kill_at:
            run.snapshot = _snapshot(run.namespace, loops, position) if position is not None else None
            raise Killed

    loops = Loops(on_boundary=on_boundary, say=run.said.append)
    _adopt(loops, run.namespace)
    try:
        with loops.installed(), around(loops, run.namespace):
            run.value = run_cell(program, "program", run.namespace, loops)
    except Killed:
        assert kill_at is not None
    return run


def _pickled(namespace: dict[str, Any], value: object) -> Any:
    packer = Packer(namespace=namespace)
    packer.dump(value)
    return packer.packed()


def _snapshot(namespace: dict[str, Any], loops: Loops, position: Position) -> Snapshot:
    names = {name: value for name, value in namespace.items() if name not in _HIDDEN}
    values = loops.places.values()
    assert len(values) == len(position.frames)
    unsaved: list[set[str]] = []
    for group in (names, *values):
        unsaved.append(set())
        for name in list(group):
            try:
                _pickled(namespace, group[name])
            except Exception:
                unsaved[-1].add(name)
                del group[name]
    random_state = RandomState.now()
    packed = _pickled(namespace, (names, values))
    # The bytes are those of this moment, whatever the other run does with its tensors.
    packed.buffers = [memoryview(bytearray(buffer)) for buffer in packed.buffers]
    return Snapshot(position, packed, random_state, unsaved[0], unsaved[1:])


@contextmanager
def _as_in_a_new_process() -> Iterator[None]:
    """Let the collector count the objects alone that are made from here on: a run that goes on looks through all that there are."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@_as_in_a_new_process()
def resumed(setup: str, program: str, snapshot: Snapshot, around: Around = lambda *_: nullcontext(), *, kill_at: int | None = None) -> Run:
    """Go on with a program from a snapshot, as another process would; at boundary `kill_at` behind it, take another and end it there."""
    run = Run(new_namespace(setup))
    names, values = Unpacker(snapshot.packed, namespace=run.namespace).load()
    for name in [name for name in run.namespace if name not in _HIDDEN]:
        del run.namespace[name]
    run.namespace.update(names)

    def on_boundary() -> None:
        if run.resumed:
            position = loops.places.position()
            run.places.append("" if position is None else position.describe())
            if len(run.places) - 1 == kill_at:
                run.snapshot = _snapshot(run.namespace, loops, position) if position is not None else None
                raise Killed

    loops = Loops(on_boundary=on_boundary, say=run.said.append)
    _adopt(loops, run.namespace)
    loops.texts.adopt([], sources_of([value for value in new_namespace(setup).values() if isinstance(value, FunctionType)]))
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(1234)

    contents = [(value, items_of(value)) for value in names.values() if isinstance(value, list | dict)]

    def on_resumed() -> None:
        run.resumed += 1
        for value, items in contents:  # what was run again on the way may have changed them
            restore(value, Contents(items))
        contents.clear()
        snapshot.random_state.set()

    loops.jump(snapshot.position, values, namespace_unsaved=snapshot.namespace_unsaved, unsaved=snapshot.unsaved, on_resumed=on_resumed)
    del names, values  # what the program drops is gone
    with suppress(Killed), loops.installed(), around(loops, run.namespace):
        run.value = run_cell(program, "program", run.namespace, loops)
    return run
