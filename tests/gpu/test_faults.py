"""What goes wrong on a card: an engine is killed, memory runs out, a kernel fails. The notebook goes on, and the card is free."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.gpu.card import used_memory, wait_until

pytestmark = pytest.mark.gpu(on_cpu=True)

SETUP = """
import pathlib, time
torch.manual_seed(0)
torch.use_deterministic_algorithms(True, warn_only=True)
places = pathlib.Path(f"{pathlib.Path.cwd()}-steps")  # beside the notebook's folder, which is cut back to a snapshot
places.write_bytes(b"")

def make():
    global model, optimizer, loader, seen
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(torch.randn(160, 12), torch.randint(0, 2, (160,))), batch_size=16, shuffle=True)
    seen = []
make()
"""
CELL = """
for epoch in range(12):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        x = x + 0.01 * torch.randn_like(x)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        with places.open("ab") as file:
            file.write(b".")
        time.sleep(0.02)
    print(f"epoch {epoch}: {sum(seen[-10:]):.9f}")
"""
STATE = (
    "([p.detach().cpu().numpy().tobytes() for p in model.state_dict().values()],"
    " [[v.cpu().numpy().tobytes() for v in s.values()] for s in optimizer.state_dict()['state'].values()], seen,"
    " torch.rand(2).tolist(), torch.rand(2, device=device).tolist())"
)
USABLE = "\nfound = float((torch.ones(3, device=device) * 2).sum())"


def assert_usable(card, engines: int = 2) -> None:
    card.notebook.run(card.line(engines) + USABLE)
    assert card.notebook.value("found") == 6.0


@pytest.mark.parametrize("rank", [0, 1])
def test_an_engine_that_is_killed_is_replaced_and_the_bits_are_the_same(card, rank):
    card.notebook.run(SETUP)
    quiet = card.notebook.run(card.line(2) + CELL).stdout
    expected = card.notebook.value(STATE)
    card.notebook.run("make(); places.write_bytes(b'')")
    cell = card.start(CELL)
    file = card.notebook.folder.parent / f"{card.notebook.folder.name}-steps"
    card.notebook.wait(lambda: file.stat().st_size > 60 or not cell.running, "60 steps", cell)
    assert cell.running, cell
    os.kill(card.pids[rank], signal.SIGKILL)
    card.notebook.finish(cell)
    assert cell.ok, cell
    assert card.notebook.value(STATE) == expected
    assert [line for line in cell.stdout.splitlines() if line.startswith("epoch")] == quiet.splitlines()


def test_an_interrupt_leaves_the_last_step_and_the_card_usable(card):
    card.notebook.run(SETUP)
    cell = card.start(CELL.replace("range(12)", "range(100_000)"))
    card.notebook.wait_for_stdout(cell, "epoch 1")
    card.notebook.interrupt()
    card.notebook.finish(cell)
    assert len(card.notebook.value("seen")) >= 20
    assert card.notebook.value("next(model.parameters()).device.type") == card.device
    assert_usable(card)


@pytest.mark.gpu
def test_memory_that_runs_out_on_one_rank_says_so_and_is_free_again(card):
    card.notebook.run(SETUP)
    cell = card.notebook.fail(
        card.line(2)
        + """
import torch.distributed as dist
for x, y in loader:
    x = x.to(device)
    loss = model(x).sum()
    if dist.group.WORLD is not None and dist.get_rank() == 1:
        large = torch.empty(1 << 50, dtype=torch.uint8, device=device)  # more than any card has
    loss.backward()
"""
    )
    assert "OutOfMemoryError" in cell.error[0]
    assert "large = torch.empty" in cell.traceback
    assert "rank 1" in cell.traceback.lower()
    assert_usable(card)


@pytest.mark.gpu
def test_an_assertion_on_the_device_names_the_line_and_engines_are_new_afterwards(new_card):
    card = new_card(2)
    card.notebook.run(SETUP)
    before = card.notebook.engines()
    cell = card.notebook.fail(
        card.line(2)
        + """
table = nn.Embedding(4, 3).to(device)
for x, y in loader:
    rows = table(y.to(device) + 100)  # out of range
    print(rows.sum().item())
"""
    )
    assert "device-side assert" in cell.traceback
    assert "rows" in cell.traceback, "a line of the cell"
    assert "CUDA_LAUNCH_BLOCKING" in cell.traceback
    assert_usable(card)
    assert set(before).isdisjoint(card.notebook.engines()), "a context of CUDA's that has failed never works again"


@pytest.mark.gpu
@pytest.mark.parametrize("end", ["cell", "killed engine", "interrupt", "stop", "killed kernel"])
def test_memory_of_the_card_comes_back(new_card, end):
    before = used_memory()
    card = new_card(1)
    card.notebook.run(card.line(1) + USABLE)  # a context of CUDA's stays as long as the engine
    idle = used_memory()
    large = "large = torch.ones(1 << 27, device=device, dtype=torch.float64)\n"  # 1 GiB
    if end == "cell":
        card.notebook.run(card.line(1) + large + "total = float(large.sum())\ndel large")
        wait_until(lambda: used_memory() < idle + (100 << 20), "the memory of a cell")
        return
    cell = card.start(large + "import time\nfor _ in range(10_000):\n    print(float(large.sum()))\n    time.sleep(0.05)\ndel large", 1)
    card.notebook.wait_for_stdout(cell, "134217728.0")
    assert used_memory() > idle + (900 << 20)
    if end == "killed kernel":
        card.notebook.process.kill()
        wait_until(lambda: used_memory() < before + (100 << 20), "all memory")
        return
    if end == "killed engine":
        (pid,) = card.pids
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "the engine's end")
    card.notebook.interrupt()
    card.notebook.finish(cell)
    if end == "stop":
        card.notebook.run("%distribute stop")
        card.notebook.run("globals().pop('large', None)\ntorch.cuda.empty_cache()")
        wait_until(lambda: used_memory() < idle + (600 << 20), "all but the notebook's context")
        return
    card.notebook.run("globals().pop('large', None)\ntorch.cuda.empty_cache()")  # the notebook has it by now
    wait_until(lambda: used_memory() < idle + (900 << 20), "the memory of the cell")
    assert_usable(card, 1)
