"""``python -m jupyter_dtrain.host_app``: the process of a :class:`~.host.Host`, which the kernel starts for its cell.

It starts the engines while it imports torch. The command line has the cluster options and the folder of runs. The process prints the
address of its socket once. Its stdin is open as long as the kernel lives, as only that kernel can start the run.
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
    """Run one cell in this process and its engines."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    said = json.loads(sys.argv[1])
    options: ClusterOptions = pickle.loads(bytes.fromhex(said["engines"]))
    engines = EnginePool()
    engines.prepare(RunOptions(cluster=options))  # the cell's own options were checked by the kernel
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
