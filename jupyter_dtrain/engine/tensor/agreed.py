"""Errors of one rank's part of a batch that the cell catches: raised on all ranks, as one process would raise them.

A rank that fails tells the others, at the end of what they compute on their parts (a model's call, an operation, a batch, a backward
pass) or in an exchange that they are in within it. Then all of them do the same: they compute it on the whole batch, which raises what one
process would raise, or raise the error of the first rank that has one, as samples lie in rank order. This is done where the cell would
catch an error (`caught`); elsewhere a rank's error ends the cell anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..comm.batch_ranks import batch_memory, batch_rank
from ..comm.collectives import all_gather_object
from ..comm.failures import FailedElsewhere, Failures, error_of, to_bytes
from ..timing import COMMUNICATION, Counted

Result = TypeVar("Result")


class FailedOnShard(Exception):
    """A rank cannot compute something on its part of the batch, and all ranks know."""


def failures_of(error: BaseException | None) -> Failures:
    """Return what has failed on each rank; `error` is this one's. A collective."""
    if isinstance(error, FailedElsewhere):
        return error.failures
    failure = None if error is None else to_bytes(error)
    shared = batch_memory()
    with Counted(COMMUNICATION):
        return all_gather_object(failure) if shared is None else shared.agree(failure)


def on_all_parts(compute: Callable[[], Result], *passed_on: type[BaseException]) -> Result:
    """Return what `compute` returns on the rank's part. A collective.

    Parameters
    ----------
    compute : callable
    passed_on : type
        Errors that all ranks come to together.

    Raises
    ------
    FailedOnPart
        It raises something on a rank.
    """
    error: BaseException | None = None
    try:
        result = compute()
    except passed_on:
        raise
    except (Exception, FailedElsewhere) as raised:
        error = raised
    if first_of(failures_of(error)) is not None:
        error = None  # its frames hold what was computed
        raise FailedOnShard
    return result


def raise_if_any(failures: Failures, own: BaseException | None) -> None:
    """Raise the error of the first rank that has one, if any has; `own` is this rank's."""
    rank = first_of(failures)
    if rank is None:
        return
    if rank == batch_rank() and own is not None:
        raise own
    failure = failures[rank]
    assert failure is not None
    raise error_of(failure, rank)


def first_of(failures: Failures) -> int | None:
    """Return the first rank that has failed."""
    return next((rank for rank, failure in enumerate(failures) if failure is not None), None)


def note(error: BaseException) -> None:
    """Leave word of an error of this rank alone: if ranks come apart by it, the others can say so."""
    shared = batch_memory()
    if shared is not None:
        shared.note(to_bytes(error))
