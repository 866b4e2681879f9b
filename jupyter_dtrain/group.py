"""The engines that a run takes place on, as ranks, and where these meet."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from .cluster.channel import EngineChannel
from .cluster.cluster import EngineCluster
from .engine import worker
from .engine.program import free_port
from .errors import ClusterError

RENDEZVOUS_TIMEOUT = timedelta(seconds=60)


class Group:
    """The ranks that share a process group, and where they meet. Kept between cells while the group is whole."""

    def __init__(self, cluster: EngineCluster, num_ranks: int) -> None:
        self.cluster = cluster
        self.channel = EngineChannel(cluster.client)
        self.num_ranks = num_ranks
        self._rendezvous: Any = None

    @property
    def engine_ids(self) -> list[int]:
        """Ipyparallel's ids of the ranks' engines, in rank order."""
        return self.cluster.engine_ids[: self.num_ranks]

    @property
    def have_met(self) -> bool:
        """Whether it is known where the ranks meet, or there is one only."""
        return self._rendezvous is not None or self.num_ranks == 1

    def rendezvous(self) -> Any:
        """Return where the ranks meet (``None`` for one rank); opens a store on rank 0 if there is none yet."""
        if len(self.engine_ids) == 1:
            return None
        if self._rendezvous is None:
            task = self.channel.call(self.engine_ids[0], worker.host_store, uuid.uuid4().hex, "127.0.0.1", RENDEZVOUS_TIMEOUT)
            try:
                self._rendezvous = task.result()
            except Exception as error:
                raise ClusterError(
                    f"Rank 0 cannot open a meeting place for the others ({type(error).__name__}: {error}).\n"
                    "`%distribute stop`, then run the cell again: a new cluster starts by itself."
                ) from error
        return self._rendezvous

    def program_port(self) -> int:
        """Return a free port on rank 0, for the process group of a cell that distributes itself. The ranks' own group is gone then."""
        self.disband()
        port: int = self.channel.call(self.engine_ids[0], free_port).result()
        return port

    def disband(self) -> None:
        """Meet anew the next time: somebody has left."""
        self._rendezvous = None
