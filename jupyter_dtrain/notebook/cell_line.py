"""Parser of the ``%%distribute`` line: the options of a run."""

from __future__ import annotations

import argparse
import functools

from ..options import RunOptions, View
from .cluster_arguments import add_engines, add_hosts, cluster_of
from .magic_arguments import MagicParser, parse
from .run_arguments import add_run


@functools.cache
def cell_parser() -> argparse.ArgumentParser:
    """Return the parser of a ``%%distribute`` line."""
    parser = MagicParser(
        prog="%%distribute",
        description="Run the cell on every engine of the cluster: same batches, same result, and the trained model is returned.",
        epilog="The first cell starts the cluster, and later cells reuse it. `%distribute --help` lists the commands.",
        allow_abbrev=False,
    )
    add_engines(parser, "--engines", "-n")
    add_run(parser)
    add_hosts(parser)  # last, as it is the longest group and the least used
    return parser


def parse_cell_line(line: str, *, view: View = "live") -> RunOptions:
    """Return the options of a ``%%distribute`` line; `view` is the default of ``--view``.

    Raises
    ------
    UsageError
        The line is invalid.
    HelpRequested
        It asks for help.
    """
    found = parse(cell_parser, line)
    return RunOptions(
        cluster=cluster_of(found),
        name=found.name,
        strategy=found.strategy,
        mesh=found.mesh,
        shard=tuple(found.shard),
        memory_limit=found.memory_limit,
        semantics=found.semantics,
        split=tuple(name.strip() for name in found.split.split(",") if name.strip()),
        split_inputs=found.split_inputs,
        replicate=found.replicate,
        preview=found.preview,
        batch_size=found.batch_size,
        split_eval=found.split_eval,
        rng=found.rng,
        batchnorm=found.batchnorm,
        checkpoint_activations=found.checkpoint_activations,
        output=found.output,
        balance=found.balance,
        compress=found.compress,
        sync_every=found.sync_every,
        verify=found.verify,
        checkpoint_every=found.checkpoint_every,
        keep_checkpoints=found.keep_checkpoints,
        best=found.best,
        elastic=found.elastic,
        keep_secrets=found.keep_secrets,
        keep_inputs=found.keep_inputs,
        detach=found.detach,
        vary=tuple(found.vary),
        search=found.search,
        engines_per_trial=found.engines_per_trial,
        view=view if found.view is None else found.view,
    )
