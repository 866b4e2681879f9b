# Functions whose backward pass is not linear in the gradient: binary weights and activations with clipped straight-through gradients, gradients of unit norm.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.autograd import Function
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.checkpoint import checkpoint

loader = DataLoader(TensorDataset(torch.randn(26, 5), torch.randn(26, 2)), batch_size=8, shuffle=True)

class Binarize(Function):
    @staticmethod
    def forward(ctx, input):
        return input.sign()
    @staticmethod
    def backward(ctx, grad_output):
        return F.hardtanh(grad_output, -0.02, 0.02)

class ClippedIdentity(Function):
    @staticmethod
    def forward(ctx, x, bound):
        ctx.bound = bound
        return x.view_as(x), x.detach().abs()
    @staticmethod
    def backward(ctx, grad, _):
        clipped = grad.clone()
        clipped[clipped > ctx.bound] = ctx.bound
        return clipped, None

class UnitGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return 0.1 * grad / (grad.norm() + 1e-9)

class BinaryLinear(nn.Linear):
    def forward(self, input):
        return F.linear(input, Binarize.apply(self.weight), self.bias)

class ScaledLinear(nn.Linear):
    def forward(self, input):
        return F.linear(input, Binarize.apply(self.weight * 0.5), self.bias)  # of four rows, as a share of two engines has

class Clipping(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 2)
    def forward(self, x):
        h, size = ClippedIdentity.apply(self.a(x), 0.01)
        return self.b(torch.tanh(h + size))

class Normed(Clipping):
    def forward(self, x):
        return self.b(UnitGradient.apply(torch.tanh(self.a(x))))

class Forces(Clipping):
    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = self.b(ClippedIdentity.apply(torch.tanh(self.a(x)), 0.01)[0])
        return energy + torch.autograd.grad(energy.sum(), x, create_graph=True)[0][:, :2]

class Checkpointed(Clipping):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)

class Signs(Clipping):
    def forward(self, x):
        return self.b(Binarize.apply(self.a(x)))

class Clipped(Function):  # of rows and of weights
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        grad = grad.clamp(-0.02, 0.02)
        return grad @ weight, grad.T @ x

class WithClipped(Clipping):
    def forward(self, x):
        return self.b(Clipped.apply(x, self.a.weight))

models = nn.ModuleList([
    nn.Sequential(BinaryLinear(5, 4), nn.Tanh(), nn.Linear(4, 2)),
    nn.Sequential(ScaledLinear(5, 4), nn.Tanh(), nn.Linear(4, 2)),
    Clipping(), Normed(), Forces(), Checkpointed(), Signs(), WithClipped(),
])
optimizer = torch.optim.SGD(models.parameters(), lr=0.1)
# %% cell
history = []
for epoch in range(2):
    for x, y in loader:
        outputs = [model(x) for model in models]
        losses = [F.mse_loss(output, y) for output in outputs]
        losses.append(F.mse_loss(UnitGradient.apply(outputs[2]), y))
        losses.append(F.mse_loss(ClippedIdentity.apply(outputs[3], 0.005)[0], y))
        losses.append((Binarize.apply(models[2].b.weight) - 1).pow(2).mean() * F.l1_loss(outputs[2], y))
        optimizer.zero_grad()
        sum(losses).backward()
        optimizer.step()
        history.append([loss.item() for loss in losses])
    print(epoch, history[-1])
(slope,) = torch.autograd.grad(sum(ClippedIdentity.apply(models[2](x), 0.01)[0].sum() for x, _ in loader), models[2].a.weight)
# %% compare
models.state_dict(), history, slope
