"""What the lines of both magics share: words, hints, errors and help as text in the cell."""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ..errors import UsageError

OF_OTHERS = dict.fromkeys(
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


class MagicParser(argparse.ArgumentParser):
    """One whose errors are `UsageError`, with what was meant, and whose help is a `HelpRequested`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.late_help: dict[argparse.Action, Callable[[], str]] = {}  # what takes time to find out, and is asked for with the help alone

    def format_help(self) -> str:
        """Return the help, with the parts of it that are found out late."""
        for action, text in self.late_help.items():
            action.help = text()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise a `UsageError`."""
        usage = self.format_usage().strip()
        action = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if action is not None:
            known = action[2].replace("'", "").split(", ")
            message = f"There is no `{self.prog} {action[1]}`; there are {', '.join(known)}.{_did_you_mean([action[1]], known)}"
            usage = ""
        elif message.startswith("unrecognized arguments"):
            options = [word.partition("=")[0] for word in message.split() if word.startswith("-")]
            message += _did_you_mean(options, self._option_string_actions, after=". ")
        # One of many lines would hide the message that stands over it.
        lines = [message, usage if "\n" not in usage else "", f"`{self.prog} --help` explains each option."]
        raise UsageError("\n".join(filter(None, lines)))

    def print_help(self, file: object = None) -> NoReturn:  # noqa: ARG002  # argparse's signature
        """Raise a `HelpRequested`."""
        raise HelpRequested(self.format_help().rstrip())


class ActionParser(MagicParser):
    """Of one action: it tells of what it does not know, and not the parser of the whole line, which knows less of it."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return what is known, and nothing unknown: that is an error."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _did_you_mean(words: Iterable[str], known: Iterable[str], *, after: str = " ") -> str:
    """Return a question whether those of `known` were meant that `words` are nearly; empty where there are none."""
    known = list(known)
    near = [found for word in words for found in _name_here(word, known) or difflib.get_close_matches(word, known, n=1, cutoff=0.7)]
    return f"{after}Did you mean {' '.join(near)}?" if near else ""


def _name_here(word: str, known: Iterable[str]) -> list[str]:
    same = OF_OTHERS.get(word)
    return [same] if same is not None and same in known else []


def parse(make: Callable[[], argparse.ArgumentParser], line: str) -> argparse.Namespace:
    """Return what the parser that `make` returns finds in a line; a `UsageError` where the line cannot be understood."""
    try:
        words = _split_line(line)
    except ValueError as error:
        raise UsageError(f"{line!r}: {error}") from None
    return make().parse_args(["--np" if word == "-np" else _current_name(word) for word in words])  # which would be -n with the number "p"


def _current_name(word: str) -> str:
    """Return an option under the name that it has now."""
    option, equals, value = word.partition("=")
    return f"{_RENAMED.get(option, option)}{equals}{value}"


def renamed(line: str) -> list[str]:
    """Return a sentence for each option of a ``%%distribute`` line that has another name now."""
    options = [word.partition("=")[0] for word in _split_line(line)]
    return [f"{option} is {_RENAMED[option]} now; the old name is still understood." for option in options if option in _RENAMED]


_WORD = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_QUOTED = re.compile(r"""(?:--vary=)?(?:"(?:\\.|[^"\\])*"|'[^']*')""")


def _split_line(line: str) -> list[str]:
    """Return the words of a line as a shell has them; quotes within what is given to ``--vary`` are Python's, and stay."""
    plain = shlex.split(line)
    words = _WORD.findall(line)
    if len(words) != len(plain):
        return plain
    is_python = [word.startswith("--vary=") or before == "--vary" for before, word in zip(["", *words], words, strict=False)]
    return [word if python and not _QUOTED.fullmatch(word) else shell for python, word, shell in zip(is_python, words, plain, strict=True)]
