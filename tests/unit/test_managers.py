"""A run that goes on inside a ``with`` block leaves it as it would have: managers find what they found at first."""

# ruff: noqa: E501  # tables: one case a line

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.resume.managed_blocks import Managed
from jupyter_dtrain.engine.resume.managers import Watched
from tests.unit.test_resumable import check

SETUP = """
opts = {'gain': 1, 'more': [1, 2]}
GAIN = 1
class Cfg: pass
cfg = Cfg(); cfg.gain = 1
@contextmanager
def override(obj, **new):
    old = {name: getattr(obj, name) for name in new}
    for name, value in new.items(): setattr(obj, name, value)
    try: yield obj
    finally:
        for name, value in old.items(): setattr(obj, name, value)
class Level:
    depth = 0
    def __init__(self): self.stack = []
    def __enter__(self):
        self.stack.append(cfg.gain)
        cfg.gain *= 3
        Level.depth += 1
        return self
    def __exit__(self, *error):
        cfg.gain = self.stack.pop()
        Level.depth -= 1
"""
LOOP = "    for i in range(3): t((i, cfg.gain, GAIN, opts['gain'], Level.depth))\n"
AFTER = "for i in range(2): t((cfg.gain, GAIN, opts, Level.depth))"

PROGRAMS = {
    "an attribute": ("", "with override(cfg, gain=2):\n" + LOOP),
    "an attribute that the block changes": (
        "",
        "with override(cfg, gain=2) as c:\n    for i in range(3):\n        c.gain += 1\n        t(c.gain)\n",
    ),
    "several in one header": ("", "with override(cfg, gain=2), override(cfg, gain=cfg.gain + 5) as c:\n" + LOOP),
    "one in another": ("", "with override(cfg, gain=2):\n  with override(cfg, gain=7):\n" + LOOP + LOOP.replace("    for", "  for")),
    "in a loop": ("", "for k in range(2):\n  with override(cfg, gain=cfg.gain + k):\n" + LOOP + "  t(cfg.gain)\n"),
    "in a function": ("def train():\n  with override(cfg, gain=2):\n" + LOOP + "  return cfg.gain", "t(train())\n"),
    "a global": (
        "@contextmanager\ndef gain(value):\n  global GAIN\n  old, GAIN = GAIN, value\n  yield\n  GAIN = old",
        "with gain(4):\n" + LOOP,
    ),
    "a dict": (
        "@contextmanager\ndef having(**new):\n  old = dict(opts)\n  opts.update(new)\n  yield\n  opts.clear()\n  opts.update(old)",
        "with having(gain=5, new=1):\n" + LOOP,
    ),
    "what only the block changes": (
        "import copy\n@contextmanager\ndef kept():\n  old = copy.deepcopy(opts)\n  yield\n  opts.clear()\n  opts.update(old)",
        "with kept():\n    for i in range(3):\n        opts['gain'] += i\n        opts['more'].append(i)\n        t(opts['gain'])\n",
    ),
    "an object with a name": ("level = Level()", "with level:\n" + LOOP + "t(level.stack)\n"),
    "an object of the cell": ("", "with Level() as level:\n  with level:\n" + LOOP + "t(level.stack)\n"),
    "around a function's variables": (
        (
            "def scope():\n  stack = [1]\n  @contextmanager\n  def push(value):\n    stack.append(value)\n    yield\n    stack.pop()\n"
            "  return push, lambda: list(stack)\npush, top = scope()"
        ),
        "with push(2):\n    for i in range(3): t(top())\nt(top())\n",
    ),
    "mock": ("from unittest import mock", "with mock.patch.dict(opts, gain=2), mock.patch.object(cfg, 'gain', 9):\n" + LOOP),
    "weights": (
        (
            "import copy\nmodel = torch.nn.Linear(2, 1)\n@contextmanager\ndef kept(model):\n  old = copy.deepcopy(model.state_dict())\n"
            "  yield\n  model.load_state_dict(old)"
        ),
        (
            "with kept(model):\n    for i in range(3):\n        with torch.no_grad(): model.weight += 1\n        t(model.weight.sum().item())\n"
            "t(model.weight.sum().item())\n"
        ),
    ),
    "an array": (
        "import numpy as np\nscale = np.ones(3)\n@contextmanager\ndef scaled(by):\n  old = scale.copy()\n  scale[:] *= by\n  yield\n  scale[:] = old",
        "with scaled(2):\n    for i in range(3):\n        scale[i] += 1\n        t(scale.tolist())\nt(scale.tolist())\n",
    ),
    "a table": (
        "import pandas as pd\ntable = pd.DataFrame({'a': [1, 2]})\n@contextmanager\ndef having(value):\n  old = table.copy()\n  table.loc[0, 'a'] = value\n  yield\n  table['a'] = old['a']",
        "with having(5):\n    for i in range(3): t(table.a.tolist())\nt(table.a.tolist())\n",
    ),
    "a generator of NumPy": (
        "import numpy as np\ndraws = np.random.RandomState(1)\n@contextmanager\ndef seeded(seed):\n  old = draws.get_state()\n  draws.seed(seed)\n  yield\n  draws.set_state(old)",
        "with seeded(3):\n    for i in range(3): t(draws.rand())\nt(draws.rand())\n",
    ),
    "what is trained": (
        (
            "model = torch.nn.Linear(2, 1)\n@contextmanager\ndef frozen(model):\n  old = [p.requires_grad for p in model.parameters()]\n"
            "  model.requires_grad_(False).eval()\n  yield\n  model.train()\n  for p, was in zip(model.parameters(), old): p.requires_grad_(was)"
        ),
        "with frozen(model):\n    for i in range(2): t(model.weight.requires_grad)\nt((model.weight.requires_grad, model.training))\n",
    ),
    "learning rates": (
        (
            "model = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.5)\n@contextmanager\ndef at(lr):\n"
            "  old = [g['lr'] for g in optimizer.param_groups]\n  for g in optimizer.param_groups: g['lr'] = lr\n  yield\n"
            "  for g, lr in zip(optimizer.param_groups, old): g['lr'] = lr"
        ),
        "with at(0.1):\n    for i in range(2): t(optimizer.param_groups[0]['lr'])\nt(optimizer.param_groups[0]['lr'])\n",
    ),
    "random numbers": (
        "",
        "with torch.random.fork_rng():\n    torch.manual_seed(3)\n    for i in range(3): t(float(torch.rand(1)))\nt(float(torch.rand(1)))\n",
    ),
    "Python's random numbers": (
        "@contextmanager\ndef seeded(seed):\n  old = random.getstate()\n  random.seed(seed)\n  yield\n  random.setstate(old)",
        "with seeded(3):\n    for i in range(3): t(random.random())\nt(random.random())\n",
    ),
    "the default type": (
        "@contextmanager\ndef having(dtype):\n  old = torch.get_default_dtype()\n  torch.set_default_dtype(dtype)\n  yield\n  torch.set_default_dtype(old)",
        "with having(torch.float16):\n    for i in range(2): t(str(torch.zeros(1).dtype))\nt(str(torch.zeros(1).dtype))\n",
    ),
    "an error that it catches": (
        "class Caught(Level):\n  def __exit__(self, *error):\n    super().__exit__()\n    t(str(error[1]))\n    return True",
        "with Caught():\n" + LOOP + "    raise ValueError('over')\n",
    ),
    "what is registered": (
        "model = torch.nn.Linear(2, 1)\n@contextmanager\ndef hooked(layer):\n  calls = []\n  handle = layer.register_forward_hook(lambda *_: calls.append(1))\n  yield calls\n  handle.remove()\n  t(len(calls))",
        "with hooked(model) as calls:\n    for i in range(3):\n        model(torch.ones(1, 2))\n        t(len(calls))\nt(len(model._forward_hooks))\n",
    ),
    "what an object registers": (
        "model = torch.nn.Linear(2, 1)\nclass Hooked:\n  def __enter__(self):\n    self.calls = []\n    self.handle = model.register_forward_hook(self.note)\n    return self.calls\n  def note(self, *_): self.calls.append(1)\n  def __exit__(self, *_):\n    self.handle.remove()\n    t(len(self.calls))",
        "with Hooked() as calls:\n    for i in range(3):\n        model(torch.ones(1, 2))\n        t(len(calls))\nt(len(model._forward_hooks))\n",
    ),
    "variables of what it is made of": (
        "@contextmanager\ndef counting():\n  seen = []\n  yield seen\n  t(('seen', seen))",
        "with counting() as seen:\n    for i in range(3): seen.append(i)\n",
    ),
    "attributes in slots": (
        (
            "class Once:\n  __slots__ = ('count', 'old')\n  def __init__(self): self.count = 0\n  def __enter__(self):\n    self.count += 1\n"
            "    self.old = dict(opts)\n    opts['gain'] = 2 * self.count\n  def __exit__(self, *error):\n    opts.clear()\n    opts.update(self.old)\nonce = Once()"
        ),
        "with once:\n" + LOOP + "t(once.count)\n",
    ),
}


@pytest.mark.parametrize(("setup", "program"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_block_ends_as_it_would_have(setup: str, program: str) -> None:
    dtype = torch.get_default_dtype()
    try:
        done, reasons = check(program + AFTER, SETUP + setup)
    finally:
        torch.set_default_dtype(dtype)
    assert not reasons
    assert done > 3


def test_an_exit_stack_is_not_entered_again_empty() -> None:
    program = "with contextlib.ExitStack() as stack:\n    stack.callback(t, 'end')\n    for i in range(2): t(i)\nfor i in range(2): t(i)"
    done, reasons = check(program)
    assert done == 3
    assert {reason.partition(": ")[2] for reason in reasons} == {"an ExitStack holds what is to be done at the end of its block"}


def test_large_tensors_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_dtrain.engine.resume.managers._ROOM", 100)
    large = nn.Linear(10, 10)

    @contextlib.contextmanager
    def doubled(model: nn.Module) -> Any:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(2)
        yield

    managed = Managed(doubled(large), {}, None, lambda _: None, lambda: None)
    with managed:
        assert "more than can be kept" in managed.check()
    managed = Managed(contextlib.nullcontext(large), {}, None, lambda _: None, lambda: None)
    with managed:
        assert managed.check() == ""


def test_what_cannot_be_copied_is_in_nobodys_way() -> None:
    class Shy:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("nobody is to look")

    lazy, sparse, shy = nn.LazyLinear(2), torch.eye(2).to_sparse(), Shy()

    @contextlib.contextmanager
    def looking(*_: Any) -> Any:
        yield

    managed = Managed(looking(lazy, sparse), {}, None, lambda _: None, lambda: None)
    with managed:
        assert managed.check() == ""
    managed = Managed(looking(shy), {}, None, lambda _: None, lambda: None)
    with managed:
        assert "cannot be looked at (RuntimeError: nobody is to look)" in managed.check()


def test_an_error_of_a_manager_is_its_own() -> None:
    class Refuses:
        def __enter__(self) -> None:
            raise ValueError("not today")

        def __exit__(self, *error: object) -> None:
            raise AssertionError("it was never entered")

    with pytest.raises(ValueError, match="not today"), Managed(Refuses(), {}, None, lambda _: None, lambda: None):
        raise AssertionError("the body")


def test_what_is_looked_at_is_what_entering_uses() -> None:
    class Timer:
        def __init__(self) -> None:
            self.model = nn.Linear(1000, 1000)

        def __enter__(self) -> None:
            self.begun = time.monotonic()

        def __exit__(self, *error: object) -> None:
            self.model.zero_grad()

    watched = Watched(Timer(), {})
    assert not [part.obj for part in watched._parts if isinstance(part.obj, torch.Tensor)]
    assert watched._settings is None
    assert watched._random_state is None
