"""A model that looks at a GPU's random state itself is noticed, as one that looks at the CPU's is; PyTorch's own checkpointing may."""

import pytest
import torch

from jupyter_dtrain.engine.rng.global_rng import ModelSampling
from jupyter_dtrain.engine.rng.global_sampling import GlobalSampling
from jupyter_dtrain.engine.rng.streams import ModelStream

LOOKS = "def look():\n    return torch.cuda.get_rng_state()"


@pytest.fixture
def sampling(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.zeros(16, dtype=torch.uint8))
    stream = ModelStream(0)
    sampling = ModelSampling(stream, on_apart=lambda: None, on_unknown=lambda _: None)
    with sampling.installed():
        sampling._current = GlobalSampling(slice(0, 4), 8, stream, None)
        yield sampling


@pytest.mark.parametrize(
    ("module", "is_noticed"), [("__main__", True), ("megatron.core", True), ("torch.utils.checkpoint", False), ("torch.random", False)]
)
def test_who_looks_at_the_state_of_a_gpu(sampling, module, is_noticed):
    namespace = {"__name__": module, "torch": torch}
    exec(LOOKS, namespace)
    assert namespace["look"]().numel() == 16
    assert sampling.current.looked is is_noticed
