"""What `%distribute plan` predicts beside what engines hold: ``python -m bench.plans [--models mlp lstm] [--strategies zero3 dp=2,tp=2]``.

Ten models, six steps of each, under each strategy. Measured are bytes of tensors in the last one: what there is before it, the most that
PyTorch's allocator gives out above that (``torch.profiler``), the memory that engines share for rows of parameters and optimizer state, and
buffers for what is whole for a moment. It is of the engine that has most.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from .contenders import Kernel
from .plan_models import MODELS, SETUP

LIMIT = 600.0  # seconds of a cell
NAMES = ("auto", "zero1", "zero3", "pipeline", "tensor", "dp=2,pp=2", "dp=2,tp=2")
PARTS = ("there before", "allocated in the step", "shared", "in buffers")
CELL = """%%distribute {options} --device cpu
import gc, torch
from itertools import accumulate
from torch.profiler import ProfilerActivity, profile
from jupyter_dtrain.engine.comm.arena import Arena
from jupyter_dtrain.engine.strategies.zero3.buffers import BufferPool
from jupyter_dtrain.engine.strategies.zero3.parameter import ParameterShard
def there():
    with torch._C.DisableTorchFunctionSubclass():
        objects = gc.get_objects()
        shards = [one for one in objects if isinstance(one, ParameterShard)]
        pools = {{block._cdata: block.nbytes() for one in objects if type(one) is BufferPool for block in one._blocks}}
        apart = {{one.away.untyped_storage()._cdata for one in shards}} | {{one.rows.untyped_storage()._cdata for one in shards}}
        apart |= {{one.home.untyped_storage()._cdata for one in shards if one.home is not None}} | {{*pools}}
        apart |= {{one.untyped_storage()._cdata for one in loader.dataset.tensors}}
        found, arenas = {{}}, [one._own for one in objects if type(one) is Arena]
        for one in objects:
            if isinstance(one, torch.Tensor) and one.dtype != torch.uint8 and one.device.type == "cpu" and one.layout == torch.strided:
                found[one.untyped_storage()._cdata] = one.untyped_storage().nbytes()
        mapped = {{one.untyped_storage()._cdata for one in arenas}}
        return [sum(size for at, size in found.items() if at not in apart | mapped), sum(one.nbytes for one in arenas), sum(pools.values())]
for step in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        before = there()
        profiled = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        profiled.start()
        criterion(model(x), y).backward()
        optimizer.step()
        profiled.stop()
        events = sorted((one.start_ns(), one.nbytes()) for one in profiled.profiler.kineto_results.events() if one.name() == "[memory]")
        peak = max(accumulate(size for _, size in events), default=0)
        parts = [before[0], peak, before[1], there()[2]]
held = jupyter_dtrain.gather(parts)
del profiled, events
"""
PREDICT = """
import ast
from jupyter_dtrain.planning.engine_plan import plans
from jupyter_dtrain.planning.memory_plan import measure, strategies_on
values = dict(model=model, optimizer=optimizer, loader=loader)
trained = measure(ast.parse("criterion(model(x), y).backward()"), values, engines=[2, 4], device="cpu")
rows = plans(trained, strategies_on("cpu"), [2, 4])
print(json.dumps({f"{plan.engines} {plan.name}": plan.total for plan in rows}))
"""


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.plans", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--strategies", nargs="+", default=[*NAMES])
    options = parser.parse_args()
    misses = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kernel = Kernel(Path(folder))
        try:
            kernel.run("%load_ext jupyter_dtrain\nimport jupyter_dtrain, json\n")
            for model in options.models:
                kernel.run(SETUP.format(**MODELS[model]._asdict()))
                predicted = json.loads(kernel.run(PREDICT, LIMIT).splitlines()[-1])
                for strategy in options.strategies:
                    engines, how = (4, f"--mesh {strategy}") if "," in strategy else (2, f"--engines 2 --strategy {strategy}")
                    kernel.run(SETUP.format(**MODELS[model]._asdict()))
                    kernel.run(CELL.format(options=how), LIMIT)
                    parts = max(json.loads(kernel.run("print(json.dumps(held))").splitlines()[-1]), key=sum)
                    held = sum(parts)
                    miss = predicted[f"{engines} {strategy}"] / held - 1
                    misses.append((abs(miss), model, strategy))
                    numbers = f"{predicted[f'{engines} {strategy}'] / 2**20:.2f} predicted, {held / 2**20:.2f} MiB held"
                    of_parts = ", ".join(f"{part / 2**20:.2f} {name}" for part, name in zip(parts, PARTS, strict=True))
                    print(f"{model}, {strategy}: {numbers} ({of_parts}), {miss:+.1%}", flush=True)
        finally:
            kernel.close()
    within = sum(miss <= 0.1 for miss, *_ in misses)
    print(f"{within} of {len(misses)} within a tenth; load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
