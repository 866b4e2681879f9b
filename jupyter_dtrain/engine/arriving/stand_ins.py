"""What takes the place of others' functions during a run, where the user holds these by names of his own.

After ``from torch import tensor`` the notebook's `tensor` is PyTorch's function itself, whatever ``torch.tensor`` is for the time of a
run. So the names of the cell's namespace, and of modules beside the notebook, are changed for that time too. And what is imported while a
run goes on finds functions that end with it, and is given the real ones afterwards.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ...capture.bundle import modules_beside
from ...capture.reduction import stands_for

_HOLDERS = (torch, torch.autograd, F, torch.jit, np.random, random, os, os.path, shutil)
_BETWEEN_RUNS = [dict(vars(holder)) for holder in _HOLDERS]  # there are thousands of names, of which a run changes some dozens


def namespaces_of(objects: Iterable[object]) -> list[dict[str, Any]]:
    """Return the names of modules beside the notebook: of those that have come with the cell's `objects`, and of those imported here."""
    functions = [obj.__globals__ for obj in objects if isinstance(obj, FunctionType)]
    modules = [vars(obj) for obj in (*objects, *modules_beside(Path.cwd())) if isinstance(obj, ModuleType)]
    return list({id(names): names for names in (*functions, *modules)}.values())


@contextmanager
def known_by_names(namespaces: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Let names in `namespaces` that mean what is replaced now mean what takes its place, until the end of the ``with`` block."""
    imported = set(sys.modules)
    found = {id(value): obj for obj in _changed() if (value := stands_for(obj)) is not None}
    for names in namespaces:
        names.update({name: found[id(obj)] for name, obj in names.items() if id(obj) in found})
    try:
        yield
    finally:
        new = [module for name in sys.modules.keys() - imported if isinstance(module := sys.modules.get(name), ModuleType)]
        for names in (*namespaces, *map(vars, new)):
            for name, obj in list(names.items()):
                value = stands_for(obj)
                if value is not None:
                    names[name] = value


def _changed() -> Iterator[object]:
    """Yield what the names of `_HOLDERS` mean now that they did not mean, or were not there, between runs."""
    for holder, before in zip(_HOLDERS, _BETWEEN_RUNS, strict=True):
        yield from (obj for name, obj in list(vars(holder).items()) if before.get(name) is not obj)
