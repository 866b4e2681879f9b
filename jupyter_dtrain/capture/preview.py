"""Preview of what a cell would send: each name, its size, and what happens to it."""

from __future__ import annotations

import builtins
import contextlib
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ..analysis.names import CellNames
from ..errors import CaptureError
from ..system.resources import size_text
from .bundle import pack


@dataclass(frozen=True)
class Row:
    """One name of the notebook.

    Attributes
    ----------
    name : str
    line : int
        Where the cell first reads it.
    kind : str
        What it is, in a few words.
    num_bytes : int
        Size when sent alone.
    shares_with : list of str
        Names above with the same tensors or arrays, which are sent once.
    fate : str
        What happens to it on the engines.
    """

    name: str
    line: int
    kind: str
    num_bytes: int
    shares_with: list[str]
    fate: str


def preview(names: CellNames, namespace: dict[str, Any]) -> list[Row]:
    """Return a row for each name that the cell needs and the notebook has."""
    with contextlib.suppress(CaptureError):  # the row of the name at fault shows the error
        names = pack(names, namespace).names
    rows: list[Row] = []
    owners: dict[int, str] = {}  # address of a buffer → first name that has it
    lines = {**names.maybe, **names.needed}
    for name in names:
        if name not in namespace or (hasattr(builtins, name) and namespace[name] is getattr(builtins, name)):
            continue
        value = namespace[name]
        try:
            packed = pack(replace(names, needed={name: lines[name]}, maybe={}), namespace, by_text=False).packed
        except CaptureError as error:
            rows.append(Row(name, lines[name], _kind(value), 0, [], str(error).partition("\n")[0].partition(", which ")[2]))
            continue
        places = [_address(buffer) for buffer in packed.buffers if buffer.nbytes]
        shared = list(dict.fromkeys(owners[place] for place in places if place in owners))
        for place in places:
            owners.setdefault(place, name)
        size = len(packed.stream) + sum(buffer.nbytes for buffer in packed.buffers)
        rows.append(Row(name, lines[name], _kind(value), size, shared, _fate(value)))
    return rows


def _address(buffer: memoryview) -> int:
    address: int = np.frombuffer(buffer, dtype=np.uint8).__array_interface__["data"][0]
    return address


def _kind(value: object) -> str:
    match value:
        case nn.Module():
            count = sum(parameter.numel() for parameter in value.parameters())
            return f"{type(value).__name__}, {_number(count)} parameters" if count else f"{type(value).__name__} module"
        case Optimizer() | LRScheduler():
            return type(value).__name__
        case DataLoader():
            return f"DataLoader, batches of {value.batch_size or '?'}"
        case torch.Tensor() | np.ndarray():
            return (
                f"{'tensor' if isinstance(value, torch.Tensor) else 'array'} {tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
            )
        case FunctionType():
            return "function"
        case type():
            return "class"
        case ModuleType():
            return "module"
        case list() | tuple() | dict() | set():
            return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _fate(value: object) -> str:
    match value:
        case nn.Module():
            return "trained: gradients over the global batch" if any(p.requires_grad for p in value.parameters()) else "copied"
        case Optimizer():
            return "follows its parameters"
        case LRScheduler():
            return "follows its optimizer"
        case DataLoader():
            return "split in training, whole in evaluation"
        case FunctionType() | type():
            return "imported" if value.__module__ != "__main__" else "by value"
        case ModuleType():
            return "imported"
    return "copied"


def _number(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)


def table(rows: list[Row]) -> str:
    """Return the rows as text."""
    if not rows:
        return "The cell needs nothing from the notebook."
    cells = [("name", "line", "what it is", "size", "what happens")]
    for row in rows:
        fate = row.fate + (f" (shared with {', '.join(row.shares_with)})" if row.shares_with else "")
        cells.append((row.name, str(row.line), row.kind, size_text(row.num_bytes), fate))
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    return "\n".join(
        f"{name:<{widths[0]}}  {line:>{widths[1]}}  {kind:<{widths[2]}}  {size:>{widths[3]}}  {fate}"
        for name, line, kind, size, fate in cells
    )
