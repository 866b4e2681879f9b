"""A cell that distributes itself: run as ``torchrun`` runs a script, and left alone.

For code that calls ``init_process_group`` and DDP by hand, and for Lightning, accelerate and Hugging Face's Trainer,
which find their ranks in the environment. Nothing is split, wrapped or observed.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from ....system.patches import patched
from ...comm.env_rendezvous import ADDRESS, env_rendezvous
from ...comm.process_group import ProcessGroup
from ...comm.rank_store import StoreChannel
from ...task import Task
from ...telemetry.not_shared import ALONE
from ..base import RankContext, Strategy


class ExternalProgram(Strategy):
    """Gives the cell the environment that ``torchrun`` gives a script."""

    is_each_whole = False  # what others than rank 0 have may be a part

    def __init__(self, context: RankContext) -> None:
        super().__init__(context)
        task = context.task
        assert task.rendezvous is not None
        self._rendezvous = task.rendezvous  # where `init_process_group` meets; it does not listen at the port, the cell itself may
        # An engine sees its own GPU alone, and code takes that of number LOCAL_RANK: such engines are nodes with one GPU each.
        is_node = torch.device(task.device).type == "cuda"
        self._environment = {
            "RANK": str(task.rank),
            "LOCAL_RANK": "0" if is_node else str(task.rank),
            "GROUP_RANK": str(task.rank) if is_node else "0",
            "WORLD_SIZE": str(task.world_size),
            "LOCAL_WORLD_SIZE": "1" if is_node else str(task.world_size),
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(task.program_port),
            "TORCHELASTIC_RUN_ID": f"dtrain-{task.program_port}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            # Groups meet at their end too: a rank whose cell ends at once would close its connections while another still makes them.
            "TORCH_DIST_INIT_BARRIER": "1",
        }

        self._objects: Sequence[object] = ()

    def begin(self, objects: Sequence[object]) -> None:
        """Know the notebook's `objects`: what is recorded of the cell is found in them."""
        self._objects = objects

    @classmethod
    def join(cls, task: Task, group: ProcessGroup, device: torch.device) -> StoreChannel:
        """Leave our group: the cell's own takes its place."""
        group.leave()
        return super().join(replace(task, rendezvous=None), group, device)

    @classmethod
    def leave(cls, group: ProcessGroup, *, failed: bool) -> None:
        """Leave the cell's own process group, if there is one. What refers to it has been let go."""
        if dist.is_initialized():
            gc.collect()
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
        super().leave(group, failed=failed)

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

        def note_step(optimizer: torch.optim.Optimizer, *_: object) -> None:
            nonlocal trained
            trained = True
            hyperparameters.on_optimizer_step(optimizer)

        hyperparameters = self.context.reports.observer.hyperparameters
        hyperparameters.modules = lambda: [obj for obj in (*self._objects, *self.context.namespace.values()) if isinstance(obj, nn.Module)]

        hook = register_optimizer_step_post_hook(note_step)
        try:
            with (
                hyperparameters.installed(self._objects),
                hyperparameters.loaders_noticed(),
                patched(dist, "init_process_group", init_process_group),
                env_rendezvous(self._rendezvous, {name: self._environment[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")}),
            ):
                yield
            if trained and not joined and self.context.task.world_size > 1:
                self.context.reports.notes.say(ALONE)
        finally:
            hook.remove()
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
