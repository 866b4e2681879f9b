"""Tab completion on the lines of both magics, and their documentation for ``%%distribute?`` and Shift-Tab."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, get_args

from .. import cluster_options, options
from ..runs.detached_index import DEFAULT_FOLDER, unfollowed
from ..strategies import available
from .cell_line import cell_parser
from .control_line import line_parser

if TYPE_CHECKING:
    from .lazy import LazySession

_VALUES: dict[str, Iterable[str]] = {
    "--device": get_args(cluster_options.DeviceKind),
    "--semantics": get_args(options.Semantics),
    "--batch-size": get_args(options.BatchSize),
    "--rng": get_args(options.OverRanks),
    "--batchnorm": get_args(options.OverRanks),
    "--output": get_args(options.ShownOutput),
    "--balance": get_args(options.Balance),
    "--compress": get_args(options.Compress),
    "--verify": get_args(options.Verify),
    "--view": get_args(options.View),
}
_ONE_WORD = re.compile(r"[\w.:+-]+")
"""Names that need no quotes in a line."""


def _values(option: str) -> Iterable[str]:
    """Return the possible values of `option`; empty if there is no fixed list."""
    return [one.name for one in available()] if option == "--strategy" else _VALUES.get(option, ())


def completions(text: str, *, runs: Callable[[], list[str]], detached: Callable[[], list[str]]) -> list[str]:
    """Return completions at the end of `text`, the line up to the cursor.

    Parameters
    ----------
    runs : callable
        Returns the names of the runs in the notebook's folder.
    detached : callable
        Returns the ids of runs that `%distribute attach` can follow.
    """
    magic, *words = text.split()
    if text[-1:].isspace():
        words.append("")
    if not words:
        return []
    *before, word = words
    last = before[-1] if before else ""
    if magic == "%%distribute":
        found = _values(last) or _options(cell_parser())
    elif not before:
        found = [*_actions(), "--help"]
    else:
        action = before[0]
        names = {"resume": runs, "attach": detached}.get(action, list) if len(before) == 1 and not word.startswith("-") else list
        found = _values(last) or [*names(), *_options(_actions().get(action))]
    return [one for one in found if one.startswith(word) and (word or not one.startswith("--") or magic == "%%distribute")]


def names_to_offer(names: Iterable[str]) -> list[str]:
    """Return the names that need no quotes, each once."""
    return [name for name in dict.fromkeys(names) if _ONE_WORD.fullmatch(name)]


def _actions() -> dict[str, argparse.ArgumentParser]:
    return line_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr, return-value]  # nothing public


def _options(parser: argparse.ArgumentParser | None) -> list[str]:
    return [] if parser is None else [option for option in parser._option_string_actions if option.startswith("--")]


def offer(session: LazySession, text: str) -> list[str]:
    """Return completions at the end of `text`, with the runs that `session` knows."""
    return completions(
        text, runs=lambda: names_to_offer(session.run_names()), detached=lambda: [run.run_id for run in unfollowed(DEFAULT_FOLDER)]
    )


def cell_help() -> str:
    """Return the help of ``%%distribute``; made on demand, as it lists the strategies of installed packages."""
    return cell_parser().format_help()


def line_help() -> str:
    """Return the help of both magics.

    At the cursor, front ends ask for the word `distribute` without percent signs, and IPython then finds the line magic.
    """
    return f"{cell_help()}\n\n{line_parser().format_help()}"
