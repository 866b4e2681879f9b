"""The other end of ``bench.many_hosts``: one process that says what the agents of many hosts and their engines say, at their pace.

Each agent's connection is one of a Unix socket, where a real one is that of ``ssh``. It says hello, and twice a second what its engines
have computed. Engines publish what a rank of a loop of ten steps a second does, a batch of events as often as one of the product does.
What says it all are the product's own messages and writers.

    python -m bench.replayed_hosts ADDRESS PUBLISHED KEY    # a line of the standard input: how many hosts there are from now on
"""

from __future__ import annotations

import contextlib
import random
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import zmq
from ipyparallel.serialize import serialize_object
from jupyter_client.session import Session

from jupyter_dtrain.cluster.hosts.frames import BEAT, MAGIC, read_frame, write_frame
from jupyter_dtrain.cluster.launch_config import engine_name
from jupyter_dtrain.engine.telemetry.emitter import KEY, interval_for
from jupyter_dtrain.protocol import DeviceUse, Message, Progress, RankStarted, Steps, TimeSplit

ENGINES = 8  # of a host
USUAL = timedelta(milliseconds=200)  # between two batches of a rank's events, where there are few ranks
HERTZ = 10  # steps of a rank in a second


def interval(num_ranks: int) -> float:
    """Return the seconds between two batches of a rank."""
    return interval_for(max(1, num_ranks), USUAL).total_seconds()


def message_id(rank: int) -> str:
    """Return the id of the request that a rank's task is."""
    return f"task-{rank}"


class Agent(threading.Thread):
    """Answers at one connection."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        super().__init__(daemon=True)
        self._connection, self._number = connection, number

    def run(self) -> None:
        """Say hello, and beat; what the notebook says is read and means nothing here."""
        out: Any = self._connection.makefile("wb")
        requests: Any = self._connection.makefile("rb")
        threading.Thread(target=_read_all, args=(requests,), daemon=True).start()
        out.write(MAGIC)
        write_frame(out, {"event": "hello", "host": f"h{self._number}", "address": f"10.0.0.{self._number}"})
        names = [engine_name(self._number * ENGINES + engine) for engine in range(ENGINES)]
        with contextlib.suppress(OSError):
            while True:
                now = time.monotonic()
                write_frame(out, {"event": "beat", "cpu": {name: now + index for index, name in enumerate(names)}, "stopped": []})
                time.sleep(BEAT)


def _read_all(requests: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        while read_frame(requests) is not None:
            pass


class Engines:
    """Publishes what the ranks tell."""

    def __init__(self, address: str, key: str) -> None:
        self._socket: Any = zmq.Context.instance().socket(zmq.PUB)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.bind(address)
        self._session = Session(key=key.encode(), session="engine")
        self._step: int = 0
        self._count: int = 0

    def begin(self, num_ranks: int) -> None:
        """Say of each rank that it has begun."""
        for rank in range(num_ranks):
            started = RankStarted(rank=rank, world_size=num_ranks, host=f"h{rank // ENGINES}", pid=rank, device="cpu", device_name="CPU")
            self._publish(rank, [started])

    def tell(self, num_ranks: int) -> None:
        """Publish a batch of each rank."""
        steps = list(range(self._step + 1, self._step + 1 + round(interval(num_ranks) * HERTZ)))
        self._step, self._count, number = steps[-1], self._count + 1, len(steps)
        now = time.time()
        for rank in range(num_ranks):
            seconds = 0.01 * self._step
            split = TimeSplit(
                rank=rank,
                step=self._step,
                data=seconds,
                forward=seconds,
                backward=seconds,
                communication=seconds,
                optimizer=seconds,
                other=seconds,
            )
            use = DeviceUse(rank=rank, time=now, utilization=random.random() * 100, memory_used=2**30, memory_total=2**36)
            told: list[Message] = [
                Steps(
                    rank=rank,
                    step=steps,
                    time=[now - (steps[-1] - step) / HERTZ for step in steps],
                    loss=[random.random() for _ in steps],
                    weight=[1 / num_ranks] * number,
                    learning_rate=[0.1] * number,
                    samples=[8] * number,
                ),
                split,
                use,
            ]
            if rank == 0:
                told.append(Progress(rank=0, epoch=1, batch=self._step, batches=10**6, step=self._step))
            self._publish(rank, told)

    def _publish(self, rank: int, told: list[Message]) -> None:
        key = KEY.format(run_id="run", rank=rank, count=self._count)
        self._session.send(
            self._socket,
            "data_message",
            content={"keys": [key]},
            parent={"msg_id": message_id(rank), "session": "notebook"},
            buffers=serialize_object({key: [message.to_json() for message in told]}),
            ident=b"engine.data",
        )


def main() -> None:
    """Talk until the standard input ends."""
    address, published, key = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(128)
    engines = Engines(published, key)
    num_hosts = [0]

    def accept() -> None:
        for number in range(10**6):
            connection, _ = listener.accept()
            Agent(connection, number).start()

    def follow() -> None:
        for line in sys.stdin:
            num_hosts[0] = int(line)
        num_hosts[0] = -1

    for loop in (accept, follow):
        threading.Thread(target=loop, daemon=True).start()
    print("up", flush=True)
    told, due = 0, time.monotonic()
    while num_hosts[0] >= 0:
        if num_hosts[0] != told:
            told = num_hosts[0]
            engines.begin(told * ENGINES)
        engines.tell(told * ENGINES)
        due = max(due + interval(told * ENGINES), time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main()
