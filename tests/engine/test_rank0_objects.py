"""What rank 0 tells where ranks share no memory, as between hosts: in one exchange, if it is small."""

from __future__ import annotations

from unittest import mock

import pytest
import torch.distributed as dist

from jupyter_dtrain.engine.comm import collectives


def told(run, size) -> tuple[int, int]:
    """Return how long what rank 0 tells is, and in how many broadcasts it came."""
    with (
        mock.patch.object(collectives, "shared_memory", return_value=None),
        mock.patch.object(dist, "broadcast", side_effect=dist.broadcast) as broadcast,
    ):
        found = collectives.of_rank0("a" * size if run.rank == 0 else None)
    assert found == "a" * size
    return len(found), broadcast.call_count


@pytest.mark.parametrize(("size", "broadcasts"), [(0, 1), (8, 1), (900, 1), (990, 1), (1010, 2), (5000, 2), (3_000_000, 2)])
def test_all_ranks_have_what_rank_0_tells(ranks, size, broadcasts):
    assert ranks.call(3, told, size) == [(size, broadcasts)] * 3
