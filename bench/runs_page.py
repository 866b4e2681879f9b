"""Measure the page of runs under load: 200 runs of 20 curves of 100,000 points, while one of them goes on.

A real JupyterLab in Chromium, which draws without a GPU here. Its kernel answers from a real record of runs, made for this in a folder of
its own (18 GB at full size, made in a quarter of an hour; ``--record FOLDER`` keeps it for the next time), and makes the news of the run
that goes on up, so that nothing but the page and the record is busy.

Told are: the time from the command that opens the page to its table, the first chart, and all charts in view; the same for 50 runs side by
side; the times between two frames while the table and the charts are scrolled; the part of a core that the page's main thread and all
processes of the browser take while the run goes on, in their own time of the processor, which other programs do not lengthen; and the
memory that the page's scripts hold, without garbage, over many updates. Run it with ``python -m bench.runs_page``.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import psutil
from playwright.sync_api import Browser, CDPSession, Error, expect, sync_playwright

from jupyter_dtrain.runs.curves import MAX_VIEW_POINTS, Curve
from jupyter_dtrain.runs.database import DATABASE
from jupyter_dtrain.runs.store import RunStore
from tests.browser.conftest import ARGUMENTS, NAMES
from tests.browser.lab import Lab
from tests.browser.server import LIMIT, Server

from .sidebar import COUNT_WORK, heap, page_frames

DRAWN = 50
"""Runs whose curves the page draws at once, at most."""
BATCH = 1000
"""Points of each curve that are recorded together, as of a run that goes on."""

SOURCE = """
import os, random, threading, time
from pathlib import Path
from jupyter_dtrain.notebook.comm import Telemetry
from jupyter_dtrain.protocol import *
from jupyter_dtrain.runs.archive import RunArchive

CURVES, POINTS, STEPS = {curves}, {points}, {steps}
archive = RunArchive(Path({record!r}))
run_id = archive.answer(Command(id="", name="list_runs")).runs[0].run_id
started = time.time()

class Load:
    '''The newest run of a record, which goes on when it is asked for news.'''

    step = POINTS

    def run(self):
        return RunUpdate(run_id=run_id, name="load", phase="running", world_size=2, started=started, elapsed=time.time() - started,
                         step=self.step, loss=0.5)

    def snapshot(self):
        engines = [EngineInfo(rank=r, host="node", pid=r, device="cpu", device_name="CPU") for r in range(2)]
        points = archive.answer(Command(id="", name="get_curves", run_id=run_id)).points
        return Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="running", engines=engines), run=self.run(), points=points)

    def drain(self):
        steps = list(range(self.step, self.step + STEPS))
        self.step += STEPS
        now = [time.time()] * STEPS
        news = [Points(run_id=run_id, name=f"curve {{c}}", step=steps, time=now, value=[c + random.random() for _ in steps])
                for c in range(CURVES)]
        return [*news, self.run()]

    def command(self, command):
        return archive.answer(command)

telemetry = Telemetry(Load(), interval=0.001)  # the pace is that of `go_on`
telemetry.start()

hertz = 0
paced = threading.Condition()

def go_on():
    due = time.monotonic()
    while True:
        with paced:
            paced.wait_for(lambda: hertz)
        due = max(due + 1 / max(1, hertz), time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
        telemetry.notify()

threading.Thread(target=go_on, daemon=True).start()

import jupyter_dtrain  # which the sidebar takes for a reason to look
"""
PACE = "with paced:\n    hertz = {hertz}\n    paced.notify()"

OPEN = """
async ([first, all]) => {
  const began = performance.now();
  await window.jupyterapp.commands.execute('jupyter-dtrain:open-runs');
  return await window.dtrainSeen(began, first, all);
}
"""
SELECT = """
async ([first, all]) => {
  const began = performance.now();
  document.querySelector('.jp-dtrain-runs-table thead input').click();
  return await window.dtrainSeen(began, first, all);
}
"""
# Waits until things are to be seen, and returns after how many milliseconds each was.
SEEN = """
window.dtrainSeen = (began, runs, curves) => new Promise((resolve, reject) => {
  const page = () => document.querySelector('.jp-dtrain-page');
  const charts = () => [...(page()?.querySelectorAll('figure[data-series]') ?? [])];
  const drawn = chart => chart.querySelector('canvas') !== null && Number(chart.dataset.points) > 0;
  const lines = chart => Math.max(1, chart.querySelectorAll('.jp-dtrain-legend li').length);
  const seen = {};
  const frame = () => {
    const now = performance.now() - began;
    const all = charts();
    seen.table ??= page()?.querySelector('[data-testid=jp-dtrain-runs-row]') ? now : undefined;
    seen.chart ??= all.some(drawn) && lines(all.find(drawn)) >= Math.min(runs, 2) ? now : undefined;
    const end = page()?.querySelector('.jp-dtrain-page-view')?.getBoundingClientRect().bottom ?? 0;
    const inView = all.filter(chart => chart.getBoundingClientRect().top < end - 20);
    const done = inView.length > 0 && all.length >= curves && inView.every(chart => drawn(chart) && lines(chart) >= runs);
    seen.all ??= done ? now : undefined;
    if (seen.all !== undefined && seen.table !== undefined) {
      resolve(seen);
    } else if (now > 100000) {
      reject(new Error(`after ${now} ms: ${JSON.stringify(seen)}, ${all.length} charts, ` +
        inView.map(chart => `${chart.dataset.series} ${drawn(chart)} ${lines(chart)}`)));
    } else {
      requestAnimationFrame(frame);
    }
  };
  requestAnimationFrame(frame);
});
"""
# Scrolls to the end and back, some pixels a frame, and returns the times between frames.
SCROLL = """
([selector, pixels, seconds]) => new Promise(resolve => {
  const node = document.querySelector(selector);
  const times = [];
  const end = performance.now() + 1000 * seconds;
  let by = pixels;
  const frame = now => {
    times.push(now);
    node.scrollTop += by;
    if (node.scrollTop + node.clientHeight >= node.scrollHeight - 1) {
      by = -pixels;
    } else if (node.scrollTop <= 0) {
      by = pixels;
    }
    performance.now() < end ? requestAnimationFrame(frame) : resolve(times.slice(1).map((time, i) => time - times[i]));
  };
  requestAnimationFrame(frame);
})
"""
STEPS = 10  # of each update


def make_record(folder: Path, runs: int, curves: int, points: int) -> None:
    """Record runs whose curves differ. The first is written as the package does it, the others are copies of its rows with other values."""
    names = [f"curve {curve}" for curve in range(curves)]
    with closing(RunStore(folder)) as store:
        run_ids = []
        for run in range(runs):
            run_ids.append(store.create_run(f"run {run}", "train()\n", 2, {"best": "curve 0:min"}, {"python": "3.12"}))
            store.set_hyperparameters(run_ids[-1], {"optimizer": "Adam", "optimizer.lr": 0.1 / (1 + run), "batch_size": 2 ** (run % 8)})
        whole = [
            Curve(
                step=list(range(points)),
                time=[time.time() - (points - step) / 100 for step in range(points)],
                value=[curve + math.sin(step / 9000) + random.random() for step in range(points)],
            )
            for curve in range(curves)
        ]
        for start in range(0, points, BATCH):
            part = slice(start, start + BATCH)
            store.add_points(
                run_ids[0],
                [
                    (name, Curve(step=one.step[part], time=one.time[part], value=one.value[part]))
                    for name, one in zip(names, whole, strict=True)
                ],
            )
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        for run in range(1, runs):
            shift, more = run * curves, run / runs
            connection.execute(
                "INSERT INTO curves (curve, number, name, last, low, high)"
                " SELECT curve + ?, number + ?, name, last + ?, low + ?, high + ? FROM curves WHERE number = 1",
                (shift, run, more, more, more),
            )
            connection.execute(
                "INSERT INTO points (curve, step, time, value) SELECT curve + ?, step, time, value + ? FROM points WHERE rowid <= ?",
                (shift, more, curves * points),
            )
            connection.commit()
    thin = [one.thinned(MAX_VIEW_POINTS) for one in whole]
    with closing(RunStore(folder)) as store:  # as runs that end do it
        for run, run_id in enumerate(run_ids):
            if points > MAX_VIEW_POINTS:
                values = [[value + run / runs for value in one.value] for one in thin]
                curves_of_it = [Curve(step=one.step, time=one.time, value=own) for one, own in zip(thin, values, strict=True)]
                store.keep_overviews(run_id, dict(zip(names, curves_of_it, strict=True)))
            if run < runs - 1:  # the last one goes on
                store.finish_run(run_id, "finished")


def busy(seconds: float, devtools: CDPSession, lab: Lab) -> tuple[float, float]:
    """Return the parts of a core that the page's main thread and all of the browser's processes take for so long."""
    chromium = [process for process in psutil.Process().children(recursive=True) if "chrom" in process.name()]

    def taken() -> tuple[float, float]:
        metrics = devtools.send("Performance.getMetrics")["metrics"]
        own = next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")
        times = [process.cpu_times() for process in chromium if process.is_running()]
        return own, sum(one.user + one.system for one in times)

    before, began = taken(), time.monotonic()
    lab.page.wait_for_timeout(1000 * seconds)
    after, passed = taken(), time.monotonic() - began
    return (after[0] - before[0]) / passed, (after[1] - before[1]) / passed


def told(times: list[float]) -> str:
    """Return the middle and the worst of some milliseconds."""
    return f"median {statistics.median(times):.1f} ms, 95 % under {sorted(times)[int(0.95 * len(times))]:.1f} ms, {len(times)} frames"


def measure(browser: Browser, server: Server, record: Path, options: argparse.Namespace) -> None:
    """Open the page of the runs in `record`, and print what was seen of it."""
    page = browser.new_page(viewport={"width": 1600, "height": 1000})
    page.add_init_script(COUNT_WORK)
    page.add_init_script(SEEN)
    page.set_default_timeout(LIMIT * 1000)
    (server.notebooks / "load").mkdir()
    source = SOURCE.format(curves=options.curves, points=options.points, steps=STEPS, record=str(record))
    cells = [source, *(PACE.format(hertz=hertz) for hertz in (options.hertz, options.fast, 0))]
    lab = Lab(page, server.url, server.token, server.notebooks / "load" / "load.ipynb", cells)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    lab.open_sidebar()
    lab.run(0)
    lab.expect_phase("running")
    lab.run(1)
    page.wait_for_timeout(5000)
    own, all_of_it = busy(options.seconds, devtools, lab)
    print(f"{options.hertz} updates/s, the sidebar beside it: main thread {own:.1%} of a core, browser {all_of_it:.1%}", flush=True)
    lab.run(3)
    lab.close_sidebar()
    print("nothing is done: " + told(page_frames(lab, 3)["between"]), flush=True)
    seen = page.evaluate(OPEN, [1, options.curves])
    print("the newest run: " + ", ".join(f"{name} after {at:.0f} ms" for name, at in seen.items()), flush=True)
    print("the table is scrolled: " + told(page.evaluate(SCROLL, [".jp-dtrain-runs-scroller", 40, 5])), flush=True)
    print("its charts are scrolled: " + told(page.evaluate(SCROLL, [".jp-dtrain-page-view", 20, 5])), flush=True)

    lab.execute("docmanager:open", path="load/load.ipynb")
    lab.run(1)
    lab.execute("jupyter-dtrain:open-runs")
    page.wait_for_timeout(5000)
    own, all_of_it = busy(options.seconds, devtools, lab)
    print(f"{options.hertz} updates/s, its charts in front: main thread {own:.1%} of a core, browser {all_of_it:.1%}", flush=True)

    heaps = {0: heap(devtools)}
    lab.execute("docmanager:open", path="load/load.ipynb")
    lab.run(2)
    lab.execute("jupyter-dtrain:open-runs")
    began, taken = time.monotonic(), 0
    first = drawn_steps(lab)
    while taken < options.updates:
        page.wait_for_timeout(1000)
        taken = (drawn_steps(lab) - first) // STEPS
        if taken >= len(heaps) * options.updates / 10:
            heaps[taken] = heap(devtools)
        if time.monotonic() - began > options.updates:
            raise TimeoutError(f"the page has taken in {taken} updates")
    print(f"memory of scripts over {taken:,} updates in {time.monotonic() - began:.0f} s, MiB:")
    print("  " + ", ".join(f"{updates:,}: {held / 2**20:.1f}" for updates, held in heaps.items()), flush=True)

    lab.execute("docmanager:open", path="load/load.ipynb")
    lab.run(3)
    lab.execute("jupyter-dtrain:open-runs")
    many = min(DRAWN, options.runs)
    try:
        seen = page.evaluate(SELECT, [many, options.curves])
        print(f"{many} runs side by side: " + ", ".join(f"{name} after {at:.0f} ms" for name, at in seen.items()), flush=True)
    except Error as error:  # too slow: the rest is worth seeing
        print(f"{many} runs side by side are not there: {error}", flush=True)
    print("their charts are scrolled: " + told(page.evaluate(SCROLL, [".jp-dtrain-page-view", 20, 5])), flush=True)
    if options.picture is not None:
        page.screenshot(path=options.picture)


def drawn_steps(lab: Lab) -> int:
    """Return the last step that the page says of the run that goes on."""
    text = lab.page.locator('.jp-dtrain-page figure[data-series="curve 0"] .jp-dtrain-chart-value').inner_text()
    return int(text.rpartition(" ")[2].replace(",", ""))


def main() -> None:
    """Make the record where it is not there, and print what the page takes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--curves", type=int, default=20)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--hertz", type=int, default=5, help="updates in a second, as many as the kernel sends")
    parser.add_argument("--fast", type=int, default=40, help="and for the memory over many updates")
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20, help="in which the use of cores is measured")
    parser.add_argument("--record", type=Path, help="folder of the record, which is made where it is not there and kept")
    parser.add_argument("--picture", type=Path, help="where to save a picture of the page")
    options = parser.parse_args()
    expect.set_options(timeout=LIMIT * 1000)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        record = options.record or Path(folder) / "dtrain-runs"
        if not record.exists():
            began = time.monotonic()
            make_record(record, options.runs, options.curves, options.points)
            size = (record / DATABASE).stat().st_size
            print(f"a record of {size / 1e9:.1f} GB is made in {time.monotonic() - began:.0f} s", flush=True)
        server = Server(Path(folder), checkout=Path(__file__).parents[1])
        try:
            executable = next(filter(None, map(shutil.which, NAMES)), None)
            browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
            print(f"{options.runs} runs of {options.curves} curves of {options.points:,} points", flush=True)
            measure(browser, server, record, options)
            browser.close()
        finally:
            server.shut_down_kernels()
            server.stop()
    print(f"load of the machine at the end: {', '.join(f'{load:.1f}' for load in os.getloadavg())} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
