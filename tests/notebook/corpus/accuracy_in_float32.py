# Accuracies in float32: means and counts of hits, read as numbers with all their digits.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
X, Y = torch.randn(70, 5), torch.randint(0, 3, (70,))
loader = DataLoader(TensorDataset(X, Y), batch_size=21, shuffle=True)
model = nn.Linear(5, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
# %% cell
means, ratios, runs = [], [], []
for epoch in range(3):
    correct, seen, running, hits = 0.0, 0, 0.0, torch.zeros(())
    for x, y in loader:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        hit = out.argmax(1) == y
        means.append(hit.float().mean().item())
        correct += hit.float().sum()
        running += hit.float().mean()
        hits += hit.sum()
        seen += len(y)
    ratios.append((correct / seen).item())
    ratios.append((100 * correct / seen).item())
    ratios.append((running / len(loader)).item())
    ratios.append(float(hits / seen))
    runs.append(hit.float().mean().mul(100).item())
    runs.append(((out.argmax(1) == y).sum().float() / y.size(0)).item())
    runs.append((torch.sum(out.argmax(1) == y) / len(y)).item())
print(means, ratios, runs)
# %% compare
means, ratios, runs
