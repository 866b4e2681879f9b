# Gradient descent by hand on all of the data, tensors and no module, loss.backward(retain_graph=True).
# %% setup
import math
import torch

x = torch.linspace(-math.pi, math.pi, 60)
y = torch.sin(x)
a = torch.randn((), requires_grad=True)
b = torch.randn((), requires_grad=True)
c = torch.randn((), requires_grad=True)
learning_rate = 1e-4
# %% cell
for t in range(25):
    y_pred = a + b * x + c * x**2
    loss = (y_pred - y).pow(2).sum()
    if t % 10 == 9:
        print(t, round(loss.item(), 6))
    loss.backward(retain_graph=True)
    with torch.no_grad():
        a -= learning_rate * a.grad
        b -= learning_rate * b.grad
        c -= learning_rate * c.grad
        a.grad = None
        b.grad = None
        c.grad = None
# %% compare
a, b, c, loss
