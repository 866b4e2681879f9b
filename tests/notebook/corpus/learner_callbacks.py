# A learner with callbacks, hooks that gather statistics of activations, a metric class with state, exceptions as control flow, partial functions.
# %% setup
from functools import partial
from types import SimpleNamespace
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class CancelFit(Exception): pass

class Callback:
    order = 0
    def __call__(self, name):
        f = getattr(self, name, None)
        return f() if f else None

class TrainEval(Callback):
    def begin_fit(self): self.learn.n_iter = 0
    def after_batch(self): self.learn.n_iter += self.learn.in_train
    def begin_epoch(self): self.learn.model.train(); self.learn.in_train = True
    def begin_validate(self): self.learn.model.eval(); self.learn.in_train = False

class AvgStats(Callback):
    def __init__(self): self.tot, self.correct, self.n, self.log = 0.0, 0.0, 0, []
    def begin_epoch(self): self.tot, self.correct, self.n = 0.0, 0.0, 0
    def after_loss(self):
        n = self.learn.xb.shape[0]
        self.tot += self.learn.loss * n
        self.correct += (self.learn.pred.argmax(1) == self.learn.yb).float().mean() * n
        self.n += n
    def after_epoch(self):
        self.log.append(((self.tot / self.n).item(), (self.correct / self.n).item()))
        print(f"{self.learn.epoch}: {self.tot / self.n:.5f} {self.correct / self.n:.4f}")

class StopAt(Callback):
    def __init__(self, n): self.n = n
    def after_step(self):
        if self.learn.n_iter >= self.n: raise CancelFit()

class ParamScheduler(Callback):
    def __init__(self, f): self.f = f
    def begin_batch(self):
        for pg in self.learn.opt.param_groups: pg["lr"] = self.f(self.learn.n_iter)

class Learner:
    def __init__(self, model, loss_func, opt, data, cbs):
        self.model, self.loss_func, self.opt, self.data, self.cbs = model, loss_func, opt, data, cbs
        for cb in cbs: cb.learn = self
    def __call__(self, name):
        for cb in sorted(self.cbs, key=lambda cb: cb.order): cb(name)
    def one_batch(self, xb, yb):
        self.xb, self.yb = xb, yb
        self("begin_batch")
        self.pred = self.model(xb); self("after_pred")
        self.loss = self.loss_func(self.pred, yb); self("after_loss")
        if self.in_train:
            self.loss.backward(); self.opt.step(); self("after_step"); self.opt.zero_grad()
        self("after_batch")
    def all_batches(self, dl):
        for xb, yb in dl: self.one_batch(xb, yb)
    def fit(self, epochs):
        try:
            self("begin_fit")
            for self.epoch in range(epochs):
                self("begin_epoch"); self.all_batches(self.data.train_dl)
                with torch.no_grad():
                    self("begin_validate"); self.all_batches(self.data.valid_dl)
                self("after_epoch")
        except CancelFit:
            print("cancelled at", self.n_iter)
        return self

ds = TensorDataset(torch.randn(36, 5), torch.randint(3, (36,)))
data = SimpleNamespace(train_dl=DataLoader(ds, 8, shuffle=True), valid_dl=DataLoader(ds, 20))
model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
stats = AvgStats()
sched = partial(lambda start, end, pos: start + (end - start) * min(pos / 10, 1.0), 0.1, 0.01)
learn = Learner(model, F.cross_entropy, torch.optim.SGD(model.parameters(), 0.1, momentum=0.5), data, [TrainEval(), stats, StopAt(8), ParamScheduler(sched)])
# %% cell
learn.fit(3).n_iter
# %% compare
model.state_dict(), learn.opt.state_dict(), stats.log, learn.n_iter, learn.epoch, learn.loss, learn.xb
