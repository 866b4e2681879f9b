"""What a killed engine costs: time until it is noticed and until the next new step, against ``torchrun --max-restarts``.

Both run the same training on two CPU processes, one of which is killed half way. Ours is a notebook cell with no code for it; the script
saves a checkpoint once a second and loads it when it starts, as the documentation of ``torchrun`` says. A step's number is written to a
file when it is done, and read here. The two take turns; the table shows medians, the spread, and the ratio.

    python -m bench.faults [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from jupyter_client.manager import KernelManager

STEPS = 1000
KILL_AT = 500
LIMIT = 180.0  # seconds; every wait ends at a condition

MODEL = """
import os, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data = TensorDataset(torch.randn(64 * 1000, 64), torch.randint(10, (64 * 1000,)))
def note(step):
    with open("steps", "a") as file:
        file.write(f"{step} {time.time()}\\n")
    time.sleep(0.01)
"""

ENGINE = """
cluster = get_ipython().magics_manager.registry["DistributeMagics"].session.get().cluster
with open("engine", "w") as file:
    file.write(str(cluster.engines[0].pid))
del cluster
"""

CELL = """%%distribute --engines 2 --device cpu
loader = DataLoader(data, batch_size=64, shuffle=True)
for step, (x, y) in enumerate(loader, 1):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    if is_main():
        note(step)
"""

SCRIPT = (
    MODEL
    + f"""
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
dist.init_process_group("gloo")
rank = dist.get_rank()
with open(f"rank-{{rank}}", "w") as file:
    file.write(str(os.getpid()))
begin = 0
if os.path.exists("saved.pt"):
    saved = torch.load("saved.pt")
    model.load_state_dict(saved["model"]); optimizer.load_state_dict(saved["optimizer"]); begin = saved["step"]
ddp = DistributedDataParallel(model)
loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data, seed=0))
last = time.time()
for step, (x, y) in enumerate(loader, 1):
    if step <= begin:
        continue
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(x), y).backward()
    optimizer.step()
    if rank == 0:
        note(step)
        if time.time() - last > 1:
            torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}}, "saved.part")
            os.replace("saved.part", "saved.pt")
            last = time.time()
    else:
        time.sleep(0.01)
    if step == {STEPS}:
        break
dist.destroy_process_group()
"""
)


@dataclass
class Figures:
    """What one disturbed run took.

    Attributes
    ----------
    noticed : float, optional
        Seconds from the kill until the run says so.
    next_step : float
        Seconds from the kill until a step that had not been done before is.
    repeated : int
        Steps that were computed again.
    """

    noticed: float | None
    next_step: float
    repeated: int


def wait(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


def steps_in(folder: Path) -> list[tuple[int, float]]:
    """Return (step, time) of all steps that were done."""
    path = folder / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines if line.count(" ") == 1]


def reached(folder: Path, step: int) -> bool:
    """Return whether `step` was done."""
    return any(done >= step for done, _ in steps_in(folder)[-3:])


def figures(folder: Path, killed: float, noticed: float | None) -> Figures:
    """Return what the file of steps says of a run that was disturbed at `killed`."""
    steps = steps_in(folder)
    before = max(step for step, seconds in steps if seconds <= killed)
    following = next(seconds for step, seconds in steps if seconds > killed and step > before + 1)
    return Figures(noticed, following - killed, len(steps) - max(step for step, _ in steps))


class Notebook:
    """A kernel with a warm cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.run("%load_ext jupyter_dtrain\nfrom jupyter_dtrain import is_main\n" + MODEL + "\n%distribute start -n 2 --device cpu")
        self.run("%%distribute --engines 2 --device cpu\n1")

    def run(self, code: str, on_stderr: Callable[[], None] = lambda: None) -> None:
        """Run a cell to its end."""

        def hook(message: dict[str, object]) -> None:
            content = message["content"]
            if message["msg_type"] == "stream" and isinstance(content, dict) and "Lost rank" in content["text"]:
                on_stderr()

        reply = self.client.execute_interactive(code, timeout=LIMIT, output_hook=hook)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(reply["content"])

    def disturbed(self) -> Figures:
        """Run the cell, kill an engine half way, and return what that cost."""
        (self.folder / "steps").unlink(missing_ok=True)
        times: dict[str, float] = {}

        def kill() -> None:
            wait(lambda: reached(self.folder, KILL_AT), "half of the steps")
            times["killed"] = time.time()
            os.kill(engine, signal.SIGKILL)

        def notice() -> None:
            times.setdefault("noticed", time.time())

        self.run(MODEL + ENGINE)
        engine = int((self.folder / "engine").read_text())
        killer = threading.Thread(target=kill)
        killer.start()
        self.run(CELL, on_stderr=notice)
        killer.join()
        return figures(self.folder, times["killed"], times["noticed"] - times["killed"])

    def close(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def torchrun(folder: Path) -> Figures:
    """Run the script under torchrun, kill a worker half way, and return what that cost."""
    (folder / "script.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        "--max-restarts=3",
        "--standalone",
        "--local-addr=127.0.0.1",
        "script.py",
    ]
    # With the agent's store gloo may meet the addresses of the processes before, and takes some restarts more.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCHELASTIC_USE_AGENT_STORE": "False"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: reached(folder, KILL_AT) or process.poll() is not None, "half of the steps")
        killed = time.time()
        os.kill(int((folder / "rank-1").read_text()), signal.SIGKILL)
        process.wait(LIMIT)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
        process.wait()
    return figures(folder, killed, None)


def shown(values: list[float], unit: str = " s") -> str:
    """Return a median with its spread."""
    return f"{statistics.median(values):.2f}{unit} ({min(values):.2f}-{max(values):.2f})"


def main() -> None:
    """Run both by turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    ours: list[Figures] = []
    theirs: list[Figures] = []
    with tempfile.TemporaryDirectory() as name:
        notebook = Notebook(Path(name))
        try:
            for index in range(rounds):
                ours.append(notebook.disturbed())
                with tempfile.TemporaryDirectory() as other:
                    theirs.append(torchrun(Path(other)))
                print(f"round {index + 1} of {rounds}", flush=True)
        finally:
            notebook.close()
    ratios = [mine.next_step / other.next_step for mine, other in zip(ours, theirs, strict=True)]
    print(f"\n{'':24}{'%%distribute':>24}{'torchrun':>24}")
    print(f"{'noticed after':24}{shown([item.noticed or 0.0 for item in ours]):>24}{'':>24}")
    print(f"{'next new step after':24}{shown([item.next_step for item in ours]):>24}{shown([item.next_step for item in theirs]):>24}")
    print(
        f"{'steps computed again':24}{shown([item.repeated for item in ours], ''):>24}{shown([item.repeated for item in theirs], ''):>24}"
    )
    print(f"\nratio of the times until the next new step: {shown(ratios, '')}")


if __name__ == "__main__":
    main()
