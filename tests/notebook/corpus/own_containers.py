# Containers of the user's own, made from those of Python's library: meters, counters, histories.
# %% setup
from collections import Counter, OrderedDict, defaultdict, deque

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Meters(defaultdict):
    def __init__(self):
        super().__init__(lambda: [0.0, 0])
        self.updates = 0

    def add(self, n, **values):
        self.updates += 1
        for name, value in values.items():
            self[name][0] += float(value) * n
            self[name][1] += n


class Window(deque):
    def __init__(self, size):
        super().__init__(maxlen=size)
        self.total = 0.0

    def push(self, value):
        self.append(value)
        self.total += value


class Labels(Counter):
    def __init__(self, names):
        super().__init__()
        self.names = names

    def count(self, y):
        for label in y.tolist():
            self[self.names[label]] += 1


class Best(OrderedDict):
    def __init__(self, keep):
        super().__init__()
        self.keep = keep

    def offer(self, name, value):
        self[name] = value
        while len(self) > self.keep:
            self.popitem(last=False)


class Seen(set):
    def __init__(self, limit):
        super().__init__()
        self.limit = limit


loader = DataLoader(TensorDataset(torch.randn(30, 4), torch.randint(0, 3, (30,))), batch_size=8, shuffle=True)
model = nn.Linear(4, 3)
opt = torch.optim.SGD(model.parameters(), 0.1)
before = Meters(), Window(3), Labels("abc"), Best(2), Seen(5)
# %% cell
made = Meters(), Window(3), Labels("abc"), Best(2), Seen(5)
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        for meters, window, labels, best, seen in (before, made):
            meters.add(len(y), loss=loss, accuracy=(out.argmax(1) == y).double().mean())
            window.push(loss.item())
            labels.count(y)
            best.offer(f"{epoch}.{step}", loss.item())
            seen.add(len(y))
# %% compare
[(dict(m), m.updates, m["new"], list(w), w.maxlen, w.total, dict(n), n.names, list(b.items()), b.keep, sorted(s), s.limit, type(m).__name__) for m, w, n, b, s in (before, made)]
