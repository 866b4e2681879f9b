# The convolutional network of the MNIST example: Dropout2d, F.dropout with `training=self.training`, nll_loss, logging by interval.
# %% setup
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, kernel_size=3)
        self.conv2 = nn.Conv2d(4, 6, kernel_size=3)
        self.conv2_drop = nn.Dropout2d()
        self.fc1 = nn.Linear(24, 10)
        self.fc2 = nn.Linear(10, 3)

    def forward(self, x):
        x = torch.tanh(F.max_pool2d(self.conv1(x), 2))
        x = torch.tanh(F.avg_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = x.view(-1, 24)
        x = torch.tanh(self.fc1(x))
        x = F.dropout(x, training=self.training)
        x = self.fc2(x)
        return F.log_softmax(x, dim=1)

images, labels = torch.randn(50, 1, 14, 14), torch.randint(0, 3, (50,))
train_loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), batch_size=16, shuffle=True)
test_loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images[:20], labels[:20]), batch_size=10)
network = Net()
optimizer = optim.SGD(network.parameters(), lr=0.05, momentum=0.5)
train_losses, train_counter, test_losses = [], [], []
# %% cell
def train(epoch):
    network.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = network(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 2 == 0:
            print("Train Epoch: {} [{}/{}]\tLoss: {:.6f}".format(epoch, batch_idx * len(data), len(train_loader.dataset), loss.item()))
            train_losses.append(loss.item())
            train_counter.append((batch_idx * 16) + ((epoch - 1) * len(train_loader.dataset)))

def test():
    network.eval()
    test_loss = 0
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            output = network(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            pred = output.data.max(1, keepdim=True)[1]
            correct += pred.eq(target.data.view_as(pred)).sum()
    test_loss /= len(test_loader.dataset)
    test_losses.append(test_loss)
    print("\nTest set: Avg. loss: {:.4f}, Accuracy: {}/{}\n".format(test_loss, correct, len(test_loader.dataset)))

test()
for epoch in range(1, 3):
    train(epoch)
    test()
# %% compare
network.state_dict(), optimizer.state_dict(), train_losses, train_counter, test_losses
