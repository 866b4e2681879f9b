# Predictions appended and concatenated for sklearn's metrics, losses in np.mean, a DataFrame of the history.
# %% setup
import numpy as np
import pandas as pd
import torch
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(47, 4)
y = (X.sum(1) > 0.3).double()
loader = DataLoader(TensorDataset(X, y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0]))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
# %% cell
rows = []
for epoch in range(2):
    model.train()
    epoch_losses, all_preds, all_labels, outs = [], [], [], []
    for xb, yb in loader:
        optimizer.zero_grad()
        logits = model(xb).squeeze(1)
        loss = criterion(logits, yb)
        loss.backward()
        optimizer.step()
        epoch_losses.append(loss.detach().cpu().numpy())
        probs = torch.sigmoid(logits)
        preds = (probs > 0.5).int()
        all_preds.extend(preds.detach().cpu().numpy())
        all_labels.extend(yb.cpu().numpy().tolist())
        outs.append(probs.detach().cpu())
    probabilities = torch.cat(outs).numpy()
    rows.append({
        "epoch": epoch,
        "loss": np.mean(epoch_losses),
        "acc": accuracy_score(all_labels, all_preds),
        "f1": f1_score(all_labels, all_preds),
        "auc": roc_auc_score(np.array(all_labels), probabilities),
    })
    print(", ".join(f"{k} {v:.4f}" for k, v in rows[-1].items()))
history = pd.DataFrame(rows).set_index("epoch")
history
# %% compare
model.state_dict(), optimizer.state_dict(), history, probabilities, [int(p) for p in all_preds]
