"""Errors of a rank's part that the cell catches: raised on all ranks, with the message and the state of one process."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import pytest

from tests.conftest import in_turn
from tests.engine.ranks import RankError, run_notebook, run_plain
from tests.notebook.corpus_cells import apart

SETUP = """
import contextlib, torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset
torch.manual_seed(1)
X = torch.randn(40, 4); Y = X.sin().sum(1, keepdim=True)
seen, errors = [], []
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

class Broken(Exception):
    def __init__(self, index, why):
        super().__init__(f"sample {index}: {why}")
        self.index, self.why = index, why

class Strict(nn.Module):
    def __init__(self):
        super().__init__()
        self.l, self.bn, self.calls = nn.Linear(4, 1), nn.BatchNorm1d(4), 0
    def forward(self, x):
        self.calls += 1
        if torch.isnan(x).any(): raise ValueError(f"{int(torch.isnan(x).any(1).sum())} of {len(x)} are no numbers")
        h = self.bn(x)
        if (h < -3.2).any(): raise ArithmeticError("too small")
        return self.l(F.dropout(h, 0.2, self.training))

class Unreadable(Dataset):
    def __init__(self, *broken, noise=0.0): self.broken, self.noise = broken, noise
    def __len__(self): return 40
    def __getitem__(self, i):
        if i in self.broken: raise Broken(i, "unreadable")
        return X[i] + self.noise * torch.randn(4), Y[i]

class Rows(IterableDataset):
    def __iter__(self):
        for i in range(torch.utils.data.get_worker_info().id, 24, 2):
            if i == 15: raise Broken(i, "row")
            yield X[i], Y[i]

class Checked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 1.0
    @staticmethod
    def backward(ctx, g):
        if (ctx.saved_tensors[0] > 4.5).any(): raise FloatingPointError("too large a gradient")
        return g

class Backward(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)
        with torch.no_grad(): self.a.weight.copy_(torch.eye(4)); self.a.bias.zero_()
    def forward(self, x): return self.b(Checked.apply(self.a(x)))

def caught(step):
    def run(*args):
        try: step(*args)
        except ValueError as error: errors.append(str(error))
    return run

class Skipping:
    def __enter__(self): return self
    def __exit__(self, kind, error, trace):
        if error is not None: errors.append(str(error))
        return True

def batches(loader, kinds):
    it = iter(loader)
    while True:
        try: yield next(it)
        except StopIteration: return
        except kinds as error: errors.append((type(error).__name__, str(error).splitlines()[-1], error.__dict__.get("index")))

def collate(samples):
    xs, ys = zip(*samples)
    if ys[0] > 2: raise OSError(5, "cannot read", "a.png")
    return torch.stack(xs), torch.stack(ys)

loader = DataLoader(TensorDataset(X, Y), batch_size=8)
"""
OPT = "opt = torch.optim.SGD(model.parameters(), lr=0.1)\n"
STEP = "opt.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); opt.step(); seen.append(loss.item())"
EACH = f"""
for x, y in loader:
    try:
        {STEP}
    except Exception as error:
        errors.append((type(error).__name__, str(error)))
"""
OF_LOADER = f"for x, y in batches(loader, (Broken, OSError)):\n    {STEP}\n"
STATE = "seen, errors, {k: v.tolist() for k, v in model.state_dict().items()}"
CASES = {
    "model": ("model = Strict(); X[10] = X[11] = X[14] = X[30] = float('nan')", EACH, "model.calls"),
    "model, first batch": ("model = Strict(); X[6] = X[25] = float('nan')", EACH, "model.calls"),
    "model, behind an exchange": ("model = Strict(); X[10] = -100.0", EACH, "model.calls"),
    "model, in a function": (
        f"model = Strict(); X[10] = float('nan')\n@caught\ndef step(x, y):\n    {STEP}\n",
        "for x, y in loader: step(x, y)\n",
        "",
    ),
    "model, in a context": ("model = Strict(); X[10] = float('nan')", f"for x, y in loader:\n    with Skipping():\n        {STEP}\n", ""),
    "model, suppressed": (
        "model = Strict(); X[10] = float('nan')",
        f"for x, y in loader:\n    with contextlib.suppress(ValueError, KeyError):\n        {STEP}\n",
        "",
    ),
    "model, in evaluation": (
        "model = Strict(); X[10] = float('nan')",
        EACH
        + "model.eval()\nwith torch.no_grad():\n"
        + "\n".join(f"    {line}" for line in EACH.replace(STEP, "seen.append(model(x).sum().item())").splitlines()),
        "",
    ),
    "model, around the loop": (
        "model = Strict(); X[30] = float('nan')",
        f"try:\n    for x, y in loader:\n        {STEP}\nexcept ValueError as error:\n    errors.append(str(error))\nseen.append(len(x))\n",
        "model.calls",
    ),
    "model, from another": (
        "model = Strict(); X[10] = float('nan')",
        """
for n, (x, y) in enumerate(loader):
    try:
        try: out = model(x)
        except ValueError as error: raise RuntimeError(f"step {n}") from error
        opt.zero_grad(); loss = F.mse_loss(out, y); loss.backward(); opt.step(); seen.append(loss.item())
    except RuntimeError as error:
        errors.append((str(error), str(error.__cause__)))
""",
        "",
    ),
    "model, that catches it itself": (
        """
class Falls(nn.Linear):
    def forward(self, x):
        try:
            if torch.isnan(x).any(): raise ValueError("no number")
            return super().forward(x)
        except ValueError as error:
            errors.append(str(error))
            return super().forward(torch.zeros_like(x))
model = Falls(4, 1); X[10] = X[30] = float('nan')
""",
        EACH,
        "",
    ),
    "data set": ("loader = DataLoader(Unreadable(9, 13, 21, 39), batch_size=8)", OF_LOADER * 2, ""),
    "data set, first batch": ("loader = DataLoader(Unreadable(5, 6, noise=0.1), batch_size=8)", OF_LOADER, ""),
    "data set, shuffled": ("loader = DataLoader(Unreadable(9, 13, 21), batch_size=8, shuffle=True)", OF_LOADER * 2, ""),
    "data set and collate": ("loader = DataLoader(Unreadable(9, 21), batch_size=8, collate_fn=collate)", OF_LOADER, ""),
    "rows of workers": ("loader = DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context='fork')", OF_LOADER, ""),
    "class that there is not": (
        "Y = torch.randint(0, 3, (40,)); Y[13], Y[30] = 7, -3; model = nn.Linear(4, 3); loader = DataLoader(TensorDataset(X, Y), batch_size=8)",
        EACH.replace("mse_loss", "cross_entropy"),
        "",
    ),
    "row that there is not": (
        "I = torch.randint(0, 9, (40,)); I[14] = 12; model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 1)); loader = DataLoader(TensorDataset(I, Y), batch_size=8)",
        EACH,
        "",
    ),
    "matrix without a root": (
        "M = torch.randn(40, 4, 4); M = M @ M.mT + torch.eye(4); M[12] *= -1; loader = DataLoader(TensorDataset(M, Y), batch_size=8)",
        EACH.replace("model(x)", "model(torch.linalg.cholesky(x).sum(2))"),
        "",
    ),
    "backward pass": (
        "X[13] = 5.0; model = Backward(); grads = []",
        """
opt.zero_grad(set_to_none=False)
for n, (x, y) in enumerate(loader):
    if n == 3: opt.zero_grad()
    loss = F.mse_loss(model(x), y)
    try: loss.backward()
    except FloatingPointError as error: errors.append(str(error))
    grads.append([None if p.grad is None else p.grad.sum().item() for p in model.parameters()])
    seen.append(loss.item())
    if n != 1: opt.step()
""",
        "grads",
    ),
    "anomaly": (
        "Z = torch.ones(40, 1); Z[13] = 0.0; loader = DataLoader(TensorDataset(X, Z), batch_size=8); model = nn.Linear(4, 1); X[13] = 0.0",
        """
with torch.autograd.set_detect_anomaly(True):
    for x, z in loader:
        opt.zero_grad()
        loss = ((model(x) - model.bias.detach()).abs() * z).sqrt().mul(z).mean()
        try: loss.backward()
        except RuntimeError as error: errors.append(str(error).split("'")[1]); continue
        opt.step(); seen.append(loss.item())
""",
        "",
    ),
    "memory, and then by halves": (
        "X[13] = 100.0; full = 'CUDA out of memory'\nclass Full(nn.Linear):\n    def forward(self, x):\n        if (x > 50).any(): raise torch.OutOfMemoryError(full)\n        return super().forward(x)\nmodel = Full(4, 1)",
        f"""
for x, y in loader:
    try:
        {STEP}
    except torch.OutOfMemoryError as error:
        errors.append(str(error))
        for x, y in zip(x.clamp(max=5).chunk(2), y.chunk(2)):
            {STEP}
""",
        "",
    ),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize(("name", "world_size"), in_turn(CASES, [2, 3]))
def test_an_error_that_the_cell_catches_is_that_of_one_process(ranks, name, world_size):
    setup, cell, more = CASES[name]
    setup, compare = f"{SETUP}{setup}\n{OPT}", f"({STATE}, {more or None})"
    (plain,) = ranks.call(1, run_plain, setup, cell, compare)
    assert plain["compared"][0][1] or name == "model, suppressed"
    for found in ranks.call(world_size, run_notebook, setup, cell, compare, {"global_draws": True, "global_batchnorm": True}):
        assert apart(found["compared"], plain["compared"], 1e-9) is None
        assert found["random"][1:] == plain["random"][1:]


def test_ranks_that_come_apart_say_what_was_raised(ranks):
    """Where nothing says that the error may be caught: a future keeps it."""
    cell = f"""
from concurrent.futures import ThreadPoolExecutor
def step(x, y):
    {STEP}
with ThreadPoolExecutor(1) as pool:
    for x, y in loader:
        pool.submit(step, x, y).exception()
"""
    model = """
class Looked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 1)
    def forward(self, x): return self.table(x[:, 0].abs().long())
model = Looked(); X[14] = 100
"""
    with pytest.raises(RankError) as failed:
        ranks.call(2, run_notebook, f"{SETUP}{model}{OPT}", cell, "seen")
    assert "The ranks are at different lines of the cell" in str(failed.value)
    line = f"{SETUP}{model}".splitlines().index("    def forward(self, x): return self.table(x[:, 0].abs().long())") + 1
    assert f"Rank 1 had raised IndexError at line {line} (index out of range in self), which the cell caught." in str(failed.value)
