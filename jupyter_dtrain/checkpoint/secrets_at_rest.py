"""Secrets in environment variables: left out of checkpoints on disk by default, and replaced by the resuming kernel's own."""

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
    """Return a copy of a task or a rank's part of a snapshot that may be written to disk."""
    return replace(what, surroundings=what.surroundings.without_secrets())


def with_secrets(what: T) -> T:
    """Return a copy of a task or a rank's part of a snapshot with this process's values of the withheld variables."""
    return replace(what, surroundings=what.surroundings.with_secrets_of(os.environ))


def missing_secrets_text(names: Collection[str]) -> str:
    """Return the message that this process has none of the secrets `names`."""
    return f"Secrets are not kept on disk, and this kernel has no {', '.join(sorted(names))}: the cell continues without."


def part_without_secrets(part: bytes) -> bytes:
    """Apply :func:`without_secrets` to a pickled part of this run."""
    return _changed(part, without_secrets)


def part_with_secrets(part: bytes, missing: set[str] | None = None) -> bytes:
    """Apply :func:`with_secrets` to a verified pickled part; add the variables that this process does not have to `missing`."""

    def change(snapshot: Snapshot) -> Snapshot:
        changed = with_secrets(snapshot)
        if missing is not None:
            missing.update(changed.surroundings.withheld)
        return changed

    return _changed(part, change)


def outcome_without_secrets(outcome: Outcome) -> Outcome:
    """Return a copy of a rank's outcome that may be written to disk."""
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
