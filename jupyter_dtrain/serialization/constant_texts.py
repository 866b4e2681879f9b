"""Texts and tuples that a library compares with ``is``, although they are ordinary values: `argparse.SUPPRESS`.

They are written by name. A parser with a copy would put ``'==SUPPRESS=='`` into its results as a default.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

Place = tuple[str, str]  # module and name

_PLACES: tuple[Place, ...] = (
    ("argparse", "SUPPRESS"),
    ("optparse", "SUPPRESS_HELP"),
    ("optparse", "SUPPRESS_USAGE"),
    ("optparse", "NO_DEFAULT"),
)


def constant_texts() -> Iterator[tuple[Place, Any]]:
    """Yield these constants of the libraries that this process has imported, each with its place."""
    for module, name in _PLACES:
        if (found := getattr(sys.modules.get(module), name, None)) is not None:
            yield (module, name), found


def text_at(place: Place) -> Any:
    """Return this process's object of a place."""
    module, name = place
    return getattr(importlib.import_module(module), name)
