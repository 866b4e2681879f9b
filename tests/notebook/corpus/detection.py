# Detection style: images and targets as tuples of different sizes, a model in training mode that returns a dict of losses, a warm-up, reduced losses.
# %% setup
import math
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Boxes(Dataset):
    def __len__(self):
        return 14
    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(idx)
        n = 1 + idx % 3
        return torch.rand(1, 8, 8, generator=g), {"boxes": torch.rand(n, 4, generator=g), "labels": torch.randint(1, 3, (n,), generator=g), "image_id": torch.tensor([idx])}

def collate_fn(batch):
    return tuple(zip(*batch))

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.box, self.cls = nn.Linear(16, 4), nn.Linear(16, 3)
    def forward(self, images, targets=None):
        features = self.backbone(torch.stack(images))
        if self.training:
            box_loss, cls_loss = 0, 0
            for i, target in enumerate(targets):
                box_loss = box_loss + ((self.box(features[i]) - target["boxes"]) ** 2).mean()
                cls_loss = cls_loss + nn.functional.cross_entropy(self.cls(features[i : i + 1]).expand(len(target["labels"]), -1), target["labels"])
            return {"loss_box": box_loss / len(targets), "loss_cls": cls_loss / len(targets)}
        return [{"boxes": b, "scores": s.softmax(-1)} for b, s in zip(self.box(features), self.cls(features))]

data_loader = DataLoader(Boxes(), batch_size=4, shuffle=True, collate_fn=collate_fn)
model = Detector()
params = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.0005)
lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.1)
device = torch.device("cpu")
# %% cell
history = []
for epoch in range(2):
    model.train()
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2) if epoch == 0 else None
    for images, targets in data_loader:
        images = list(image.to(device) for image in images)
        targets = [{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            sys.exit(1)
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        if warmup is not None:
            warmup.step()
        history.append({k: v.item() for k, v in loss_dict.items()})
    lr_scheduler.step()
    print(epoch, loss_value)
model.eval()
with torch.no_grad():
    found = model([image for image, _ in [data_loader.dataset[0], data_loader.dataset[1]]])
# %% compare
model.state_dict(), optimizer.state_dict(), history, found
