# Tables that the cell fills and sorts in place, whose columns, arrays and rows share memory with copy-on-write or without.
# %% setup
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

table = pd.DataFrame({"x": np.linspace(-1, 1, 24), "z": np.linspace(0, 2, 24) ** 2, "split": [i % 4 == 0 for i in range(24)]})
table["y"] = table.x * 2 - table.z
features, target, held = table[["x", "z"]], table["y"], table["y"].to_numpy()
class Rows(Dataset):
    def __init__(self, frame): self.frame, self.values = frame, frame[["x", "z"]].to_numpy()
    def __len__(self): return len(self.frame)
    def __getitem__(self, i): return torch.tensor(self.values[i].tolist()), torch.tensor([self.frame["y"].iloc[i].item()])
train = Rows(table[~table.split].reset_index(drop=True))
curve = pd.DataFrame({"loss": np.zeros(3), "size": np.zeros(3)})
losses, raw = curve["loss"], curve["size"].to_numpy()
best = pd.Series([np.inf, np.inf]); of_best = best.values
model = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))
opt = torch.optim.SGD(model.parameters(), 0.1)
seen = []
# %% cell
for epoch in range(3):
    total = 0.0
    for x, y in DataLoader(train, 6, shuffle=True):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        total += loss.item()
        best.iloc[epoch % 2] = min(best.iloc[epoch % 2], loss.item())
        seen.append((of_best.tolist(), losses.tolist(), raw.tolist()))
    curve.loc[epoch, "loss"] = total
    curve.loc[epoch, "size"] = float(len(x))
    train.frame.loc[epoch, "y"] += 0.25
    table.loc[epoch, "y"] = -1.0
    if epoch == 1:
        last = curve.iloc[1:]
        last.iloc[0, 1] = 7.0
        shared = curve["loss"]
features.loc[0, "x"] = 5.0
# %% compare
model.state_dict(), seen, curve, losses, raw, best, of_best, last, shared, table, features, target, held, train.frame, train.values
