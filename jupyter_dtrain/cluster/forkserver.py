"""The template: the process that engines are forked from on Linux, so that torch is imported only once.

An import takes seconds of a core and about 200 MB per process; a fork takes milliseconds and shares memory. So large clusters start as
fast as small ones, and a lost engine is replaced at once. In return, this process must stay fork-safe: no Python threads, no event loop,
no sockets.

The guard starts this process and requests engines in lines of JSON: ``{"name", "argv", "env", "unset", "cwd", "log"}`` on file descriptor
0, answered by ``{"name", "pid"}`` on `REPLIES`. Engines are forked twice, so that the guard becomes their parent. When the guard dies, this
process can become the next one (``promotion.py``) for a cluster with a log and environment of its own: ``{"log", "env", "unset"}``.
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

# What an engine does before its first cell: imports that would make that cell slow.


def warm_up(modules: Sequence[str]) -> None:
    """Import `modules`, if they exist, and what torch imports with the first optimizer.

    Runs in the engine's main thread as its first task, so that an early cell waits no longer than necessary. Interrupts are ignored
    meanwhile: torch cannot be imported again after an interrupted import.
    """
    with _uninterrupted():
        for module in modules:
            # A missing or broken module is reported by the cell that needs it.
            with contextlib.suppress(Exception):
                importlib.import_module(module)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])


def take_place(environment: Mapping[str, str]) -> None:
    """Become the rank of this environment. CUDA is not initialized yet, as a spare engine has computed nothing."""
    os.environ.update(environment)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    previous = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def main() -> None:
    """Import the modules named on the command line, then fork on request until the input ends."""
    guard = os.getppid()
    with collection_paused():  # it would take an eighth of the time of these imports and find almost nothing
        # The debugger too: each engine imports it when it starts, and nothing takes longer there.
        import ipykernel.debugger  # noqa: F401
        import ipyparallel.engine.app  # noqa: F401

        from . import engine_app

        warm_up(sys.argv[1:])
        gc.freeze()  # otherwise the first collection in each engine would write to every shared page
    outlives = promotion.may_outlive_guard()
    if outlives:
        promotion.outlive_guard()
    while (forked := _forked(guard, outlives)) is None:
        promoted = promotion.become_guard() if outlives else None
        if promoted is None:
            os._exit(0)  # there is nothing to clean up, and the kernel may wait
        guard = promoted
    _become(*forked, guard=guard, outlives=outlives)
    engine_app.main()


def _forked(guard: int, outlives: bool) -> tuple[dict[str, Any], int] | None:
    """Fork an engine for each request. In the engine, return its request and its first parent's pid; at the end return ``None`` here."""
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
    """Serve another cluster from now on: switch to its log and environment."""
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
    """Turn this fork into the requested process, as if the guard had started it."""
    os.setsid()
    while os.getppid() == between:
        time.sleep(0.0005)  # wait for the intermediate parent to exit, whose death must not trigger PDEATHSIG
    prctl()(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard:
        os._exit(0)  # the guard has died meanwhile
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    lines = (REPLIES, KERNEL, LINE) if outlives else (REPLIES,)
    for source, target in ((log, 1), (log, 2), (nothing, 0), *((nothing, line) for line in lines)):
        os.dup2(source, target, inheritable=target < REPLIES)
    if sys.path and sys.path[0] == os.getcwd():  # noqa: PTH109 - as `python -m` has put it there
        sys.path[0] = request["cwd"]
    os.chdir(request["cwd"])
    _change_environment(request["env"], request["unset"])
    # Explicit, as ipyparallel's default is the folder in which it was imported.
    sys.argv = [sys.argv[0], *request["argv"], f"--IPEngine.work_dir={request['cwd']}"]


if __name__ == "__main__":
    main()
