# An autograd function of the notebook's own that runs a network with BatchNorm again in its backward pass, as adjoint ODE solvers do.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(40, 4)
loader = DataLoader(TensorDataset(x, x.sum(1).gt(0).long()), batch_size=7, shuffle=True)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, z):
        return self.second(torch.tanh(self.norm(self.first(z))))


class Solved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, field, *parameters):
        ctx.field, states = field, [z]
        with torch.no_grad():
            for _ in range(3):
                states.append(states[-1] + 0.3 * field(states[-1]))
        ctx.save_for_backward(*states)
        return states[-1]

    @staticmethod
    def backward(ctx, gradient):
        *states, _ = ctx.saved_tensors
        parameters = tuple(ctx.field.parameters())
        sums = [torch.zeros_like(p) for p in parameters]
        for state in reversed(states):
            with torch.enable_grad():
                state = state.detach().requires_grad_(True)
                slope = ctx.field(state)
            by_state, *by_parameters = torch.autograd.grad(slope, (state, *parameters), 0.3 * gradient)
            gradient = gradient + by_state
            sums = [total + part for total, part in zip(sums, by_parameters)]
        return gradient, None, *sums


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.field, self.out = Field(), nn.Linear(4, 2)

    def forward(self, z):
        return self.out(Solved.apply(z, self.field, *self.field.parameters()))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
# %% cell
losses = []
for epoch in range(2):
    model.train()
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        right = sum((model(xb).argmax(1) == yb).sum().item() for xb, yb in loader)
    print(f"{epoch}: {losses[-1]:.6f}, {right} of {len(x)}")
# %% compare
model.state_dict(), optimizer.state_dict(), losses
