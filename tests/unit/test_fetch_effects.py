"""Whether fetching samples leaves something behind, told from the code of a data set, its transforms and its collate function."""
# ruff: noqa: E501  # tables: one text a line

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from jupyter_dtrain.analysis.code_objects import keep_text
from jupyter_dtrain.engine.data.fetch_effects import has_effects, tells_others
from jupyter_dtrain.engine.data.fetch_state import FetchState

D = "class D(Dataset):\n    def __len__(self): return 20\n"
NOTHING = {
    "plain": D + "    def __getitem__(self, i): return X[i], i",
    "initonly": D
    + "    def __init__(self): self.n = 0; self.d = {}\n    def set_epoch(self, e): self.e = e\n    def __getitem__(self, i): return X[i]",
    "localdict": D
    + "    def __getitem__(self, i):\n        t = {}; t['a'] = X[i]; t['b'] = i\n        img = X[i].clone(); img[0] = 1; img += 2; img.mul_(2)\n        i += 1\n        return img, t",
    "transform_pure": "class T:\n    def __call__(self, x): return x * 2\n"
    + D
    + "    def __init__(self): self.t = T()\n    def __getitem__(self, i): return self.t(X[i])",
    "det": "class T:\n    def __call__(self, x, t):\n        t['b'] = x[0]\n        return x, t\n"
    + D
    + "    def __init__(self): self.t = T()\n    def __getitem__(self, i):\n        x = X[i].clone(); t = {}; t['a'] = 1\n        return self.t(x, t)",
    "collate": D
    + "    def __getitem__(self, i): return X[i]\ndef collate(b):\n    b.sort(key=lambda t: t[0].item())\n    out = []\n    for t in b: out.append(t)\n    return torch.stack(out)",
    "collate_lambda": D + "    def __getitem__(self, i): return X[i]\ncollate = lambda b: torch.stack(b)",
    "rand": D
    + "    def __getitem__(self, i):\n        x = X[i] + torch.randn(3) * 0.1\n        if torch.rand(()) < .5: x = x.flip(0)\n        return x",
    "image": "from PIL import Image\n"
    + D
    + "    def __init__(self): self.paths = ['a']*20; self.transform = None\n    def __getitem__(self, i):\n        try:\n            img = Image.open(self.paths[i]).convert('RGB')\n        except OSError:\n            return None\n        if self.transform is not None: img = self.transform(img)\n        return img, i",
    "seq": D
    + "    def __init__(self): self.data = list(range(100)); self.block = 8\n    def __getitem__(self, i):\n        chunk = self.data[i:i+self.block+1]\n        x = torch.tensor(chunk[:-1]); y = torch.tensor(chunk[1:])\n        return x, y",
    "mlm": D
    + "    def __getitem__(self, i):\n        ids = X[i].clone(); labels = ids.clone()\n        mask = torch.rand(ids.shape) < .15\n        labels[~mask] = -100\n        ids[mask] = 0\n        return ids, labels",
    "helper_new": "def fix(x):\n    x[0] = 1\n    return x\n" + D + "    def __getitem__(self, i):\n        return fix(X[i].clone())",
    "lazy": D
    + "    def __init__(self): self.f = None\n    def __getitem__(self, i):\n        if self.f is None:\n            self.f = open(self.path)\n        return self.f[i]",
    "lazy_hasattr": D
    + "    def __getitem__(self, i):\n        if not hasattr(self, 'f'): self.f = open(self.path)\n        return self.f[i]",
}
SOMETHING = {
    "attr": D + "    def __getitem__(self, i): self.n = i; return X[i]",
    "inplacedata": D + "    def __getitem__(self, i):\n        x = X[i]; x += 1; return x",
    "inplacedata_": D + "    def __getitem__(self, i):\n        x = X[i]; x.add_(1); return x",
    "alias": D + "    def __init__(self): self.c = {}\n    def __getitem__(self, i):\n        c = self.c; c[i] = X[i]; return X[i]",
    "globaln": "n = 0\n" + D + "    def __getitem__(self, i):\n        global n\n        n += 1\n        return X[i]",
    "lru": "@functools.lru_cache\ndef load(i): return X[i]\n" + D + "    def __getitem__(self, i):\n        return load(i)",
    "print": D + "    def __getitem__(self, i):\n        print(i)\n        return X[i]",
    "transform": "class T:\n    def __call__(self, x): self.n = 1; return x\n"
    + D
    + "    def __init__(self): self.t = T()\n    def __getitem__(self, i): return self.t(X[i])",
    "det_shared": "class T:\n    def __call__(self, x, t):\n        t['b'] = x[0]\n        return x, t\n"
    + D
    + "    def __init__(self): self.t = T(); self.all = [{} for _ in range(20)]\n    def __getitem__(self, i):\n        return self.t(X[i], self.all[i])",
    "collate_list": "seen=[]\n"
    + D
    + "    def __getitem__(self, i): return X[i]\ndef collate(b):\n    seen.append(len(b))\n    return torch.stack(b)",
    "collate_obj": D
    + "    def __getitem__(self, i): return X[i]\nclass C:\n    def __init__(self): self.n=0\n    def __call__(self, b):\n        self.n += 1\n        return torch.stack(b)\ncollate = C()",
    "default": D
    + "    def load(self, i, c={}):\n        if i not in c: c[i] = X[i]\n        return c[i]\n    def __getitem__(self, i): return self.load(i)",
    "closure": "def make():\n    n = 0\n    def load(i):\n        nonlocal n\n        n += 1\n        return X[i]\n    return load\nload = make()\n"
    + D
    + "    def __getitem__(self, i): return load(i)",
    "deco": "def deco(f):\n    @functools.wraps(f)\n    def g(*a): return f(*a)\n    return g\n"
    + D
    + "    @deco\n    def __getitem__(self, i): self.n = 1; return X[i]",
    "classattr": D + "    count = 0\n    def __getitem__(self, i): D.count += 1; return X[i]",
    "slots": D + "    def __getitem__(self, i):\n        self.order.append(i)\n        return X[i]",
    "helper": "def fix(x):\n    x[0] = 1\n    return x\n" + D + "    def __getitem__(self, i): return fix(X[i])",
    "deque": "from collections import deque\n"
    + D
    + "    def __init__(self): self.d = deque(maxlen=3)\n    def __getitem__(self, i):\n        self.d.append(i); return X[i]",
    "next": "import itertools\n"
    + D
    + "    def __init__(self): self.c = itertools.count()\n    def __getitem__(self, i): return X[i], next(self.c)",
    "prev": D + "    def __getitem__(self, i):\n        if self.f is None: self.f = X[i]\n        return self.f",
}
"""Texts of a data set ``D``, perhaps with a ``collate``."""


def loader_of(text: str, name: str) -> DataLoader:
    names: dict[str, Any] = {
        "__name__": "__main__",
        "torch": torch,
        "Dataset": Dataset,
        "IterableDataset": IterableDataset,
        "X": torch.zeros(20, 3),
        "functools": functools,
    }
    filename = f"<effects of {name}>"
    keep_text(filename, text)
    exec(compile(text, filename, "exec"), names)
    return DataLoader(names["D"](), 4, collate_fn=names.get("collate"))


@pytest.mark.parametrize("name", NOTHING)
def test_has_effects_is_false_of_what_writes_to_new_things_alone(name):
    assert not has_effects(loader_of(NOTHING[name], name))


@pytest.mark.parametrize("name", SOMETHING)
def test_has_effects_is_true_of_what_stays_changed(name):
    assert has_effects(loader_of(SOMETHING[name], name))


STREAM = "class D(IterableDataset):\n"
OF_WORKERS = {
    "own": (False, STREAM + "    def __iter__(self):\n        self.n = 0\n        for x in X: self.n += 1; yield x"),
    "reads": (False, "s = torch.zeros(1).share_memory_()\n" + STREAM + "    def __iter__(self):\n        for x in X: yield x + s"),
    "prints": (True, STREAM + "    def __iter__(self):\n        print('begins')\n        yield from X"),
    "shared": (
        True,
        STREAM
        + "    def __init__(self): self.s = torch.zeros(1).share_memory_()\n    def __iter__(self):\n        for x in X: self.s += 1; yield x",
    ),
    "shared_global": (
        True,
        "s = {'n': torch.zeros(1).share_memory_()}\n" + STREAM + "    def __iter__(self):\n        for x in X: s['n'][0] += 1; yield x",
    ),
    "value": (
        True,
        "import multiprocessing\nv = multiprocessing.Value('i', 0)\n"
        + STREAM
        + "    def __iter__(self):\n        for x in X: v.value += 1; yield x",
    ),
}


@pytest.mark.parametrize("name", OF_WORKERS)
def test_tells_others_is_true_of_workers_that_print_or_write_to_what_processes_share(name):
    expected, text = OF_WORKERS[name]
    assert tells_others(loader_of(text, name)) is expected


def test_fetch_state_sees_what_changed_and_puts_it_back():
    loader = loader_of(
        D + "    def __init__(self): self.seen = []; self.n = 0; self.mean = torch.zeros(3)\n    def __getitem__(self, i): return X[i]",
        "state",
    )
    data: Any = loader.dataset
    state = FetchState(data, loader.collate_fn)
    assert not state.changed()
    data.seen.append(1)
    data.n += 1
    data.mean += 2
    assert state.changed()
    state.restore()
    assert (data.seen, data.n, data.mean.tolist(), state.changed()) == ([], 0, [0.0, 0.0, 0.0], False)
