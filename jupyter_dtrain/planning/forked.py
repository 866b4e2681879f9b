"""A function called in a fork of this process, of which nothing stays: it may change and draw what it likes."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from ..errors import UsageError


def call_in_fork(function: Callable[[], Any], *, limit: timedelta) -> Any:
    """Return what `function` returns in a fork of this process, which has to be picklable.

    Raises
    ------
    UsageError
        This system has no forks that are safe, the function takes longer than `limit`, or it has raised; the message says what.
    """
    if sys.platform != "linux":
        raise UsageError("what a step takes can be predicted on Linux only")
    context = multiprocessing.get_context("fork")
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

    sys.stdout = sys.stderr = io.StringIO()  # what the notebook's own code prints is not for anybody
    nowhere = os.open(os.devnull, os.O_WRONLY)  # nor what libraries write
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    torch.set_num_threads(1)  # those of the other process are not here
    gc.freeze()  # what there is of the notebook is looked at no more
    answer: tuple[str | None, Any]
    try:
        answer = (None, function())
    except BaseException as error:  # whatever the model raises is told
        answer = (f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}", None)
    connection.send(answer)
    os._exit(0)  # no handler of the kernel's runs twice
