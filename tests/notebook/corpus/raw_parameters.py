# Functional style: raw tensors, `xb @ w + b` over a loader, gradients zeroed by hand.
# %% setup
import torch
from torch.utils.data import DataLoader, TensorDataset

true_w, true_b = torch.tensor([2.0, -3.4]), 4.2
features = torch.randn(41, 2)
labels = (features @ true_w + true_b + 0.01 * torch.randn(41)).reshape(-1, 1)
data_iter = DataLoader(TensorDataset(features, labels), batch_size=10, shuffle=True)
w = torch.normal(0, 0.01, size=(2, 1), requires_grad=True)
b = torch.zeros(1, requires_grad=True)

def linreg(X, w, b):
    return torch.matmul(X, w) + b

def squared_loss(y_hat, y):
    return (y_hat - y.reshape(y_hat.shape)) ** 2 / 2

def sgd(params, lr, batch_size):
    with torch.no_grad():
        for param in params:
            param -= lr * param.grad / batch_size
            param.grad.zero_()
# %% cell
lr, num_epochs, batch_size = 0.3, 3, 10
for epoch in range(num_epochs):
    for X, y in data_iter:
        l = squared_loss(linreg(X, w, b), y)
        l.sum().backward()
        sgd([w, b], lr, batch_size)
    with torch.no_grad():
        train_l = squared_loss(linreg(features, w, b), labels)
        print(f"epoch {epoch + 1}, loss {float(train_l.mean()):f}")
print(f"w: {w.reshape(2)}, b: {b}")
# %% compare
w, b, train_l
