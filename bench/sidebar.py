"""Measure the sidebar under load: 512 ranks, 10 curves of a million points, news ten times a second.

A real JupyterLab in Chromium; its kernel makes the news up, so that nothing but the page is busy. What counts is the time between
two frames while it goes on. 16.7 ms is a screen's own pace, and no page can be faster: so ``--unlimited`` lets Chromium draw as fast as
it can, and in any case the time that the page's own callbacks take of each frame is told too. Chromium draws without a GPU here, so a
machine with one does better.

Whether the page keeps what it should not is a matter of many updates: ``--updates 10000`` goes on until so many have been taken in, and
tells the memory that is left after a garbage collection at every tenth of them. Run it with ``python -m bench.sidebar``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from playwright.sync_api import CDPSession, expect, sync_playwright

from tests.browser.conftest import ARGUMENTS, NAMES
from tests.browser.lab import Lab
from tests.browser.server import LIMIT, Server

STEPS = 10  # of each update
LONGEST = 1.0
"""Seconds that an update may take, in the mean, before the run is given up."""
UNLIMITED = ["--disable-frame-rate-limit", "--disable-gpu-vsync"]

SOURCE = """
import math, random, threading, time
from jupyter_dtrain.notebook.comm import Telemetry
from jupyter_dtrain.protocol import *
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.curves import MAX_VIEW_POINTS

RANKS, CURVES, POINTS, HERTZ = {ranks}, {curves}, {points}, {hertz}
started = time.time() - POINTS / 100

class Load:
    '''A run with that many ranks and curves, that goes on when it is asked for news.'''

    def __init__(self):
        self.step = POINTS
        steps = range(POINTS)
        values = [math.sin(s / 9000) + random.random() for s in steps]
        whole = Curve(step=list(steps), time=[started + s / 100 for s in steps], value=values)
        self.thin = whole.thinned(MAX_VIEW_POINTS)

    def run(self):
        return RunUpdate(run_id="r", name="load", phase="running", world_size=RANKS, started=started, elapsed=1.0, step=self.step, loss=0.5)

    def devices(self):
        return [
            DeviceUse(rank=r, time=time.time(), utilization=50 + 50 * math.sin(r + self.step), memory_used=2**35, memory_total=2**36,
                      temperature=60.0, power=300.0)
            for r in range(RANKS)
        ]

    def times(self):
        s = self.step / 100
        return [
            TimeSplit(rank=r, step=self.step, data=s * 0.1, forward=s * 0.3, backward=s * 0.4, communication=s * 0.1, optimizer=s * 0.05,
                      other=s * 0.05, num_workers=4)
            for r in range(RANKS)
        ]

    def snapshot(self):
        engines = [EngineInfo(rank=r, host=f"node-{{r // 8}}", pid=r, device=f"cuda:{{r % 8}}", device_name="H100") for r in range(RANKS)]
        thin = self.thin
        points = [
            Points(run_id="r", name=f"curve {{c}}", step=thin.step, time=thin.time, value=[c + v for v in thin.value], thinned=True)
            for c in range(CURVES)
        ]
        return Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="running", engines=engines), run=self.run(), points=points,
                        devices=self.devices(), times=self.times())

    def drain(self):
        steps = list(range(self.step, self.step + {steps}))
        self.step += {steps}
        stamps = [started + s / 100 for s in steps]
        fresh = [
            Points(run_id="r", name=f"curve {{c}}", step=steps, time=stamps, value=[c + random.random() for _ in steps])
            for c in range(CURVES)
        ]
        return [*fresh, *self.devices(), *self.times(), self.run()]

    def command(self, command):
        return Reply(id=command.id, ok=True, message="")

telemetry = Telemetry(Load(), interval=0.001)  # the pace is that of `go_on`
telemetry.start()

def go_on():
    due = time.monotonic()
    while True:
        # News that took longer than their time to make up are not made up for.
        due = max(due + 1 / HERTZ, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        telemetry.notify()

threading.Thread(target=go_on, daemon=True).start()
import jupyter_dtrain  # which the sidebar takes for a reason to look
"""

COUNT_WORK = """
window.dtrainWork = new Map();
const request = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = callback => request(now => {
  const began = performance.now();
  try {
    callback(now);
  } finally {
    window.dtrainWork.set(now, (window.dtrainWork.get(now) ?? 0) + performance.now() - began);
  }
});
"""

FRAMES = """
seconds => new Promise(resolve => {
  const times = [];
  window.dtrainWork.clear();
  const end = performance.now() + 1000 * seconds;
  const frame = now => {
    times.push(now);
    performance.now() < end
      ? requestAnimationFrame(frame)
      : resolve({ between: times.slice(1).map((time, i) => time - times[i]), own: [...window.dtrainWork.values()] });
  };
  requestAnimationFrame(frame);
})
"""


@dataclass
class Watched:
    """What was seen of the page: milliseconds, and bytes without garbage after so many updates."""

    between: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    heaps: dict[int, float] = field(default_factory=dict)
    work: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def updates(self) -> int:
        """How many updates the page has taken in."""
        return max(self.heaps)


def watch(lab: Lab, devtools: CDPSession, *, updates: int, seconds: float) -> Watched:
    """Look at the frames of the page until it has taken in `updates` updates, or for `seconds` where that is 0.

    Raises
    ------
    TimeoutError
        The updates do not come, or the page does not take them in.
    """
    seen = Watched(heaps={0: heap(devtools)})
    began, step, before = time.monotonic(), lab.number("step"), worked(devtools)
    while seen.updates < updates or not seen.between:
        piece = page_frames(lab, seconds if not updates else 10.0)
        seen.between += piece["between"]
        seen.own += piece["own"]
        seen.seconds = time.monotonic() - began
        taken = round((lab.number("step") - step) / STEPS)
        if taken >= min(updates, (len(seen.heaps) * updates) / 10):
            seen.heaps[taken] = heap(devtools)
        if updates and seen.seconds > LONGEST * updates:
            raise TimeoutError(f"the page has taken in {taken} updates in {seen.seconds:.0f} s")
    seen.work = {name: spent - before[name] for name, spent in worked(devtools).items()}
    return seen


def page_frames(lab: Lab, seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds between the page's frames, and those of its own callbacks in each."""
    found: dict[str, list[float]] = lab.page.evaluate(FRAMES, seconds)
    return found


def heap(devtools: CDPSession) -> float:
    """Return the bytes that the page's scripts hold, without garbage."""
    devtools.send("HeapProfiler.collectGarbage")
    return float(devtools.send("Runtime.getHeapUsage")["usedSize"])


def worked(devtools: CDPSession) -> dict[str, float]:
    """Return the seconds that the page's main thread has spent, on what."""
    devtools.send("Performance.enable")
    known = {metric["name"]: float(metric["value"]) for metric in devtools.send("Performance.getMetrics")["metrics"]}
    parts = {"script": "ScriptDuration", "style": "RecalcStyleDuration", "layout": "LayoutDuration", "all": "TaskDuration"}
    return {name: known[metric] for name, metric in parts.items()}


def main() -> None:
    """Print the times between frames, and the page's memory before and after."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--curves", type=int, default=10)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--hertz", type=int, default=10, help="news in a second")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=20)
    length.add_argument("--updates", type=int, default=0, help="go on until the page has taken in so many, instead")
    parser.add_argument("--unlimited", action="store_true", help="draw as fast as it goes, and not at a screen's pace")
    parser.add_argument("--picture", type=Path, help="where to save a picture of the page")
    options = parser.parse_args()
    source = SOURCE.format(ranks=options.ranks, curves=options.curves, points=options.points, hertz=options.hertz, steps=STEPS)
    expect.set_options(timeout=LIMIT * 1000)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder), checkout=Path(__file__).parents[1])
        try:
            executable = next(filter(None, map(shutil.which, NAMES)), None)
            browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS + UNLIMITED * options.unlimited)
            page = browser.new_page(viewport={"width": 1280, "height": 1400})
            page.add_init_script(COUNT_WORK)
            page.set_default_timeout(LIMIT * 1000)
            (server.notebooks / "load").mkdir()
            lab = Lab(page, server.url, server.token, server.notebooks / "load" / "load.ipynb", [source])
            idle = page_frames(lab, 3)
            lab.open_sidebar()
            lab.run(0)
            lab.wait_for_points(10_000, "curve 0")
            seen = watch(lab, page.context.new_cdp_session(page), updates=options.updates, seconds=options.seconds)
            if options.picture is not None:
                page.screenshot(path=options.picture)
            browser.close()
        finally:
            server.shut_down_kernels()
            server.stop()
    print(f"{options.ranks} ranks, {options.curves} curves of {options.points:,} points, {seen.updates:,} updates in {seen.seconds:.0f} s")
    print(f"  load of the machine at the end: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores")
    for name, times in (
        ("between frames without the sidebar", idle["between"]),
        ("between frames with it", seen.between),
        ("of the page's own callbacks in a frame", seen.own),
    ):
        worst = sorted(times)[int(0.95 * len(times))]
        print(f"  {name}: median {statistics.median(times):.2f} ms, 95 % under {worst:.2f} ms, {len(times)} frames")
    told = ", ".join(f"{name} {1000 * spent / max(1, seen.updates):.1f} ms" for name, spent in seen.work.items())
    print(f"  work for an update: {told}")
    print("  JavaScript memory without garbage, after so many updates:")
    for updates, held in seen.heaps.items():
        print(f"    {updates:>6,}: {held / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
