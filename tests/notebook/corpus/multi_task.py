# Two heads, dict batches with texts and ids, losses in a dict, one backward over their sum and one head's alone.
# %% setup
import torch
from collections import defaultdict
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Faces(Dataset):
    def __init__(self, n=34):
        self.image = torch.randn(n, 3, 2, 2)
        self.age = torch.rand(n)
        self.kind = torch.randint(0, 3, (n,))

    def __len__(self):
        return len(self.age)

    def __getitem__(self, i):
        return {"image": self.image[i], "age": self.age[i], "kind": self.kind[i], "name": f"face{i}", "id": i}

class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU())
        self.age, self.kind = nn.Linear(8, 1), nn.Linear(8, 3)

    def forward(self, image):
        h = self.body(image)
        return {"age": self.age(h), "kind": self.kind(h)}

loader = DataLoader(Faces(), batch_size=8, shuffle=True)
model = TwoHeads()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ce, mae = nn.CrossEntropyLoss(), nn.L1Loss()
# %% cell
running = defaultdict(float)
seen = []
for epoch in range(2):
    for step, batch in enumerate(loader):
        batch = {k: v.to("cpu") if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
        out = model(batch["image"])
        losses = {"age": mae(out["age"].squeeze(1), batch["age"]), "kind": ce(out["kind"], batch["kind"])}
        loss = losses["age"] if step % 3 == 2 else 0.5 * losses["age"] + losses["kind"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, value in losses.items():
            running[name] += value.item() * len(batch["name"])
        seen += batch["name"]
        ids = batch["id"]
    print({k: round(v / len(seen), 6) for k, v in running.items()}, seen[-1], ids.tolist())
# %% compare
model.state_dict(), optimizer.state_dict(), dict(running), seen, ids
