# A BatchNorm and a moving average written by hand: statistics of the batch and moving averages as attributes and buffers.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def batch_norm(X, gamma, beta, moving_mean, moving_var, eps, momentum):
    if not torch.is_grad_enabled():
        X_hat = (X - moving_mean) / torch.sqrt(moving_var + eps)
    else:
        mean = X.mean(dim=0)
        var = ((X - mean) ** 2).mean(dim=0)
        X_hat = (X - mean) / torch.sqrt(var + eps)
        moving_mean = (1.0 - momentum) * moving_mean + momentum * mean
        moving_var = (1.0 - momentum) * moving_var + momentum * var
    Y = gamma * X_hat + beta
    return Y, moving_mean.data, moving_var.data

class BatchNorm(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        shape = (1, num_features)
        self.gamma = nn.Parameter(torch.ones(shape))
        self.beta = nn.Parameter(torch.zeros(shape))
        self.moving_mean = torch.zeros(shape)
        self.moving_var = torch.ones(shape)
        self.register_buffer("ema", torch.zeros(num_features))

    def forward(self, X):
        self.ema = 0.9 * self.ema + 0.1 * X.detach().mean(0)
        Y, self.moving_mean, self.moving_var = batch_norm(
            X, self.gamma, self.beta, self.moving_mean, self.moving_var, eps=1e-5, momentum=0.1)
        return Y

net = nn.Sequential(nn.Linear(3, 5), BatchNorm(5), nn.Sigmoid(), nn.Linear(5, 2))
data = torch.randn(34, 3)
loader = DataLoader(TensorDataset(data, (data[:, 0] > 0).long()), batch_size=8, shuffle=True)
trainer = torch.optim.SGD(net.parameters(), lr=0.5)
loss = nn.CrossEntropyLoss(reduction="none")
# %% cell
metric = [0.0, 0.0, 0]
for epoch in range(2):
    for X, y in loader:
        y_hat = net(X)
        l = loss(y_hat, y)
        trainer.zero_grad()
        l.mean().backward()
        trainer.step()
        metric = [metric[0] + float(l.sum()), metric[1] + float((y_hat.argmax(axis=1).type(y.dtype) == y).type(y.dtype).sum()), metric[2] + y.numel()]
    with torch.no_grad():
        test = net(data).softmax(1)[:, 0].mean().item()
    print(f"loss {metric[0] / metric[2]:.4f}, train acc {metric[1] / metric[2]:.4f}, {test:.5f}")
# %% compare
net.state_dict(), metric, net[1].moving_mean, net[1].moving_var
