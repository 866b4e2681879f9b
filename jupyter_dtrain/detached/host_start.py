"""Start the host process of a detached run, and reap it when it ends."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

from ..cluster.launch_config import own_environment
from ..cluster_options import ClusterOptions
from ..errors import ClusterError
from ..system.user_secret import user_secret
from .connection import MODULE, Hello, PeerConnection


def start_host(options: ClusterOptions, runs: Path) -> PeerConnection:
    """Start a process that runs one cell of this kernel and outlives the kernel; return the connection to it.

    Parameters
    ----------
    options : ClusterOptions
        The engines that it starts.
    runs : Path
        The folder of runs.

    Raises
    ------
    ClusterError
        It did not start.
    CheckpointError
        There is no secret to sign results with.
    """
    user_secret()
    said = json.dumps({"engines": pickle.dumps(options).hex(), "runs": str(runs)})
    # A new session, as Jupyter interrupts and kills a kernel's process group. -P: a file beside the notebook with the name of a module is
    # not imported instead of it.
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
        words: list[str] = []
        for said_by_it in process.stdout:  # its address, or error messages before that; its engines start in parallel
            address = said_by_it.decode(errors="replace").strip()
            if address.startswith("/") and Path(address).is_socket():
                break
            words.append(address)
        else:
            raise ClusterError("\n".join(["The process of the detached run ended while starting:", *words]).strip())
        line = PeerConnection.to(Path(address))
        line.send(Hello(os.getpid(), begins=True))
    except BaseException:
        process.kill()  # its guard ends the processes that it has started
        process.wait()
        raise
    threading.Thread(target=_reap, args=(process,), name="dtrain-reap", daemon=True).start()
    return line


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Keep the process's stdin open until it has ended, and reap it."""
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
