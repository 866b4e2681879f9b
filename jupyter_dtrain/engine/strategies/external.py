"""A cell that distributes itself: run as ``torchrun`` runs a script, and left alone.

For code that calls ``init_process_group`` and DDP by hand, and for Lightning, accelerate and Hugging Face's Trainer,
which find their ranks in the environment. Nothing is split, wrapped or observed.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from ..comm.env_rendezvous import env_rendezvous
from ..comm.process_group import Rendezvous

ADDRESS = "127.0.0.1"


def free_port() -> int:
    """Return a port that is free on this host now."""
    with socket.create_server((ADDRESS, 0)) as server:
        port: int = server.getsockname()[1]
        return port


class ExternalProgram:
    """Gives the cell the environment that ``torchrun`` gives a script.

    Parameters
    ----------
    rank, world_size : int
    port : int
        Free on this host. ``init_process_group`` does not listen there; what the cell does by itself may.
    rendezvous : Rendezvous
        Where ``init_process_group`` meets.
    on_alone : callable
        Told that each rank has trained by itself, without a process group.
    """

    def __init__(
        self, *, rank: int, world_size: int, port: int, rendezvous: Rendezvous, on_alone: Callable[[], None] = lambda: None
    ) -> None:
        self._rendezvous = rendezvous
        self._on_alone = on_alone if world_size > 1 else lambda: None
        self._environment = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": f"dtrain-{port}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Set the environment, until the end of the ``with`` block; a group that the cell left behind is gone then."""
        before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)
        joined = trained = False
        join = dist.init_process_group

        @wraps(join)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            nonlocal joined
            joined = True
            join(*args, **kwargs)

        def note_step(*_: object) -> None:
            nonlocal trained
            trained = True

        hook = register_optimizer_step_post_hook(note_step)
        try:
            with (
                mock.patch.object(dist, "init_process_group", init_process_group),
                env_rendezvous(self._rendezvous, {name: self._environment[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")}),
            ):
                yield
            if trained and not joined:
                self._on_alone()
        finally:
            hook.remove()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def share_out(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return `tensors`: the cell shares out what it likes."""
        return tensors

    def materialize(self, *values: Any, unchanged: Iterable[object] = ()) -> list[Any]:  # noqa: ARG002  # like the other's
        """Return `values`: nothing spans the ranks but what the cell made itself."""
        return list(values)

    @staticmethod
    def leave() -> None:
        """Leave the cell's own process group, if there is one. What refers to it has been let go."""
        if dist.is_initialized():
            gc.collect()
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
