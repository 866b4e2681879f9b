"""All that strategies are tested with on ranks of one host, on ranks that connect as those of several hosts do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine import test_hybrid, test_pipeline, test_shared_memory, test_tensor_groups, test_tensor_parallel, test_zero3
from tests.engine.ranks import Ranks

pytestmark = pytest.mark.long

_OF_ONE_HOST = {  # files that are open, and systems without such memory
    "test_memory_and_connections_of_groups_that_were_left_are_given_back",
    "test_where_one_rank_cannot_share_memory_all_go_by_the_process_group",
}
for _module in (test_hybrid, test_pipeline, test_shared_memory, test_tensor_groups, test_tensor_parallel, test_zero3):
    _of = _module.__name__.rpartition("test_")[2]
    globals().update(
        {f"{name}_in_{_of}": test for name, test in vars(_module).items() if name.startswith("test_") and name not in _OF_ONE_HOST}
    )


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4, spans_hosts=True) as started:
        yield started
