# An old notebook: Variable, .data, torch.max of it, counts as tensors, accuracy per class over zip, a figure's numbers from a batch.
# %% setup
import torch
import torch.nn as nn
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset
classes = ("plane", "car", "bird")
trainloader = DataLoader(TensorDataset(torch.randn(30, 1, 4, 4), torch.randint(3, (30,))), batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
# %% cell
iter_count = 0
for epoch in range(2):
    running_loss, correct, total = 0.0, 0, 0
    class_correct = list(0.0 for i in range(3))
    class_total = list(0.0 for i in range(3))
    for i, data in enumerate(trainloader, 0):
        inputs, labels = data
        inputs, labels = Variable(inputs.view(-1, 4 * 4)), Variable(labels)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.data.item()
        _, predicted = torch.max(outputs.data, 1)
        total += labels.size(0)
        correct += (predicted == labels).sum()
        c = (predicted == labels).squeeze()
        for j in range(len(labels)):
            label = labels[j]
            class_correct[label] += c[j].item()
            class_total[label] += 1
        iter_count += 1
        if i % 2 == 1:
            print("[%d, %5d] loss: %.3f" % (epoch + 1, i + 1, running_loss / 2))
            running_loss = 0.0
    print("Accuracy of the network: %d %%" % (100 * correct / total))
    print(f"Accuracy: {100 * correct.item() / total:.3f} {loss.data}")
for i in range(3):
    print("Accuracy of %5s : %2d %%" % (classes[i], 100 * class_correct[i] / max(class_total[i], 1)))
images = inputs.data.numpy().reshape(-1, 4, 4)
# %% compare
net.state_dict(), correct, total, class_correct, class_total, images, predicted, iter_count
