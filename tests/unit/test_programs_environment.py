"""What a cell under ``--strategy none`` finds in the environment, on GPUs too: which GPU is its own."""

from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_dtrain.engine.strategies.external.strategy import ExternalProgram


@pytest.mark.parametrize(
    ("device", "local_rank", "node", "on_node"),
    [("cpu", "1", "0", "2"), ("cuda:0", "0", "1", "1")],
    ids=["processes of a host", "each sees its own GPU alone"],
)
def test_the_local_rank_is_the_number_of_a_gpu_that_is_there(device, local_rank, node, on_node):
    task = SimpleNamespace(rank=1, world_size=2, device=device, rendezvous=object(), program_port=29500)
    context: Any = SimpleNamespace(task=task)
    found = ExternalProgram(context)._environment
    assert (found["RANK"], found["WORLD_SIZE"]) == ("1", "2")
    assert (found["LOCAL_RANK"], found["GROUP_RANK"], found["LOCAL_WORLD_SIZE"]) == (local_rank, node, on_node)
