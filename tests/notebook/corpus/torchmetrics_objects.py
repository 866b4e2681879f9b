# Metrics of torchmetrics, made in the notebook and in the cell; a question whether there are other processes; a log file.
# %% setup
import csv
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric, MetricCollection, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

inputs = torch.randn(37, 5)
labels = (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
mean_loss = MeanMetric()
# %% cell
metrics = MetricCollection({"accuracy": MulticlassAccuracy(3), "confusion": MulticlassConfusionMatrix(3)})
num_seen = SumMetric()
is_main_process = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
with open("metrics.csv", "w", newline="") as file:
    csv.writer(file).writerow(["epoch", "loss", "seen"])
for epoch in range(2):
    metrics.reset()
    mean_loss.reset()
    for x, y in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        in_batch = metrics(out, y)["accuracy"]
        mean_loss.update(loss.detach(), weight=len(x))
        num_seen.update(len(x))
        if is_main_process:
            print(f"accuracy {in_batch:.4f}")
    found = metrics.compute()
    with open("metrics.csv", "a", newline="") as file:
        csv.writer(file).writerow([epoch, mean_loss.compute().item(), num_seen.compute().item()])
with open("metrics.csv") as file:
    rows = list(csv.reader(file))
# %% compare
model.state_dict(), found, mean_loss.compute(), num_seen.compute(), len(rows), [[float(x) for x in row] for row in rows[1:]]
