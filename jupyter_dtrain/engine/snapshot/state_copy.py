"""Copy a rank's state while all ranks are at the same place: state that all hold alike is copied once, by one of them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ...serialization.pickler import Packed
from ..control import Control
from ..dedup import Apart, Common
from ..resume.position import Position
from ..staging import Staging, check_memory
from .put_together import FilledFiles
from .rank_state import RankState, Snapshot
from .snapshot_files import snapshot_blobs


class StateCopier:
    """Copies a rank's state.

    Parameters
    ----------
    folder : Path
        Folder of the snapshots.
    state : RankState
    rank, world_size : int
    control : Control
        Communicates with the other ranks.
    staging : Staging
        Holds the memory.
    shares : bool
        Whether training state is the same on all ranks.
    """

    def __init__(
        self, folder: Path, state: RankState, *, rank: int, world_size: int, control: Control, staging: Staging, shares: bool
    ) -> None:
        self._folder, self._state, self._control, self._staging = folder, state, control, staging
        self._rank, self._world_size = rank, world_size
        self._is_shared_out = world_size > 1 and shares  # each rank copies a part of the state that all hold alike

    def copy(self, number: int, position: Position) -> tuple[Packed, bytes, FilledFiles] | None:
        """Return copies of the rank's state: the cell's values, a pickled :class:`Snapshot` without them, and the filled files.

        ``None`` if the ranks are at different places or hold different state.
        """
        files = FilledFiles(snapshot_blobs(self._folder, number), self._rank)
        try:
            with self._state.put_together(position, all_come=partial(self._control.all_come, number)) as apart:
                if apart is None:
                    return None
                files.fill(apart.held)
                common = self.common(apart)
                saved = self._saved(number, position, common)
                if saved is None:
                    files.remove()
                    return None
                packed, snapshot = saved
                packed = files.without(packed, common, snapshot.common)
                copied = replace(packed, buffers=self._staging.copied(packed))  # here: assembled tensors may be freed after the block
                return copied, pickle.dumps(snapshot, protocol=pickle.HIGHEST_PROTOCOL), files
        except BaseException:
            files.remove()
            raise

    def _saved(self, number: int, position: Position, common: Common | None) -> tuple[Packed, Snapshot] | None:
        if torch.cuda.is_initialized():  # pickling copies tensors from devices
            on_devices = self._state.num_bytes() - self._state.num_bytes(to_stage=True)
            others = common.bytes_of_others(on_cpu=False) if common is not None else 0
            check_memory(on_devices - others, of=on_devices, num_ranks=self._world_size)
        return self._state.save(number, position, common=common, agree=partial(self._agree, number))

    def common(self, apart: Apart) -> Common | None:
        """Return the storages that one rank copies for all; ``None`` if each rank copies all of its own."""
        if not self._is_shared_out and not apart.optimizers and not apart.held:
            return None
        return self._state.common(world_size=self._world_size, is_alike=self._is_shared_out, apart=apart)

    def _agree(self, number: int, state: str, alike: str) -> bool:
        same, are_alike = self._control.all_take(number, state, alike)
        self._is_shared_out &= are_alike or not same  # if not alike: from the next snapshot on, each rank copies all of its own
        return same and are_alike
