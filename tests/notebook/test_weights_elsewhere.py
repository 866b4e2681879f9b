"""Weights that a cell puts into memory that other tensors of the notebook have: they share it in the notebook afterwards."""

from __future__ import annotations

import os
import signal

import pytest

SETUP = """
import time
torch.manual_seed(0)
enc, dec = nn.Linear(6, 6), nn.Linear(6, 6)
net = nn.Sequential(enc, nn.Tanh(), dec, nn.Tanh(), nn.Linear(6, 1))
old = dec.state_dict()
before = old["weight"].clone()
flat, more, pace = torch.zeros(7), torch.nn.Linear(6, 1), 0
loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randn(48, 1)), batch_size=6)
"""
CELL = """
dec.weight.data = enc.weight.data
flat[:6], flat[6:] = net[4].weight.data[0], net[4].bias.data
net[4].weight.data, net[4].bias.data = flat[:6].view(1, 6), flat[6:]
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        loss = F.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step")
        time.sleep(pace)
"""
STATE = "[p.tolist() for p in (*net.parameters(), flat)]"
SHARED = (
    "[enc.weight.data_ptr() == dec.weight.data_ptr(), torch.equal(old['weight'], before), old['bias'].data_ptr() == dec.bias.data_ptr(),"
    " flat.data_ptr() == net[4].weight.data_ptr(), torch.equal(net[4].bias, flat[6:]), flat.any().item()]"
)


def apart(notebook, numbers):
    return notebook.value(f"max((torch.tensor(a) - torch.tensor(b)).abs().max().item() for a, b in zip({STATE}, {numbers}))")


@pytest.mark.parametrize("options", ["--engines 1", "--engines 2", "--engines 3", "--engines 2 --strategy zero1"])
def test_they_share_it(notebook, options):
    notebook.run(SETUP)
    notebook.run(CELL)
    plain = notebook.value(STATE)
    assert notebook.value(SHARED) == [True] * 6
    notebook.run(SETUP)
    notebook.run(f"%%distribute {options}\n{CELL}")
    assert notebook.value(SHARED) == [True] * 6
    assert apart(notebook, plain) < 1e-12
    notebook.run(f"%%distribute {options}\nwith torch.no_grad(): enc.weight.zero_(); flat.fill_(3)")
    assert notebook.value("dec.weight.any().item(), net[4].bias.item(), *" + SHARED) == (False, 3, *[True] * 6)


def test_they_do_where_the_cell_goes_on_elsewhere(notebook):
    notebook.run(SETUP)
    notebook.run(CELL)
    plain = notebook.value(STATE)
    notebook.run(SETUP + "pace = 0.2")
    notebook.run("%%distribute --engines 2\n1")
    first, *_ = notebook.engines()
    running = notebook.start(f"%%distribute --engines 2\n{CELL}")
    notebook.wait(lambda: running.stdout.count("step") > 9 or not running.running, "steps", running)
    os.kill(first, signal.SIGKILL)
    notebook.finish(running)
    assert running.ok, running
    assert "Lost rank 0 (its process has ended): resuming from " in running.stderr
    assert notebook.value(SHARED) == [True] * 6
    assert apart(notebook, plain) < 1e-12
