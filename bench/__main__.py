"""Compare ``%%distribute`` with other ways to train on two processes: ``python -m bench [--quick] [--rounds 3]``.

All contenders run the same jobs in turns, because a machine is never quite idle: what counts are ratios within a round. The table and the
picture go to ``bench/results/`` after each job, or with ``--quick`` to the terminal alone. A contender that fails is left out from then on.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .contenders import ALL, Contender, Timing, of_another_time, peers_python
from .jobs import Job, jobs
from .report import before_and_after, machine, picture, table

Kinds = Sequence[Callable[[Path], Contender]]
RESULTS = Path(__file__).parent / "results"


def compare(job: Job, rounds: int, names: list[str], limit: float, kinds: Kinds = ALL) -> dict[str, list[Timing | None]]:
    """Return the timings of every contender on one job, each with processes of its own.

    Who fails takes no further part, and after `limit` seconds no other round begins.
    """
    measured: dict[str, list[Timing | None]] = {}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        contenders: list[Contender] = []
        for kind in kinds:
            name = getattr(kind, "name", "")
            if names and name not in names:
                continue
            measured[name] = []
            try:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)))
                contender = kind(folder)
            except Exception as error:
                _say_failed(name, error)
                continue
            stack.callback(_close, contender)
            contenders.append(contender)
        for index in range(-1, rounds):  # the first time is not counted: files are read, libraries load
            if index > 0 and time.monotonic() - began > limit:
                print(f"  {limit:.0f} s are over after {index} rounds", flush=True)
                break
            for contender in list(contenders):
                timing = _measured(contender, job)
                if timing is None:
                    contenders.remove(contender)
                    _close(contender)
                elif index >= 0:
                    measured[contender.name].append(timing)
                gc.collect()
    most = max(map(len, measured.values()), default=0)
    return {name: [*timings, *[None] * (most - len(timings))] for name, timings in measured.items()}


def _measured(contender: Contender, job: Job) -> Timing | None:
    try:
        contender.prepare(job)
        timing = contender.measure(job)
    except Exception as error:  # a peer that fails is part of the result
        _say_failed(contender.name, error)
        return None
    print(f"  {contender.name:20}{timing.first_step:8.2f} s{timing.rate:10.1f} steps/s{timing.whole:8.2f} s", flush=True)
    return timing


def _close(contender: Contender) -> None:
    with contextlib.suppress(Exception):  # it is closed already, or does not answer
        contender.close()


def _say_failed(name: str, error: Exception) -> None:
    print(f"  {name} failed: {type(error).__name__}: {str(error)[-500:]}", flush=True)


def write(results: dict[str, dict[str, list[Timing | None]]]) -> None:
    """Write the page and the picture of what there is."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "training.md").write_text("# Training on two processes\n\n" + page(results) + "\n![the ratios](training.svg)\n")
    picture(results, RESULTS / "training.svg")


def page(results: dict[str, dict[str, list[Timing | None]]]) -> str:
    """Return the tables of all jobs."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    lines = [f"Measured on: {machine()}; load average at the end {load}; medians of the rounds (least–greatest).", ""]
    for name, contenders in results.items():
        num_rounds = max(map(len, contenders.values()), default=0)
        lines += [table(f"{name}, {num_rounds} rounds", contenders), *before_and_after(contenders)]
    return "\n".join(lines)


def main() -> None:
    """Compare, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small jobs, and nothing written")
    parser.add_argument("--rounds", type=int, default=3, help="times that each contender runs each job (default: 3)")
    parser.add_argument("--job", action="append", default=[], help="only jobs whose name begins so, as in `MLP`, or `MLP:1` for one round")
    parser.add_argument("--limit", type=float, default=600, help="seconds of a job after which no other round begins (default: 600)")
    parser.add_argument("--write", action="store_true", help="write the results of some of the jobs or contenders too")
    parser.add_argument("--contender", action="append", default=[], help="only these, and torchrun; may be given again")
    parser.add_argument("--before", type=Path, help="a checkout of this project: compare with it alone, and write nothing")
    arguments = parser.parse_args()
    kinds = of_another_time(arguments.before.resolve()) if arguments.before else ALL
    names = [*arguments.contender, "torchrun"] if arguments.contender else []
    chosen = dict((*choice.split(":"), "")[:2] for choice in arguments.job)
    is_written = arguments.write or not (arguments.quick or arguments.job or names or arguments.before)
    try:
        if kinds is ALL:
            peers_python()
    except subprocess.CalledProcessError as error:
        print(f"No peers: {error}", flush=True)
    results: dict[str, dict[str, list[Timing | None]]] = {}
    for job in jobs(quick=arguments.quick):
        rounds = next((number for name, number in chosen.items() if job.name.startswith(name)), None if chosen else "")
        if rounds is None:
            continue
        print(job.name, flush=True)
        results[job.name] = compare(job, int(rounds or arguments.rounds), names, arguments.limit, kinds)
        if is_written:
            write(results)
    print(page(results))


if __name__ == "__main__":
    main()
