"""Compare ``%%distribute`` on a GPU with the same cell plain in one process on the same GPU: ``python -m bench.gpu [--job gpt]``.

The cells take turns in one kernel, whose engines share its card; what counts are ratios within a round. Data are synthetic and come from a
loader with workers. `--tiny --device cpu` tries all of it without a card in a minute. The page goes to ``bench/results/gpu.md``, or with
`--tiny` to the terminal alone; a job that does not begin within `--seconds` is left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .contenders import Kernel
from .gpu_models import CNN, GPT, LLAMA, RESNET
from .report import spread

RESULTS = Path(__file__).parent / "results" / "gpu.md"
WARM = 10  # steps that are not timed: workers start, algorithms are chosen, and what may be shared out is found out
CHECKPOINT = 10  # steps from one snapshot to the next, where they are measured
PLAIN, ONE, UNWATCHED, TWO = "plain", "one engine", "one engine, --view off", "two engines on the card"
LINES = {
    PLAIN: "",
    ONE: "%%distribute --engines 1 --device {device}",
    UNWATCHED: "%%distribute --engines 1 --device {device} --view off",
    TWO: "%%distribute --engines 2 --device {device} --devices shared",
}
SETUP = """
import itertools, math, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
device = "{device}"

class Pool(Dataset):
    \"\"\"Samples out of a few that were drawn before: a worker has little to do.\"\"\"
    def __init__(self, samples, length):
        self.samples, self.length = samples, length
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        return tuple(part[index % len(part)] for part in self.samples)

def wait():
    if device == "cuda":
        torch.cuda.synchronize()
"""
LOADER = """
data = Pool(samples, {batch_size} * {steps})
loader = DataLoader(data, batch_size={batch_size}, shuffle=True, num_workers={workers}, pin_memory=device == "cuda")
"""
CELL = """
stamps, figures = [], {{}}
for step, (x, y) in enumerate(loader):
    x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, dtype=torch.bfloat16, enabled={half}):
        loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    if {synced}:
        wait()
    if step == 0:
        wait()
        figures["first"] = time.time()
    if step == {warm} - 1:
        wait()
        began = time.perf_counter()
    stamps.append(time.perf_counter())
wait()
figures["rate"] = (len(stamps) - {warm}) / (time.perf_counter() - began)
figures["steps"] = [after - before for before, after in itertools.pairwise(stamps)]
"""


@dataclass(frozen=True)
class GpuJob:
    """One thing to train: `setup` makes ``model``, ``samples``, ``loss_of`` and ``optimizer``; `half`: in bfloat16."""

    name: str
    setup: str
    batch_size: int
    half: bool = True
    steps: int = 40


@dataclass
class Figures:
    """What was measured of one job: by the way in which it was run a value for each round."""

    first: dict[str, list[float]] = field(default_factory=dict)
    rate: dict[str, list[float]] = field(default_factory=dict)
    stalls: list[float] = field(default_factory=list)  # seconds
    kept: list[float] = field(default_factory=list)  # steps/s with snapshots, of those without
    failed: dict[str, str] = field(default_factory=dict)

    def ratios(self, way: str, of: str = PLAIN) -> list[float]:
        """Return a way's steps/s as multiples of another's in the same round."""
        return [mine / other for mine, other in zip(self.rate.get(way, []), self.rate.get(of, []), strict=False)]


def jobs(*, tiny: bool) -> list[GpuJob]:
    """Return the jobs, or with `tiny` the same ones of sizes for a processor."""
    text = {"depth": 1, "width": 32, "heads": 2, "length": 16, "vocabulary": 64}
    # With four channels, oneDNN's kernels for AVX2 abort or wait for ever (torch 2.13, 1×1 convolutions in channels_last).
    small = {**text, "size": 32, "channels": 8, "classes": 10}
    if tiny:
        steps = WARM + 4
        return [
            GpuJob("CNN", CNN.format(**{**small, "size": 14}), 8, half=False, steps=steps),
            GpuJob("ResNet-18, 32×32", RESNET.format(**small), 4, half=False, steps=steps),
            GpuJob("GPT", GPT.format(**small), 2, steps=steps),
            GpuJob("Llama-style", LLAMA.format(**small), 2, steps=steps),
        ]
    gpt = {"depth": 12, "width": 768, "heads": 12, "length": 1024, "vocabulary": 50304}
    llama = {"depth": 16, "width": 1024, "heads": 16, "length": 1024, "vocabulary": 32000}
    return [
        GpuJob("CNN, 28×28, steps of about a millisecond", CNN.format(size=28, channels=32, classes=10), 64, half=False, steps=400),
        GpuJob("ResNet-18, 32×32", RESNET.format(size=32, channels=64, classes=10), 256, half=False, steps=110),
        GpuJob("ResNet-18, 224×224, bf16", RESNET.format(size=224, channels=64, classes=1000), 128, steps=60),
        GpuJob("GPT, 124M parameters, bf16", GPT.format(**gpt), 8, steps=50),
        GpuJob("Llama-style, 300M parameters, bf16", LLAMA.format(**llama), 8, steps=40),
    ]


class Bench:
    """A kernel whose engines share its card.

    Parameters
    ----------
    folder : Path
    device : {"cuda", "cpu"}
    workers : int
        Of each loader.
    """

    def __init__(self, folder: Path, *, device: str, workers: int) -> None:
        self._device, self._workers = device, workers
        self._kernel = Kernel(folder)
        self._kernel.run(f"%load_ext jupyter_dtrain\n%distribute start -n 2 --device {device} --devices shared")
        self._kernel.run(LINES[TWO].format(device=device) + "\nimport torch\ntorch.ones(1)")  # the engines have torch

    def close(self) -> None:
        """End the kernel."""
        self._kernel.close()

    def measure(self, job: GpuJob, rounds: int) -> Figures:
        """Run a job in all ways in turns, and then with snapshots and without."""
        found = Figures()
        loader = LOADER.format(batch_size=job.batch_size, steps=job.steps, workers=self._workers)
        self._kernel.run(SETUP.format(device=self._device) + job.setup + loader)
        for _, way in itertools.product(range(1 + rounds), LINES):  # in the first round nothing is warm
            if way in found.failed:
                continue
            try:
                sent = time.time()
                figures = self._run(job, LINES[way])
            except RuntimeError as error:
                found.failed[way] = str(error).strip().splitlines()[-1][:200]
                print(f"  {way} failed: {found.failed[way]}", flush=True)
                continue
            found.first.setdefault(way, []).append(figures["first"] - sent)
            found.rate.setdefault(way, []).append(figures["rate"])
            print(f"  {way:26}{figures['first'] - sent:8.2f} s{figures['rate']:10.2f} steps/s", flush=True)
        for rates in found.rate.values():
            del rates[0]
        for _ in range(rounds if ONE not in found.failed else 0):
            without = self._run(job, LINES[ONE], synced=True)
            kept = self._run(job, f"{LINES[ONE]} --checkpoint-every {CHECKPOINT}", synced=True)
            usual = statistics.median(kept["steps"])
            found.stalls.append(statistics.mean(kept["steps"][CHECKPOINT - 1 :: CHECKPOINT]) - usual)
            found.kept.append(kept["rate"] / without["rate"])
        return found

    def _run(self, job: GpuJob, line: str, *, synced: bool = False) -> dict[str, Any]:
        first = line.format(device=self._device)
        cell = CELL.format(half=job.half, synced=synced, warm=WARM)
        self._kernel.run((first + "\n" if first else "") + cell)
        figures: dict[str, Any] = json.loads(self._kernel.run("import json; print(json.dumps(figures))").strip().splitlines()[-1])
        return figures


def page(results: dict[str, Figures], *, card: str) -> str:
    """Return what was measured as Markdown."""
    lines = [
        "# On a GPU",
        "",
        f"What `python -m bench.gpu` measured on {card} (torch {version('torch')}): the same cell plain in the notebook's process and",
        "under `%%distribute`, in turns; medians of the rounds (least–greatest). *Cold* is the first run of a job in a process.",
        "",
        "| | first step cold, warm, s | steps/s | × plain | watched ÷ not | with snapshots ÷ without | stall of a snapshot, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        for way in LINES:
            if way in found.failed:
                lines.append(f"| {name}, {way} | failed: {found.failed[way]} | | | | | |")
            if way in found.failed or not found.rate.get(way):
                continue
            cold, *warm = found.first[way]
            columns = [
                f"{cold:.2f}, {spread(warm)}",
                spread(found.rate[way]),
                spread(found.ratios(way)) if way != PLAIN else "",
                "",
                "",
                "",
            ]
            if way == ONE and found.ratios(ONE, UNWATCHED):
                columns[3] = spread(found.ratios(ONE, UNWATCHED))
            if way == ONE and found.kept:
                columns[4:] = [spread(found.kept), spread([stall * 1e3 for stall in found.stalls])]
            lines.append(f"| {name}, {way} | {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def card_name(device: str) -> str:
    """Return what the hardware calls itself."""
    from jupyter_dtrain.cluster.devices import cpu_name
    from jupyter_dtrain.cluster.gpus import visible_gpus

    gpus = visible_gpus() if device == "cuda" else []
    return gpus[0].name if gpus else cpu_name()


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="sizes for a processor, and nothing written")
    parser.add_argument("--job", action="append", default=[], help="only jobs whose name begins so, whatever the case; may be given again")
    parser.add_argument("--rounds", type=int, default=3, help="times that each way is timed (default: 3)")
    parser.add_argument("--workers", type=int, default=4, help="of each loader (default: 4)")
    parser.add_argument("--seconds", type=float, default=440, help="after which no other job begins (default: 440)")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    results: dict[str, Figures] = {}
    text = ""
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder:
        bench = Bench(Path(folder), device=options.device, workers=options.workers)
        try:
            for job in jobs(tiny=options.tiny):
                wanted = not options.job or any(job.name.lower().startswith(name.lower()) for name in options.job)
                if not wanted or time.monotonic() - began > options.seconds:
                    continue
                print(job.name, flush=True)
                results[job.name] = bench.measure(job, options.rounds)
                text = page(results, card=card_name(options.device))
                if not options.tiny:
                    RESULTS.write_text(text, encoding="utf-8")
        finally:
            bench.close()
    print(text)


if __name__ == "__main__":
    main()
