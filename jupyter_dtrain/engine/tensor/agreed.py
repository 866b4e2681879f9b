"""Raise the error of one rank's shard on all ranks, as one process would, so that the cell can catch it.

A rank that fails tells the others at the end of the computation on shards (a model's call, an operation, a batch, a backward pass), or
in a collective within it. All ranks then react alike. Either they compute on the full batch, which raises the error of one process. Or
they raise the error of the first failed rank, because samples lie in rank order. Ranks do this only where the cell would catch an
error (`caught`). Elsewhere a rank's error ends the cell.
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
    """A rank has failed on its shard of the batch, and all ranks know it."""


def failures_of(error: BaseException | None) -> Failures:
    """Return the error of each rank, ``None`` where a rank has none. A collective.

    Parameters
    ----------
    error : BaseException, optional
        This rank's error. The failures in a `FailedElsewhere` are returned without an exchange.
    """
    if isinstance(error, FailedElsewhere):
        return error.failures
    failure = None if error is None else to_bytes(error)
    shared = batch_memory()
    with Counted(COMMUNICATION):
        return all_gather_object(failure) if shared is None else shared.agree(failure)


def on_all_parts(compute: Callable[[], Result], *passed_on: type[BaseException]) -> Result:
    """Run `compute` on the rank's shard and return its result. A collective.

    Parameters
    ----------
    compute : callable
    passed_on : type
        Exceptions that all ranks raise together. They are re-raised without an exchange.

    Raises
    ------
    FailedOnShard
        `compute` has failed on some rank.
    """
    error: BaseException | None = None
    try:
        result = compute()
    except passed_on:
        raise
    except (Exception, FailedElsewhere) as raised:
        error = raised
    if first_of(failures_of(error)) is not None:
        error = None  # its frames keep the intermediate tensors alive
        raise FailedOnShard
    return result


def raise_if_any(failures: Failures, own: BaseException | None) -> None:
    """Raise the error of the first failed rank, if any rank has failed; `own` is this rank's error."""
    rank = first_of(failures)
    if rank is None:
        return
    if rank == batch_rank() and own is not None:
        raise own
    failure = failures[rank]
    assert failure is not None
    raise error_of(failure, rank)


def first_of(failures: Failures) -> int | None:
    """Return the first rank that has failed, ``None`` if none has."""
    return next((rank for rank, failure in enumerate(failures) if failure is not None), None)


def note(error: BaseException) -> None:
    """Publish an error of this rank in the shared memory, so that other ranks can name it if the ranks diverge. No collective."""
    shared = batch_memory()
    if shared is not None:
        shared.note(to_bytes(error))
