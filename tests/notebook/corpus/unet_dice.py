# U-Net: skip connections by torch.cat, Dice loss, IoU per batch, a plateau scheduler, best model by validation Dice.
# %% setup
import copy
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split

class Shapes(Dataset):
    def __init__(self, n):
        self.images = np.random.rand(n, 8, 8, 1).astype("float64")
        self.masks = (self.images > 0.5).astype("float64")

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i].transpose(2, 0, 1)), torch.from_numpy(self.masks[i].transpose(2, 0, 1))

train_set, val_set = random_split(Shapes(24), [18, 6])
train_loader = DataLoader(train_set, batch_size=5, shuffle=True)
val_loader = DataLoader(val_set, batch_size=4)

class DoubleConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(1, o), nn.Tanh(), nn.Conv2d(o, o, 3, padding=1), nn.Tanh())

    def forward(self, x):
        return self.net(x)

class UNet(nn.Module):
    def __init__(self, features=(4, 8)):
        super().__init__()
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        self.pool = nn.MaxPool2d(2, 2)
        channels = 1
        for f in features:
            self.downs.append(DoubleConv(channels, f))
            channels = f
        for f in reversed(features):
            self.ups.append(nn.ConvTranspose2d(f * 2, f, 2, 2))
            self.ups.append(DoubleConv(f * 2, f))
        self.bottleneck = DoubleConv(features[-1], features[-1] * 2)
        self.final = nn.Conv2d(features[0], 1, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottleneck(x)
        skips = skips[::-1]
        for idx in range(0, len(self.ups), 2):
            x = self.ups[idx](x)
            skip = skips[idx // 2]
            if x.shape != skip.shape:
                x = F.interpolate(x, size=skip.shape[2:])
            x = self.ups[idx + 1](torch.cat((skip, x), dim=1))
        return self.final(x)

class DiceBCELoss(nn.Module):
    def forward(self, inputs, targets, smooth=1):
        inputs = torch.sigmoid(inputs)
        inputs, targets = inputs.view(-1), targets.view(-1)
        intersection = (inputs * targets).sum()
        dice_loss = 1 - (2.0 * intersection + smooth) / (inputs.sum() + targets.sum() + smooth)
        return F.binary_cross_entropy(inputs, targets, reduction="mean") + dice_loss

def iou(pred, target):
    pred = (torch.sigmoid(pred) > 0.5).double()
    inter = (pred * target).sum(dim=(1, 2, 3))
    union = pred.sum((1, 2, 3)) + target.sum((1, 2, 3)) - inter
    return ((inter + 1e-6) / (union + 1e-6)).mean()

model = UNet()
loss_fn = DiceBCELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0, factor=0.5)
# %% cell
best, best_weights, log = -1.0, None, []
for epoch in range(2):
    model.train()
    losses, ious = [], []
    for images, masks in train_loader:
        preds = model(images)
        loss = loss_fn(preds, masks)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ious.append(iou(preds, masks).item())
    model.eval()
    dice, num_correct, num_pixels = 0, 0, 0
    with torch.inference_mode():
        for x, y in val_loader:
            preds = torch.sigmoid(model(x))
            preds = (preds > 0.5).double()
            num_correct += (preds == y).sum()
            num_pixels += torch.numel(preds)
            dice += (2 * (preds * y).sum()) / ((preds + y).sum() + 1e-8)
    dice = dice / len(val_loader)
    scheduler.step(dice)
    if dice.item() > best:
        best, best_weights = dice.item(), copy.deepcopy(model.state_dict())
    log.append((np.mean(losses), np.mean(ious), dice.item()))
    print(f"epoch {epoch}: loss {np.mean(losses):.4f} iou {np.mean(ious):.4f}, got {num_correct}/{num_pixels} with acc {num_correct / num_pixels * 100:.2f}, dice {dice:.4f}")
model.load_state_dict(best_weights)
# %% compare
model.state_dict(), optimizer.state_dict(), best, best_weights, log, num_correct
