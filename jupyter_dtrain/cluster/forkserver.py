"""The process that engines are forked from on Linux: torch is imported once for all of them.

Importing takes seconds of a core for each process, and some 200 MB; a fork takes milliseconds and shares the memory. So a
cluster of many engines is up as soon as one of two, and a lost engine's successor at once. The price is that nothing may happen here
that a fork cannot bear: no threads of Python's own, no event loop, no sockets.

The guard starts this process and asks it for engines in lines of JSON: ``{"name", "argv", "env", "unset", "cwd", "log"}`` come in on
file descriptor 0, ``{"name", "pid"}`` go out on `REPLIES`. Engines are forked twice, so that the guard becomes their parent. When it dies,
this process can become the next one (``promotion.py``), whose cluster has a log and variables of its own: ``{"log", "env", "unset"}``.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ..system.interpreter import collection_paused
from . import promotion
from .process_tree import PR_SET_PDEATHSIG, prctl
from .template_line import KERNEL, LINE, REPLIES

# What an engine does before its first cell: the imports that would make the first one slow.


def warm_up(modules: Sequence[str]) -> None:
    """Import `modules`, where they exist, and what torch itself puts off until its first optimizer.

    Runs in the engine's main thread as its first task, so a cell that comes early waits for no longer than it must.
    An interrupt waits too: torch cannot be imported again once its import was broken off half-way.
    """
    with _uninterrupted():
        for module in modules:
            # A module that is not there (or does not import) is for the cell that needs it to complain about.
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


def take_place(environment: Mapping[str, str]) -> None:
    """Be the rank whose environment this is. CUDA has not been initialized: an engine that waits has computed nothing."""
    os.environ.update(environment)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def main() -> None:
    """Import the modules named on the command line, then be forked, until the input ends."""
    guard = os.getppid()
    with collection_paused():  # it would take an eighth of the time of these imports, and finds next to nothing
        # The debugger too: each engine imports it as it starts, and would do nothing that takes longer.
        import ipykernel.debugger  # noqa: F401
        import ipyparallel.engine.app  # noqa: F401

        from . import engine_app

        warm_up(sys.argv[1:])
        gc.freeze()  # or the first collection of each engine would write to every page that they share
    outlives = promotion.may_outlive_guard()
    if outlives:
        promotion.outlive_guard()
    while (forked := _forked(guard, outlives)) is None:
        promoted = promotion.become_guard() if outlives else None
        if promoted is None:
            os._exit(0)  # nothing is to be put in order, and the kernel may wait
        guard = promoted
    _become(*forked, guard=guard, outlives=outlives)
    engine_app.main()


def _forked(guard: int, outlives: bool) -> tuple[dict[str, Any], int] | None:
    """Fork an engine for each line that comes in; return its request and its first parent in each of them, and at the end ``None`` here."""
    rest, read = b"", promotion.read_requests if outlives else partial(os.read, 0)
    while os.getppid() == guard and (chunk := read(1 << 16)):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            request: dict[str, Any] = json.loads(line)
            if "argv" not in request:
                _serve_another(**request)
                continue
            between = os.fork()
            if between:
                os.waitpid(between, 0)
                continue
            between = os.getpid()
            engine = os.fork()
            if engine:
                os.write(REPLIES, json.dumps({"name": request["name"], "pid": engine}).encode() + b"\n")
                os._exit(0)
            return request, between
    return None


def _serve_another(log: str, env: Mapping[str, str], unset: Sequence[str]) -> None:
    """Fork engines for another cluster from here on."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for target in (1, 2):
        os.dup2(output, target)
    os.close(output)
    _change_environment(env, unset)


def _change_environment(env: Mapping[str, str], unset: Sequence[str]) -> None:
    for name in unset:
        os.environ.pop(name, None)
    os.environ.update(env)


def _become(request: dict[str, Any], between: int, *, guard: int, outlives: bool) -> None:
    """Be the process that was asked for, as if it had been started by the guard."""
    os.setsid()
    while os.getppid() == between:
        time.sleep(0.0005)  # until it has left: its death is not to be the signal
    prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(0)  # it has died meanwhile
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    lines = (REPLIES, KERNEL, LINE) if outlives else (REPLIES,)
    for source, target in ((log, 1), (log, 2), (nothing, 0), *((nothing, line) for line in lines)):
        os.dup2(source, target, inheritable=target < REPLIES)
    if sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - as `python -m` has put it there
        sys.path[0] = request["cwd"]
    os.chdir(request["cwd"])
    _change_environment(request["env"], request["unset"])
    # Said, because ipyparallel took the folder in which it was imported for its own.
    sys.argv = [sys.argv[0], *request["argv"], f"--IPEngine.work_dir={request['cwd']}"]


if __name__ == "__main__":
    main()
