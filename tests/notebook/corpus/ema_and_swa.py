# An EMA copy by AveragedModel, SWA with its scheduler and update_bn, and a copy by deepcopy with lerp_.
# %% setup
import copy
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(32, 4)
loader = DataLoader(TensorDataset(X, X.mean(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = nn.HuberLoss(delta=0.5)
# %% cell
ema_model = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
swa_model = AveragedModel(model)
target = copy.deepcopy(model)
swa_scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
consistency = []
for epoch in range(3):
    for input, label in loader:
        optimizer.zero_grad()
        with torch.no_grad():
            teacher = target(input)
        loss = loss_fn(model(input), label) + 0.1 * loss_fn(model(input), teacher)
        loss.backward()
        optimizer.step()
        ema_model.update_parameters(model)
        with torch.no_grad():
            for p, q in zip(model.parameters(), target.parameters()):
                q.data.mul_(0.95).add_((1 - 0.95) * p.data)
        consistency.append((teacher - label).pow(2).mean().item())
    if epoch > 0:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    print(epoch, loss.item())
update_bn(loader, swa_model)
with torch.no_grad():
    preds = swa_model(X)
# %% compare
model.state_dict(), ema_model.state_dict(), swa_model.state_dict(), target.state_dict(), consistency, preds
