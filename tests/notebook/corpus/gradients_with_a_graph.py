# loss.backward(create_graph=True): curvature by random signs, penalties on .grad, hooks, what a second pass adds to gradients by hand.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(44, 4)
loader = DataLoader(TensorDataset(x, x.prod(1, keepdim=True)), batch_size=9, shuffle=True)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
other = nn.Sequential(nn.Linear(4, 3), nn.Softplus(), nn.Linear(3, 1))
unused = nn.Linear(2, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
seen = []
other[2].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
other[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.norm().item()))
curvature, penalties, slopes = [], [], []
# %% cell
for xb, yb in loader:
    loss = nn.functional.mse_loss(model(xb), yb)
    opt.zero_grad()
    loss.backward(create_graph=True)
    params = [p for p in model.parameters() if p.grad is not None]
    signs = [torch.randint_like(p, 2) * 2 - 1 for p in params]
    products = torch.autograd.grad([p.grad for p in params], params, grad_outputs=signs, retain_graph=True)
    with torch.no_grad():
        curvature.append([(h * v).abs().mean().item() for h, v in zip(products, signs)])
        for p, h, v in zip(params, products, signs):
            p.grad /= (h * v).abs().mean() + 1
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
opt.zero_grad()
for xb, yb in loader:
    xb.requires_grad_()
    loss = (other(xb) - yb).abs().mean()
    loss.backward(create_graph=True)
    penalty = sum((p.grad ** 2).sum() for p in other.parameters()) + (xb.grad ** 2).sum()
    penalties.append(penalty.item())
    (0.1 * penalty).backward()
    slopes.append(xb.grad.norm().item())
    with torch.no_grad():
        for p in other.parameters():
            p -= 0.05 * p.grad
    other.zero_grad()
for xb, yb in loader:
    opt.zero_grad()
    loss = nn.functional.mse_loss(model(xb), yb)
    loss.backward(inputs=[model[0].weight], create_graph=True)
    curvature.append(model[0].weight.grad.sum().item())
    grads = torch.autograd.grad(nn.functional.mse_loss(model(xb), yb), list(model.parameters()), create_graph=True)
    for p, g in zip(model.parameters(), grads):
        p.grad = g
    (0.01 * sum(p.grad.pow(2).sum() for p in model.parameters())).backward()
    opt.step()
print(curvature[-1], penalties[-1], slopes[-1])
# %% compare
model.state_dict(), other.state_dict(), [p.grad.detach() for p in model.parameters()], curvature, penalties, slopes, seen, unused.weight.grad, opt.state_dict()["state"]
