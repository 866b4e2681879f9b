# torch.compile of today: a model that was tried out before, a decorated loss, dropout inside.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class MLP(nn.Module):
    def __init__(self, width=8, p=0.2):
        super().__init__()
        self.up = nn.Linear(6, width)
        self.drop = nn.Dropout(p)
        self.down = nn.Linear(width, 3)

    def forward(self, x):
        return self.down(self.drop(F.gelu(self.up(x))))

torch._dynamo.reset()
model = torch.compile(MLP(), backend="eager")
print(model(torch.zeros(2, 6)).shape)

@torch.compile(backend="eager", dynamic=True)
def smoothed(logits, target):
    return F.cross_entropy(logits, target, label_smoothing=0.1)

dl = DataLoader(TensorDataset(torch.randn(44, 6), torch.randint(0, 3, (44,))), batch_size=12, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
# %% cell
history = []
for epoch in range(2):
    model.train()
    for xb, yb in dl:
        optimizer.zero_grad(set_to_none=True)
        loss = smoothed(model(xb), yb)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    print(f"epoch {epoch}: {sum(history[-len(dl):]) / len(dl):.4f}")
# %% compare
model.state_dict(), history
