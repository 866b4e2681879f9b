"""All that strategies are tested with on ranks of one host, on ranks that connect as those of several hosts do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.ranks import Ranks
from tests.engine.test_shared_memory import (  # noqa: F401
    test_a_sum_is_added_up_in_rank_order_whatever_its_size,
    test_each_rank_gets_its_own_of_the_objects_that_one_hands_out,
    test_each_ranks_object_is_there_for_all,
    test_each_ranks_part_is_there_for_all,
    test_rank_0s_part_is_there_for_all,
    test_ranks_that_exchange_something_else_are_told,
    test_some_of_the_parts_that_go_together_are_there_for_who_wants_these,
)
from tests.engine.test_zero3 import *  # noqa: F403

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(4, spans_hosts=True) as started:
        yield started
