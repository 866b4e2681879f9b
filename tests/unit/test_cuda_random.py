"""A GPU's random stream travels with the others, and follows from them where the notebook has no GPU.

The generator is stood in for by a record of calls: what it holds is 16 bytes, which PyTorch reads and writes as they are here.
"""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from jupyter_dtrain.capture.random_state import RandomState
from jupyter_dtrain.system import cuda_random
from jupyter_dtrain.system.cuda_random import seeded


class Card:
    """A GPU's generator, not there before CUDA is initialized."""

    def __init__(self, monkeypatch, *, initialized: bool, has_gpu: bool = True) -> None:
        self.initialized, self.now = initialized, seeded(1)
        monkeypatch.setattr(torch.version, "cuda", "13.0" if has_gpu else None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: self.initialized)
        monkeypatch.setattr(torch.cuda, "init", lambda: setattr(self, "initialized", True))
        monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: self.now.clone())
        monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state: setattr(self, "now", state.clone()))

    def has_context(self) -> bool:
        return self.initialized

    @property
    def bytes(self) -> bytes:
        return bytes(self.now.tolist())


@pytest.fixture(autouse=True)
def streams():
    before = RandomState.now()
    yield
    before.set()


def test_the_stream_of_a_gpu_goes_along(monkeypatch):
    card = Card(monkeypatch, initialized=True)
    card.now = torch.arange(16, dtype=torch.uint8)
    sent = pickle.loads(pickle.dumps(RandomState.now()))
    card.now = seeded(2)
    assert not sent.equals(RandomState.now())
    sent.set()
    assert card.bytes == bytes(range(16))
    assert sent.equals(RandomState.now())
    assert sent.with_gpu() is sent


def test_a_notebook_that_has_not_used_its_gpu_yet_begins_with_its_seed(monkeypatch):
    card = Card(monkeypatch, initialized=False)
    torch.manual_seed(7)
    torch.rand(3)  # moves the CPU's stream alone
    now = RandomState.now()
    assert now.torch_cuda is not None
    assert bytes(now.torch_cuda.tolist()) == (7).to_bytes(8, "little") + bytes(8)
    now.set()
    assert not card.has_context(), "nothing was drawn: the notebook need not have a context of CUDA's"
    replace(now, torch_cuda=seeded(8)).set()
    assert card.has_context()
    assert card.bytes[:8] == (8).to_bytes(8, "little")


def test_without_a_gpu_there_is_none_and_what_an_engine_draws_follows_from_the_cpus_stream(monkeypatch):
    Card(monkeypatch, initialized=False, has_gpu=False)
    torch.manual_seed(0)
    first, again = RandomState.now(), RandomState.now()
    torch.rand(1)
    later = RandomState.now()
    assert first.torch_cuda is None
    seeds = [bytes(state.with_gpu().torch_cuda.tolist()) for state in (first, again, later)]  # type: ignore[union-attr]
    assert seeds[0] == seeds[1] != seeds[2]
    first.with_gpu().set()  # one that comes home from an engine
    assert first.equals(RandomState.now())


def test_what_was_kept_without_a_gpus_stream_is_read():
    old = RandomState.now()
    function, arguments = old.__reduce__()
    assert function(*arguments[:3]).equals(old)


@pytest.mark.gpu
def test_the_bytes_are_those_of_pytorch():
    torch.cuda.manual_seed(2**40 + 3)
    assert cuda_random.is_same(torch.cuda.get_rng_state(), seeded(2**40 + 3))
    drawn = torch.rand(3, device="cuda")
    cuda_random.set_state(seeded(2**40 + 3))
    assert torch.equal(torch.rand(3, device="cuda"), drawn)
