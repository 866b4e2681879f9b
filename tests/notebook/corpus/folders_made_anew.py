# Folders of an earlier run that are removed and made anew, one that is there for a moment only, and one that is there already.
# %% setup
import os, shutil
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

for folder in ("made_anew", "for_a_moment"):
    shutil.rmtree(folder, ignore_errors=True)
Path("made_anew/old").mkdir(parents=True)
x = torch.randn(10, 3)
loader = DataLoader(TensorDataset(x, x.sum(1)), batch_size=4)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# %% cell
shutil.rmtree("made_anew", ignore_errors=True)
(Path("made_anew") / "weights").mkdir(parents=True)
os.mkdir("for_a_moment")
was_there = os.path.isdir("for_a_moment")
os.rmdir("for_a_moment")
try:
    os.mkdir("made_anew")
except FileExistsError:
    print("there already")
for epoch in range(2):
    for inputs, targets in loader:
        loss = (model(inputs)[:, 0] - targets).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), Path("made_anew") / "weights" / f"{epoch}.pt")
    print(epoch, f"{loss.item():.10f}", os.path.exists(f"made_anew/weights/{epoch}.pt"))
# %% compare
model.state_dict(), was_there, os.path.exists("for_a_moment"), sorted(os.listdir("made_anew")), sorted(os.listdir("made_anew/weights"))
