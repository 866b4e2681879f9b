"""Ranks that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.ranks import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Four of them at most."""
    with Ranks(4) as started:
        yield started
