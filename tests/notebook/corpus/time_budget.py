# Loops that end after some time, by clocks under names of the notebook's own, and a rate that goes by the time that is left.
# %% setup
import time
import uuid
from time import monotonic as now
from timeit import default_timer

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Budget:
    def __init__(self, seconds, clock=time.time):
        self.clock, self.end, self.asked = clock, clock() + seconds, 0
    def left(self):
        self.asked += 1
        return self.end - self.clock()

torch.manual_seed(0)
points = torch.randn(41, 5)
loader = DataLoader(TensorDataset(points, points.sum(1, keepdim=True).tanh()), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
# %% cell
budget, history, took = Budget(3600.0), [], 0.0
name, begun, last = uuid.uuid4().hex, now(), default_timer()
for epoch in range(1000):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if (left := budget.left()) < 0:
            break
        optimizer.param_groups[0]["lr"] = 0.05 * round(left / 3600, 1)
        optimizer.step()
        if now() - begun < 1800:
            history.append(loss.item())
        took, last = took + default_timer() - last, default_timer()
    if epoch == 2 or time.strftime("%Y") == "1970":
        break
# %% compare
model.state_dict(), history, budget.asked, len(name), took > 0, type(begun), now is time.monotonic, Budget(1).clock is time.time
