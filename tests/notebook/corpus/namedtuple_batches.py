# Named tuples as samples and as batches, and as the model's output.
# %% setup
from collections import namedtuple
import torch
from torch import nn
from torch.utils.data import DataLoader

Sample = namedtuple("Sample", ["features", "target", "weight"])
Output = namedtuple("Output", "logits hidden")
samples = [Sample(torch.randn(3), torch.tensor(float(i % 2)), 0.5 + i / 20) for i in range(21)]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 5), nn.Linear(5, 1)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return Output(self.b(h)[:, 0], h)

model = Net()
loader = DataLoader(samples, batch_size=5, shuffle=True)
opt = torch.optim.SGD(model.parameters(), lr=0.2)
# %% cell
log = []
for epoch in range(2):
    for batch in loader:
        out = model(batch.features)
        loss = nn.functional.binary_cross_entropy_with_logits(out.logits, batch.target.double(), weight=batch.weight)
        loss = loss + 0.01 * out.hidden.abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append([loss.item(), out.logits.sigmoid().mean().item(), out.hidden.shape])
    print(epoch, [round(x[0], 6) for x in log[-2:]])
# %% compare
model.state_dict(), log
