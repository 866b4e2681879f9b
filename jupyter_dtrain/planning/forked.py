"""Call a function in a fork of this process, so that its changes and its random draws leave no trace here."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from typing import Any

from ..errors import UsageError


def call_in_fork(function: Callable[[], Any], *, limit: timedelta) -> Any:
    """Return what `function` returns in a fork of this process; the value has to be picklable.

    Raises
    ------
    UsageError
        This system has no safe forks, the function takes longer than `limit`, or it has raised; the message says which.
    """
    if sys.platform != "linux":
        raise UsageError("what a step takes can be predicted on Linux only")
    return call_in(multiprocessing.get_context("fork"), function, limit=limit)


def call_in(context: ForkContext | SpawnContext, function: Callable[[], Any], *, limit: timedelta) -> Any:
    """Return what `function` returns in a process of `context`, which is killed then.

    Raises
    ------
    UsageError
        As in :func:`call_in_fork`.
    """
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(function, there), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(limit.total_seconds()):
            raise UsageError(f"it takes longer than {limit.total_seconds():.0f} s to go through a step")
        try:
            error, value = here.recv()
        except EOFError:
            process.join()
            raise UsageError(f"the process that went through a step has ended with status {process.exitcode}") from None
    finally:
        process.kill()
        process.join()
        here.close()
    if error:
        raise UsageError(error)
    return value


def _answer(function: Callable[[], Any], connection: Connection) -> None:
    import torch

    sys.stdout = sys.stderr = io.StringIO()  # hides what the notebook's own code prints
    nowhere = os.open(os.devnull, os.O_WRONLY)  # hides what libraries write
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    torch.set_num_threads(1)  # in a fork there is no thread pool
    gc.freeze()  # the garbage collector ignores the notebook's objects
    answer: tuple[str | None, Any]
    try:
        answer = (None, function())
    except BaseException as error:  # any error of the model is reported
        answer = (f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}", None)
    connection.send(answer)
    os._exit(0)  # the kernel's exit handlers do not run twice
