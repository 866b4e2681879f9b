"""The comparison as a table and a picture.

Contenders take turns, so each round's figures come from the same minute: ratios are taken within a round, and what is shown of them is
their median, with the least and the greatest.
"""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil

from .contenders import BEFORE, Timing

Rounds = Mapping[str, Sequence[Timing | None]]  # by contender, one for each round; None where it failed
BASE = "torchrun"


def machine() -> str:
    """Return what the figures were measured on, in a sentence."""
    memory = psutil.virtual_memory().total / 2**30
    parts = ", ".join(f"{name} {version(name)}" for name in ("torch", "ipyparallel", "ipykernel"))
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, no GPU used, {platform.system()}, Python {platform.python_version()}, {parts}"
    )


def spread(values: Sequence[float]) -> str:
    """Return a median with the least and the greatest."""
    low, middle, high = (_short(value) for value in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}–{high})"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value < 0.1 else f"{value:.3g}"


def ratios(rounds: Rounds, name: str, of: Callable[[Timing], float], base: str = BASE) -> list[float]:
    """Return a contender's figures as multiples of those of `base` in the same round."""
    pairs = zip(rounds[name], rounds.get(base, []), strict=False)
    return [of(mine) / of(base) for mine, base in pairs if mine is not None and base is not None]


def before_and_after(rounds: Rounds) -> list[str]:
    """Return, for each contender that another checkout has too, how much faster it is here: above 1 it is."""
    lines = []
    for before in rounds:
        name = before.removeprefix(BEFORE)
        if name == before or name not in rounds:
            continue
        first, whole = (ratios(rounds, before, of, name) for of in (lambda t: t.first_step, lambda t: t.whole))
        parts = {"to the first step": first, "steps/s": ratios(rounds, name, lambda t: t.rate, before), "until all is back": whole}
        lines.append(f"{name}, × before: " + ", ".join(f"{what} {spread(values)}" for what, values in parts.items() if values))
    return lines


def table(job: str, rounds: Rounds) -> str:
    """Return a Markdown table of one job."""
    lines = [
        f"### {job}",
        "",
        f"| | first step, s | × {BASE}'s | steps/s | × {BASE}'s | until all is back, s |",
        "|---|---|---|---|---|---|",
    ]
    for name, timings in rounds.items():
        done = [timing for timing in timings if timing is not None]
        if not done:
            lines.append(f"| {name} | failed | | | | |")
            continue
        columns = [
            spread([timing.first_step for timing in done]),
            _ratio(ratios(rounds, name, lambda timing: timing.first_step)),
            spread([timing.rate for timing in done]),
            _ratio(ratios(rounds, name, lambda timing: timing.rate)),
            spread([timing.whole for timing in done]),
        ]
        lines.append(f"| {name} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def _ratio(values: Sequence[float]) -> str:
    return spread(values) if values else ""  # the base has failed


def picture(results: Mapping[str, Rounds], path: Path) -> None:
    """Draw the ratios of all jobs."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "bench"  # the same figures make the same file
    kinds: list[tuple[str, Callable[[Timing], float]]] = [
        ("time to the first step", lambda timing: timing.first_step),
        ("steps per second", lambda timing: timing.rate),
    ]
    figure, axes = plt.subplots(len(results), len(kinds), figsize=(11, 2.6 * len(results)), squeeze=False, layout="constrained")
    for row, (job, rounds) in zip(axes, results.items(), strict=True):
        for axis, (kind, of) in zip(row, kinds, strict=True):
            names = [name for name in rounds if name != BASE and ratios(rounds, name, of)]
            for place, name in enumerate(reversed(names)):
                values = ratios(rounds, name, of)
                middle = statistics.median(values)
                error = [[middle - min(values)], [max(values) - middle]]
                axis.barh(place, middle, xerr=error, color="#1f77b4" if name.startswith("%%distribute") else "#bbbbbb", capsize=2)
            axis.set_yticks(range(len(names)), list(reversed(names)))
            axis.axvline(1, color="black", linewidth=0.8)
            axis.set_title(f"{job}: {kind}, × {BASE}'s", fontsize=9)
            axis.tick_params(labelsize=8)
    figure.savefig(path, metadata={"Date": None})
