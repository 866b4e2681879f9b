# Images flipped, cropped and erased at random by transforms of the data set, with a weighted sampler, and a second epoch.
# %% setup
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

torch.manual_seed(0)
np.random.seed(0)
random.seed(0)


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class RandomHorizontalFlip:
    def __init__(self, p=0.5):
        self.p = p

    def __call__(self, image):
        return image.flip(-1) if torch.rand(1) < self.p else image


class RandomCrop:
    def __init__(self, size, padding):
        self.size, self.padding = size, padding

    def __call__(self, image):
        image = nn.functional.pad(image, (self.padding,) * 4)
        top = random.randint(0, image.shape[-2] - self.size)
        left = random.randint(0, image.shape[-1] - self.size)
        return image[..., top : top + self.size, left : left + self.size]


class RandomErasing:
    def __call__(self, image):
        row, column = np.random.randint(0, 6, 2)
        image = image.clone()
        image[..., row : row + 2, column : column + 2] = torch.as_tensor(np.random.rand())
        return image


class Images(Dataset):
    def __init__(self, images, labels, transform=None):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.transform:
            image = self.transform(image)
        return image, self.labels[index]


images = torch.randn(46, 1, 8, 8, dtype=torch.float64)
labels = (images.mean(dim=(1, 2, 3)) > 0).long()
train_tfms = Compose([RandomHorizontalFlip(), RandomCrop(8, padding=1), RandomErasing()])
train_ds = Images(images[:36], labels[:36], train_tfms)
valid_ds = Images(images[36:], labels[36:])
weights = torch.ones(36).index_fill(0, labels[:36].nonzero().flatten(), 2.0)
train_dl = DataLoader(train_ds, batch_size=8, sampler=WeightedRandomSampler(weights, 36))
valid_dl = DataLoader(valid_ds, batch_size=8)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).double()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loss_func = nn.CrossEntropyLoss()
history = []

# %% cell
for epoch in range(3):
    model.train()
    running = 0.0
    for xb, yb in train_dl:
        loss = loss_func(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item() * xb.size(0)
    model.eval()
    with torch.no_grad():
        correct = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in valid_dl)
    history.append((running / len(train_ds), correct / len(valid_ds)))
    print(f"epoch {epoch}: loss {running / len(train_ds):.6f}, accuracy {correct / len(valid_ds):.3f}")
after = torch.rand(2), np.random.rand(), random.random()
# %% compare
model.state_dict(), opt.state_dict(), history, after
