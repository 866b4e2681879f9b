"""The options of a run, in the groups that ``%%distribute --help`` and the reference show."""

from __future__ import annotations

from ..parallel_dims import ParallelDims
from ..search import Search
from ..shard_patterns import ShardPattern
from ..strategies import DEFAULT, available
from . import option_values
from .magic_arguments import MagicParser


def add_run(parser: MagicParser) -> None:
    """Add the options of a run to a parser."""
    _add_strategy(parser)
    _add_sharding(parser)
    _add_numbers(parser)
    _add_faults(parser)
    _add_trials(parser)
    _add_output(parser)


def _strategies() -> str:
    kinds = "; ".join(f"{info.name} {info.summary}" for info in available())
    return f"how the cell is distributed: {kinds} (default: {DEFAULT})".replace("%", "%%")


def _add_strategy(parser: MagicParser) -> None:
    group = parser.add_argument_group("how the cell is distributed")
    strategy = group.add_argument("--strategy", default=DEFAULT, metavar="KIND")
    parser.late_help[strategy] = _strategies
    group.add_argument(
        "--mesh",
        type=ParallelDims.parse,
        metavar="AXIS=N,…",
        help="device mesh: engines along each axis; dp=2,pp=2 is two data-parallel groups, each a pipeline of two stages; dp=2,tp=2 "
        "splits linear layers within each group, dp=2,dp_shard=2 shards parameters within each (HSDP); pp, tp and dp_shard work as "
        "--strategy pipeline, tensor and zero3; the product is the number of engines",
    )
    group.add_argument(
        "--shard",
        action="extend",
        nargs="+",
        type=ShardPattern.parse,
        default=[],
        metavar="NAMES=HOW",
        help="for --strategy tensor: how to shard the parameters, or modules, of these names: '*.experts.*=col' along dim 0, row along "
        "dim 1, no not at all (default: by the rules for each class)",
    )
    group.add_argument(
        "--memory-limit",
        type=option_values.memory_size,
        metavar="SIZE",
        help="memory for the tensors of each engine, such as 16G; --strategy auto chooses a plan that fits (default: what the machine has)",
    )
    group.add_argument(
        "--checkpoint-activations",
        action="store_true",
        help="activation checkpointing: repeated blocks keep only their inputs and are recomputed in the backward pass",
    )
    group.add_argument(
        "--balance",
        default="off",
        metavar="KIND",
        help="how a batch is sharded: off (evenly) or auto (by the speed of the engines; runs are then not bit-reproducible) "
        "(default: off)",
    )
    group.add_argument(
        "--compress",
        default="none",
        metavar="TYPE",
        help="exchange gradients as bf16 or fp16, at half the bytes or less; weights then differ from those of one process (default: none)",
    )
    group.add_argument(
        "--sync-every",
        type=int,
        default=1,
        metavar="N",
        help="local SGD: each engine steps on its own part of a batch, and parameters are averaged every N steps; weights then differ "
        "from those of one process (default: 1)",
    )


def _add_sharding(parser: MagicParser) -> None:
    group = parser.add_argument_group("what is sharded")
    group.add_argument(
        "--batch-size",
        default="global",
        metavar="KIND",
        help="meaning of a loader's batch_size: global (all engines together) or per-rank (each engine) (default: global)",
    )
    group.add_argument(
        "--split", metavar="X,Y", default="", help="tensors to shard along dim 0, for a cell that trains on all data at once"
    )
    group.add_argument("--split-inputs", action="store_true", help="shard model inputs along dim 0 when there is no DataLoader")
    group.add_argument("--split-eval", action="store_true", help="shard evaluation batches too; the cell reads the same values")
    group.add_argument(
        "--replicate",
        action="store_true",
        help="run a cell without a DataLoader on every engine (default: one engine runs it)",
    )


def _add_numbers(parser: MagicParser) -> None:
    group = parser.add_argument_group("what the cell computes with")
    group.add_argument(
        "--semantics",
        default="global",
        metavar="KIND",
        help="what the cell reads from a batch: global (as on one process) or local (this engine's shard) (default: global)",
    )
    group.add_argument(
        "--rng",
        default="auto",
        metavar="KIND",
        help="random numbers of dropout, noise and augmentation: global (as on one process) or per-rank (faster) (default: global on CPUs)",
    )
    group.add_argument(
        "--batchnorm",
        default="auto",
        metavar="KIND",
        help="BatchNorm statistics: global (as on one process) or per-rank (faster) (default: global on CPUs)",
    )
    group.add_argument(
        "--verify",
        default="auto",
        metavar="WHEN",
        help="check at run time that models and loaders compute the same on shards as on the global batch: auto (within 1%% of the time), "
        "first, always or off (default: auto)",
    )


def _add_faults(parser: MagicParser) -> None:
    group = parser.add_argument_group("checkpoints and lost engines")
    group.add_argument(
        "--checkpoint-every",
        type=option_values.steps_or_time,
        metavar="N",
        help="write a checkpoint to disk every N steps (500) or after a time (30s, 10min, 2h); without it, checkpoints "
        "exist only while the cell runs, to resume from if the kernel dies",
    )
    group.add_argument(
        "--keep-checkpoints",
        type=option_values.whole_number,
        default=2,
        metavar="N",
        help="number of checkpoints kept on disk (default: 2)",
    )
    group.add_argument(
        "--best",
        type=option_values.metric,
        metavar="METRIC[:min|max]",
        help="also keep the best checkpoint, by a metric that the cell logs or a variable of that name: val_loss:min, "
        "accuracy:max (default: min; a name such as accuracy needs one)",
    )
    group.add_argument(
        "--elastic",
        type=option_values.min_max,
        metavar="MIN:MAX",
        help="continue on fewer engines, at least MIN, while a lost one cannot be replaced, and on MAX when it can (default: the "
        "cell fails)",
    )
    group.add_argument(
        "--detach",
        action="store_true",
        help="continue the run if the kernel stops, on engines of its own; `%%distribute attach` in a new kernel follows it",
    )
    group.add_argument(
        "--keep-inputs",
        default="auto",
        metavar="WHEN",
        help="record the cell's starting values, for `run.rerun()`: auto (up to 64 MiB), always or never (default: auto)",
    )
    group.add_argument(
        "--keep-secrets",
        action="store_true",
        help="write environment variables that look like secrets (HF_TOKEN) to disk with checkpoints; without it, the kernel "
        "that resumes must have them",
    )


def _add_trials(parser: MagicParser) -> None:
    group = parser.add_argument_group("sweeps")
    group.add_argument(
        "--vary",
        action="append",
        type=option_values.varied,
        default=[],
        metavar="NAME=VALUES",
        help="sweep: run the cell once per value, in parallel: lr=0.1,0.01 or config.lr=0.1,0.01; several --vary options form a grid, or "
        "with --search a search space, which may have ranges (lr=log:1e-4..1e-1). "
        "The results of the best trial (--best) are returned to the notebook",
    )
    group.add_argument(
        "--search",
        type=Search.parse,
        metavar="KIND:TRIALS",
        help="sample this number of trials instead of a grid, also from ranges: --vary lr=log:1e-4..1e-1 --search random:20; asha:27 "
        "stops poor trials early by the metric of --best. Needs Optuna (`pip install 'jupyter_dtrain[search]'`)",
    )
    group.add_argument(
        "--engines-per-trial", type=option_values.whole_number, default=1, metavar="N", help="engines per trial of --vary (default: 1)"
    )


def _add_output(parser: MagicParser) -> None:
    group = parser.add_argument_group("what is shown")
    group.add_argument("--name", metavar="NAME", help="name of the run in lists (default: run- and its number)")
    group.add_argument("--preview", action="store_true", help="run nothing; list the names that would be sent, with size and treatment")
    group.add_argument(
        "--output",
        default="main",
        metavar="KIND",
        help="whose output is shown: main (rank 0) or all (every rank, prefixed with its number) (default: main)",
    )
    group.add_argument(
        "--view",
        metavar="KIND",
        help="output below the cell: live (progress, then a summary), summary or off (default: live, or `%%config DistributeMagics.view`)",
    )
