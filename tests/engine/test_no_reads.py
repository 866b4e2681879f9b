"""A step of training reads no value for this project's own purposes: on a GPU each would hold up its queue.

There is none here, so ranks compute on CPUs as on GPUs: without memory that they share, and with what is checked on a GPU checked as there.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from jupyter_dtrain.engine.comm import process_group
from jupyter_dtrain.engine.tensor import pending_checks
from tests.engine.ranks import Run, run_notebook

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
x, y = torch.randn(40 * 8, 6), torch.randint(0, 3, (40 * 8,))
loader = DataLoader(TensorDataset(x, y), batch_size=8)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
tagger = nn.Linear(6, 12)
optimizer = torch.optim.SGD([*model.parameters(), *tagger.parameters()], lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
losses, total = [], 0.0
"""
STEP = {
    "classes": "loss = F.cross_entropy(model(x), y)",
    "smoothed classes": "loss = nn.CrossEntropyLoss(label_smoothing=0.1)(model(x), y)",
    "sequences": "loss = F.cross_entropy(tagger(x).view(-1, 3), y.repeat_interleave(4))",
    "numbers": "loss = F.mse_loss(model(x), x[:, :3])",
    "written out": "loss = (model(x) - x[:, :3]).pow(2).mean() + 1e-3 * sum(p.pow(2).sum() for p in model.parameters())",
    "kept on the device": "loss = F.cross_entropy(model(x), y); total = total + loss.detach() * len(x)",
    "clipped": "loss = F.cross_entropy(model(x), y)",
    "accumulated": "loss = F.cross_entropy(model(x), y) / 2",
}
CELL = """
profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True)
for step, (x, y) in enumerate(loader):
    if step == 20:
        profile.start()
    {step}
    loss.backward()
    {between}
    optimizer.step()
    optimizer.zero_grad()
    scheduler.step()
    losses.append(loss.detach())
    if step == 24:
        profile.stop()
        break
reads = [event for event in profile.events() if event.name in ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal")]
launched = sum(event.name == "aten::addmm" for event in profile.events())
found = [(event.name, [str(line) for line in event.stack[:8]]) for event in reads]
"""


def as_on_a_gpu(run: Run, setup: str, cell: str, compare: str) -> Any:
    """Run a cell as on a GPU of each rank's own."""
    copy = mock.patch.object(pending_checks, "copied_to_host", lambda value: (value.clone().numpy(), lambda: None))
    queued = mock.patch.object(pending_checks, "holds_up_a_queue", return_value=True)
    with copy, queued, mock.patch.object(process_group, "_near", None):
        try:
            return run_notebook(run, setup, cell, compare)
        finally:
            pending_checks.forget()


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in ("sequences", "clipped") else pytest.mark.long) for name in STEP])
def test_a_step_reads_nothing(ranks, name):
    between = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)" if name == "clipped" else "pass"
    for found in ranks.call(2, as_on_a_gpu, SETUP, CELL.format(step=STEP[name], between=between), "(found, launched)"):
        reads, launched = found["compared"]
        assert launched >= 5, "the profiler has seen the steps"
        assert reads == []


IGNORED = """
y[12 * 8 + 1] = y[12 * 8 + 5] = -100  # in the thirteenth batch, of the samples of both ranks: none waits for the other
reached, error = [], None
for step, (x, y) in enumerate(DataLoader(TensorDataset(x, y), batch_size=8)):
    try:
        loss = F.cross_entropy(model(x), y)
        reached.append("loss")
        {read}
        loss.backward()
    except BaseException as raised:
        error = type(raised).__name__
        break
    optimizer.step()
    optimizer.zero_grad()
    reached = []
"""


@pytest.mark.parametrize(("read", "reached"), [("pass", ["loss"]), ("loss.item(); reached.append('number')", ["loss"])])
def test_neither_a_gradient_nor_a_number_is_seen_before_its_check(ranks, read, reached):
    for found in ranks.call(2, as_on_a_gpu, SETUP, IGNORED.format(read=read), "(error, step, reached)"):
        assert found["compared"] == ("CountTargets", 12, reached)


def test_a_check_is_told_once():
    raised = []

    def error() -> BaseException:
        raised.append(True)
        return KeyError("checked")

    with (
        mock.patch.object(pending_checks, "copied_to_host", lambda value: (value.clone().numpy(), lambda: None)),
        mock.patch.object(pending_checks, "holds_up_a_queue", return_value=True),
    ):
        pending_checks.check(torch.tensor(True), error)
        pending_checks.settle()
        assert not raised
        pending_checks.check(torch.tensor(False), error)
        pending_checks.check(torch.tensor(False), error)
        assert not raised, "nobody has waited for it"
        with pytest.raises(KeyError, match="checked"):
            pending_checks.settle()
        pending_checks.settle()
        assert len(raised) == 1, "the first is told, and then there is none"
    with pytest.raises(KeyError, match="checked"):
        pending_checks.check(torch.tensor(False), error)  # on a CPU at once
