# Class weights, a confusion matrix by indexing and by bincount, top-k accuracy, per-class accuracy in a dict.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

classes = ("cat", "dog", "frog", "ship")
X = torch.randn(46, 5)
y = torch.randint(0, 4, (46,)).clamp(max=3)
train_loader = DataLoader(TensorDataset(X, y), batch_size=9, shuffle=True)
counts = torch.bincount(y, minlength=4).double()
model = nn.Linear(5, 4)
criterion = nn.CrossEntropyLoss(weight=counts.sum() / (4 * counts))
optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)

def accuracy(output, target, topk=(1,)):
    with torch.no_grad():
        maxk = max(topk)
        batch_size = target.size(0)
        _, pred = output.topk(maxk, 1, True, True)
        pred = pred.t()
        correct = pred.eq(target.view(1, -1).expand_as(pred))
        res = []
        for k in topk:
            correct_k = correct[:k].reshape(-1).float().sum(0, keepdim=True)
            res.append(correct_k.mul_(100.0 / batch_size))
        return res
# %% cell
confusion = torch.zeros(4, 4, dtype=torch.int64)
hist = torch.zeros(16, dtype=torch.int64)
correct_pred = {classname: 0 for classname in classes}
total_pred = {classname: 0 for classname in classes}
top1 = top2 = 0.0
for epoch in range(2):
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        preds = outputs.argmax(dim=1)
        for t, p in zip(targets.view(-1), preds.view(-1)):
            confusion[t.long(), p.long()] += 1
        hist += torch.bincount(targets * 4 + preds, minlength=16)
        for label, prediction in zip(targets, preds):
            if label == prediction:
                correct_pred[classes[label]] += 1
            total_pred[classes[label]] += 1
        acc1, acc2 = accuracy(outputs, targets, topk=(1, 2))
        top1 += acc1.item() * inputs.size(0)
        top2 += acc2[0] * inputs.size(0)
    for classname, correct_count in correct_pred.items():
        print(f"Accuracy for class: {classname:5s} is {100 * float(correct_count) / total_pred[classname]:.1f} %")
print(confusion)
print(confusion.diag() / confusion.sum(1))
# %% compare
model.state_dict(), optimizer.state_dict(), confusion, hist, correct_pred, total_pred, top1, top2
