"""Pages of what came from the notebook are given back while it is sharded: its own ones, and nobody else's."""

from __future__ import annotations

import mmap
import sys

import pytest
import torch

from jupyter_dtrain.engine.strategies.zero3.sharded_rows import Came, give_back
from jupyter_dtrain.system.page_map import is_mapped_file

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the system does not say what is mapped")

SMALL, LARGE = 96, 3 * mmap.PAGESIZE // 8 + 10  # in numbers of 8 bytes
SIZES = pytest.mark.parametrize("size", [SMALL, LARGE])


def mapped(path, size: int, *, at: int = 0) -> torch.Tensor:
    """Return ones in a private mapping of a file, behind so many other numbers."""
    path.write_bytes(torch.ones(at + size, dtype=torch.float64).numpy().tobytes())
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return torch.frombuffer(memory, dtype=torch.float64, offset=8 * at, count=size)


def shows_what_came(tensor: torch.Tensor) -> None:
    came = Came(tensor)
    tensor.fill_(2)
    came.restore(tensor)
    assert torch.equal(tensor, torch.ones_like(tensor))


@SIZES
def test_a_mapped_file_is_read_again(tmp_path, size):
    tensor = mapped(tmp_path / "file", size)
    assert is_mapped_file(tensor.data_ptr(), tensor.nbytes)
    tensor.fill_(2)
    give_back(tensor)
    assert torch.equal(tensor, torch.ones_like(tensor))
    shows_what_came(tensor)


@SIZES
@pytest.mark.parametrize("at", [0, mmap.PAGESIZE // 8])
def test_a_block_that_begins_with_a_page_shares_its_last_one(size, at):
    """As one of 256 blocks of the heap does, of which the pages would come back as zeros."""
    everything = torch.frombuffer(mmap.mmap(-1, 8 * mmap.PAGESIZE), dtype=torch.float64).fill_(1)
    tensor = torch.frombuffer(everything.numpy(), dtype=torch.float64, offset=8 * at, count=size)
    assert tensor.data_ptr() % mmap.PAGESIZE == 0
    assert not tensor.untyped_storage().resizable()
    assert not is_mapped_file(tensor.data_ptr(), tensor.nbytes)
    shows_what_came(tensor)
    assert everything.eq(1).all()


@SIZES
def test_a_part_of_a_file_leaves_the_rest_as_it_is(tmp_path, size):
    tensor = mapped(tmp_path / "file", size, at=mmap.PAGESIZE // 8)
    assert not is_mapped_file(tensor.data_ptr(), tensor.nbytes)
    shows_what_came(tensor)


def test_a_file_that_is_longer_than_what_came_is_left_alone(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(torch.ones(2 * LARGE, dtype=torch.float64).numpy().tobytes())
    with path.open("rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    everything = torch.frombuffer(memory, dtype=torch.float64).fill_(3)
    give_back(torch.frombuffer(memory, dtype=torch.float64, count=SMALL))
    assert everything.eq(3).all()
