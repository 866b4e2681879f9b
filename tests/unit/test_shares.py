"""Shares of a batch: all of it, each sample once, in proportion to the ranks' speeds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_dtrain.engine.tensor.batch_shard import BatchShard, share_of

SPEEDS = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=9)


def shares_of(total: int, speeds: list[float]) -> list[BatchShard]:
    return [share_of(total, rank, speeds) for rank in range(len(speeds))]


@given(total=st.integers(0, 5000), speeds=SPEEDS)
def test_shares_are_the_batch(total, speeds):
    shares = shares_of(total, speeds)
    assert [index for share in shares for index in range(total)[share.start : share.stop]] == list(range(total))
    assert all(share.total == total for share in shares)
    assert sum(share.num_samples for share in shares) == total


@given(total=st.integers(1, 5000), speeds=SPEEDS)
def test_weights_add_up_to_one(total, speeds):
    shares = shares_of(total, speeds)
    assert math.fsum(share.weight for share in shares) == pytest.approx(1.0, rel=1e-12)
    assert all(share.weight * total == pytest.approx(share.num_samples) for share in shares)


@given(total=st.integers(1, 5000), speeds=SPEEDS)
def test_shares_follow_the_speeds(total, speeds):
    for share, speed in zip(shares_of(total, speeds), speeds, strict=True):
        assert abs(share.num_samples - total * speed / sum(speeds)) < 1 + 1e-6


@given(total=st.integers(0, 5000), num_ranks=st.integers(1, 9))
def test_equal_speeds_differ_by_one_sample_at_most(total, num_ranks):
    sizes = [share.num_samples for share in shares_of(total, [1.0] * num_ranks)]
    assert max(sizes) - min(sizes) <= 1


@given(total=st.integers(1, 50), speeds=SPEEDS)
def test_a_rank_loads_its_own_or_a_single_one_of_the_others(total, speeds):
    for share in shares_of(total, speeds):
        loaded = range(total)[share.loaded]
        if share.num_samples:
            assert list(loaded) == list(range(share.start, share.stop))
        else:
            assert len(loaded) == 1
            assert share.weight == 0.0


def test_nothing_is_loaded_of_an_empty_batch():
    for share in shares_of(0, [1.0, 2.0]):
        assert list(range(0)[share.loaded]) == []
        assert share.weight == 0.0


def test_examples():
    assert shares_of(8, [1.0, 1.0]) == [BatchShard(0, 4, 8, (4, 4)), BatchShard(4, 8, 8, (4, 4))]
    assert [s.num_samples for s in shares_of(10, [3.0, 1.0, 1.0])] == [6, 2, 2]
    assert [(s.num_samples, s.loaded) for s in shares_of(1, [1.0, 1.0, 1.0])] == [(0, slice(0, 1)), (1, slice(0, 1)), (0, slice(0, 1))]


@given(data=st.data(), total=st.integers(1, 10**6))
def test_sums_that_round(data, total):
    """Speeds whose partial sums depend on the order of adding."""
    speeds = data.draw(st.lists(st.sampled_from([0.1, 0.2, 0.3, 1 / 3, 1e-3, 1e5 + 0.1]), min_size=2, max_size=8))
    shares = shares_of(total, speeds)
    assert [s.start for s in shares[1:]] == [s.stop for s in shares[:-1]]
    assert (shares[0].start, shares[-1].stop) == (0, total)
