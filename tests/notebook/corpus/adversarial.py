# FGSM as in the tutorial (data.requires_grad, data.grad.data), PGD in steps with zeros_like(requires_grad=True), adversarial training.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

X = torch.rand(35, 6)
y = (X.sum(1) > 3).long()
loader = DataLoader(TensorDataset(X, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.2)

def fgsm_attack(image, epsilon, data_grad):
    sign_data_grad = data_grad.sign()
    perturbed_image = image + epsilon * sign_data_grad
    return torch.clamp(perturbed_image, 0, 1)

def pgd(model, X, y, epsilon=0.1, alpha=0.04, num_iter=3):
    delta = torch.zeros_like(X, requires_grad=True)
    for t in range(num_iter):
        loss = nn.CrossEntropyLoss()(model(X + delta), y)
        loss.backward()
        delta.data = (delta + alpha * delta.grad.detach().sign()).clamp(-epsilon, epsilon)
        delta.grad.zero_()
    return delta.detach()
# %% cell
log = []
for epoch in range(2):
    correct = total_err = 0
    for data, target in loader:
        data.requires_grad = True
        output = model(data)
        loss = F.cross_entropy(output, target)
        model.zero_grad()
        loss.backward()
        data_grad = data.grad.data
        perturbed_data = fgsm_attack(data, 0.05, data_grad)
        correct += model(perturbed_data).max(1, keepdim=True)[1].eq(target.view(-1, 1)).sum().item()
        data = data.detach()
        delta = pgd(model, data, target)
        yp = model(data + delta)
        loss = F.cross_entropy(yp, target) + 0.5 * F.cross_entropy(model(perturbed_data.detach()), target)
        total_err += (yp.max(dim=1)[1] != target).sum().item()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.append([loss.item(), data_grad.abs().sum().item(), delta.abs().mean().item()])
    print(f"epoch {epoch}: robust {correct}/{len(loader.dataset)} err {total_err / len(loader.dataset):.4f}")
# %% compare
model.state_dict(), log
