# mixup with randperm and a beta draw, cutmix boxes in place, label smoothing, accuracy of mixed labels.
# %% setup
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images = torch.randn(35, 1, 4, 4)
labels = torch.randint(0, 3, (35,))
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)

def mixup_data(x, y, alpha=1.0):
    lam = np.random.beta(alpha, alpha)
    index = torch.randperm(x.size()[0])
    mixed_x = lam * x + (1 - lam) * x[index, :]
    y_a, y_b = y, y[index]
    return mixed_x, y_a, y_b, lam

def mixup_criterion(criterion, pred, y_a, y_b, lam):
    return lam * criterion(pred, y_a) + (1 - lam) * criterion(pred, y_b)
# %% cell
history = []
for epoch in range(2):
    train_loss, correct, total = 0, 0, 0
    for batch_idx, (inputs, targets) in enumerate(loader):
        if batch_idx % 2:
            inputs, targets_a, targets_b, lam = mixup_data(inputs, targets)
        else:
            lam = 0.5
            rand_index = torch.randperm(inputs.size()[0])
            targets_a, targets_b = targets, targets[rand_index]
            inputs[:, :, 1:3, 0:2] = inputs[rand_index, :, 1:3, 0:2]
        outputs = model(inputs)
        loss = mixup_criterion(criterion, outputs, targets_a, targets_b, lam)
        train_loss += loss.item()
        _, predicted = torch.max(outputs.data, 1)
        total += targets.size(0)
        correct += (lam * predicted.eq(targets_a.data).cpu().sum().float()
                    + (1 - lam) * predicted.eq(targets_b.data).cpu().sum().float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    history.append((train_loss / (batch_idx + 1), 100.0 * correct / total))
    print("Loss: %.6f | Acc: %.3f%% (%d/%d)" % (history[-1][0], 100.0 * correct / total, correct, total))
# %% compare
model.state_dict(), optimizer.state_dict(), history
