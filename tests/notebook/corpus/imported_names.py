# Functions of PyTorch's under names of the notebook's own, some imported by the cell: gradients by inputs, tensors of a batch.
# %% setup
import torch
from torch import FloatTensor, nn, tensor
from torch.autograd import grad
from torch.utils.data import DataLoader, TensorDataset

points = torch.rand(29, 2)
loader = DataLoader(TensorDataset(points, points.sum(1)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(2, 9), nn.Tanh(), nn.Linear(9, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

def residual(u, x):
    slope = grad(u, x, torch.ones_like(u), create_graph=True)[0]
    return grad(slope[:, 0].sum(), x, create_graph=True)[0][:, 0] - slope[:, 1]
# %% cell
from torch import LongTensor as whole_numbers
from torch import as_tensor
from torch.autograd import grad as gradient_of
dtype, history = torch.DoubleTensor, []
for epoch in range(2):
    for x, y in loader:
        x.requires_grad_(True)
        u = model(x)
        steepest = gradient_of(u.sum(), x, create_graph=True)[0].abs().max()
        with torch.no_grad():
            weight = tensor(y).mean() + as_tensor(y).max() + whole_numbers([len(y)]).type(dtype).sum()
        loss = (u[:, 0] - y).pow(2).mean() + residual(u, x).pow(2).mean() + 1e-3 * steepest * weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append((loss.item(), weight.item()))
# %% compare
model.state_dict(), history, gradient_of is grad, dtype is torch.DoubleTensor, whole_numbers is torch.LongTensor, as_tensor([1.0]), FloatTensor([2.0])
