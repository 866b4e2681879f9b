"""What the tests of a folder share: a notebook whose engines have the card, one of its own or two together.

They are written for a bare machine: no network, no browser, one GPU. `pytest tests/gpu --on-cpu` runs what does not need the GPU itself
with CPU engines, to try the tests.
"""

from __future__ import annotations

import pytest

from tests.gpu.card import Card
from tests.notebook.conftest import IMPORTS, module_notebook, new_notebook, nothing_left_running, package_notebook

__all__ = ["module_notebook", "new_notebook", "nothing_left_running", "package_notebook"]


@pytest.fixture(scope="session", autouse=True)
def deterministic():
    """cuBLAS asks for it when it is first used, in the kernel and in each engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        yield


@pytest.fixture(scope="session")
def device(request):
    """What the cells compute on: `--on-cpu` tries the tests themselves."""
    return "cpu" if request.config.getoption("--on-cpu") else "cuda"


@pytest.fixture(scope="package")
def card(package_notebook, device):
    """A notebook with two engines that have the card together."""
    notebook = package_notebook(launched=True)
    notebook.run(IMPORTS + f"device = {device!r}\n")
    notebook.run(f"%distribute start -n 2 --device {device} --devices shared")
    return Card(notebook, device)


@pytest.fixture
def new_card(new_notebook, device):
    """Return a function that opens a notebook with as many engines on the card."""

    def open_one(engines: int) -> Card:
        notebook = new_notebook(launched=True)
        notebook.run(IMPORTS + f"device = {device!r}\n")
        notebook.run(f"%distribute start -n {engines} --device {device} --devices shared")
        return Card(notebook, device)

    return open_one
