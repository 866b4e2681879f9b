# ReduceLROnPlateau and early stopping on a validation loss, the best state restored, break out of the loop.
# %% setup
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(60, 3)
Y = X @ torch.tensor([[1.0], [-2.0], [0.5]]) + 0.3 * torch.randn(60, 1)
train_dl = DataLoader(TensorDataset(X[:40], Y[:40]), batch_size=16, shuffle=True)
val_dl = DataLoader(TensorDataset(X[40:], Y[40:]), batch_size=16)

class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.counter, self.best, self.early_stop = patience, 0, None, False

    def __call__(self, val_loss):
        if self.best is None or val_loss < self.best - 1e-3:
            self.best, self.counter = val_loss, 0
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=0)
stopper = EarlyStopping(2)
# %% cell
best_loss, best_state = float("inf"), None
for epoch in range(30):
    model.train()
    for xb, yb in train_dl:
        optimizer.zero_grad()
        loss = ((model(xb) - yb) ** 2).mean()
        loss.backward()
        optimizer.step()
    model.eval()
    val_loss = 0.0
    with torch.no_grad():
        for xb, yb in val_dl:
            val_loss += nn.functional.mse_loss(model(xb), yb, reduction="sum").item()
    val_loss /= len(val_dl.dataset)
    scheduler.step(val_loss)
    if val_loss < best_loss:
        best_loss = val_loss
        best_state = copy.deepcopy(model.state_dict())
    stopper(val_loss)
    print(f"{epoch}: {val_loss:.6f} lr={optimizer.param_groups[0]['lr']:.6f}")
    if stopper.early_stop:
        print("Early stopping")
        break
model.load_state_dict(best_state)
# %% compare
model.state_dict(), optimizer.state_dict(), epoch, best_loss, vars(stopper)
