"""A cell in whose ``with`` block an engine dies comes to the same: what is put back in the end is what was there at first."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from tests.faults.test_corpus_killed import assert_same_where_one_dies, notebook
from tests.notebook.corpus_cells import CorpusCell

__all__ = ["notebook"]  # a fixture

SETUP = """
import contextlib, types
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
X = torch.randn(60, 5); Y = X.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
class Cfg: pass
cfg = Cfg(); cfg.gain = 1.0; cfg.log = []
opts = {"gain": 1.0}
GAIN = 1.0
seen = []
"""

OVERRIDE = """
@contextlib.contextmanager
def override(obj, **kw):
    old = {k: getattr(obj, k) for k in kw}
    for k, v in kw.items(): setattr(obj, k, v)
    try: yield obj
    finally:
        for k, v in old.items(): setattr(obj, k, v)
"""


def body(gain, indent=1, extra=""):
    text = f"""for epoch in range(2):
    for x, y in loader:
        loss = {gain} * nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        seen.append(({gain}, loss.item()))
        {extra}
"""
    return "".join("    " * indent + line + "\n" for line in text.splitlines())


AFTER = """
for x, y in loader:
    loss = {} * nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    seen.append(({}, loss.item()))
noise = torch.randn(3)
"""
CMP = "{**model.state_dict(), 'seen': seen, 'noise': noise, 'gain': [cfg.gain, opts, GAIN, cfg.log]}"


def case(name, setup, cell, gain, compare=CMP):
    return CorpusCell(name=name, setup=SETUP + setup, cell=cell + AFTER.format(gain, gain), compare=compare, tolerance=1e-9)


CASES = [
    case(
        "class_attr",
        """
class Override:
    def __init__(self, obj, **kw): self.obj, self.kw = obj, kw
    def __enter__(self):
        self.old = {k: getattr(self.obj, k) for k in self.kw}
        for k, v in self.kw.items(): setattr(self.obj, k, v)
        return self.obj
    def __exit__(self, *a):
        for k, v in self.old.items(): setattr(self.obj, k, v)
""",
        "with Override(cfg, gain=2.0):\n" + body("cfg.gain"),
        "cfg.gain",
    ),
    case(
        "gen_attr",
        OVERRIDE,
        "with override(cfg, gain=2.0) as c:\n" + body("cfg.gain"),
        "cfg.gain",
    ),
    case(
        "gen_dict",
        """
@contextlib.contextmanager
def override(**kw):
    old = dict(opts); opts.update(kw)
    try: yield
    finally: opts.clear(); opts.update(old)
""",
        "with override(gain=2.0):\n" + body("opts['gain']"),
        "opts['gain']",
    ),
    case(
        "gen_global",
        """
@contextlib.contextmanager
def gain(value):
    global GAIN
    old, GAIN = GAIN, value
    yield
    GAIN = old
""",
        "with gain(3.0):\n" + body("GAIN"),
        "GAIN",
    ),
    case(
        "in_cell",
        "",
        """@contextlib.contextmanager
def scaled(by):
    opts["gain"] *= by
    yield
    opts["gain"] /= by
with scaled(2.0):
"""
        + body("opts['gain']"),
        "opts['gain']",
    ),
    case(
        "ema_swap",
        """
class EMA:
    def __init__(self, model, decay):
        self.shadow = [p.detach().clone() for p in model.parameters()]; self.decay = decay; self.kept = None; self.params = list(model.parameters())
    def update(self):
        with torch.no_grad():
            for s, p in zip(self.shadow, self.params): s.lerp_(p, 1 - self.decay)
    @contextlib.contextmanager
    def average(self):
        self.kept = [p.detach().clone() for p in self.params]
        for s, p in zip(self.shadow, self.params): p.data.copy_(s)
        try: yield
        finally:
            for k, p in zip(self.kept, self.params): p.data.copy_(k)
ema = EMA(model, .9)
""",
        """for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        ema.update()
    with ema.average():
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            seen.append(loss.item())
            loss.backward()
            optimizer.zero_grad()
""",
        "1.0",
    ),
    case(
        "fork_rng",
        "",
        "with torch.random.fork_rng():\n    torch.manual_seed(7)\n" + body("1.0", extra="opts['n'] = torch.rand(1).item()"),
        "1.0",
    ),
    case("mock_dict", "from unittest import mock", "with mock.patch.dict(opts, gain=2.0):\n" + body("opts['gain']"), "opts['gain']"),
    case("mock_object", "from unittest import mock", "with mock.patch.object(cfg, 'gain', 2.0):\n" + body("cfg.gain"), "cfg.gain"),
    case(
        "exit_stack",
        OVERRIDE,
        "with contextlib.ExitStack() as stack:\n    stack.enter_context(override(cfg, gain=2.0))\n" + body("cfg.gain"),
        "cfg.gain",
    ),
    case(
        "exit_stack_callback",
        "",
        "with contextlib.ExitStack() as stack:\n    stack.callback(opts.update, gain=5.0)\n" + body("opts['gain']"),
        "opts['gain']",
    ),
    case(
        "named",
        """
class Level:
    def __init__(self): self.stack = []
    def __enter__(self): self.stack.append(cfg.gain); cfg.gain = cfg.gain * 2; return self
    def __exit__(self, *a): cfg.gain = self.stack.pop(); cfg.log.append(len(self.stack))
level = Level()
""",
        "with level:\n" + body("cfg.gain"),
        "cfg.gain",
        compare=CMP[:-1] + ", 'level': level.stack}",
    ),
    case(
        "changed_inside",
        OVERRIDE,
        "with override(cfg, gain=2.0) as c:\n" + body("cfg.gain", extra="c.gain *= 0.9"),
        "cfg.gain",
    ),
    case(
        "in_function",
        OVERRIDE
        + """
def train():
    with override(cfg, gain=2.0) as c:
"""
        + body("cfg.gain", 2),
        "train()",
        "cfg.gain",
    ),
    case(
        "two_items",
        OVERRIDE,
        "with torch.enable_grad(), override(cfg, gain=2.0) as c, override(cfg, gain=cfg.gain + 1):\n" + body("cfg.gain"),
        "cfg.gain",
    ),
    case(
        "nested",
        """
@contextlib.contextmanager
def plus(value):
    opts["gain"] += value
    yield
    opts["gain"] -= value
""",
        "for k in range(2):\n    with plus(1.0):\n        with plus(2.0):\n" + body("opts['gain']", 3),
        "opts['gain']",
    ),
    case(
        "frozen",
        """
@contextlib.contextmanager
def frozen(module):
    before = [p.requires_grad for p in module.parameters()]
    module.requires_grad_(False)
    yield
    for p, b in zip(module.parameters(), before): p.requires_grad_(b)
""",
        "with frozen(model[0]):\n" + body("1.0"),
        "1.0",
    ),
    case(
        "eval_mode",
        """
@contextlib.contextmanager
def evaluating(module):
    was = module.training
    module.eval()
    yield
    module.train(was)
""",
        "with evaluating(model):\n" + body("1.0"),
        "1.0",
        compare=CMP[:-1] + ", 'training': [m.training for m in model.modules()]}",
    ),
    case(
        "lr_scope",
        """
class LR:
    def __init__(self, optimizer, by): self.optimizer, self.by = optimizer, by
    def __enter__(self):
        for g in self.optimizer.param_groups: g["lr"] *= self.by
    def __exit__(self, *a):
        for g in self.optimizer.param_groups: g["lr"] /= self.by
""",
        "with LR(optimizer, 10.0):\n" + body("1.0"),
        "1.0",
        compare=CMP[:-1] + ", 'lr': optimizer.param_groups[0]['lr']}",
    ),
    case(
        "counter",
        """
class Timer:
    entered = 0
    def __enter__(self): Timer.entered += 1; cfg.log.append("in"); return self
    def __exit__(self, *a): cfg.log.append("out")
""",
        "with Timer():\n" + body("1.0"),
        "1.0",
        compare=CMP[:-1] + ", 'n': Timer.entered}",
    ),
    case(
        "printing",
        """
@contextlib.contextmanager
def said(what):
    print("begin", what)
    yield
    print("end", what)
""",
        "with said('training'):\n" + body("1.0"),
        "1.0",
    ),
    case(
        "restoring",
        """
@contextlib.contextmanager
def restoring(d):
    saved = dict(d)
    yield
    d.clear(); d.update(saved)
""",
        "with restoring(opts):\n" + body("opts['gain']", extra="opts['gain'] += 0.1; opts['new'] = 1"),
        "opts['gain']",
    ),
    case(
        "keep_weights",
        """
import copy
@contextlib.contextmanager
def keep(model):
    saved = copy.deepcopy(model.state_dict())
    yield
    model.load_state_dict(saved)
""",
        "with keep(model):\n" + body("1.0"),
        "1.0",
    ),
    case(
        "keep_weights_class",
        """
class Keep:
    def __init__(self, model, optimizer): self.model, self.optimizer = model, optimizer
    def __enter__(self):
        self.saved = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.lrs = [g["lr"] for g in self.optimizer.param_groups]
        for g in self.optimizer.param_groups: g["lr"] = 0.1
        return self
    def __exit__(self, *a):
        self.model.load_state_dict(self.saved)
        for g, lr in zip(self.optimizer.param_groups, self.lrs): g["lr"] = lr
""",
        "with Keep(model, optimizer) as k:\n" + body("1.0"),
        "1.0",
        compare=CMP[:-1] + ", 'lr': optimizer.param_groups[0]['lr'], 'saved': k.saved}",
    ),
    case(
        "dtype",
        """
@contextlib.contextmanager
def dtype(d):
    old = torch.get_default_dtype(); torch.set_default_dtype(d)
    try: yield
    finally: torch.set_default_dtype(old)
""",
        "with dtype(torch.float32):\n" + body("1.0", extra="opts['d'] = torch.zeros(1).dtype"),
        "1.0",
        compare=CMP[:-1] + ", 'dtype': torch.get_default_dtype()}",
    ),
    case(
        "log_file",
        """
class Log:
    def __init__(self, name): self.name = name
    def __enter__(self): self.f = open(self.name, "w"); self.f.write("begin\\n"); return self
    def __exit__(self, *a): self.f.write("end\\n"); self.f.close()
""",
        "with Log('log.txt') as log:\n" + body("1.0", extra="log.f.write(f'{loss.item():.6f}\\n')"),
        "1.0",
        compare=CMP[:-1] + ", 'text': len(open('log.txt').read().splitlines())}",
    ),
    case(
        "seeded",
        """
@contextlib.contextmanager
def seeded(n):
    state = torch.get_rng_state(); torch.manual_seed(n)
    yield
    torch.set_rng_state(state)
""",
        "with seeded(3):\n" + body("1.0", extra="opts['n'] = torch.rand(1).item()"),
        "1.0",
    ),
    case(
        "numpy_seeded",
        """
import numpy as np
@contextlib.contextmanager
def seeded(n):
    state = np.random.get_state(); np.random.seed(n)
    yield
    np.random.set_state(state)
""",
        "with seeded(3):\n" + body("1.0", extra="opts['n'] = np.random.rand()") + "opts['after'] = np.random.rand()\n",
        "1.0",
    ),
    case(
        "class_state",
        """
class Mode:
    level = 0
    def __init__(self, n): self.n = n
    def __enter__(self): self.old, Mode.level = Mode.level, self.n
    def __exit__(self, *a): Mode.level = self.old
""",
        "with Mode(2):\n    with Mode(3):\n" + body("(1 + Mode.level)", 2),
        "(1 + Mode.level)",
        compare=CMP[:-1] + ", 'level': Mode.level}",
    ),
    case(
        "closure",
        """
def scope():
    stack = [1.0]
    @contextlib.contextmanager
    def push(v):
        stack.append(v)
        yield
        stack.pop()
    return push, lambda: stack[-1], stack
push, top, stack = scope()
""",
        "with push(2.0):\n" + body("top()"),
        "top()",
        compare=CMP[:-1] + ", 'stack': stack}",
    ),
    case(
        "decorated",
        """
class Override(contextlib.ContextDecorator):
    def __enter__(self): self.old = cfg.gain; cfg.gain = 4.0
    def __exit__(self, *a): cfg.gain = self.old
""",
        "with Override():\n" + body("cfg.gain"),
        "cfg.gain",
    ),
    case(
        "evaluated_argument",
        """
@contextlib.contextmanager
def set_gain(v):
    old = cfg.gain; cfg.gain = v
    yield v
    cfg.gain = old
""",
        "with set_gain(cfg.gain * 2) as v:\n" + body("v", extra="cfg.gain += 1"),
        "cfg.gain",
    ),
    case(
        "in_loop",
        """
@contextlib.contextmanager
def stage(n):
    old = opts["gain"]; opts["gain"] = old + n; cfg.log.append(n)
    yield
    opts["gain"] = old
""",
        "for n in range(3):\n    with stage(n):\n" + body("opts['gain']", 2),
        "opts['gain']",
    ),
    case(
        "swallows",
        """
class Swallow:
    def __enter__(self): self.before = cfg.gain; cfg.gain = 2.0
    def __exit__(self, kind, e, tb):
        cfg.gain = self.before; cfg.log.append(str(e)); return True
""",
        "with Swallow():\n" + body("cfg.gain") + "    raise ValueError('over')\n",
        "cfg.gain",
    ),
    case(
        "slots",
        """
class Once:
    __slots__ = ("count", "old")
    def __init__(self): self.count = 0
    def __enter__(self): self.count += 1; self.old = dict(opts); opts["gain"] = 2.0 * self.count; return self
    def __exit__(self, *a): opts.clear(); opts.update(self.old)
once = Once()
""",
        "with once:\n" + body("opts['gain']"),
        "opts['gain']",
        compare=CMP[:-1] + ", 'count': once.count}",
    ),
    case(
        "amp_and_timer",
        """
import time
class Timer:
    def __enter__(self): self.t0 = time.time(); return self
    def __exit__(self, *a): self.spent = time.time() - self.t0
""",
        "with Timer() as timer, torch.autograd.set_detect_anomaly(True):\n" + body("1.0") + "assert timer.spent < 100\n",
        "1.0",
    ),
    case(
        "tensor_flag",
        """
flag = torch.zeros(1)
@contextlib.contextmanager
def on():
    flag.fill_(1)
    yield
    flag.fill_(0)
""",
        "with on():\n" + body("(1 + flag.item())"),
        "(1 + flag.item())",
        compare=CMP[:-1] + ", 'flag': flag}",
    ),
    case(
        "hooks",
        """
@contextlib.contextmanager
def hooked(layer):
    calls = []
    h = layer.register_forward_hook(lambda m, a, o: calls.append(1))
    yield calls
    h.remove()
""",
        "with hooked(model[0]) as calls:\n" + body("1.0"),
        "1.0",
        compare=CMP[:-1] + ", 'hooks': len(model[0]._forward_hooks)}",
    ),
    case(
        "module_beside",
        """
from pathlib import Path
Path("scopes.py").write_text('''
from contextlib import contextmanager
GAIN = 1.0
LOG = []
@contextmanager
def having(value):
    global GAIN
    old, GAIN = GAIN, value
    LOG.append(value)
    yield
    GAIN = old
    LOG.append("end")
def gain(): return GAIN
''')
from scopes import having, gain, LOG
LOG.clear()
""",
        "with having(2.0):\n" + body("gain()"),
        "gain()",
        compare=CMP[:-1] + ", 'log': LOG, 'now': gain()}",
    ),
    case(
        "module_by_name",
        """
from pathlib import Path
Path("levels.py").write_text('''
class Scope:
    level = 1.0
    def __init__(self, value): self.value = value
    def __enter__(self):
        global CURRENT
        self.old, CURRENT = CURRENT, self
        self.before, Scope.level = Scope.level, self.value
    def __exit__(self, *_):
        global CURRENT
        CURRENT = self.old
        Scope.level = self.before
CURRENT = None
''')
import levels
""",
        "with levels.Scope(2.0):\n" + body("levels.Scope.level"),
        "levels.Scope.level",
        compare=CMP[:-1] + ", 'now': [str(levels.CURRENT), levels.Scope.level]}",
    ),
]
IN_GATE = ("two_items", "log_file")


def marked(cell: CorpusCell) -> object:
    return pytest.param(cell, id=cell.name, marks=() if cell.name in IN_GATE else pytest.mark.long)


@pytest.mark.parametrize("cell", list(map(marked, CASES)))
def test_a_block_ends_as_it_would_have(notebook, cell):
    assert_same_where_one_dies(notebook, cell, 1, 1, at_once=False)


@pytest.mark.long
@pytest.mark.parametrize("cell", list(map(marked, CASES)))
def test_a_block_ends_as_it_would_have_from_any_snapshot(notebook, cell):
    assert_same_where_one_dies(notebook, cell, 0, 2, at_once=True)
