"""``python -m jupyter_dtrain.host_app``: the start of a :class:`~.host.Host`, by the kernel whose cell it is to run.

Its engines start while it imports torch. The command line says which, and where the runs are. Where it listens it says on its standard
output, once; its input is open as long as that kernel lives, which alone can tell it to begin.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from .cluster.folders import Folders
from .elastic.engine_pool import EnginePool
from .options import RunOptions

if TYPE_CHECKING:
    from .cluster_options import ClusterOptions
    from .detached.server import Server

LOG = "host"


def main() -> None:
    """Run one cell, and everything that it takes."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = json.loads(sys.argv[1])
    options: ClusterOptions = pickle.loads(bytes.fromhex(said["engines"]))
    engines = EnginePool()
    engines.prepare(RunOptions(cluster=options))  # the cell's own have been looked at where it was handed over
    folders = Folders()
    held = folders.acquire()
    from .detached.connection import SOCKET
    from .detached.server import Server
    from .host import Host

    server = Server(folders)
    try:
        threading.Thread(target=_watch, args=(server,), name="dtrain-begin", daemon=True).start()
        sys.stdout.write(f"{folders.sockets / SOCKET}\n")
        sys.stdout.flush()
        log = os.open(folders.log_of(LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if server.receive() is not None:
            Host(server, Path(said["runs"]), engines, options, folders).run()
    finally:
        server.close()
        folders.remove()
        for handle in held:
            os.close(handle)


def _watch(server: Server) -> None:
    sys.stdin.buffer.read()
    server.give_up()


if __name__ == "__main__":
    main()
