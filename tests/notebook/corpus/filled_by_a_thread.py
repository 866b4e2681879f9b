# Threads of the cell that change a container for a while: it never stands still, and what it holds at the end comes home.
# %% setup
import threading
import time
from collections import deque
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Latest:
    def __init__(self):
        self.values = deque(range(5000), maxlen=5000)
        self.stopped = False
    def begin(self):
        threading.Thread(target=self._turn, daemon=True).start()
    def _turn(self):
        end = time.monotonic() + 2
        while not self.stopped and time.monotonic() < end:
            self.values.rotate(1)

latest = Latest()
x = torch.randn(40, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
# %% cell
latest.begin()
new = Latest()
new.begin()
for xb, yb in loader:
    loss = nn.functional.mse_loss(model(xb), yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss.item():.6f}")
# %% compare
setattr(latest, "stopped", True), setattr(new, "stopped", True), model.state_dict(), sum(latest.values), sum(new.values), new.values.maxlen
