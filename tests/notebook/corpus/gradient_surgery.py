# Gradients as data: SAM in two passes, PCGrad with retain_graph, EWC with Fisher sums, a Hessian-vector product, flattened vectors.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(26, 4), torch.randint(3, (26,)), torch.randn(26)), batch_size=8, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.cls, self.reg = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 3), nn.Linear(6, 1)
    def forward(self, x):
        h = self.body(x)
        return self.cls(h), self.reg(h).squeeze(-1)
class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"] if p.grad is not None]), p=2)
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None: continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        if zero_grad: self.zero_grad()
    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None: continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad: self.zero_grad()
model = Net()
opt = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
fisher = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
# %% cell
start = {n: p.detach().clone() for n, p in model.named_parameters()}
log = []
for epoch in range(2):
    for x, y, t in loader:
        c, r = model(x)
        l1, l2 = F.cross_entropy(c, y), F.mse_loss(r, t)
        opt.zero_grad()
        l1.backward(retain_graph=True)
        g1 = torch.cat([p.grad.view(-1) if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()])
        opt.zero_grad()
        l2.backward()
        g2 = torch.cat([p.grad.view(-1) if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()])
        dot = torch.dot(g1, g2)
        if dot < 0:
            g1 = g1 - dot / g2.norm() ** 2 * g2
        merged, pos = g1 + g2, 0
        for p in model.parameters():
            p.grad = merged[pos : pos + p.numel()].view_as(p).clone()
            pos += p.numel()
        opt.first_step(zero_grad=True)
        c, r = model(x)
        ewc = sum((fisher[n] * (p - start[n]) ** 2).sum() for n, p in model.named_parameters())
        loss = F.cross_entropy(c, y) + F.mse_loss(r, t) + 0.1 * ewc
        loss.backward()
        opt.second_step(zero_grad=True)
        log.append((l1.item(), l2.item(), dot.item(), loss.item()))
    model.zero_grad()
    for x, y, t in loader:
        F.nll_loss(F.log_softmax(model(x)[0], 1), y).backward()
    for n, p in model.named_parameters():
        if p.grad is not None:
            fisher[n] += p.grad.data ** 2 / len(loader)
    print(epoch, round(loss.item(), 8), round(sum(f.sum().item() for f in fisher.values()), 8))
x, y, t = next(iter(loader))
loss = F.cross_entropy(model(x)[0], y)
params = [p for p in model.body.parameters()]
grads = torch.autograd.grad(loss, params, create_graph=True)
v = [torch.ones_like(p) for p in params]
hvp = torch.autograd.grad(sum((g * u).sum() for g, u in zip(grads, v)), params)
vector = parameters_to_vector(model.parameters())
vector_to_parameters(vector * 0.99, model.parameters())
# %% compare
model.state_dict(), fisher, log, hvp, vector
