"""What the kernel does for a run that grows to 64 hosts of 8 engines: ``python -m bench.many_hosts [--hosts 64] [--seconds 60]``.

The hosts are one process's talk (``replayed_hosts.py``), which takes the way of real ones in a real kernel. Agents' lines come over a
connection each to a `RemoteHost`, with its threads, beats and lease. Engines' events come by ipyparallel's own client, as messages that
are signed, to the ranks' listeners, the bus, the recorder, the store and a listening front end. The cell's thread looks after all ranks
as in a run. The run grows by generations, as with ``--elastic``: 1 host, 2, 4 and so on, a few seconds each.

Reported are the kernel's part of a core while it grows and afterwards, its memory a third after that and at the end, and how old a point
of the loss curve is when it arrives.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from jupyter_dtrain.cluster.client import EngineChannel
from jupyter_dtrain.cluster.hosts.remote_host import RemoteHost
from jupyter_dtrain.elastic.generation import Generation
from jupyter_dtrain.elastic.liveness import LivenessCheck
from jupyter_dtrain.elastic.run_recording import record
from jupyter_dtrain.elastic.watchdog import Watchdog
from jupyter_dtrain.engine.task import Outcome
from jupyter_dtrain.notebook.comm import Telemetry
from jupyter_dtrain.options import RunOptions
from jupyter_dtrain.protocol import PROTOCOL_VERSION, ClusterUpdate, Message, Snapshot
from jupyter_dtrain.protocol.bus import Bus
from jupyter_dtrain.runs.persister import Recording
from jupyter_dtrain.runs.store import RunStore
from jupyter_dtrain.strategies import find

from .contenders import Kernel
from .ranks import Listener
from .replayed_cluster import ReplayedCluster, SocketLink, heard
from .replayed_hosts import ENGINES, message_id

ROOT = Path(__file__).parents[1]
KEY = "key"
GROWING = 4.0  # seconds of each generation but the last


class Replay:
    """Made and run in the kernel: in two cells, as a front end connects between them."""

    def __init__(self, folder: str) -> None:
        self._folder = where = Path(folder)
        self._address, published = str(where / "agents"), f"ipc://{where / 'events'}"
        argv = [sys.executable, "-m", "bench.replayed_hosts", self._address, published, KEY]
        self._talk = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._talk.stdout is not None
        self._talk.stdout.readline()
        self._recording = Recording.start(RunStore(where / "runs"), name=None, cell="", world_size=ENGINES, arguments={}, say=print)
        recorder = self._recording.recorder
        source: Any = SimpleNamespace(
            snapshot=lambda: Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="running"), run=recorder.run_update()),
            drain=recorder.drain,
        )
        self._telemetry = Telemetry(source, interval=0.1)
        self._telemetry.start()
        (where / "blobs").mkdir()
        self._cluster: Any = ReplayedCluster(where / "blobs")
        self._client = heard(published, KEY)
        self._num_events, self._memory = 0, list[int]()

    def run(self, num_hosts: int, seconds: float) -> str:
        """Grow to so many hosts, stay for `seconds`, and return what it took, as JSON."""
        growing, hosts = [], self._cluster.processes.hosts
        while 2 * len(hosts) < num_hosts:
            growing.append(self._generation(max(1, 2 * len(hosts)), GROWING)[0])
        core, rate = self._generation(num_hosts, seconds)
        found = {"growing": growing, "core": core, "memory": self._memory, "rate": rate, "threads": threading.active_count()}
        found["lost"] = [host.lost for host in hosts if host.lost]
        for host in hosts:
            host.begin_end()
        self._cluster.processes.stop()
        self._talk.communicate()
        self._recording.finish("finished", None)
        return json.dumps(found)

    def _generation(self, num_hosts: int, seconds: float) -> tuple[float, float]:
        """Let one generation of ranks, of so many hosts, run for `seconds`; return the part of a core that it took, and events a second."""
        hosts = self._cluster.processes.hosts
        for number in range(len(hosts), num_hosts):
            host = RemoteHost(f"h{number}", SocketLink(self._address), python=sys.executable)
            host.wait_up()
            host.work(is_on=True)
            self._cluster.add(host)
        world_size = num_hosts * ENGINES
        self._recording.recorder.begin_again(world_size)
        generation, stall = self._begun(world_size)
        liveness, began = LivenessCheck(), time.monotonic()
        marks = [began + seconds / 3, began + seconds - 0.5]

        def tick() -> None:
            self._recording.tick()
            liveness.look(generation, self._cluster)
            stall.look()
            if marks and time.monotonic() > marks[0]:
                del marks[0]
                self._memory.append(psutil.Process().memory_info().rss)
            if time.monotonic() > began + seconds:
                self._end(world_size)

        assert self._talk.stdin is not None
        self._talk.stdin.write(f"{num_hosts}\n")
        self._talk.stdin.flush()
        computed, events = time.process_time(), self._num_events
        self._memory.clear()
        generation.execute(on_tick=tick)
        elapsed = time.monotonic() - began
        return (time.process_time() - computed) / elapsed, (self._num_events - events) / elapsed

    def _begun(self, world_size: int) -> tuple[Generation, Watchdog]:
        nothing: Any = SimpleNamespace(say=print, stream=lambda *_: None, display=lambda *_, **__: None, clear=lambda **_: None)
        engine_ids = self._cluster.engine_ids
        group: Any = SimpleNamespace(cluster=self._cluster, channel=EngineChannel(self._client), engine_ids=engine_ids, leave=lambda: None)
        task: Any = SimpleNamespace(
            world_size=world_size, resume=None, options=RunOptions(), strategy=find("auto"), snapshot_folder=self._folder / "snapshots"
        )
        events = Bus()
        record(events, self._recording, nothing, counts_steps=True, on_news=self._telemetry.notify)
        stall = Watchdog(world_size, ask=lambda: None, say=print, computed=list)
        for subscriber in (stall.note, self._count):
            events.subscribe(Message, subscriber)
        return Generation(group, task, events=events, output=nothing), stall

    def _count(self, _: Message) -> None:
        self._num_events += 1

    def _end(self, world_size: int) -> None:
        """Let all ranks have answered."""
        for rank in range(world_size):
            future = self._client._futures[message_id(rank)]
            if not future.done():
                future.set_result(pickle.dumps(Outcome(rank=rank, failure=None, stopped=False, steps=0)))
                future.output.set_result(None)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.many_hosts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    if sys.platform == "linux" and not os.geteuid():  # for all that is started: other programs make it no slower
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kernel = Kernel(Path(folder), env={"PYTHONPATH": str(ROOT)})
        try:
            kernel.run(f"%load_ext jupyter_dtrain\nfrom bench.many_hosts import Replay\nreplay = Replay({folder!r})")
            listener = Listener(kernel)
            found = json.loads(kernel.run(f"print(replay.run({options.hosts}, {options.seconds}))", None).splitlines()[-1])
        finally:
            kernel.close()
    third, end = (value / 2**20 for value in found["memory"])
    growing = ", ".join(f"{part:.1%}" for part in found["growing"])
    print(f"{options.hosts} hosts of {ENGINES} engines, {found['rate']:.0f} events a second, {found['threads']} threads in the kernel:")
    print(f"  the kernel's part of a core: while growing {growing}; then {found['core']:.1%}")
    print(f"  memory after a third and at the end: {third:.0f} and {end:.0f} MiB")
    print(
        f"  a point of the loss curve is {statistics.median(listener.ages) * 1000:.0f} ms old, at most {max(listener.ages) * 1000:.0f} ms"
    )
    if found["lost"]:
        print(f"  lost: {found['lost'][:3]}")


if __name__ == "__main__":
    main()
