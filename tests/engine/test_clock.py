"""What a cell asks of the system, the time above all: all ranks get what rank 0 gets, where all of them ask."""

from __future__ import annotations

import pytest

from tests.engine.ranks import RankError, Ranks, run_notebook

SETUP = """
import os, secrets, threading, time, timeit, torch, uuid
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(1)
X = torch.randn(40, 4); Y = X.sin().sum(1, keepdim=True)
loader = DataLoader(TensorDataset(X, Y), batch_size=8)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
def step(x, y):
    opt.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); opt.step(); seen.append(loss.item())
"""
STATE = "seen, {k: v.tolist() for k, v in model.state_dict().items()}"
ALIKE = {
    "stops when its time is over": """
for _ in range(5):
    start = time.time()
    while time.time() - start < 0.02:
        for x, y in loader:
            step(x, y)
            if time.time() - start > 0.01: break
""",
    "a deadline": """
deadline = time.monotonic() + 0.1
while (left := deadline - time.monotonic()) > 0:
    for x, y in loader: step(x, y)
    seen.append(int(left * 1e4))
""",
    "a learning rate by the time": """
start = time.perf_counter()
for e in range(3):
    for x, y in loader:
        opt.param_groups[0]["lr"] = 0.1 / (1 + 50 * (time.perf_counter() - start))
        step(x, y)
""",
    "a factor of the loss": """
for x, y in loader:
    opt.zero_grad(); (F.mse_loss(model(x), y) * (time.perf_counter_ns() % 1000 / 1000)).backward(); opt.step()
""",
    "seeds": "torch.manual_seed(time.time_ns()); seen.append(torch.rand(2).tolist())\nfor x, y in loader: step(x + torch.randn_like(x), y)",
    "names and tokens": """
seen += [uuid.uuid4().hex, str(uuid.uuid1()), secrets.token_hex(4), secrets.choice(range(1 << 40)), secrets.randbelow(1 << 40)]
seen += [os.urandom(9), sum(os.urandom(200_000)), os.urandom(0)]
seen += [time.strftime("%H:%M:%S"), time.ctime(), tuple(time.localtime()), time.asctime()]
seen += [time.strftime("%Y", time.gmtime(0)), time.ctime(0)]
""",
    "read far more often than ranks meet": """
for x, y in loader:
    step(x, y)
    end = time.time() + 0.05
    n = 0
    while time.time() < end: n += 1
    seen.append(n)
""",
    "a watch of the user's": """
class Watch:
    def __init__(self, read=timeit.default_timer): self.read, self.at = read, read()
    def lap(self): self.at, before = self.read(), self.at; return self.at - before
watch = Watch()
for x, y in loader: step(x, y); seen.append(watch.lap())
""",
}
EACH_ITS_OWN = {
    "a data set": """
class Timed(Dataset):
    def __len__(self): return 40
    def __getitem__(self, i):
        if time.time() % 0.01 < 0.005: time.perf_counter()
        return X[i], Y[i]
for x, y in DataLoader(Timed(), batch_size=8): step(x, y)
""",
    "a model": """
class Timed(nn.Module):
    def __init__(self): super().__init__(); self.inner, self.took = model, []
    def forward(self, x):
        for _ in range(len(x)): time.perf_counter()
        return self.inner(x)
timed = Timed()
for x, y in loader: opt.zero_grad(); F.mse_loss(timed(x), y).backward(); opt.step()
""",
    "a hook": """
for p in model.parameters(): p.register_hook(lambda g: g if time.time() > 0 else None)
for x, y in loader: step(x, y)
""",
    "a thread": """
over = threading.Event()
def tick():
    while not over.wait(0.001): time.time()
thread = threading.Thread(target=tick); thread.start()
for x, y in loader: step(x, y)
over.set(); thread.join()
""",
    "a branch of rank 0": """
import jupyter_dtrain
for x, y in loader:
    step(x, y)
    if jupyter_dtrain.is_main(): time.time(), uuid.uuid4()
""",
}
"""Where ranks ask at other times, or more often than others: nobody waits, and what comes of it is right."""


@pytest.fixture(scope="module")
def ranks():
    with Ranks(3) as ranks:
        yield ranks


@pytest.mark.parametrize("cell", ALIKE.values(), ids=ALIKE)
def test_all_ranks_read_the_same(ranks, cell):
    for world_size in (2, 3):
        first, *others = [of["compared"] for of in ranks.call(world_size, run_notebook, SETUP, cell, STATE)]
        assert all(other == first for other in others)


@pytest.mark.parametrize("cell", EACH_ITS_OWN.values(), ids=EACH_ITS_OWN)
def test_a_rank_reads_for_itself_where_the_others_do_not(ranks, cell):
    first, *others = [of["compared"] for of in ranks.call(3, run_notebook, SETUP, cell, STATE)]
    assert all(other == first for other in others)


CAUGHT = """
class Strict(nn.Module):
    def __init__(self): super().__init__(); self.l = nn.Linear(4, 1)
    def forward(self, x):
        if x.isnan().any(): raise ValueError(f"{int(x.isnan().any(1).sum())} of {len(x)} are no numbers")
        return self.l(x)
model = Strict(); opt = torch.optim.SGD(model.parameters(), lr=0.1); X[%d] = float("nan")
for x, y in loader:
    start = time.time()
    try:
        time.perf_counter()
        out = model(x)
        begun = time.perf_counter()
        opt.zero_grad(); F.mse_loss(out, y).backward(); opt.step()
        seen.append(time.perf_counter() - begun)
    except ValueError as error:
        seen.append((str(error), time.time() - start))
"""


@pytest.mark.parametrize("sample", [8, 15])  # of rank 0's part of the second batch, of the last rank's
def test_what_one_rank_raises_is_heard_where_the_clock_is_read(ranks, sample):
    for world_size in (2, 3):
        first, *others = [of["compared"] for of in ranks.call(world_size, run_notebook, SETUP, CAUGHT % sample, STATE)]
        assert "1 of 8 are no numbers" in first[0][1][0]
        assert all(other == first for other in others)


def test_ranks_at_different_lines_are_told_so(ranks):
    cell = """
from jupyter_dtrain.api import rank
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    if rank() == 1: loss.item()
    time.time()
"""
    with pytest.raises(RankError, match=r"different lines of the cell"):
        ranks.call(2, run_notebook, SETUP, cell, STATE)
