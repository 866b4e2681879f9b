"""The magics' lines, parsed: options as dataclasses, and errors and help as text in the cell."""

from __future__ import annotations

import argparse
import difflib
import functools
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NoReturn

from ..errors import UsageError
from ..options import ClusterOptions, HostSpec, Metric, RunOptions, View
from ..strategies import DEFAULT, available

_OF_OTHERS = dict.fromkeys(
    ("--gpus", "--num-gpus", "--nproc", "--nproc-per-node", "--nproc_per_node", "--np", "-np", "--num-processes", "--num_processes"),
    "--engines",
) | {"--nprocs": "--engines", "--num-workers": "--engines", "--workers": "--engines", "--world-size": "--engines"}
"""What torchrun, accelerate, Lightning and MPI call options, and what they are called here."""
_RENAMED = {
    "--numbers": "--semantics",
    "--draws": "--rng",
    "--batch": "--batch-size",
    "--each": "--engines-per-trial",
    "--keep": "--keep-checkpoints",
}
"""Options under the names that they had before, which are still understood."""


class HelpRequested(Exception):
    """The line asks for help; the exception's text is it."""


class _Parser(argparse.ArgumentParser):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.late_help: dict[argparse.Action, Callable[[], str]] = {}  # what takes time to find out, and is asked for with the help alone

    def format_help(self) -> str:
        for action, text in self.late_help.items():
            action.help = text()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().strip()
        action = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if action is not None:
            known = action[2].replace("'", "").split(", ")
            message = f"There is no `{self.prog} {action[1]}`; there are {', '.join(known)}.{_meant([action[1]], known)}"
            usage = ""
        elif message.startswith("unrecognized arguments"):
            options = [word.partition("=")[0] for word in message.split() if word.startswith("-")]
            message += _meant(options, self._option_string_actions, after=". ")
        # One of many lines would hide the message that stands over it.
        lines = [message, usage if "\n" not in usage else "", f"`{self.prog} --help` explains each option."]
        raise UsageError("\n".join(filter(None, lines)))

    def print_help(self, file: object = None) -> NoReturn:  # noqa: ARG002  # argparse's signature
        raise HelpRequested(self.format_help().rstrip())


class _ActionParser(_Parser):
    """Of one action: it tells of what it does not know, and not the parser of the whole line, which knows less of it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _meant(words: Iterable[str], known: Iterable[str], *, after: str = " ") -> str:
    """Return a question whether those of `known` were meant that `words` are nearly; empty where there are none."""
    known = list(known)
    near = [found for word in words for found in _same_elsewhere(word, known) or difflib.get_close_matches(word, known, n=1, cutoff=0.7)]
    return f"{after}Did you mean {' '.join(near)}?" if near else ""


def _same_elsewhere(word: str, known: Iterable[str]) -> list[str]:
    same = _OF_OTHERS.get(word)
    return [same] if same is not None and same in known else []


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _every(text: str) -> timedelta | int:
    """Return ``500`` as steps, ``30s``, ``10min`` or ``2h`` as a time."""
    found = re.fullmatch(r"(\d+)\s*(s|min|h)?", text.strip())
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of steps (500) nor a time (30s, 10min, 2h)")
    number, unit = int(found[1]), found[2]
    return number if unit is None else timedelta(seconds=number * {"s": 1, "min": 60, "h": 3600}[unit])


def _metric(text: str) -> Metric:
    """Return ``val_loss``, ``val_loss:min`` or ``accuracy:max``."""
    name, colon, mode = text.partition(":")
    if not name or (colon and mode not in ("min", "max")):
        raise argparse.ArgumentTypeError(f"expected METRIC[:min|max], such as val_loss:min or accuracy:max, not {text!r}")
    return Metric(name, "max" if mode == "max" else "min")


def _varied(text: str) -> tuple[str, str]:
    """Return what varies and the expression of ``lr=0.1,0.01``, ``config.lr=0.1,0.01`` or ``config["lr"]=0.1,0.01``."""
    found = re.fullmatch(r"\s*([^\W\d]\w*(?:\.[^\W\d]\w*|\[[^\]=]+\])*)\s*=(?!=)\s*(.+)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,…, such as lr=0.1,0.01, not {text!r}")
    return found[1], found[2].strip()


def _range(text: str) -> tuple[int, int]:
    """Return ``2:4``."""
    found = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected MIN:MAX, such as 2:4, not {text!r}")
    return int(found[1]), int(found[2])


def _add_cluster(parser: argparse.ArgumentParser, *names: str) -> None:
    explained = "engines to use (default: one per GPU; on CPU one per two cores, at least 2)"
    parser.add_argument(*names, dest="num_engines", type=_number, metavar="N", help=explained)
    parser.add_argument("--force", action="store_true", help="start as many engines as --engines says, also more than the machine is for")
    parser.add_argument("--device", default="auto", metavar="KIND", help="what the engines compute on: auto, cpu or cuda (default: auto)")
    parser.add_argument(
        "--devices",
        default="exclusive",
        metavar="KIND",
        help="exclusive, a GPU for each engine, or shared, also several engines on one, to try a cell on more than there are GPUs "
        "(default: exclusive)",
    )
    parser.add_argument(
        "--launcher",
        metavar="NAME",
        help="what starts the engines: local, ssh, or one that an installed package brings (default: local, or ssh with --hosts)",
    )
    parser.add_argument(
        "--hosts",
        type=_hosts,
        default=(),
        metavar="A:N,B:N",
        help="hosts to start engines on, by their names for ssh, and how many on each, which may be left out (default: this host)",
    )
    parser.add_argument("--remote-python", metavar="PATH", help="the Python to use on the hosts (default: the path of the notebook's)")


def _hosts(text: str) -> tuple[HostSpec, ...]:
    """Return ``a:2,b``."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, number = part.partition(":")
        if colon and not number.isdecimal():
            raise argparse.ArgumentTypeError(f"expected HOST[:N],…, such as a:2,b:2, not {text!r}")
        found.append(HostSpec(name=name, num_engines=int(number) if colon else None))
    if len({host.name for host in found}) < len(found):
        raise argparse.ArgumentTypeError(f"a host stands twice in {text!r}: give each once, with the number of its engines")
    return tuple(found)


def _strategies() -> str:
    kinds = "; ".join(f"{info.name} {info.summary}" for info in available())
    return f"how the cell is distributed: {kinds} (default: {DEFAULT})".replace("%", "%%")


@functools.cache
def cell_parser() -> argparse.ArgumentParser:
    """Return what understands a ``%%distribute`` line."""
    parser = _Parser(
        prog="%%distribute",
        description="Run the cell on every engine of the cluster: same batches, same result, and the trained model comes back.",
        epilog="The cluster starts with the first cell and stays for the next ones. `%distribute --help` lists how to control it.",
        allow_abbrev=False,
    )
    _add_cluster(parser, "--engines", "-n")
    parser.add_argument("--name", metavar="NAME", help="name of the run in lists (default: run- and its number)")
    parser.add_argument("--preview", action="store_true", help="only show what would be sent: each name, its size and how it is handled")
    parser.add_argument(
        "--split", metavar="X,Y", default="", help="tensors to shard along dim 0, for a cell that trains on all data at once"
    )
    parser.add_argument("--split-inputs", action="store_true", help="shard model inputs along dim 0 when there is no DataLoader")
    parser.add_argument(
        "--replicate",
        action="store_true",
        help="run a cell without a DataLoader on every engine (default: one engine runs it)",
    )
    strategy = parser.add_argument("--strategy", default=DEFAULT, metavar="KIND")
    parser.late_help[strategy] = _strategies
    parser.add_argument(
        "--semantics",
        default="global",
        metavar="KIND",
        help="what the cell reads from a batch: global (as on one process) or local (this engine's shard) (default: global)",
    )
    parser.add_argument(
        "--batch-size",
        default="global",
        metavar="KIND",
        help="meaning of a loader's batch_size: global (all engines together) or per-rank (each engine) (default: global)",
    )
    parser.add_argument("--split-eval", action="store_true", help="shard evaluation batches too; the cell reads the same values")
    parser.add_argument(
        "--rng",
        default="auto",
        metavar="KIND",
        help="random numbers of dropout, noise and augmentation: global (as on one process) or per-rank (faster) (default: global on CPUs)",
    )
    parser.add_argument(
        "--batchnorm",
        default="auto",
        metavar="KIND",
        help="BatchNorm statistics: global (as on one process) or per-rank (faster) (default: global on CPUs)",
    )
    parser.add_argument(
        "--checkpoint-activations",
        action="store_true",
        help="activation checkpointing: repeated blocks keep only their inputs and are recomputed in the backward pass",
    )
    parser.add_argument(
        "--output",
        default="main",
        metavar="KIND",
        help="whose output is shown: main (rank 0) or all (every rank, prefixed with its number) (default: main)",
    )
    parser.add_argument(
        "--balance",
        default="off",
        metavar="KIND",
        help="how a batch is sharded: off (evenly) or auto (by the speed of the engines; runs are then not bit-reproducible) "
        "(default: off)",
    )
    parser.add_argument(
        "--verify",
        default="off",
        metavar="WHEN",
        help="check at run time that models and loaders compute the same on shards as on the global batch: auto, first, always or off "
        "(default: off)",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=_every,
        metavar="N",
        help="write a checkpoint to disk every N steps (500) or after a time (30s, 10min, 2h); without it, checkpoints "
        "exist only while the cell runs, to resume from if the kernel dies",
    )
    parser.add_argument(
        "--view",
        metavar="KIND",
        help="output below the cell: live (progress, then a summary), summary or off (default: live, or `%%config DistributeMagics.view`)",
    )
    parser.add_argument(
        "--detach",
        action="store_true",
        help="continue the run if the kernel stops, on engines of its own; `%%distribute attach` in a new kernel follows it",
    )
    parser.add_argument(
        "--vary",
        action="append",
        type=_varied,
        default=[],
        metavar="NAME=VALUES",
        help="sweep: run the cell once per value, in parallel: lr=0.1,0.01 or config.lr=0.1,0.01; several --vary options form a grid. "
        "The results of the best trial (--best) are returned to the notebook",
    )
    parser.add_argument("--engines-per-trial", type=_number, default=1, metavar="N", help="engines per trial of --vary (default: 1)")
    parser.add_argument("--keep-checkpoints", type=_number, default=2, metavar="N", help="number of checkpoints kept on disk (default: 2)")
    parser.add_argument(
        "--elastic",
        type=_range,
        metavar="MIN:MAX",
        help="continue on fewer engines, at least MIN, while a lost one cannot be replaced, and on MAX when it can (default: the "
        "cell fails)",
    )
    parser.add_argument(
        "--keep-secrets",
        action="store_true",
        help="write environment variables that look like secrets (HF_TOKEN) to disk with checkpoints; without it, the kernel "
        "that resumes has to provide them",
    )
    parser.add_argument(
        "--best",
        type=_metric,
        metavar="METRIC[:min|max]",
        help="also keep the best checkpoint, by a metric that the cell logs or a variable of that name: val_loss:min, "
        "accuracy:max (default: min)",
    )
    return parser


@functools.cache
def line_parser() -> argparse.ArgumentParser:
    """Return what understands a ``%distribute`` line."""
    parser = _Parser(prog="%distribute", description="Control the cluster that %%distribute cells run on.", allow_abbrev=False)
    actions = parser.add_subparsers(
        dest="action", metavar="start | status | preview | plan | resume | attach | doctor | stop", parser_class=_ActionParser
    )
    start = actions.add_parser("start", help="start the engines now instead of with the first cell", allow_abbrev=False)
    start.add_argument("count", nargs="?", type=_number, metavar="N", help="the same as --engines N")
    _add_cluster(start, "--engines", "-n")
    actions.add_parser("status", help="show the engines and the last run", allow_abbrev=False)
    preview = actions.add_parser(
        "preview", help="show what an earlier cell would send: each name, its size and how it is handled", allow_abbrev=False
    )
    preview.add_argument("cell", nargs="?", type=_number, metavar="N", help="number of the cell, In[N] (default: the last distributed one)")
    plan = actions.add_parser(
        "plan", help="show what a cell would take on each engine under each strategy, before it runs", allow_abbrev=False
    )
    plan.add_argument("cell", nargs="?", type=_number, metavar="N", help="number of the cell, In[N] (default: the last distributed one)")
    _add_cluster(plan, "--engines", "-n")
    resume = actions.add_parser("resume", help="resume an interrupted run from its last checkpoint", allow_abbrev=False)
    resume.add_argument(
        "run",
        nargs="?",
        metavar="RUN[@STEP|@best]",
        help="its id or name, and the checkpoint: a step or the best (default: the newest of the last run that can be resumed)",
    )
    resume.add_argument("--trust", action="store_true", help="load even if not signed by you (may execute arbitrary code)")
    _add_cluster(resume, "--engines", "-n")
    attach = actions.add_parser("attach", help="attach to a run of %%distribute --detach, or fetch its results", allow_abbrev=False)
    attach.add_argument("run", nargs="?", metavar="RUN", help="its id or name (default: the last one)")
    attach.add_argument("--trust", action="store_true", help="load the results even if not signed by you (may execute arbitrary code)")
    doctor = actions.add_parser("doctor", help="check hosts before engines start there, and tell what to do", allow_abbrev=False)
    _add_cluster(doctor, "--engines", "-n")
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


def parse_cell_line(line: str, *, view: View = "live") -> RunOptions:
    """Return the options of a ``%%distribute`` line; `view` is what it shows where the line does not say.

    Raises
    ------
    UsageError
        The line cannot be understood.
    HelpAsked
        It asks for help.
    """
    found = _parse(cell_parser, line)
    return RunOptions(
        cluster=_cluster(found),
        name=found.name,
        strategy=found.strategy,
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
        verify=found.verify,
        checkpoint_every=found.checkpoint_every,
        keep_checkpoints=found.keep_checkpoints,
        best=found.best,
        elastic=found.elastic,
        keep_secrets=found.keep_secrets,
        detach=found.detach,
        vary=tuple(found.vary),
        engines_per_trial=found.engines_per_trial,
        view=view if found.view is None else found.view,
    )


def parse_line(line: str) -> LineCommand:
    """Return what a ``%distribute`` line asks for; raises like :func:`parse_cell_line`."""
    words = line.split()
    if words and (words[0].isdecimal() or words[0] in ("--engines", "-n", "--device", "--devices", *_OF_OTHERS)):
        raise UsageError(
            f"There is no `%distribute {words[0]}`. Did you mean `%distribute start {line}`, or `%%distribute` on top of a cell?"
        )
    found = _parse(line_parser, line)
    if found.action is None:
        raise HelpRequested(line_parser().format_help().rstrip())
    run, step = _run_and_step(getattr(found, "run", None) or "")
    if found.action == "attach" and step is not None:
        raise UsageError(f"%distribute attach follows a run where it is: omit @{step}. `%distribute resume` goes back to a checkpoint.")
    return LineCommand(
        action=found.action,
        cluster=_cluster(found),
        cell=getattr(found, "cell", None),
        run=run,
        step=step,
        trusted=getattr(found, "trust", False),
    )


def _run_and_step(text: str) -> tuple[str | None, int | Literal["best"] | None]:
    """Return what ``RUN``, ``RUN@STEP``, ``RUN@best``, ``@STEP`` or ``@best`` names."""
    run, at, step = text.rpartition("@")
    if at and step == "best":
        return run or None, "best"
    if at and not step.isdecimal():
        raise UsageError(f"{text!r}: after the @ comes the step of a checkpoint, such as {run or 'RUN'}@120, or {run or 'RUN'}@best.")
    return (run if at else step) or None, int(step) if at else None


def _cluster(found: argparse.Namespace) -> ClusterOptions:
    number, count = getattr(found, "num_engines", None), getattr(found, "count", None)
    if number is not None and count is not None and number != count:
        raise UsageError(f"%distribute start {count} --engines {number}: give one number of engines.")
    return ClusterOptions(
        num_engines=count if number is None else number,
        device=getattr(found, "device", "auto"),
        devices=getattr(found, "devices", "exclusive"),
        force=getattr(found, "force", False),
        launcher=getattr(found, "launcher", None),
        hosts=getattr(found, "hosts", ()),
        remote_python=getattr(found, "remote_python", None),
    )


def _parse(make: Callable[[], argparse.ArgumentParser], line: str) -> argparse.Namespace:
    try:
        words = _words(line)
    except ValueError as error:
        raise UsageError(f"{line!r}: {error}") from None
    return make().parse_args(["--np" if word == "-np" else _as_now(word) for word in words])  # which would be -n with the number "p"


def _as_now(word: str) -> str:
    """Return an option under the name that it has now."""
    option, equals, value = word.partition("=")
    return f"{_RENAMED.get(option, option)}{equals}{value}"


def renamed(line: str) -> list[str]:
    """Return a sentence for each option of a ``%%distribute`` line that has another name now."""
    options = [word.partition("=")[0] for word in _words(line)]
    return [f"{option} is {_RENAMED[option]} now; the old name is still understood." for option in options if option in _RENAMED]


_WORD = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_QUOTED = re.compile(r"""(?:--vary=)?(?:"(?:\\.|[^"\\])*"|'[^']*')""")


def _words(line: str) -> list[str]:
    """Return the words of a line as a shell has them; quotes within what is given to ``--vary`` are Python's, and stay."""
    plain = shlex.split(line)
    words = _WORD.findall(line)
    if len(words) != len(plain):
        return plain
    is_python = [word.startswith("--vary=") or before == "--vary" for before, word in zip(["", *words], words, strict=False)]
    return [word if python and not _QUOTED.fullmatch(word) else shell for python, word, shell in zip(is_python, words, plain, strict=True)]
