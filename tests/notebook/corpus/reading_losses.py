# Ways to read a loss and keep it: lists of tensors, NumPy, math, formatting, comparisons, dicts that end as histories.
# %% setup
import json
import math
import statistics
from collections import defaultdict, deque
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Arrays(Dataset):
    def __init__(self, n):
        self.x, self.y = np.random.randn(n, 4), np.random.randint(0, 3, n)
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i]

loader = DataLoader(Arrays(21), batch_size=6, shuffle=True)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
criterion = nn.CrossEntropyLoss()
history = defaultdict(list)
# %% cell
best, best_loss, recent, worst = float("inf"), None, deque(maxlen=3), []
for epoch in range(2):
    losses, tensors, graphs = [], [], []
    hits = torch.zeros(1)
    for xb, yb in loader:
        logits = model(xb)
        loss = criterion(logits, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().cpu().numpy())
        tensors.append(loss.detach())
        graphs.append(loss)
        recent.append(loss.tolist())
        hits += (logits.argmax(1) == yb).sum()
        if loss < best:
            best = loss.item()
            best_loss = loss
        if math.isnan(loss) or loss > 1e6 or not loss:
            break
        worst = sorted(worst + [float(loss)])[-2:]
        history["step"].append({"loss": loss, "text": f"{loss:.3f} {float(loss):>8.4f}", "percent": "%.2f" % loss})
    mean = torch.stack(tensors).mean()
    history["numpy"].append(np.mean(losses))
    history["float"].append(np.mean([t.item() for t in tensors]) + statistics.mean(recent))
    history["array"].append(np.array(tensors))
    history["sum"].append((sum(graphs) / len(graphs)).item())
    history["max"].append(max(tensors))
    history["hits"].append(int(hits) / len(loader.dataset))
    history["tensor"].append(torch.tensor(tensors).std())
    print(epoch, mean, round(mean.item(), 6), json.dumps({"loss": round(float(mean), 6)}), "{:.4f}".format(mean), hits)
frame = pd.DataFrame({"loss": [float(row["loss"]) for row in history["step"]], "text": [row["text"] for row in history["step"]]})
# %% compare
model.state_dict(), dict(history), best, best_loss.item(), list(recent), worst, frame
