# Custom losses with exp, log, mean and clamp: dice, focal, quantile, a sum divided by x.size(0), masked mean.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(37, 1, 6, 6)
mask = (torch.rand(37, 1, 6, 6) > 0.6).double()
valid = (torch.rand(37, 1, 6, 6) > 0.3).double()
loader = DataLoader(TensorDataset(x, mask, valid), batch_size=8, shuffle=True)
model = nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)

class DiceLoss(nn.Module):
    def forward(self, inputs, targets, smooth=1):
        inputs = torch.sigmoid(inputs)
        inputs = inputs.view(-1)
        targets = targets.view(-1)
        intersection = (inputs * targets).sum()
        dice = (2.0 * intersection + smooth) / (inputs.sum() + targets.sum() + smooth)
        return 1 - dice

class FocalLoss(nn.Module):
    def forward(self, inputs, targets, alpha=0.8, gamma=2):
        inputs = torch.sigmoid(inputs).view(-1)
        targets = targets.view(-1)
        BCE = F.binary_cross_entropy(inputs, targets, reduction="mean")
        BCE_EXP = torch.exp(-BCE)
        return alpha * (1 - BCE_EXP) ** gamma * BCE

def quantile_loss(p, y, q=0.7):
    e = y - p
    return torch.max(q * e, (q - 1) * e).mean()

def poisson_like(p, y):
    p = torch.clamp(torch.exp(p), 1e-3, 10.0)
    return torch.mean(p - y * torch.log(p), dim=(1, 2, 3)).mean()

def masked(p, y, m):
    return (F.l1_loss(p, y, reduction="none") * m).sum() / m.sum()
# %% cell
dice, focal = DiceLoss(), FocalLoss()
hist = []
for epoch in range(2):
    for xb, yb, mb in loader:
        out = model(xb)
        parts = [dice(out, yb), focal(out, yb), quantile_loss(out, yb), poisson_like(out, yb), masked(out, yb, mb),
                 F.mse_loss(out, yb, reduction="sum") / xb.size(0), F.smooth_l1_loss(out, yb)]
        loss = sum(parts) / len(parts)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hist.append([float(p) for p in parts] + [loss.item()])
    iou = ((out > 0) & (yb > 0.5)).sum() / ((out > 0) | (yb > 0.5)).sum()
    print(f"{epoch} {loss.item():.6f} IoU {iou.item():.4f}")
# %% compare
model.state_dict(), optimizer.state_dict(), hist, iou
