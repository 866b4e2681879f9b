"""Secrets of the environment, which do not go to disk with a checkpoint unless the user wants it: a kernel that goes on has its own."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from ..engine.snapshot.rank_state import Snapshot
from ..engine.task import Outcome, Task
from ..errors import CheckpointError

T = TypeVar("T", Task, Snapshot)


def without_secrets(what: T) -> T:
    """Return a task or a rank's part of a snapshot as it may lie on a disk."""
    return replace(what, surroundings=what.surroundings.without_secrets())


def with_secrets(what: T) -> T:
    """Return a task or a rank's part of a snapshot with what this process has in the place of what was left out."""
    return replace(what, surroundings=what.surroundings.with_secrets_of(os.environ))


def missing_secrets_text(names: Collection[str]) -> str:
    """Return, as a sentence, that this process has none of the secrets `names`."""
    return f"Secrets are not kept on disk, and this kernel has no {', '.join(sorted(names))}: the cell continues without."


def part_without_secrets(part: bytes) -> bytes:
    """Do as :func:`without_secrets` to a pickled part that a rank of this run has written."""
    return _changed(part, without_secrets)


def part_with_secrets(part: bytes, missing: set[str] | None = None) -> bytes:
    """Do as :func:`with_secrets` to a pickled part that is vouched for; what this process has none of is added to `missing`."""

    def change(snapshot: Snapshot) -> Snapshot:
        changed = with_secrets(snapshot)
        if missing is not None:
            missing.update(changed.surroundings.withheld)
        return changed

    return _changed(part, change)


def outcome_without_secrets(outcome: Outcome) -> Outcome:
    """Return what a rank has reported as it may lie on a disk."""
    if outcome.surroundings is None:
        return outcome
    return replace(outcome, surroundings=outcome.surroundings.without_secrets())


def _changed(part: bytes, change: Callable[[Snapshot], Snapshot]) -> bytes:
    try:
        snapshot: Snapshot = pickle.loads(part)
    except Exception as error:
        raise CheckpointError(f"A rank's part of a snapshot cannot be read here: {type(error).__name__}: {error}.") from error
    changed = change(snapshot)
    return part if changed.surroundings is snapshot.surroundings else pickle.dumps(changed, protocol=pickle.HIGHEST_PROTOCOL)
