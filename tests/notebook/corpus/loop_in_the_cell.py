# The loop of every first tutorial: running loss over len(loader), device idiom, enumerate, print every few batches.
# %% setup
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
X = torch.randn(50, 4)
y = (X.sum(dim=1) > 0).long()
train_loader = DataLoader(TensorDataset(X, y), batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
# %% cell
losses = []
for epoch in range(2):
    running_loss = 0.0
    for i, data in enumerate(train_loader, 0):
        inputs, labels = data[0].to(device), data[1].to(device)
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
        if i % 3 == 2:
            print(f"[{epoch + 1}, {i + 1:5d}] loss: {running_loss / 3:.6f}")
            losses.append(running_loss / 3)
            running_loss = 0.0
print("Finished Training")
# %% compare
net.state_dict(), optimizer.state_dict(), losses, running_loss, i, inputs, labels, outputs, loss
