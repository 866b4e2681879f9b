"""The agent's streams to the notebook: its standard streams, or a connection that it makes.

A connection needs ZeroMQ, whose import takes a third of an agent's start-up, so only agents that connect import it.
"""

from __future__ import annotations

import os
from typing import BinaryIO

VARIABLE = "JUPYTER_DTRAIN_AGENT"
"""Environment variable with the addresses to connect to, and the keys."""
NUMBERS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Environment variables with the number of an agent that is not told its number; the innermost possible starter comes first."""


def own_streams(number: str = "") -> tuple[BinaryIO, BinaryIO, str, str]:
    """Return the streams of this process: those of a connection if `VARIABLE` is set, else its standard streams.

    Returns
    -------
    requests, answers : BinaryIO
    notebook, address : str
        Addresses of the notebook's host and of this one, as they see each other; empty if they are one host.

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
