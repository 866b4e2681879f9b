"""Notebooks that tests share. A kernel and a cluster take seconds to start, so a file has one of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.notebook.kernel import Notebook

IMPORTS = """
%load_ext jupyter_dtrain
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
"""
LOGGED = """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8)
losses = []

def train(log):
    for x, in loader:
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        log({"loss": loss.item()})
"""
"""What is trained with a logger of metrics."""


OPEN: list[Notebook] = []
"""Notebooks that are open, of all scopes."""


@pytest.fixture(autouse=True)
def nothing_left_running():
    """What a test leaves running is not the next one's, which may be any: a cell of one that fails, an engine in the place of another."""
    yield
    for notebook in OPEN:
        if notebook.manager.is_alive():
            notebook.end_running()
            notebook.wait_for_rest()


@pytest.fixture
def new_notebook(tmp_path_factory, request):
    """Return a function that opens a notebook in a folder, an empty one by default; it is closed at the end of the test.

    There is no room for the kernels and engines of dozens of tests beside each other.
    """
    yield from opening(tmp_path_factory, request)


@pytest.fixture(scope="module")
def module_notebook(tmp_path_factory, request):
    """Return a function that opens one for the tests of a file."""
    yield from opening(tmp_path_factory, request)


@pytest.fixture(scope="package")
def package_notebook(tmp_path_factory, request):
    """Return a function that opens one for the tests of a folder."""
    yield from opening(tmp_path_factory, request)


def opening(tmp_path_factory, request):
    """Yield what opens notebooks, and close them."""
    opened = []

    def open_one(folder: Path | None = None, **options: Any) -> Notebook:
        folder = folder or tmp_path_factory.mktemp("notebook")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("IPYTHONDIR", str(folder / ".ipython"))
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("PYTHON_COLORS", "0")  # since Python 3.14 a help text has them
            patch.setenv("PYTHONPATH", str(request.config.rootpath))  # this checkout, installed or not
            notebook = Notebook(folder, **options)
        opened.append(notebook)
        OPEN.append(notebook)
        return notebook

    yield open_one
    for notebook in opened:
        OPEN.remove(notebook)
        notebook.close()


@pytest.fixture(scope="package")
def notebook_of_the_folder(package_notebook):
    """A notebook with three engines running."""
    notebook = package_notebook()
    notebook.run("%load_ext jupyter_dtrain\n%distribute start -n 3 --device cpu")
    return notebook


@pytest.fixture(scope="module")
def shared_notebook(notebook_of_the_folder):
    """That notebook, with PyTorch imported and what is usual set, whatever another file's tests have made of it."""
    notebook_of_the_folder.run(IMPORTS)
    return notebook_of_the_folder


@pytest.fixture
def notebook(shared_notebook):
    """The shared notebook, for tests that leave its engines running."""
    return shared_notebook
