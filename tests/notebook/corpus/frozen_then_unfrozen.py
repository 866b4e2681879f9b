# tolerance: 1e-6  (the accuracy is a float32)
# A frozen backbone with a new head, then all unfrozen with two learning rates; a filter over parameters.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(30, 5), torch.randint(0, 2, (30,))), batch_size=8, shuffle=True)
backbone = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
model = nn.Sequential(backbone, nn.Linear(8, 2))
for param in model[0].parameters():
    param.requires_grad = False
optimizer = torch.optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.02)
criterion = nn.CrossEntropyLoss()
# %% cell
def run_epoch(optimizer):
    total = correct = 0
    for x, y in loader:
        optimizer.zero_grad()
        out = model(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == y).float().sum()
        total += len(y)
    return (correct / total).item(), loss.item()

history = [run_epoch(optimizer)]
for param in model[0].parameters():
    param.requires_grad = True
optimizer = torch.optim.SGD([{"params": model[0].parameters(), "lr": 0.01}, {"params": model[1].parameters()}], lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
for _ in range(2):
    history.append(run_epoch(optimizer))
    scheduler.step()
    print(history[-1], [g["lr"] for g in optimizer.param_groups])
trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"{trainable:,} trainable parameters")
# %% compare
model.state_dict(), optimizer.state_dict(), history, trainable
