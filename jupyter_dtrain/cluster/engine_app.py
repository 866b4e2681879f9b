"""An engine's process: ipyparallel's engine without its nanny.

ipyparallel starts a second Python process (nanny) beside every engine, to forward signals and to report the engine's death. Here the
guard notices deaths first, and the engine's own control thread forwards signals. That saves a process per engine, and a third of the
start-up time.
"""

from __future__ import annotations

import atexit
import faulthandler
import getpass
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from functools import wraps
from pathlib import Path
from typing import Any

from ..system.patches import put

CONNECTION_FILE = "JUPYTER_DTRAIN_CONNECTION_FILE"
SOCKETS = "JUPYTER_DTRAIN_SOCKETS"
WAIT = 300.0  # seconds to wait for the connection file; the kernel gives up (and ends this process) earlier


def main() -> None:
    """Run an engine that registers with its cluster's controller as soon as that is up."""
    # Into a duplicate of the log's descriptor, even if output is redirected later: a crash dump shows where in the cell it was.
    faulthandler.enable(os.dup(sys.stderr.fileno()))
    # Loaders and their workers pass file descriptors here. A temporary folder of multiprocessing's would stay after a SIGKILL.
    multiprocessing.current_process()._config["tempdir"] = os.environ[SOCKETS]  # type: ignore[attr-defined]
    app = _engine_class()
    app.launch_instance(sys.argv[1:], connection_info_env=_connection_info(Path(os.environ[CONNECTION_FILE])))


def _connection_info(path: Path) -> str:
    """Return the content of the controller's connection file for engines, once it is complete."""
    deadline = time.monotonic() + WAIT
    while time.monotonic() < deadline:
        try:
            text = path.read_text()
            json.loads(text)
            return text
        except (OSError, ValueError):  # not there yet, or half-written
            time.sleep(0.01)
    raise SystemExit(f"no controller after {WAIT:.0f} s: {path} is missing")


def _let_forks_end() -> None:
    """Let processes that a cell forks end on SIGTERM, as in a notebook: they have no event loop for the engine's handler.

    Python drops signals that arrive before its after-fork handlers have run, so SIGTERM is blocked until then.
    """
    before = threading.local()

    def hold_back() -> None:
        before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def go_on() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before.mask)

    def be_another() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        go_on()

    os.register_at_fork(before=hold_back, after_in_parent=go_on, after_in_child=be_another)


def _ask_for_no_password() -> None:
    """Let ``getpass()`` fail like ``input()``, instead of warning about the terminal first."""

    @wraps(getpass.getpass)
    def refuse(*_: Any, **__: Any) -> str:
        raise EOFError("EOF when reading a line")

    for name in ("getpass", "unix_getpass"):
        put(getpass, name, refuse)


def _leave() -> None:
    try:
        atexit._run_exitfuncs()
    finally:
        os._exit(0)


def _engine_class() -> Any:
    from ipyparallel.engine.app import IPEngine
    from ipyparallel.error import wrap_exception

    class Engine(IPEngine):  # type: ignore[misc]
        """An engine that handles ``client.send_signal`` itself."""

        async def complete_registration(self, *args: Any, **kwargs: Any) -> None:
            await super().complete_registration(*args, **kwargs)
            self.kernel.control_handlers["signal_request"] = self._signal_request
            # IPython sets `sys.ps1`, which marks an interactive session, in which Lightning refuses to run DDP.
            vars(sys).pop("ps1", None)
            _ask_for_no_password()

        def init_signal(self) -> None:
            super().init_signal()
            _let_forks_end()

        def _signal_stop(self, _number: int, _frame: Any) -> None:
            # Leave between two tasks; the guard kills a busy engine a moment later. An orderly exit takes torch a second and has no use,
            # so only atexit functions run.
            self.loop.add_callback_from_signal(_leave)

        def _signal_request(self, stream: Any, ident: Any, parent: Any) -> None:
            # Runs in the control thread, which works while a cell computes or waits in a collective.
            try:
                name = parent["content"]["sig"]
                number = getattr(signal, name) if isinstance(name, str) else signal.Signals(name)
                reply = {"status": "ok"}
            except (AttributeError, ValueError):
                number = None
                reply = wrap_exception(self.kernel.get_engine_info("signal"))
            self.session.send(stream, "signal_reply", reply, ident=ident, parent=parent)
            if number is not None:
                # After the reply, which could not be sent later; to the main thread, where Python handles signals.
                stream.flush()
                delay = 0.05 if number == signal.SIGKILL else 0.0
                main_thread = threading.main_thread().ident
                self.kernel.control_thread.io_loop.call_later(delay, signal.pthread_kill, main_thread, number)

    return Engine


if __name__ == "__main__":
    main()
