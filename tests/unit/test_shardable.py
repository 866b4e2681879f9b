"""Which cells one engine may run: those that train, and reach nothing that could make a loader."""

from __future__ import annotations

import ast
import contextlib
import sys
from types import ModuleType

import pytest
import torch

from jupyter_dtrain.analysis.names import find_names
from jupyter_dtrain.analysis.shardable import code_of_cell, shards_nothing
from jupyter_dtrain.capture.bundle import pack

SETUP = """
import functools, torch, numpy as np, pandas as pd
import torch.nn.functional as F
import torch.utils.data as tud
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset
import torch.distributed as dist
import jupyter_dtrain
from jupyter_dtrain import gather, log
X = torch.randn(8, 3)
rng = np.random.default_rng(0)
history = pd.DataFrame({"name": ["a"], "loss": [1.0]}, index=["x"])
weights = torch.zeros(3, requires_grad=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())
dataset = TensorDataset(X)
loader = DataLoader(dataset, batch_size=4)
sampler = BatchSampler(SequentialSampler(range(8)), 4, False)
Loader = DataLoader
names = {"kind": "DataLoader", "data": 3}

class Data:
    def __init__(self, batches):
        self.batches = batches

class Batches(DataLoader):
    pass

held = {"parts": [Data(loader)]}
made = functools.partial(DataLoader, dataset)

def train(batches=None):
    for x in batches or [X]:
        F.mse_loss(model(x), x[:, :1]).backward()
        optimizer.step()

def train_on_a_loader():
    for (x,) in DataLoader(dataset):
        model(x).sum().backward()

def train_later():
    def inner():
        from torch.utils import data
        return data
    return inner, model(X).sum().backward()

def own(x):
    return decorated(x)

@functools.wraps(train)
def decorated(x):
    return other_library.fit(x)
"""
STEP = "model(X).sum().backward()\n"
SHARDS_NOTHING = {
    "generator of NumPy": "(weights * rng.normal()).sum().backward()",
    "DataFrame": "(weights * history['loss'].iloc[0]).sum().backward(); history.loc['y'] = ['b', 2.0]",
    "a model on all data": "for _ in range(3):\n    loss = F.mse_loss(model(X), X[:, :1])\n    loss.backward()\n    optimizer.step()",
    "raw parameters": "(X @ weights).sum().backward()\nweights.data -= 0.1 * weights.grad",
    "a function of another cell": "train()",
    "gradients without a backward pass": "torch.autograd.grad((X @ weights).sum(), weights)",
    "batches by index": "for i in torch.randperm(8).split(4):\n    model(X[i]).sum().backward()",
    "indices of a sampler": "for i in sampler:\n    model(X[i]).sum().backward()",
    "rows of a data set": "for i in range(8):\n    model(dataset[i][0]).sum().backward()",
    "other utilities beside .data": STEP + "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nweights.data",
    "a model in evaluation": "model.eval()\n" + STEP,
    "libraries that show and count": "import math, json, pandas as pd\nfrom tqdm.auto import tqdm\nimport matplotlib.pyplot as plt\n"
    + STEP,
    "a closure": "def closure():\n    model(X).sum().backward()\noptimizer.step(closure)",
    "a number that is logged": STEP + "log(loss=1.0)",
    "awaited": "import asyncio\nawait asyncio.sleep(0)\n" + STEP,
}
MAY_SHARD = {
    "a loader": "for (x,) in loader:\n    model(x).sum().backward()",
    "a loader, in an object in a list": STEP + "held",
    "a loader of its own class": STEP + "Batches",
    "a loader by another name": STEP + "Loader",
    "what makes one": STEP + "made",
    "one made in the cell": STEP + "torch.utils.data.DataLoader(dataset)",
    "one made under another name": STEP + "tud.random_split",
    "one by its module": STEP + "d = torch.utils.data",
    "one by a text": STEP + "getattr(torch.utils, 'data')",
    "one by the text in a value": STEP + "getattr(tud, names['kind'])",
    "an import in the cell": "from torch.utils.data import Dataset\n" + STEP,
    "an import under another name": "import torch.utils.data as d\n" + STEP,
    "an import of a part": "from torch.utils import data as d\n" + STEP,
    "a function of another cell that makes one": "train_on_a_loader()",
    "a function within one": "train_later()",
    "a library that trains": "import lightning\n" + STEP,
    "a library within a function": "own(X)\n" + STEP,
    "a wrapper's library": "decorated(X)\n" + STEP,
    "a text that is run": "exec('import x')\n" + STEP,
    "a text that is evaluated": "eval('loader')\n" + STEP,
    "a module by its name": "import importlib\nimportlib.import_module('x')\n" + STEP,
    "a value from a file": "import pickle\n" + STEP,
    "a value that is loaded with all of Python": "torch.load('x', weights_only=False)\n" + STEP,
    "ranks": STEP + "dist.get_rank()",
    "ranks, imported": "import torch.distributed\n" + STEP,
    "numbers of ranks": STEP + "gather(3)",
    "numbers of ranks by the package": STEP + "jupyter_dtrain.mean(3)",
    "a magic": "get_ipython().run_line_magic('run', 'x.py')\n" + STEP,
    "a model of a hub": STEP + "torch.hub.load('a/b', 'c')",
    "no training": "model(X).sum().item()",
}


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    library = ModuleType("other_library")
    exec("def fit(x): pass", vars(library))
    found = {"__name__": "__main__", "other_library": library}
    sys.modules["other_library"] = library
    exec(compile(SETUP, "<cell>", "exec"), found)
    with contextlib.chdir(tmp_path_factory.mktemp("notebook")):  # modules of the tests' own folder would be the notebook's
        yield found
    del sys.modules["other_library"]


def judged(cell: str, namespace: dict[str, object]) -> bool:
    bundle = pack(find_names(ast.parse(cell)), namespace)
    return shards_nothing(code_of_cell(cell), bundle.seen, bundle.own_modules)


@pytest.mark.parametrize("name", SHARDS_NOTHING)
def test_shards_nothing(namespace, name):
    assert judged(SHARDS_NOTHING[name], namespace)


@pytest.mark.parametrize("name", MAY_SHARD)
def test_may_shard(namespace, name):
    assert not judged(MAY_SHARD[name], namespace)


def test_modules_beside_the_notebook_are_looked_through(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "steps_beside.py").write_text("def step(model, x):\n    model(x).sum().backward()\n")
    (tmp_path / "batches_beside.py").write_text(
        "from torch.utils.data import DataLoader\ndef step(model, x):\n    for x in DataLoader(x):\n        model(x).sum().backward()\n"
    )
    found = {"__name__": "__main__", "model": torch.nn.Linear(3, 1), "x": torch.ones(2, 3)}
    for name, expected in (("steps_beside", True), ("batches_beside", False)):
        exec(f"import {name}\nfrom {name} import step", found)
        assert judged("step(model, x)", found) is expected
        assert judged(f"{name}.step(model, x)", found) is expected
        assert judged(f"import {name} as again\nagain.step(model, x)", found) is expected
        del sys.modules[name]
