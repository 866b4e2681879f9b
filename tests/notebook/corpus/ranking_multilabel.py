# Multi-label with a threshold and F1 by counts, focal loss, mean average precision from gathered scores, gradient accumulation with a last partial step.
# %% setup
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, f1_score
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

class Multi(Dataset):
    def __init__(self, n):
        self.x, self.y = torch.randn(n, 6), (torch.rand(n, 4) > 0.6).double()
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return self.x[i], self.y[i], f"id_{i}"

train_set = Multi(29)
weights = 1.0 + train_set.y.sum(1)
train_loader = DataLoader(train_set, batch_size=7, sampler=WeightedRandomSampler(weights, len(train_set)))
val_loader = DataLoader(Multi(13), batch_size=5)

class FocalLoss(nn.Module):
    def __init__(self, alpha=0.25, gamma=2):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma
    def forward(self, inputs, targets):
        bce = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
        pt = torch.exp(-bce)
        return (self.alpha * (1 - pt) ** self.gamma * bce).mean()

model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
criterion = FocalLoss()
optimizer = torch.optim.Adam(model.parameters(), 0.02)
accum_iter = 2
# %% cell
results, seen_ids = [], []
for epoch in range(2):
    model.train()
    tp = fp = fn = 0
    epoch_loss = []
    for batch_idx, (inputs, labels, ids) in enumerate(train_loader):
        with torch.set_grad_enabled(True):
            preds = model(inputs)
            loss = criterion(preds, labels) / accum_iter
            loss.backward()
            if ((batch_idx + 1) % accum_iter == 0) or (batch_idx + 1 == len(train_loader)):
                optimizer.step()
                optimizer.zero_grad()
        hard = (torch.sigmoid(preds) > 0.5).int()
        tp += (hard * labels).sum().item()
        fp += (hard * (1 - labels)).sum().item()
        fn += ((1 - hard) * labels).sum().item()
        epoch_loss.append(loss.item() * accum_iter)
        seen_ids.extend(ids)
    model.eval()
    scores, truth = torch.tensor([]), torch.tensor([])
    with torch.inference_mode():
        for inputs, labels, _ in val_loader:
            scores = torch.cat((scores, model(inputs).sigmoid().cpu()))
            truth = torch.cat((truth, labels.cpu()))
    f1 = f1_score(truth.numpy(), (scores > 0.5).numpy(), average="micro", zero_division=0)
    ap = average_precision_score(truth.numpy(), scores.numpy(), average="macro")
    results.append([np.mean(epoch_loss), 2 * tp / (2 * tp + fp + fn), f1, ap])
    print("epoch: {} loss: {:.4f} f1: {:.4f} val f1: {:.4f} mAP: {:.4f}".format(epoch, *results[-1]))
# %% compare
model.state_dict(), optimizer.state_dict(), results, seen_ids, scores
