"""Parsing shared by both magics: words, suggestions, errors, and help as text in the cell."""

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
"""Options of torchrun, accelerate, Lightning and MPI → their names here."""
_RENAMED = {
    "--numbers": "--semantics",
    "--draws": "--rng",
    "--batch": "--batch-size",
    "--each": "--engines-per-trial",
    "--keep": "--keep-checkpoints",
}
"""Former names of options, which still work."""


class HelpRequested(Exception):
    """The line asks for help, which is the exception's text."""


class MagicParser(argparse.ArgumentParser):
    """A parser that raises errors as `UsageError` with a suggestion, and help as `HelpRequested`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.late_help: dict[argparse.Action, Callable[[], str]] = {}  # help texts that are slow to make, and needed for the help only

    def format_help(self) -> str:
        """Return the help, including the texts of `late_help`."""
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
        # A usage of several lines would bury the message above it.
        lines = [message, usage if "\n" not in usage else "", f"`{self.prog} --help` explains each option."]
        raise UsageError("\n".join(filter(None, lines)))

    def print_help(self, file: object = None) -> NoReturn:  # noqa: ARG002  # argparse's signature
        """Raise a `HelpRequested`."""
        raise HelpRequested(self.format_help().rstrip())


class ActionParser(MagicParser):
    """Parser of one action. It reports unknown options itself, with better suggestions than the parser of the whole line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse `args`; unknown ones are an error."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def _did_you_mean(words: Iterable[str], known: Iterable[str], *, after: str = " ") -> str:
    """Return the question "Did you mean …?" for names of `known` close to `words`; empty if there are none."""
    known = list(known)
    near = [found for word in words for found in _name_here(word, known) or difflib.get_close_matches(word, known, n=1, cutoff=0.7)]
    return f"{after}Did you mean {' '.join(near)}?" if near else ""


def _name_here(word: str, known: Iterable[str]) -> list[str]:
    same = OF_OTHERS.get(word)
    return [same] if same is not None and same in known else []


def parse(make: Callable[[], argparse.ArgumentParser], line: str) -> argparse.Namespace:
    """Parse a line with the parser that `make` returns; raise a `UsageError` if it is invalid."""
    try:
        words = _split_line(line)
    except ValueError as error:
        raise UsageError(f"{line!r}: {error}") from None
    return make().parse_args(["--np" if word == "-np" else _current_name(word) for word in words])  # not -n with the value "p"


def _current_name(word: str) -> str:
    """Return an option under its current name."""
    option, equals, value = word.partition("=")
    return f"{_RENAMED.get(option, option)}{equals}{value}"


def renamed(line: str) -> list[str]:
    """Return a message for each option of a ``%%distribute`` line that was renamed."""
    options = [word.partition("=")[0] for word in _split_line(line)]
    return [f"{option} is {_RENAMED[option]} now; the old name is still understood." for option in options if option in _RENAMED]


_WORD = re.compile(r"""(?:[^\s"']|"(?:\\.|[^"\\])*"|'[^']*')+""")
_QUOTED = re.compile(r"""(?:--vary=)?(?:"(?:\\.|[^"\\])*"|'[^']*')""")


def _split_line(line: str) -> list[str]:
    """Split a line like a shell; quotes in values of ``--vary`` are kept, as these are Python."""
    plain = shlex.split(line)
    words = _WORD.findall(line)
    if len(words) != len(plain):
        return plain
    is_python = [word.startswith("--vary=") or before == "--vary" for before, word in zip(["", *words], words, strict=False)]
    return [word if python and not _QUOTED.fullmatch(word) else shell for python, word, shell in zip(is_python, words, plain, strict=True)]
