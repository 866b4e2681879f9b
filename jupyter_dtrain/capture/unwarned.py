"""Warnings of what this project does and not the user, kept back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast


@contextmanager
def unwarned() -> Iterator[None]:
    """Show no warnings until the end of the ``with`` block, and raise none.

    After ``warnings.catch_warnings`` Python does not remember any more what it has shown, and shows the user's own again.
    """
    filters = cast("list[Any]", warnings.filters)
    ignored = ("ignore", None, Warning, None, 0)
    filters.insert(0, ignored)
    try:
        yield
    finally:
        with suppress(ValueError):  # somebody has taken it away
            filters.remove(ignored)
