# An RNN cell unrolled in the loop of the cell over time steps, with many-to-one targets.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(29, 6, 2)
y = (X.sum((1, 2)) > 0).long()
loader = DataLoader(TensorDataset(X, y), batch_size=7, shuffle=True)
cell = nn.RNNCell(2, 5)
head = nn.Linear(5, 2)
params = list(cell.parameters()) + list(head.parameters())
optimizer = torch.optim.SGD(params, lr=0.1)
# %% cell
history = []
for epoch in range(2):
    correct = 0
    for seq, target in loader:
        hx = torch.zeros(seq.shape[0], 5)
        for t in range(seq.shape[1]):
            hx = cell(seq[:, t, :], hx)
        logits = head(hx)
        loss = F.nll_loss(F.log_softmax(logits, dim=-1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += logits.argmax(-1).eq(target).sum().item()
        history.append(loss.item())
    print(epoch, correct / len(loader.dataset))
# %% compare
cell.state_dict(), head.state_dict(), optimizer.state_dict(), history
