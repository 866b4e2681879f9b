"""What checkpoints and results hold are pickled instances of our classes: where those change, `FORMAT` has to rise."""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Iterator

from jupyter_dtrain.checkpoint.manifest import FORMAT
from jupyter_dtrain.detached.detached_results import Stored
from jupyter_dtrain.engine.result_pickler import Changes, Head
from jupyter_dtrain.engine.snapshot.rank_state import Snapshot
from jupyter_dtrain.engine.task import Task
from jupyter_dtrain.protocol import Snapshot as Told
from jupyter_dtrain.serialization.copy_restore import Contents
from jupyter_dtrain.serialization.leaves import Numbers

ROOTS = (Task, Snapshot, Stored, Told, Changes, Head, Contents, Numbers)
KNOWN = {2: "0f48664fc5b4d650"}
"""The hash of the fields, by `FORMAT`. Where a class that is pickled has changed since the last release, let `FORMAT` rise and add its hash
here; where that `FORMAT` was in no release, the new hash takes the place of the old one."""


def reached(kind: object, seen: dict[str, type]) -> None:
    """Collect the dataclasses of ours that instances of `kind` can hold."""
    if isinstance(kind, type) and kind.__module__.startswith("jupyter_dtrain.") and dataclasses.is_dataclass(kind):
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name not in seen:
            seen[name] = kind
            for hint in typing.get_type_hints(kind).values():
                reached(hint, seen)
    for argument in typing.get_args(kind):
        reached(argument, seen)


def described() -> Iterator[str]:
    seen: dict[str, type] = {}
    for root in ROOTS:
        reached(root, seen)
    for name, kind in sorted(seen.items()):
        yield f"{name}({', '.join(f'{field.name}: {field.type}' for field in dataclasses.fields(kind))})"


def test_the_format_rises_with_the_classes_that_are_pickled():
    lines = list(described())
    assert len(lines) > 20
    found = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
    assert KNOWN.get(FORMAT) == found, (
        f"What is pickled into checkpoints has changed: let FORMAT in checkpoint/manifest.py rise, and add {found!r} for it to KNOWN here."
    )
