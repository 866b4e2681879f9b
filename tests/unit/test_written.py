"""Large buffers that nobody has written to are known without reading them."""

import os
import sys
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from jupyter_dtrain.serialization import change_detection as module
from jupyter_dtrain.serialization.change_detection import LARGE, Baseline
from jupyter_dtrain.system import page_map
from jupyter_dtrain.system.page_map import PrivateMappings, untouched
from jupyter_dtrain.transport.blob_store import BlobFolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux tells of pages")


@pytest.fixture
def memory(tmp_path):
    """A buffer as an engine has it."""
    blobs = BlobFolder(tmp_path)
    return blobs.open(blobs.put(memoryview(bytes(4 * LARGE))))


@pytest.fixture
def tensor(memory):
    return torch.frombuffer(memory, dtype=torch.float32)


@pytest.fixture(autouse=True, params=["many at once", "one by one"])
def pages_are_told(request, monkeypatch):
    """Linux before 6.7 tells of single pages only."""
    if request.param == "one by one":
        monkeypatch.setattr(page_map, "first_pages", Mock(side_effect=OSError))


@pytest.fixture(autouse=True)
def nothing_is_read(monkeypatch):
    """A checksum of the numbers is what this is to spare."""
    for name in ("_checksum", "_array_mark"):
        monkeypatch.setattr(module, name, lambda _: pytest.fail("the numbers were read"))


def test_what_was_only_read_is_as_it_was(tensor):
    baseline = Baseline([tensor, tensor.view(2, -1), tensor.numpy()])
    assert tensor.sum() == 0
    worker = os.fork()  # of a loader, writes to its own
    if worker == 0:
        tensor.numpy().fill(1)
        os._exit(0)
    os.waitpid(worker, 0)
    assert baseline.changed() == {}


@pytest.mark.parametrize(
    "write",
    [
        lambda tensor: tensor.data[-1:].fill_(1),
        lambda tensor: tensor.numpy().__setitem__(0, 1),
        lambda tensor: tensor.add_(1),
        lambda tensor: tensor.detach().view(torch.uint8)[LARGE:].fill_(1),
        lambda tensor: threading.Thread(target=tensor.numpy().fill, args=(3,)).run(),
    ],
)
def test_any_write_is_seen(tensor, write):
    baseline = Baseline([tensor, tensor.numpy()])
    write(tensor)
    changed = baseline.changed()
    assert changed[0].items.tensor.data_ptr() == tensor.data_ptr()
    assert np.array_equal(changed[1].items, tensor.numpy())


def test_another_place_is_a_change(tensor):
    baseline = Baseline([tensor])
    tensor.data = torch.zeros(LARGE)
    assert list(baseline.changed()) == [0]


def test_memory_that_others_may_write_to_is_not_judged_by_its_pages(tmp_path):
    path = tmp_path / "shared"
    path.write_bytes(bytes(4 * LARGE))
    shared = torch.from_file(str(path), shared=True, size=LARGE, dtype=torch.float32)
    assert untouched(shared.data_ptr(), shared.nbytes)  # a shared page is the file's, whoever has written to it
    shared[0] = 1
    assert untouched(shared.data_ptr(), shared.nbytes)
    assert not PrivateMappings().untouched(shared.data_ptr(), shared.nbytes)


def test_memory_of_the_process_itself_is_not_judged_by_its_pages():
    own = torch.ones(LARGE)
    assert not PrivateMappings().untouched(own.data_ptr(), own.nbytes)
