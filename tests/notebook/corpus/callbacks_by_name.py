# Exceptions that callbacks raise, looked up by a text that is put together; metrics that compute in inference mode, on training batches too.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class StopFit(Exception): pass
class StopEpoch(Exception): pass
class StopBatch(Exception): pass

class around:
    def __init__(self, name): self.name = name
    def __call__(self, f):
        def wrapped(o, *args):
            try:
                o.tell(f"before_{self.name}")
                f(o, *args)
                o.tell(f"after_{self.name}")
            except globals()[f"Stop{self.name.title()}"]: print("no more of this", self.name)
            finally: o.tell(f"cleanup_{self.name}")
        return wrapped

class Mean:
    def __init__(self): self.sum, self.weight = torch.tensor(0.0), torch.tensor(0.0)
    @torch.inference_mode()
    def update(self, value, weight=1.0):
        self.sum += weight * torch.sum(value)
        self.weight += weight * value.numel()
    @torch.inference_mode()
    def compute(self): return self.sum / self.weight

class PerClass:
    def __init__(self): self.right, self.seen = torch.zeros(3), torch.zeros(3)
    @torch.inference_mode()
    def update(self, out, y):
        hits = (out.argmax(1) == y).to(self.right.dtype)
        self.right = self.right + torch.zeros(3).scatter_add_(0, y, hits)
        self.seen += y.bincount(minlength=3)
    @torch.inference_mode()
    def compute(self): return self.right / self.seen

class Metrics:
    def before_fit(self, learn): self.history = []
    def before_epoch(self, learn): self.loss, self.classes, self.top = Mean(), PerClass(), 0.0
    def after_batch(self, learn):
        out, y = learn.out.detach(), learn.batch[1]
        self.loss.update(learn.loss.detach().cpu(), weight=len(y))
        self.classes.update(out, y)
        with torch.inference_mode():
            p = out.softmax(1)
            p[p < 0.2] = 0
            p *= 2
            self.top = max(self.top, p.sum(1).max().item())
            self.both = learn.loss * 2 + p.mean()
    def cleanup_epoch(self, learn):
        self.history.append((self.loss.compute().item(), self.classes.compute().tolist(), self.top, self.both.item()))
        print("train" if learn.model.training else "valid", f"{self.loss.compute():.6f}")

class Stops:
    def before_batch(self, learn):
        if learn.model.training and learn.number == 1: raise StopBatch
    def after_batch(self, learn):
        if learn.model.training and learn.epoch == 1 and learn.number == 2: raise StopEpoch
        if learn.epoch == 2: raise StopFit

class Learner:
    def __init__(self, model, loss, train, valid, callbacks):
        self.model, self.loss_func, self.train, self.valid, self.callbacks = model, loss, train, valid, callbacks
    def tell(self, name):
        for callback in self.callbacks: getattr(callback, name, lambda learn: None)(self)
    @around("batch")
    def one_batch(self):
        self.out = self.model(self.batch[0])
        self.loss = self.loss_func(self.out, self.batch[1])
        if self.model.training:
            self.loss.backward(); self.opt.step(); self.opt.zero_grad()
    @around("epoch")
    def one_epoch(self, train):
        self.model.train(train)
        for self.number, self.batch in enumerate(self.train if train else self.valid): self.one_batch()
    @around("fit")
    def fit_(self, epochs):
        for self.epoch in range(epochs):
            self.one_epoch(True)
            torch.no_grad()(self.one_epoch)(False)
    def fit(self, epochs, lr):
        self.opt = torch.optim.SGD(self.model.parameters(), lr, momentum=0.9)
        self.fit_(epochs)

x = torch.randn(55, 6)
data = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long())
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
learn = Learner(model, F.cross_entropy, DataLoader(data, 16, shuffle=True), DataLoader(data, 25), [Metrics(), Stops()])
limit = 0.3
# %% cell
learn.fit(4, 0.2)
import pandas as pd
table = pd.DataFrame([(loss, top) for loss, _, top, _ in learn.callbacks[0].history], columns=["loss", "top"])
few = len(table.query("loss > @limit"))
# %% compare
model.state_dict(), learn.opt.state_dict(), learn.callbacks[0].history, learn.callbacks[0].both, learn.epoch, learn.number, table, few
