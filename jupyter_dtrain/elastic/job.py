"""A cell with its values and options, independent of the engines: it can be sent to another process."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from ..analysis.code_objects import sources_of
from ..analysis.definitions import definitions_of
from ..analysis.shardable import code_of_cell, shards_nothing
from ..capture.bundle import Bundle
from ..engine.task import CellInput, ProcessState, Semantics, Task
from ..options import OverRanks, RunOptions, Verify
from ..protocol import Value
from ..runs.record import CellOrigin
from ..serialization.identities import ids_of
from ..strategies import Feature, find, is_default
from ..system.git_commit import commit_of
from ..transport.base import BlobStore, OnProgress
from ..transport.parcel import to_parcel
from .worker_group import WorkerGroup

GROUP_TIMEOUT = timedelta(minutes=30)  # torch's default for collectives


@dataclass(frozen=True, kw_only=True)
class CellJob(CellInput):
    """A cell as the kernel submits it, with what the record of its run needs.

    Attributes
    ----------
    cell, origin : str, CellOrigin
        The cell as it was typed, and where it is.
    functions : mapping of str to str
        Source of the notebook's functions and classes that the cell uses, by name.
    has_models : bool
        The cell uses modules or ``torch.nn``.
    sweep : mapping, optional
        For a trial: the ``id`` and ``name`` of its sweep, and the number of ``trials``.
    """

    cell: str
    origin: CellOrigin
    functions: Mapping[str, str] = field(default_factory=dict)
    has_models: bool = False
    sweep: Mapping[str, str | int] | None = None

    @property
    def on_one_engine(self) -> bool:
        """Whether nothing in the cell can be sharded, so that one engine runs it."""
        return self.num_threads is not None

    @classmethod
    def of(
        cls,
        source: str,
        bundle: Bundle,
        blobs: BlobStore,
        *,
        moment: ProcessState,
        options: RunOptions,
        filename: str,
        cell: str,
        origin: CellOrigin,
        on_progress: OnProgress,
        sweep: Mapping[str, str | int] | None = None,
    ) -> CellJob:
        """Return the job of a cell of this process, with its values stored in `blobs`; `on_progress` gets bytes stored and bytes in all."""
        sources = sources_of(bundle.tracked)
        return cls(
            source=source,
            filename=filename,
            sources=sources,
            functions=definitions_of(bundle.tracked),
            parcel=to_parcel(bundle.packed, blobs, on_progress),
            **vars(moment),
            unsent=bundle.unsent,
            imported=bundle.imported,
            options=options,
            strategy=find(options.strategy),
            cell=cell,
            origin=origin,
            sweep=sweep,
            num_threads=torch.get_num_threads() if _is_for_one_engine(source, bundle, options) else None,
            ids=ids_of(bundle.tracked, (source, *sources.values())),
            has_models=any(isinstance(obj, torch.nn.Module) or obj is torch.nn for obj in bundle.seen),
        )

    def task(self, group: WorkerGroup, blobs: BlobStore, *, run_id: str) -> Task:
        """Return the task for the ranks of `group`, with the values in `blobs`."""
        options, device = self.options, group.cluster.device_plans[0].device
        return Task(
            **self.shared(),
            run_id=run_id,
            rank=0,
            world_size=group.num_ranks,
            rendezvous=None,
            blob_folder=blobs.address,
            device=device,
            semantics=Semantics(
                global_numbers=options.semantics == "global",
                global_draws=_is_global(options.rng, device),
                global_batchnorm=_is_global(options.batchnorm, device),
                per_rank_batches=options.batch_size == "per-rank",
                split_evaluation=options.split_eval,
                split_inputs=options.split_inputs,
                checkpoint_activations=options.checkpoint_activations,
                one_engine=self.on_one_engine,
                verify=_verifies(options),
            ),
            timeout=GROUP_TIMEOUT,
            snapshot_folder=blobs.address / f".{run_id}",
        )

    def facts(self) -> dict[str, Any]:
        """Return facts for the record: a digest of the notebook's RNG state, and its git commit."""
        facts = {"random state": self.random_state.digest(), "git commit": commit_of(Path.cwd())}
        return {name: value for name, value in facts.items() if value is not None}

    def hyperparameters(self) -> dict[str, Value]:
        """Return the hyperparameters that the options name: the values of a trial."""
        return {name: _literal(text) for name, text in self.options.vary}

    def arguments(self) -> dict[str, Any]:
        """Return the options for the record of runs, without those of display, as runs are compared by them."""
        options = self.options
        every = options.checkpoint_every
        return {
            "engines": options.cluster.num_engines,
            "device": options.cluster.device,
            "devices": options.cluster.devices,
            "strategy": options.strategy,
            "mesh": None if options.mesh is None else str(options.mesh),
            "shard": " ".join(map(str, options.shard)) or None,
            "memory_limit": options.memory_limit,
            "semantics": options.semantics,
            "batch_size": options.batch_size,
            "split": ",".join(options.split) or None,
            "split_inputs": options.split_inputs,
            "split_eval": options.split_eval,
            "rng": options.rng,
            "batchnorm": options.batchnorm,
            "checkpoint_activations": options.checkpoint_activations,
            "balance": options.balance,
            "compress": options.compress,
            "sync_every": options.sync_every,
            "verify": options.verify,
            "replicate": options.replicate,
            "elastic": None if options.elastic is None else "{}:{}".format(*options.elastic),
            "checkpoint_every": f"{every.total_seconds():g}s" if isinstance(every, timedelta) else every,
            "keep_checkpoints": options.keep_checkpoints,
            "best": None if options.best is None else f"{options.best.name}:{options.best.mode}",
            "keep_secrets": options.keep_secrets,
            "keep_inputs": options.keep_inputs,
            "detach": options.detach,
            "vary": " ".join(f"{name}={value}" for name, value in options.vary) or None,
            "search": None if options.search is None else str(options.search),
            "engines_per_trial": options.engines_per_trial if options.vary else None,
            "sweep": None if self.sweep is None else dict(self.sweep),
        }


def _is_for_one_engine(source: str, bundle: Bundle, options: RunOptions) -> bool:
    """Return whether one engine runs the cell: nothing in it can be sharded, and no option concerns several ranks."""
    asks_for_ranks = (
        options.replicate
        or not is_default(options.strategy)
        or bool(options.split)
        or options.split_inputs
        or options.batch_size == "per-rank"
        or "per-rank" in (options.rng, options.batchnorm)
        or options.semantics == "local"
        or options.output == "all"
        or options.elastic is not None
        or bool(options.vary)
    )
    return not asks_for_ranks and shards_nothing(code_of_cell(source), bundle.seen, bundle.own_modules)


def _verifies(options: RunOptions) -> Verify:
    """Return when to verify: ``off`` instead of ``auto`` where the strategy or another option allows no comparison with one process."""
    comparable = Feature.VERIFY in find(options.strategy).supports and options.compress == "none" and options.sync_every == 1
    return "off" if options.verify == "auto" and not comparable else options.verify


def _literal(text: str) -> Value:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float | None) and value not in (math.inf, -math.inf) else text


def _is_global(option: OverRanks, device: str) -> bool:
    return option == "global" or (option == "auto" and device == "cpu")
