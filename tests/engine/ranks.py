"""Ranks for tests: processes with a gloo group between them, kept while a module's tests run.

What an engine does around a cell is left out (shipping, events, results): a test gives a function, every rank calls it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import io
import multiprocessing
import os
import pickle
import random
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from jupyter_dtrain.cluster.endpoint import FileEndpoint
from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm.process_group import ProcessGroup, Rendezvous
from jupyter_dtrain.engine.comm.rank_store import StoreChannel
from jupyter_dtrain.engine.control import Control
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.task import Semantics
from jupyter_dtrain.engine.telemetry.notices import Notices
from jupyter_dtrain.engine.telemetry.observer import Observer
from jupyter_dtrain.engine.timing import Timing

LIMIT = 60.0  # seconds that a rank may take for one call
GRACE = 2.0  # seconds for the others when one has failed
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.engine.ranks", "torch._dynamo"])


class FarEndpoint(FileEndpoint):
    """A file by which ranks meet that do as if they were on several hosts."""

    spans_hosts = True


class RankError(AssertionError):
    """A rank raised, or did not answer."""


class Ranks:
    """Processes that call a function together. Use as a context manager.

    Parameters
    ----------
    most : int
        The largest number of ranks that a call asks for.
    spans_hosts : bool
        Whether they connect as ranks of several hosts do.
    """

    def __init__(self, most: int, *, spans_hosts: bool = False) -> None:
        self._most, self._endpoint = most, FarEndpoint if spans_hosts else FileEndpoint
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        self._generation = 0
        self._meetings: dict[int, Rendezvous] = {}  # by world size; of those that share processes, one

    def __enter__(self) -> Ranks:
        self._folder = tempfile.TemporaryDirectory()
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._folder.cleanup()

    def _start(self) -> None:
        self._meetings = {}
        for _ in range(self._most):
            self._start_one()

    def _start_one(self) -> None:
        ours, theirs = _context.Pipe()
        process = _context.Process(target=_serve, args=(theirs,))
        process.start()
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)

    def _stop(self) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it has died
                pipe.send(None)  # a worker that a loader of this process has forked would keep the pipe open
            pipe.close()
        for process in self._processes:
            process.join(GRACE)
            if process.is_alive():
                process.kill()
                process.join(LIMIT)
        self._processes, self._pipes = [], []

    def call(self, world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Return what ``function(run, *args)`` returns on each of `world_size` ranks.

        Raises
        ------
        RankError
            A rank raised, or did not answer in time; the ranks are new ones afterwards.
        """
        # One rank is a process of its own: most tests compare with it, and the others would meet anew each time.
        first = self._most if world_size == 1 else 0
        if first == len(self._processes):
            self._start_one()
        if world_size not in self._meetings:
            self._generation += 1
            meeting = Rendezvous(self._endpoint(Path(self._folder.name) / str(self._generation)), key=b"of these ranks")
            others = {size: other for size, other in self._meetings.items() if 1 in (size, world_size)}  # in other processes
            self._meetings = {**others, world_size: meeting}
        for rank in range(world_size):
            self._pipes[first + rank].send((_run, (rank, world_size, self._meetings[world_size], pickle.dumps((function, args)))))
        return self._answers(range(first, first + world_size))

    def _answers(self, ranks: Sequence[int]) -> list[Any]:
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < len(ranks):
            waiting = {self._pipes[rank]: rank for rank in ranks if rank not in answers}
            someone_failed = not all(ok for ok, _ in answers.values())
            ready = wait(list(waiting), timeout=GRACE if someone_failed else LIMIT)
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                try:
                    answers[rank] = pickle.loads(pipe.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    answers[rank] = False, "has died"
            if not ready:
                break
        silent = [rank for rank in ranks if rank not in answers]
        errors = [f"rank {rank - ranks[0]}: {value}" for rank, (ok, value) in sorted(answers.items()) if not ok]
        if silent or errors:
            for rank in silent:
                pid = self._processes[rank].pid
                if pid is not None and self._processes[rank].is_alive():
                    os.kill(pid, signal.SIGUSR1)  # it shows where it is
                    self._processes[rank].join(0.5)
            self._stop()
            self._start()
            raise RankError("\n".join([*errors, *(f"rank {rank - ranks[0]} does not answer" for rank in silent)]))
        return [answers[rank][1] for rank in ranks]


_group = ProcessGroup()
_TIMEOUT = timedelta(seconds=LIMIT)


def _serve(pipe: Connection) -> None:
    gc.freeze()  # as engines do: leaving a group collects what is garbage, and would look at all of torch each time
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            request = None
        if request is None:
            os._exit(0)  # whoever still waits for this rank is free
        function, args = request
        try:
            answer = pickle.dumps((True, function(*args)))
        except BaseException as error:
            answer = pickle.dumps((False, "".join(traceback.format_exception(error))))
        pipe.send_bytes(answer)


def _run(rank: int, world_size: int, meeting: Rendezvous, request: bytes) -> Any:
    _group.join(meeting, rank=rank, world_size=world_size, device=torch.device("cpu"), timeout=_TIMEOUT, between_hosts=True)
    function, args = pickle.loads(request)
    torch.distributions.Distribution.set_default_validate_args(True)  # as settings do: `torch.compile` disables it for a process
    return function(Run(rank, world_size), *args)


class Run:
    """One rank's part in a call."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.notes: list[str] = []
        self.timing = Timing(rank, torch.device("cpu"))

    def training(self, *objects: object, kind: type[DataParallelTraining] = DataParallelTraining, **options: Any) -> DataParallelTraining:
        """Return what watches over the cell's calls, as the engine makes it. `options` are those of :class:`Semantics`."""
        return kind(
            rank=self.rank,
            world_size=self.world_size,
            objects=objects,
            semantics=Semantics(**options),
            control=Control(StoreChannel(dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=LIMIT))),  # type: ignore[attr-defined]
            observer=Observer(self.rank),
            timing=self.timing,
            notes=Notices(lambda message: self.notes.append(getattr(message, "text", "")), rank=0),
        )


def models_in(namespace: dict[str, Any]) -> list[Any]:
    """Return the modules that a namespace or the objects in it hold."""
    found = [value for value in namespace.values() if isinstance(value, torch.nn.Module)]
    for value in namespace.values():
        if type(value).__module__ == "__main__" and hasattr(value, "__dict__"):
            found += [inner for inner in vars(value).values() if isinstance(inner, torch.nn.Module)]
    return found


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """New tensors are float64 here, and what they were before afterwards: other tests run in the same process."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@double_precision()
def run_notebook(run: Run | None, setup: str, cell: str, compare: str, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Run `setup` as it is and `cell` as the rank's part of a run with these options; plain without `run`."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    output = io.StringIO()
    run_cell(setup, "setup", namespace)
    with contextlib.redirect_stdout(output):
        if run is None:
            value = run_cell(cell, "cell", namespace)
        else:
            training = run.training(*models_in(namespace), **(options or {}))
            with training.installed():
                value = run_cell(cell, "cell", namespace)
                value, *_settled = training.materialize(value, namespace)
    found = eval(compare, namespace)
    return {
        "compared": found,
        "value": value if isinstance(value, int | float | str | tuple | torch.Tensor) else None,
        "printed": output.getvalue(),
        "random": (torch.rand(3), np.random.rand(3).tolist(), random.random()),
        "notes": run.notes if run else [],
    }


def run_plain(_run: Run, setup: str, cell: str, compare: str) -> dict[str, Any]:
    """Run both as a notebook without the magic would."""
    return run_notebook(None, setup, cell, compare)
