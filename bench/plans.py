"""What `%distribute plan` predicts beside what engines hold: ``python -m bench.plans [--models mlp lstm] [--strategies zero3 dp=2,tp=2]``.

Ten models, under each strategy. Measured are bytes of tensors in the last steps: what there is before one, the most that PyTorch's
allocator gives out above that (``torch.profiler``), the rows of parameters and optimizer state that others may read, and buffers for what
is whole for a moment. Then bytes that an engine reads of others, and milliseconds, of steps before these. It is of the engine that has
most. Of plans for two engines it is compared how long a step takes under the one that is chosen where data parallel just does not fit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from itertools import product
from pathlib import Path

from .contenders import Kernel
from .plan_models import MODELS, SETUP

LIMIT = 600.0  # seconds of a cell
NAMES = ("auto", "zero1", "zero3", "pipeline", "tensor", "dp=2,dp_shard=2", "dp=2,pp=2", "dp=2,tp=2")
PARTS = ("there before", "allocated in the step", "shared", "in buffers")
CELL = """%%distribute {options} --device cpu
import time
from bench.engine_probe import Allocated, held, num_read
times, exchanged = [], []
for epoch in range({epochs}):
    for x, y in loader:
        before, begun = num_read(), time.perf_counter()
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
        exchanged.append(num_read() - before)
        del x, y
for x, y in loader:
    optimizer.zero_grad()
    there = held(loader.dataset.tensors)
    with Allocated() as allocated:
        criterion(model(x), y).backward()
        optimizer.step()
    parts = [there[0], allocated.peak, there[1], allocated.buffers]
found = jupyter_dtrain.gather(dict(parts=parts, times=times[3:], exchanged=exchanged[-1]))
"""
PREDICT = """
import ast
from jupyter_dtrain.engine.strategies.tensor_parallel import rules
from jupyter_dtrain.planning.engine_plan import plans
from jupyter_dtrain.planning.memory_plan import measure, strategies_on
values = dict(model=model, optimizer=optimizer, loader=loader)
trained = measure(ast.parse("criterion(model(x), y).backward()"), values, engines=[2, 4], device="cpu", rules=rules)
rows = plans(trained, strategies_on("cpu"), [2, 4])
print(json.dumps({f"{plan.engines} {plan.name}": [plan.total, plan.exchanged, plan.seconds] for plan in rows}))
"""


def of_choice(found: dict[str, tuple[float, float, float]]) -> float | None:
    """Return how long a step takes under the plan with the least planned time, of the fastest one, where data parallel just does not fit.

    Parameters
    ----------
    found : dict of str to (float, float, float)
        Bytes and seconds that are planned, and the time that was taken, by strategy.
    """
    fitting = [one for one in found.values() if "auto" in found and one[0] < found["auto"][0]]
    return min(fitting, key=lambda one: one[1])[2] / min(one[2] for one in fitting) if fitting else None


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.plans", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--strategies", nargs="+", default=[*NAMES])
    parser.add_argument("--epochs", type=int, default=4, help="of three steps each, the first of which is not timed")
    parser.add_argument(
        "--rounds", type=int, default=1, help="in which strategies take turns: times are medians of those beside the first's"
    )
    options = parser.parse_args()
    misses: list[tuple[float, str, str]] = []
    chosen: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kernel = Kernel(Path(folder), env={"PYTHONPATH": str(Path(__file__).parents[1])})
        try:
            kernel.run("%load_ext jupyter_dtrain\nimport jupyter_dtrain, json\n")
            for model in options.models:
                kernel.run(SETUP.format(**MODELS[model]._asdict()))
                predicted = json.loads(kernel.run(PREDICT, LIMIT).splitlines()[-1])
                found_times: dict[str, tuple[float, float, float]] = {}
                taken: dict[str, list[float]] = {}
                for turn, strategy in product(range(options.rounds), options.strategies):
                    engines, how = (4, f"--mesh {strategy}") if "," in strategy else (2, f"--engines 2 --strategy {strategy}")
                    kernel.run(SETUP.format(**MODELS[model]._asdict()))
                    kernel.run(CELL.format(options=how, epochs=options.epochs), LIMIT)
                    found = json.loads(kernel.run("print(json.dumps(found))").splitlines()[-1])
                    time = max(statistics.median(one["times"]) for one in found)
                    taken.setdefault(strategy, []).append(time)
                    plan, ahead, seconds = predicted[f"{engines} {strategy}"]
                    if engines == 2:
                        beside = [one / first for one, first in zip(taken[strategy], taken[options.strategies[0]], strict=False)]
                        found_times[strategy] = plan, seconds, statistics.median(beside)
                    if turn:
                        continue
                    parts = max((one["parts"] for one in found), key=sum)
                    exchanged = max(one["exchanged"] for one in found)
                    held = sum(parts)
                    miss = plan / held - 1
                    misses.append((abs(miss), model, strategy))
                    of_parts = ", ".join(f"{part / 2**20:.2f} {name}" for part, name in zip(parts, PARTS, strict=True))
                    print(
                        f"{model}, {strategy}: {plan / 2**20:.2f} MiB planned, {held / 2**20:.2f} held ({of_parts}), {miss:+.1%}; "
                        f"{ahead / 2**20:.2f} MiB planned, {exchanged / 2**20:.2f} exchanged; "
                        f"{seconds * 1e3:.1f} ms planned, {time * 1e3:.1f} taken",
                        flush=True,
                    )
                if options.rounds > 1:
                    print(
                        f"{model}: " + ", ".join(f"{name} {one[1] * 1e3:.1f} ms, {one[2]:.2f}" for name, one in found_times.items()),
                        flush=True,
                    )
                if (ratio := of_choice(found_times)) is not None:
                    chosen.append(ratio)
                    print(f"{model}: where auto does not fit, a step of the plan that is taken is {ratio:.2f} of the fastest's", flush=True)
        finally:
            kernel.close()
    within = sum(miss <= 0.1 for miss, *_ in misses)
    if chosen:
        print(f"{sum(ratio <= 1.1 for ratio in chosen)} of {len(chosen)} choices within a tenth of the fastest")
    print(f"{within} of {len(misses)} within a tenth; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
