# Functions of files that the notebook holds itself: in a dict, as a default, in a class, by a name of its own.
# %% setup
import builtins
import io
import os

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(22, 3), torch.randn(22, 1)), batch_size=5, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
IO = {"open": builtins.open, "save": torch.save, "load": torch.load, "remove": os.remove}
adds = io.open


class Log:
    opened = io.open

    def __init__(self, path):
        self.path = path

    def add(self, value):
        with self.opened(self.path, "a") as file:
            file.write(f"{value:.5f} ")


def note(text, opened=builtins.open):
    with opened("held.txt", "a") as file:
        file.write(text)


log = Log("class.txt")
# %% cell
for epoch in range(2):
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.add(loss.item())
    note(f"{epoch} {loss.item():.5f}\n")
    with IO["open"]("dict.txt", "a") as file:
        file.write(f"{epoch} ")
    with adds("name.txt", "a") as file:
        file.write(f"{loss.item():.5f} ")
    IO["save"](model.state_dict(), "held.pt")
texts = [open(name).read() for name in ("class.txt", "held.txt", "dict.txt", "name.txt")]
again = IO["load"]("held.pt")
for name in ("class.txt", "held.txt", "dict.txt", "name.txt", "held.pt"):
    IO["remove"](name)
# %% compare
(
    model.state_dict(), texts, again, any(map(os.path.exists, ["class.txt", "held.pt"])),
    IO == {"open": builtins.open, "save": torch.save, "load": torch.load, "remove": os.remove}, Log.opened is io.open, note.__defaults__ == (open.__wrapped__,),
)
