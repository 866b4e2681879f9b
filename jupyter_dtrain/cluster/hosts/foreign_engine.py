"""Functions that engines of a foreign cluster execute. This file's source text is sent to them.

They may lack this package and the notebook's Python, so they could not unpickle its functions. The text needs only the standard library,
and leaves nothing in the engines' namespace (`CALL`).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

CALL = "exec(source, names) or names[function](*arguments)"
"""Expression that an engine evaluates, without touching its own names."""
LEAVES = 1.0  # seconds for a process that has closed its output to end


def facts() -> dict[str, str]:
    """Return this host's identity, and the path of its Python."""
    machine = ""
    with contextlib.suppress(OSError):  # hosts may share a name
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"host": socket.gethostname(), "machine": machine, "python": sys.executable}


def start_agent(python: str, module: str, variables: dict[str, str], limit: float) -> list[str]:
    """Start an agent and wait until it closes its output, which means that it is up; return its output if it has ended instead."""
    ours, its = os.pipe()
    with tempfile.TemporaryFile() as log, os.fdopen(ours, "rb", 0) as output:
        try:
            agent = subprocess.Popen(
                [python, "-m", module],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=its,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            return [f"{python}: {error.strerror}"]
        finally:
            os.close(its)
        end = time.monotonic() + limit
        while (left := end - time.monotonic()) > 0 and select.select([output], [], [], left)[0] and output.read(1 << 16):
            pass
        if left <= 0:
            agent.kill()
        try:
            agent.wait(LEAVES)
        except subprocess.TimeoutExpired:
            threading.Thread(target=agent.wait, name="dtrain-agent", daemon=True).start()  # reap it when it ends
            return []
        log.seek(0)
        lines = log.read().decode(errors="replace").split("\n")
        return [line for line in lines if line] or [f"exit code {agent.returncode}"]
