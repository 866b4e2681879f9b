# Files that an earlier cell has opened: lines, rows, bytes, log records; a stream kept in a name; one that the cell closes.
# %% setup
import csv
import logging
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

log = open("lines.txt", "w")
log.write("before\n")
table = open("table.csv", "w", newline="")
rows = csv.DictWriter(table, ["epoch", "loss"], delimiter=";")
rows.writeheader()
raw = open("numbers.bin", "wb")
out = sys.stdout
told = logging.getLogger("told")
told.handlers = [logging.FileHandler("told.log", mode="w")]
told.setLevel(logging.INFO)
x = torch.randn(30, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)

def note(*values):
    print(*values, file=log, flush=True)
# %% cell
losses = []
for epoch in range(3):
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    note("epoch", epoch, "batches", len(losses))
    rows.writerow({"epoch": epoch, "loss": f"{loss.item():.8f}"})
    raw.write(bytes([epoch]))
    print("shown", epoch, file=out)
    told.info("%d: %.8f for %d", epoch, loss, (yb > 0).sum())
log.writelines(["one\n", "two\n"])
log.close()
# %% compare
model.state_dict(), losses, log.closed, open("lines.txt").read(), table.write("after"), table.close(), open("table.csv").read().split(), open("told.log").read(), (raw.close(), open("numbers.bin", "rb").read())
