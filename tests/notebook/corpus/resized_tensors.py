# Tensors of the notebook that the cell resizes: as the place for a result, or because more is to be kept in them.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(30, 4)), batch_size=8, shuffle=True)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
gram, kept, shared = torch.empty(0), torch.ones(3), torch.arange(4.0)
view = shared[:2]
# %% cell
for (x,) in loader:
    loss = (model(x) - x[:, :2]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    torch.mm(model.weight.detach(), model.weight.detach().T, out=gram)
    kept.resize_(len(kept) + 2)[-2:] = gram.diagonal()
shared.resize_(6)[4:] = loss.item()
view += 1
# %% compare
model.state_dict(), gram, kept, shared, view
