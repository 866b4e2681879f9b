"""Validation of manifests before any use, as anybody may have written them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from ..system.confined import is_run_id

_KEY = re.compile(r"[0-9a-z]+(-[0-9a-z]+)*", re.ASCII)  # used as a file name
_LONGEST = 200
_MAX = 1 << 53
Check = Callable[[Any], bool]


def has_shape(manifest: object, kind: str) -> bool:
    """Return whether a manifest has all fields of its `kind`, with the right types."""
    if not isinstance(manifest, dict) or manifest.get("kind") != kind:
        return False
    wanted = {**_COMMON, **_OF_KIND[kind]}
    return all(name in manifest and check(manifest[name]) for name, check in wanted.items()) and (
        all(check(manifest[name]) for name, check in _OPTIONAL.items() if name in manifest)
    )


def is_blob_key(text: object) -> bool:
    """Return whether `text` is a valid name of a stored buffer."""
    return isinstance(text, str) and len(text) <= _LONGEST and _KEY.fullmatch(text) is not None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX


def _is_number(value: object) -> bool:
    return type(value) is int or isinstance(value, float)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_blobs(value: object) -> bool:
    return isinstance(value, dict) and all(is_blob_key(key) and _is_text(checksum) for key, checksum in value.items())


def _is_measured(value: object) -> bool:
    return (
        isinstance(value, dict) and _is_text(value.get("name")) and value.get("mode") in ("min", "max") and _is_number(value.get("value"))
    )


_COMMON: Mapping[str, Check] = {
    "run": lambda value: value == "" or is_run_id(value),  # a run that could not be recorded has no id
    "versions": lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
    "blobs": _are_blobs,
}
_OF_KIND: Mapping[str, Mapping[str, Check]] = {
    "task": {"data": _is_text},
    "checkpoint": {
        "step": _is_count,
        "place": _is_text,
        "time": lambda value: _is_number(value) and math.isfinite(value),
        "num_bytes": _is_count,
        "parts": lambda value: isinstance(value, list) and len(value) > 0 and all(map(_is_text, value)),
    },
    "ending": {"ending": _is_text},
}
_OPTIONAL: Mapping[str, Check] = {"measured": _is_measured, "shown": _is_text}
