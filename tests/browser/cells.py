"""Cells that several tests run: a model, and a run on two engines that is long enough for a person to do something."""

SETUP = """
%load_ext jupyter_dtrain
import time, torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
"""
TRAIN = """%%distribute --engines 2 --replicate --name {name}
for step in range({steps}):
    time.sleep(0.02)
    loss = model(torch.ones(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
