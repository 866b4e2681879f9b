"""Who computes on what, and how busy it is."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import psutil
import pytest
import torch

from jupyter_dtrain.cluster import devices, gpus
from jupyter_dtrain.cluster.devices import plan_devices
from jupyter_dtrain.cluster_options import ClusterOptions
from jupyter_dtrain.elastic.engine_pool import EnginePool
from jupyter_dtrain.engine.comm.process_group import backend_for, gpu_of
from jupyter_dtrain.engine.telemetry import device_stats as use_of_devices
from jupyter_dtrain.engine.telemetry.device_stats import DeviceSampler
from jupyter_dtrain.errors import ClusterError, UsageError
from jupyter_dtrain.options import RunOptions
from jupyter_dtrain.system.resources import Memory
from jupyter_dtrain.trials.pool import lanes_for


class FakeNvml(types.ModuleType):
    """A driver with some GPUs, as pynvml shows it."""

    class NVMLError(Exception):
        pass

    def __init__(self, names: list[str]) -> None:
        super().__init__("pynvml")
        self.names = names

    def nvmlInit(self):
        if not self.names:
            raise self.NVMLError("no driver")

    def nvmlShutdown(self):
        pass

    def nvmlDeviceGetCount(self):
        return len(self.names)

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return int(uuid.removeprefix("GPU-uuid-"))

    def nvmlDeviceGetUUID(self, handle):
        return f"GPU-uuid-{handle}"

    def nvmlDeviceGetName(self, handle):
        return self.names[handle]

    def nvmlDeviceGetMemoryInfo(self, handle):
        return types.SimpleNamespace(used=10 + handle, total=100)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return types.SimpleNamespace(gpu=40 + handle)

    NVML_TEMPERATURE_GPU = 0

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 60 + handle

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle == 0:
            raise self.NVMLError("not supported")
        return 250_500  # milliwatts


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a machine with these GPUs and cores."""

    def pretend(*, gpus=(), cores=8, torch_has_cuda=True, visible=None):
        monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(list(gpus)))
        monkeypatch.setattr(devices, "usable_cores", lambda: cores)
        monkeypatch.setattr(devices, "torch_has_cuda", lambda: torch_has_cuda)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return pretend


@pytest.mark.parametrize(("cores", "num_engines", "num_threads"), [(1, 2, 1), (2, 2, 1), (4, 2, 2), (16, 8, 2)])
def test_without_gpus_one_engine_per_two_cores_and_at_least_two(machine, cores, num_engines, num_threads):
    machine(cores=cores)
    plans = plan_devices(ClusterOptions())
    assert [(plan.rank, plan.kind, plan.index, plan.device, plan.num_threads) for plan in plans] == [
        (rank, "cpu", None, "cpu", num_threads) for rank in range(num_engines)
    ]


def test_more_engines_than_cores_share_them(machine):
    machine(cores=2)
    assert [plan.num_threads for plan in plan_devices(ClusterOptions(num_engines=5))] == [1] * 5


@pytest.mark.parametrize(
    ("wanted", "cores", "gib", "most"), [(500, 2, 24, 8), (9, 2, 24, 8), (65, 16, 100, 64), (40, 16, 10, 34), (16, 64, 0, 8)]
)
def test_more_engines_than_the_machine_is_for_are_refused(machine, monkeypatch, wanted, cores, gib, most):
    machine(cores=cores)
    monkeypatch.setattr(devices, "memory", lambda: Memory(gib << 30, gib << 30))
    with pytest.raises(UsageError, match=f"--engines {wanted}: .* {cores} cores and .* Use --engines {most} or fewer, or add --force"):
        plan_devices(ClusterOptions(num_engines=wanted))
    assert len(plan_devices(ClusterOptions(num_engines=wanted, force=True))) == wanted
    assert len(plan_devices(ClusterOptions(num_engines=most))) == most


@pytest.mark.parametrize(("wanted", "num_threads"), [("1", 1), ("16", 4), ("4,2", 4)])
def test_fewer_threads_where_the_user_says_so(machine, monkeypatch, wanted, num_threads):
    machine(cores=8)
    monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert [plan.num_threads for plan in plan_devices(ClusterOptions(num_engines=2))] == [num_threads] * 2


def test_a_gpu_whose_memory_is_not_told_is_there_all_the_same(machine, monkeypatch):
    def refused(_self, _handle):
        raise FakeNvml.NVMLError("not supported")

    monkeypatch.setattr(FakeNvml, "nvmlDeviceGetMemoryInfo", refused)
    machine(gpus=["GB10"])
    assert [plan.name for plan in plan_devices(ClusterOptions())] == ["GB10"]
    assert gpus.bytes_for_each(1, device="cuda") == 0


def test_the_bytes_of_an_engine_are_those_of_its_part_of_a_gpu(machine):
    machine(gpus=["H100", "H100"])
    assert gpus.bytes_for_each(2, device="cuda") == 100
    assert gpus.bytes_for_each(3, device="cuda") == 50


def test_one_engine_per_gpu(machine):
    machine(gpus=["H100", "H100", "A100"], cores=12)
    plans = plan_devices(ClusterOptions())
    assert [(plan.kind, plan.index, plan.name, plan.device, plan.num_threads) for plan in plans] == [
        ("cuda", "GPU-uuid-0", "H100", "cuda:0", 4),
        ("cuda", "GPU-uuid-1", "H100", "cuda:0", 4),
        ("cuda", "GPU-uuid-2", "A100", "cuda:0", 4),
    ]


def test_fewer_engines_than_gpus_take_the_first(machine):
    machine(gpus=["H100"] * 4)
    assert [plan.index for plan in plan_devices(ClusterOptions(num_engines=2))] == ["GPU-uuid-0", "GPU-uuid-1"]


@pytest.mark.parametrize(
    ("gpus", "options", "num_trials", "indices", "num_threads"),
    [
        (4, {}, 10, [[0], [1], [2], [3]], 4),
        (4, {}, 2, [[0], [2]], 8),
        (4, {"engines_per_trial": 2}, 10, [[0, 1], [2, 3]], 4),
        (5, {"engines_per_trial": 2}, 10, [[0, 1], [2, 3]], 4),
        (4, {"cluster": ClusterOptions(num_engines=2)}, 10, [[0], [2]], 8),
        (0, {}, 3, [[None]] * 3, 5),
        (0, {"engines_per_trial": 2, "cluster": ClusterOptions(num_engines=4)}, 10, [[None, None]] * 2, 4),
    ],
)
def test_the_lanes_of_trials_share_a_machine(machine, gpus, options, num_trials, indices, num_threads):
    machine(gpus=["H100"] * gpus, cores=16)
    lanes = lanes_for(RunOptions(vary=(("lr", "1,2"),), **options), num_trials)
    plans = [plan_devices(lane) for lane in lanes]
    assert [[plan.index for plan in of_lane] for of_lane in plans] == [
        [None if index is None else f"GPU-uuid-{index}" for index in of_lane] for of_lane in indices
    ]
    assert {plan.num_threads for of_lane in plans for plan in of_lane} == {num_threads}


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"device": "auto"}])
def test_more_engines_than_gpus(machine, options):
    machine(gpus=["H100", "H100"])
    with pytest.raises(
        UsageError, match=r"3 engines were asked for.* there are 2 GPUs\. Use --engines 2, --devices shared to try .*, or --device cpu"
    ):
        plan_devices(ClusterOptions(num_engines=3, **options))


@pytest.mark.parametrize(
    ("gpus", "num_engines", "indices"),
    [(1, None, [0, 0]), (1, 3, [0, 0, 0]), (2, 4, [0, 0, 1, 1]), (2, 3, [0, 0, 1]), (3, None, [0, 1, 2]), (4, 2, [0, 1]), (1, 1, [0])],
)
def test_engines_may_share_gpus(machine, gpus, num_engines, indices):
    machine(gpus=["H100"] * gpus, cores=8)
    plans = plan_devices(ClusterOptions(devices="shared", num_engines=num_engines))
    assert [plan.index for plan in plans] == [f"GPU-uuid-{index}" for index in indices]
    assert {(plan.kind, plan.device) for plan in plans} == {("cuda", "cuda:0")}
    assert {plan.num_threads for plan in plans} == {8 // len(indices)}
    assert devices.shares_devices(plans) == (len(set(indices)) < len(indices))


def test_lanes_of_trials_may_share_gpus(machine):
    machine(gpus=["H100", "H100"], cores=8)
    lanes = lanes_for(RunOptions(vary=(("lr", "1,2"),), cluster=ClusterOptions(num_engines=4, devices="shared")), 10)
    plans = [plan_devices(lane) for lane in lanes]
    assert [[plan.index for plan in of_lane] for of_lane in plans] == [["GPU-uuid-0"]] * 2 + [["GPU-uuid-1"]] * 2


def test_sharing_gpus_means_nothing_without_any(machine):
    machine(cores=4)
    assert plan_devices(ClusterOptions(devices="shared")) == plan_devices(ClusterOptions())
    with pytest.raises(UsageError, match=r"no NVIDIA GPU here"):
        plan_devices(ClusterOptions(devices="shared", device="cuda"))


def test_a_cluster_that_takes_anothers_place_shares_gpus_as_it_did(machine, monkeypatch):
    machine(gpus=["H100"])
    old = types.SimpleNamespace(device_plans=plan_devices(ClusterOptions(devices="shared")), can_be_inherited=True)
    wanted = []

    def start(_pool, options, _progress):
        wanted.append(options)
        raise ClusterError("not in this test")

    monkeypatch.setattr(EnginePool, "_start", start)
    with pytest.raises(ClusterError, match="not in this test"):
        EnginePool().renew(old, on_progress=lambda _text: None)  # type: ignore[arg-type]  # it needs no more of it
    assert plan_devices(wanted[0]) == old.device_plans


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        (["", ""], "gloo"),
        (["a/GPU-1/0", "a/GPU-2/0"], "cpu:gloo,cuda:nccl"),
        (["a/GPU-1/0"] * 2, "cpu:gloo,cuda:gloo"),
        (["a/0/0", "b/0/0"], "cpu:gloo,cuda:nccl"),  # on two hosts
        (["a/GPU-1/0", "a/GPU-1/0", "a/GPU-2/0", "a/GPU-2/0"], "cpu:gloo,cuda:gloo"),
    ],
)
def test_nccl_where_each_rank_has_a_gpu_of_its_own(gpus, backend):
    assert backend_for(torch.device("cuda:0" if gpus[0] else "cpu"), gpus) == backend


def test_what_tells_a_gpu_from_others(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-uuid-1")
    assert gpu_of(torch.device("cuda:0")) == f"{socket.gethostname()}/GPU-uuid-1/0"
    assert gpu_of(torch.device("cpu")) == ""


def test_cuda_on_a_machine_without_gpus(machine):
    machine()
    with pytest.raises(UsageError, match=r"no NVIDIA GPU here.*--device cpu"):
        plan_devices(ClusterOptions(device="cuda"))


def test_cuda_with_a_torch_that_has_none(machine):
    machine(gpus=["H100"], torch_has_cuda=False)
    with pytest.raises(UsageError, match="built without CUDA"):
        plan_devices(ClusterOptions(device="cuda"))
    assert {plan.kind for plan in plan_devices(ClusterOptions())} == {"cpu"}


def test_cpu_although_there_are_gpus(machine):
    machine(gpus=["H100"], cores=4)
    plans = plan_devices(ClusterOptions(device="cpu", num_engines=4))
    assert [plan.kind for plan in plans] == ["cpu"] * 4
    assert {plan.environment()["CUDA_VISIBLE_DEVICES"] for plan in plans} == {""}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("2,0", ["2", "0"]),
        (" 1 ", ["1"]),
        ("0,-1,1", ["0"]),  # CUDA stops at the first entry that names no device
        ("0,7", ["0"]),
        ("GPU-uuid-1", ["GPU-uuid-1"]),
        ("GPU-nobody", []),
        ("MIG-abc", ["MIG-abc"]),
        ("", []),
    ],
)
def test_visible_devices_are_respected(machine, visible, expected):
    machine(gpus=["H100"] * 3, visible=visible)
    assert [gpu.index for gpu in gpus.visible_gpus()] == expected


def test_environment_of_a_rank(machine):
    machine(gpus=["H100", "A100"], cores=6)
    environment = plan_devices(ClusterOptions())[1].environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-uuid-1"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["JUPYTER_DTRAIN_RANK"] == "1"
    assert environment["JUPYTER_DTRAIN_DEVICE_NAME"] == "A100"


def test_whether_torch_has_cuda_is_known_without_importing_it():
    code = (
        "import sys\n"
        "from jupyter_dtrain.cluster.devices import plan_devices\n"
        "from jupyter_dtrain.cluster.gpus import torch_has_cuda\n"
        "from jupyter_dtrain.cluster_options import ClusterOptions\n"
        "plan_devices(ClusterOptions()); said = torch_has_cuda()\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "assert said == (torch.version.cuda is not None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- use -----------------------------------------------------------------------------------------------------------


ALONE = """
import subprocess, sys, time
from jupyter_dtrain.engine.telemetry.device_stats import DeviceSampler

began = time.perf_counter()
sampler = DeviceSampler(5)
end = time.process_time() + 0.2
while time.process_time() < end:
    pass
busy = sampler.sample()
had = 100 * 0.2 / (time.perf_counter() - began)
worker = subprocess.Popen([sys.executable, "-c", "x = bytearray(50 << 20); print(flush=True); input()"], stdin=-1, stdout=-1)
worker.stdout.readline()
print(busy.rank, busy.utilization, had, busy.memory_used, busy.memory_total, sampler.sample().memory_used)
worker.kill()
"""


def test_a_busy_process_shows_and_its_workers_count():
    # In a process of its own: this one has had others' children.
    ended = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    rank, utilization, had, used, total, with_worker = map(float, ended.stdout.split())
    assert rank == 5
    assert 0.9 * had < utilization <= 100  # all that it had of one core: others may keep it from getting all
    assert 0 < used < total
    assert with_worker > used + (40 << 20)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux says what is shared")
def test_what_several_processes_share_counts_once(monkeypatch, tmp_path):
    monkeypatch.setattr(use_of_devices, "PROPORTIONAL_SHARE", 1e9)  # asked each time
    (tmp_path / "shared").write_bytes(bytes(60 << 20))
    reader = "import mmap, sys; m = mmap.mmap(open(sys.argv[1], 'r+b').fileno(), 0); m[:: mmap.PAGESIZE]; print(flush=True); input()"
    used = []
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            worker = stack.enter_context(subprocess.Popen([sys.executable, "-c", reader, tmp_path / "shared"], stdin=-1, stdout=-1))
            stack.callback(worker.kill)
            assert worker.stdout is not None
            worker.stdout.readline()
            used.append(DeviceSampler(0).sample().memory_used)
    assert used[1] - used[0] < 40 << 20  # a process more, and not what it shares
    assert used[2] - used[1] < 40 << 20


def test_an_idle_process_shows_too():
    sampler = DeviceSampler(0)
    utilizations = []
    for _ in range(5):
        time.sleep(0.1)
        utilizations.append(sampler.sample().utilization)
    assert min(utilizations) < 50  # the least: the test's own threads may do something now and then


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists a process's children")
def test_a_sample_is_cheap(monkeypatch):
    """It looks at the engine's own processes and not at every one there is, several times a second."""
    for owner, name in ((psutil, "process_iter"), (psutil, "pids"), (psutil.Process, "children")):
        monkeypatch.setattr(owner, name, lambda *_args, **_kwargs: pytest.fail("a look at every process"))
    assert DeviceSampler(0).sample().memory_used > 0


def test_a_gpu_by_its_uuid(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(["H100", "H100", "H100"]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-uuid-2")
    use = DeviceSampler(1, "cuda:0").sample()
    assert (use.rank, use.utilization, use.memory_used, use.memory_total) == (1, 42.0, 12, 100)
    assert (use.temperature, use.power) == (62.0, 250.5)


def test_a_device_that_does_not_tell_its_power(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(["H100"]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-uuid-0")
    use = DeviceSampler(0, "cuda:0").sample()
    assert (use.temperature, use.power) == (60.0, None)
    assert (DeviceSampler(0).sample().temperature, DeviceSampler(0).sample().power) == (None, None)


def test_a_gpu_that_tells_nothing_ends_no_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([]))
    use = DeviceSampler(0, "cuda:0").sample()
    assert (use.utilization, use.memory_used, use.memory_total) == (0.0, 0, 0)


def test_the_device_is_named_as_the_cluster_names_it(monkeypatch):
    monkeypatch.setenv("JUPYTER_DTRAIN_DEVICE_NAME", "Some Processor")
    assert DeviceSampler(0).device_name() == "Some Processor"
    monkeypatch.delenv("JUPYTER_DTRAIN_DEVICE_NAME")
    assert DeviceSampler(0).device_name()


@pytest.mark.gpu
@pytest.mark.skipif(not gpus.visible_gpus(), reason="no GPU here")
def test_a_real_gpu():
    use = DeviceSampler(0, "cuda:0").sample()
    assert 0 <= use.utilization <= 100
    assert 0 < use.memory_used < use.memory_total
