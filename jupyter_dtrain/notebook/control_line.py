"""Parser of the ``%distribute`` line: commands for the cluster and its runs."""

from __future__ import annotations

import argparse
import functools
from dataclasses import dataclass
from typing import Literal

from ..cluster_options import ClusterOptions
from ..errors import UsageError
from ..parallel_dims import ParallelDims
from . import option_values
from .cluster_arguments import add_cluster, cluster_of
from .magic_arguments import OF_OTHERS, ActionParser, HelpRequested, MagicParser, parse


@functools.cache
def line_parser() -> argparse.ArgumentParser:
    """Return the parser of a ``%distribute`` line."""
    parser = MagicParser(prog="%distribute", description="Control the cluster that %%distribute cells run on.", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", parser_class=ActionParser)
    start = actions.add_parser("start", help="start the engines now instead of with the first cell", allow_abbrev=False)
    start.add_argument("count", nargs="?", type=option_values.whole_number, metavar="N", help="the same as --engines N")
    add_cluster(start, "--engines", "-n")
    start.add_argument(
        "--dask-workers",
        type=option_values.whole_number,
        metavar="N",
        help="start N Dask workers beside the engines, which compute the notebook's collections until the engines stop",
    )
    start.add_argument("--show-script", action="store_true", help="show the scheduler's job script, and start nothing")
    actions.add_parser("status", help="show the engines and the last run", allow_abbrev=False)
    preview = actions.add_parser(
        "preview", help="list the names that an earlier cell would send, with size and treatment", allow_abbrev=False
    )
    preview.add_argument(
        "cell", nargs="?", type=option_values.whole_number, metavar="N", help="the cell, In[N] (default: the last distributed one)"
    )
    plan = actions.add_parser("plan", help="predict the memory of a cell on each engine under each strategy", allow_abbrev=False)
    plan.add_argument(
        "cell", nargs="?", type=option_values.whole_number, metavar="N", help="the cell, In[N] (default: the last distributed one)"
    )
    add_cluster(plan, "--engines", "-n")
    resume = actions.add_parser("resume", help="resume an interrupted run from its last checkpoint", allow_abbrev=False)
    resume.add_argument(
        "run",
        nargs="?",
        metavar="RUN[@STEP|@best]",
        help="its id or name, and the checkpoint: a step or the best (default: the newest of the last run that can be resumed)",
    )
    resume.add_argument("--strategy", metavar="KIND", help="resume under another strategy, such as zero3 if its own needed too much memory")
    resume.add_argument(
        "--mesh",
        type=ParallelDims.parse,
        metavar="AXIS=N,…",
        help="resume on another mesh of engines, such as dp=2,pp=2",
    )
    resume.add_argument("--trust", action="store_true", help="load even if not signed by you (may execute arbitrary code)")
    add_cluster(resume, "--engines", "-n")
    attach = actions.add_parser("attach", help="attach to a run of %%%%distribute --detach, or fetch its results", allow_abbrev=False)
    attach.add_argument("run", nargs="?", metavar="RUN", help="its id or name (default: the last one)")
    attach.add_argument("--trust", action="store_true", help="load the results even if not signed by you (may execute arbitrary code)")
    debug = actions.add_parser("debug", help="open a post-mortem debugger on a cell that failed, as %%debug does", allow_abbrev=False)
    debug.add_argument(
        "--rank", type=option_values.whole_number, metavar="R", help="the rank to debug (default: the one whose error was shown)"
    )
    doctor = actions.add_parser("doctor", help="check hosts before engines start there, and say what to fix", allow_abbrev=False)
    add_cluster(doctor, "--engines", "-n")
    actions.add_parser("stop", help="stop the engines", allow_abbrev=False)
    return parser


@dataclass(frozen=True, kw_only=True)
class LineCommand:
    """A parsed ``%distribute`` line."""

    action: str
    cluster: ClusterOptions
    cell: int | None = None
    run: str | None = None
    step: int | Literal["best"] | None = None
    trusted: bool = False
    strategy: str | None = None
    mesh: ParallelDims | None = None
    show_script: bool = False
    dask_workers: int | None = None
    rank: int | None = None


def parse_line(line: str) -> LineCommand:
    """Return the command of a ``%distribute`` line; raises like :func:`.cell_line.parse_cell_line`."""
    words = line.split()
    if words and (words[0].isdecimal() or words[0] in ("--engines", "-n", "--device", "--devices", *OF_OTHERS)):
        raise UsageError(
            f"There is no `%distribute {words[0]}`. Did you mean `%distribute start {line}`, or `%%distribute` on top of a cell?"
        )
    found = parse(line_parser, line)
    if found.action is None:
        raise HelpRequested(line_parser().format_help().rstrip())
    run, step = _run_and_step(getattr(found, "run", None) or "")
    if found.action == "attach" and step is not None:
        raise UsageError(f"%distribute attach follows a run where it is: omit @{step}. `%distribute resume` goes back to a checkpoint.")
    return LineCommand(
        action=found.action,
        cluster=cluster_of(found),
        cell=getattr(found, "cell", None),
        run=run,
        step=step,
        trusted=getattr(found, "trust", False),
        strategy=getattr(found, "strategy", None),
        mesh=getattr(found, "mesh", None),
        show_script=getattr(found, "show_script", False),
        dask_workers=getattr(found, "dask_workers", None),
        rank=getattr(found, "rank", None),
    )


def _run_and_step(text: str) -> tuple[str | None, int | Literal["best"] | None]:
    """Parse ``RUN``, ``RUN@STEP``, ``RUN@best``, ``@STEP`` or ``@best``."""
    run, at, step = text.rpartition("@")
    if at and step == "best":
        return run or None, "best"
    if at and not step.isdecimal():
        raise UsageError(f"{text!r}: after the @ comes the step of a checkpoint, such as {run or 'RUN'}@120, or {run or 'RUN'}@best.")
    return (run if at else step) or None, int(step) if at else None
