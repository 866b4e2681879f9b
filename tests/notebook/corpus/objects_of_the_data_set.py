# A collate function hands on the data set's own objects: what the cell writes to them it finds in the next epoch, and the notebook after it.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

items = [{"x": torch.randn(5), "y": torch.tensor(i % 3), "seen": 0, "last": None} for i in range(22)]
loader = DataLoader(items, 5, shuffle=True, collate_fn=lambda batch: batch)
class Boxes(Dataset):
    def __init__(self):
        self.images = torch.randn(18, 2, 4, 4)
        self.targets = [{"boxes": torch.rand(1 + i % 3, 4), "found": []} for i in range(18)]
    def __len__(self): return 18
    def __getitem__(self, index): return self.images[index], self.targets[index]
def stack(batch):
    images, targets = zip(*batch)
    return torch.stack(images), list(targets)
boxes = Boxes()
pictures = DataLoader(boxes, 4, shuffle=True, collate_fn=stack)
net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
head = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4))
opt = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-2)
# %% cell
memory, losses = {}, []
for epoch in range(2):
    for batch in loader:
        logits = net(torch.stack([item["x"] for item in batch]))
        loss = F.cross_entropy(logits, torch.stack([item["y"] for item in batch]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        for item, row in zip(batch, logits.detach()):
            item["seen"] += 1
            item["last"] = row.argmax().item()
            memory[id(item)] = memory.get(id(item), 0) + 1
        print(any(batch[0] is item for item in items), len(memory))
    for x, targets in pictures:
        for target in targets:
            target["boxes"][:, 2:] += target["boxes"][:, :2]
        found = head(x)
        loss = F.mse_loss(found, torch.stack([target["boxes"].mean(0) for target in targets]))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        for target, box in zip(targets, found):
            target["found"].append(box.sum().item())
del memory
# %% compare
net.state_dict(), head.state_dict(), losses, [(item["seen"], item["last"]) for item in items], boxes.targets
