"""By what an agent hears the notebook and answers: its standard streams, or a connection that it is told to make.

The second takes ZeroMQ, whose import is a third of what an agent imports before its first word: it comes with those that connect alone.
"""

from __future__ import annotations

import os
from typing import BinaryIO

VARIABLE = "JUPYTER_DTRAIN_AGENT"
"""The environment variable by which an agent knows where to connect to, and the key."""
NUMBERS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables by which an agent that is not told knows which one it is: of the innermost that may have started it first."""


def own_streams(number: str = "") -> tuple[BinaryIO, BinaryIO, str, str]:
    """Return those of this process: by its environment, as the agent of a `number`, or else its standard streams.

    Returns
    -------
    requests, answers : BinaryIO
    notebook, address : str
        The addresses of the notebook's host and of this one towards each other; empty: they are one host.

    Raises
    ------
    ClusterError
        The notebook's process cannot be reached from here.
    """
    if invited := os.environ.pop(VARIABLE, ""):
        from .dialed_link import accept

        known = (os.environ[name] for name in NUMBERS if name in os.environ)
        return accept(invited, int(number or next(known, "0")))
    connection = os.environ.get("SSH_CONNECTION", "").split()
    notebook, _, address, _ = connection if len(connection) == 4 else ("", "", "", "")
    return os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"), notebook, address
