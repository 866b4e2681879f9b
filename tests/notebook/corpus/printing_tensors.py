# Everything printed: tensors, parts of batches, losses with and without item, f-strings, tqdm's postfix, deep copies.
# %% setup
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

loader = DataLoader(TensorDataset(torch.arange(14.0).reshape(7, 2), torch.arange(7)), batch_size=3)
model = nn.Linear(2, 1)
nn.init.constant_(model.weight, 0.25)
nn.init.zeros_(model.bias)
opt = torch.optim.SGD(model.parameters(), lr=0.001)
# %% cell
kept, copies, metrics = [], [], {}
bar = tqdm(loader, desc="training", disable=True)
for i, (x, y) in enumerate(bar):
    pred = model(x)
    loss = ((pred.squeeze() - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    bar.set_postfix(loss=loss.item())
    print(x)
    print(y, y[0], x[-1, 0], len(x), x.size(), list(x.shape), x.ndim, x.numel())
    print(f"{loss:.4f} {loss.item():8.3f} {pred[0].item():.3f} {i:02d}", loss.dtype, pred.shape, "%.3f" % loss)
    print("any", (y > 3).any(), "all", bool((y >= 0).all()), "max", int(y.max()), y.tolist(), x.sum(0).numpy())
    print(nn.functional.cross_entropy(torch.cat([pred, -pred], 1), y % 2), nn.functional.nll_loss(torch.cat([pred, -pred], 1), y % 2))
    kept.append(pred.detach())
    copies.append(copy.deepcopy(x))
    metrics.setdefault("loss", []).append(loss.detach())
    for row in x:
        total = sum(float(v) for v in row)
    if y.max() > 5 and loss > 0:
        print("end", total, y.float().mean(), round(loss.item(), 3), max(metrics["loss"]) == metrics["loss"][-1])
kept, {k: torch.stack(v).mean() for k, v in metrics.items()}
# %% compare
model.state_dict(), kept, copies, metrics, x, y, total
