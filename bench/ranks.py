"""What hundreds of ranks cost the notebook's kernel: ``python -m bench.ranks [--ranks 512] [--hertz 10] [--seconds 30]``.

The ranks are simulated: their events, as they come over the wire, go the way of real ones in a real kernel, from parsing over the recorder
and the store to the comm of a listening front end, which is this process. Reported are the kernel's part of a core, its memory at a third
and at the end, and how old a point of the loss curve is when it arrives.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient

from jupyter_dtrain.protocol import TELEMETRY_TARGET

from .contenders import LIMIT, Kernel

SETUP = """
import json, random, threading, time
import psutil
from pathlib import Path
from jupyter_dtrain.notebook.comm import Telemetry
from jupyter_dtrain.protocol import *
from jupyter_dtrain.runs.persister import Recording
from jupyter_dtrain.runs.store import RunStore

RANKS, HERTZ, SECONDS = {ranks}, {hertz}, {seconds}
recording = Recording.start(RunStore(Path("runs")), name=None, cell="", world_size=RANKS, arguments={{}}, say=print)
recorder = recording.recorder

class Source:
    def snapshot(self):
        return Snapshot(version=PROTOCOL_VERSION, cluster=ClusterUpdate(phase="running"), run=recorder.run_update())
    def drain(self):
        return recorder.drain()

telemetry = Telemetry(Source(), interval=0.1)
telemetry.start()

def batch(rank, step):
    now = time.time()
    split = TimeSplit(rank=rank, step=step, data=0.1 * step, forward=0.3 * step, backward=0.4 * step, communication=0.1 * step,
                      optimizer=0.05 * step, other=0.05 * step)
    steps = Steps(rank=rank, step=[step], time=[now], loss=[random.random()], weight=[1 / RANKS], learning_rate=[0.1], samples=[8])
    use = DeviceUse(rank=rank, time=now, utilization=50.0, memory_used=2**35, memory_total=2**36)
    return [message.to_json() for message in (steps, split, use)]
"""

REPLAY = """
process = psutil.Process()
events, memory = 0, []
for rank in range(RANKS):
    recorder.apply(RankStarted(rank=rank, world_size=RANKS, host="node", pid=rank, device="cuda:0", device_name="GPU"))
began, used = time.monotonic(), 0.0
for step in range(1, int(HERTZ * SECONDS) + 1):
    messages = [message for rank in range(RANKS) for message in batch(rank, step)]
    before = time.process_time()  # what the ranks would have computed does not count
    for message in messages:
        recorder.apply(parse(message))
    telemetry.notify()
    recording.tick()
    time.sleep(max(0.0, began + step / HERTZ - time.monotonic()))
    used += time.process_time() - before
    if step in (int(HERTZ * SECONDS) // 3, int(HERTZ * SECONDS)):
        memory.append(process.memory_info().rss)
elapsed = time.monotonic() - began
recording.finish("finished", None)
print(json.dumps(dict(core=used / elapsed, memory=memory, hertz=step / elapsed)))
"""


class Listener:
    """A front end that opens the telemetry comm of a kernel, and notes how old what it gets is."""

    def __init__(self, kernel: Kernel) -> None:
        self.ages: list[float] = []
        self._client: Any = BlockingKernelClient(connection_file=kernel.manager.connection_file)
        self._client.load_connection_file()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=LIMIT)
        content = {"comm_id": uuid.uuid4().hex, "target_name": TELEMETRY_TARGET, "data": {}}
        self._client.shell_channel.send(self._client.session.msg("comm_open", content))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            message = self._client.get_iopub_msg()
            now = time.time()
            updates = message["content"].get("data", {}).get("messages", ()) if message["msg_type"] == "comm_msg" else ()
            self.ages += [now - update["time"][-1] for update in updates if update["type"] == "points" and update["name"] == "loss"]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--hertz", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kernel = Kernel(Path(folder))
        try:
            kernel.run(SETUP.format(ranks=options.ranks, hertz=options.hertz, seconds=options.seconds))
            listener = Listener(kernel)
            found = json.loads(kernel.run(REPLAY).splitlines()[-1])
        finally:
            kernel.close()
    third, end = (value / 2**20 for value in found["memory"])
    print(f"{options.ranks} ranks that report {found['hertz']:.1f} times a second, for {options.seconds:.0f} s:")
    print(f"  {found['core']:.0%} of a core; memory {third:.0f} MiB after a third, {end:.0f} MiB at the end")
    print(f"  a point of the loss curve is {statistics.median(listener.ages) * 1e3:.0f} ms old, at most {max(listener.ages) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
