"""The start of a host, by the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from ..cluster.environment import own_environment
from ..errors import ClusterError
from ..options import ClusterOptions
from .line import Hello, Line

MODULE = f"{__package__.partition('.')[0]}.host_app"


def start_host(options: ClusterOptions, runs: Path) -> Line:
    """Return the line to a new process that runs one cell of this kernel; it lives on when the kernel ends.

    Parameters
    ----------
    options : ClusterOptions
        The engines that it starts.
    runs : Path
        The folder of runs.

    Raises
    ------
    ClusterError
        It did not come up.
    """
    said = json.dumps({"num_engines": options.num_engines, "device": options.device, "runs": str(runs)})
    # A session of its own: Jupyter interrupts and kills a kernel's whole process group. -P: a file beside the notebook that is named
    # like a module is not imported.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, said],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=own_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        if not Path(address).is_socket():
            rest = address + "\n" + process.stdout.read().decode(errors="replace")
            raise ClusterError(f"The process that runs a cell detached has ended while it started:\n{rest.strip()}")
        line = Line.to(Path(address))
        line.send(Hello(os.getpid(), begins=True))
    except BaseException:
        process.kill()  # its guard ends what it has started
        process.wait()
        raise
    threading.Thread(target=_reap, args=(process,), name="dtrain-reap", daemon=True).start()
    return line


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Hold its input open, and ask after it when it has ended."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
