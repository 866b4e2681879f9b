"""What engines of somebody else's cluster are asked to do. The text of this file is sent to them.

They may have neither this package nor the notebook's Python, whose functions they could not load. So it is text, needs the standard library
alone, and leaves nothing in their namespace (`CALL`).
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
"""Evaluated by an engine, whose own names it does not touch."""
LEAVES = 1.0  # seconds for a process that has closed its output to be gone


def facts() -> dict[str, str]:
    """Return which host this is, and which Python."""
    machine = ""
    with contextlib.suppress(OSError):  # hosts may share a name
        machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"host": socket.gethostname(), "machine": machine, "python": sys.executable}


def start_agent(python: str, module: str, variables: dict[str, str], limit: float) -> list[str]:
    """Start an agent; return the lines that it has left where it has ended and is not up, which it is once it has closed its output."""
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
            threading.Thread(target=agent.wait, name="dtrain-agent", daemon=True).start()  # when it ends, nothing is left of it
            return []
        log.seek(0)
        lines = log.read().decode(errors="replace").split("\n")
        return [line for line in lines if line] or [f"exit code {agent.returncode}"]
