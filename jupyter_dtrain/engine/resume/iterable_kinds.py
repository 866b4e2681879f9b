"""Kinds of iterables and iterators: which run user code, which may draw their order first, and which can be pickled at their position."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from types import FrameType, FunctionType, GeneratorType
from typing import Any

import torch

from ...serialization.dict_views import MADE_BY
from ..data.iterator_state import LoaderIterator
from .position import read_names

VIEWS = tuple(MADE_BY)
OVER_DICTS = tuple(type(iter(made_by(OrderedDict()))) for made_by in MADE_BY.values())
_CONTAINERS: tuple[Any, ...] = (range(0), range(2**70), [], (), set(), "", "é", b"", bytearray())
_OWN_STATE = frozenset({LoaderIterator, *(type(iter(empty)) for empty in _CONTAINERS)})
_PLAIN = frozenset({*map(type, _CONTAINERS), dict, frozenset, torch.Tensor, torch.nn.Parameter, *VIEWS, *OVER_DICTS, *_OWN_STATE})
_DRAW_NOTHING = frozenset(
    {"builtins", "collections", "itertools", "numpy", "pandas", "pathlib", "torch", "tqdm"}
)  # top packages of classes
_OF_OTHERS = (enumerate, zip, reversed, map, filter)  # iterators that say what they are made of


def is_plain(iterable: object) -> bool:
    """Return whether iterating over it runs no code of the user or of a library."""
    return type(iterable) in _PLAIN


def is_progress_bar(iterable: object) -> bool:
    """Return whether it is a progress bar, which is tied to the output of the process."""
    return type(iterable).__module__.partition(".")[0] == "tqdm"


def may_draw_first(iterable: object) -> bool:
    """Return whether iterating over it may begin by drawing its order, as classes of the user do."""
    kind = type(iterable)
    return not hasattr(kind, "__next__") and kind.__module__.partition(".")[0] not in _DRAW_NOTHING


def keeps_its_place(kind: type) -> bool:
    """Return whether an iterator of this kind is pickled with its position, if everything that it uses is."""
    return kind in _OWN_STATE or kind in _OF_OTHERS


def under_way(frame: FrameType, names: tuple[str, ...]) -> str:
    """Return the name in a frame of a generator that has begun; empty if there is none."""
    return next((name for name, value in read_names(frame, names).items() if has_begun(value)), "")


def has_begun(value: object) -> bool:
    """Return whether `value` is a generator that has yielded items and has not ended."""
    return type(value) is GeneratorType and inspect.getgeneratorstate(value) == inspect.GEN_SUSPENDED


def says_all(items: Any, *, of_dicts: bool) -> bool:
    """Return whether the pickled form of `items` yields the rest of its items; `of_dicts`: values of dicts as they are now will do."""
    kind = type(items)
    if kind in _OF_OTHERS:
        return all(says_all(part, of_dicts=of_dicts) for part in items.__reduce__()[1])
    if kind in OVER_DICTS:
        return of_dicts
    return kind in _PLAIN or isinstance(items, int | FunctionType | type(len) | type)
