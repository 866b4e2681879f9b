# A Trainer class in another cell with callbacks, clipping by norm and a log.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from dataclasses import dataclass

@dataclass
class Config:
    lr: float = 0.02
    epochs: int = 2
    clip: float = 0.5

class Trainer:
    def __init__(self, model, config, train_loader, val_loader):
        self.model, self.config = model, config
        self.train_loader, self.val_loader = train_loader, val_loader
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.history = []
        self.global_step = 0

    def compute_loss(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.model(x), y)

    def run_epoch(self, loader, train=True):
        self.model.train(train)
        total, n = 0.0, 0
        for batch in loader:
            with torch.set_grad_enabled(train):
                loss = self.compute_loss(batch)
            if train:
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                self.norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
                self.optimizer.step()
                self.global_step += 1
            total += loss.item() * len(batch[0])
            n += len(batch[0])
        return total / n

    def fit(self):
        for epoch in range(self.config.epochs):
            train_loss = self.run_epoch(self.train_loader)
            val_loss = self.run_epoch(self.val_loader, train=False)
            self.history.append({"epoch": epoch, "train": train_loss, "val": val_loss, "norm": self.norm.item()})
            print(self.history[-1])
        return self

X = torch.randn(35, 4)
Y = torch.stack([X.sum(1), X.prod(1)], dim=1)
train_loader = DataLoader(TensorDataset(X[:25], Y[:25]), batch_size=7, shuffle=True)
val_loader = DataLoader(TensorDataset(X[25:], Y[25:]), batch_size=7)
model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
trainer = Trainer(model, Config(), train_loader, val_loader)
# %% cell
trainer.fit()
print(f"{trainer.global_step} steps, last grad norm {trainer.norm:.6f}")
# %% compare
model.state_dict(), trainer.optimizer.state_dict(), trainer.history, trainer.global_step, trainer.norm
