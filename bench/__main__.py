"""Compare ``%%distribute`` with other ways to train on two processes: ``python -m bench [--quick] [--rounds 3]``.

All contenders run the same jobs in turns, because a machine is never quite idle: what counts are ratios within a round. The table and the
picture go to ``bench/results/``, or with ``--quick`` to the terminal alone.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import tempfile
from pathlib import Path

from .contenders import ALL, Contender, Timing, peers_python
from .jobs import Job, jobs
from .report import machine, picture, table

RESULTS = Path(__file__).parent / "results"


def compare(job: Job, rounds: int, names: list[str]) -> dict[str, list[Timing | None]]:
    """Return the timings of every contender on one job, each with processes of its own."""
    measured: dict[str, list[Timing | None]] = {}
    with contextlib.ExitStack() as stack:
        contenders: list[Contender] = []
        for kind in ALL:
            if names and getattr(kind, "name", "") not in names:
                continue
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            contender = kind(folder)
            stack.callback(contender.close)
            contenders.append(contender)
        for index in range(-1, rounds):  # the first time is not counted: files are read, libraries load
            for contender in contenders:
                timing = _measured(contender, job)
                if index >= 0:
                    measured.setdefault(contender.name, []).append(timing)
                gc.collect()
    return measured


def _measured(contender: Contender, job: Job) -> Timing | None:
    try:
        contender.prepare(job)
        timing = contender.measure(job)
    except Exception as error:  # a peer that fails is part of the result
        print(f"  {contender.name} failed: {str(error)[-500:]}", flush=True)
        return None
    print(f"  {contender.name:20}{timing.first_step:8.2f} s{timing.rate:10.1f} steps/s{timing.whole:8.2f} s", flush=True)
    return timing


def main() -> None:
    """Compare, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small jobs, and nothing written")
    parser.add_argument("--rounds", type=int, default=3, help="times that each contender runs each job (default: 3)")
    parser.add_argument("--job", action="append", default=[], help="only jobs whose name begins so; may be given again")
    parser.add_argument("--contender", action="append", default=[], help="only these, and torchrun; may be given again")
    arguments = parser.parse_args()
    names = [*arguments.contender, "torchrun"] if arguments.contender else []
    peers_python()
    results: dict[str, dict[str, list[Timing | None]]] = {}
    for job in jobs(quick=arguments.quick):
        if arguments.job and not any(job.name.startswith(name) for name in arguments.job):
            continue
        print(job.name, flush=True)
        results[job.name] = compare(job, arguments.rounds, names)
    text = "\n".join([f"Measured on: {machine()}; medians of {arguments.rounds} rounds (least–greatest).", ""])
    text += "\n".join(table(name, rounds) for name, rounds in results.items())
    print(text)
    if not arguments.quick and not arguments.job and not names:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "training.md").write_text("# Training on two processes\n\n" + text)
        picture(results, RESULTS / "training.svg")


if __name__ == "__main__":
    main()
