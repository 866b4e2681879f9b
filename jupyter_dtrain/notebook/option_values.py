"""Types of option values of both magics: numbers, times, metrics, hosts."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

from ..cluster_options import HostSpec
from ..options import Metric

_HIGHER_IS_BETTER = frozenset({"acc", "accuracy", "auc", "auroc", "bleu", "f1", "iou", "precision", "r2", "recall"})
"""Words in names of metrics for which min, the default of ``--best``, is most likely not meant."""


def whole_number(text: str) -> int:
    """Parse an integer."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def steps_or_time(text: str) -> timedelta | int:
    """Parse ``500`` as steps, ``30s``, ``10min`` or ``2h`` as a time."""
    found = re.fullmatch(r"(\d+)\s*(s|min|h)?", text.strip())
    if found is None or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of steps (500) nor a time (30s, 10min, 2h)")
    number, unit = int(found[1]), found[2]
    return number if unit is None else timedelta(seconds=number * {"s": 1, "min": 60, "h": 3600}[unit])


def metric(text: str) -> Metric:
    """Parse ``val_loss``, ``val_loss:min`` or ``accuracy:max``. A name such as ``accuracy`` needs its mode."""
    name, colon, mode = text.partition(":")
    if not name or (colon and mode not in ("min", "max")):
        raise argparse.ArgumentTypeError(f"expected METRIC[:min|max], such as val_loss:min or accuracy:max, not {text!r}")
    words = re.split(r"[^a-z0-9]+", name.lower())
    words += [word.rstrip("0123456789") for word in words]  # acc1, acc5
    if not colon and not _HIGHER_IS_BETTER.isdisjoint(words) and "loss" not in words:
        raise argparse.ArgumentTypeError(f"write {name}:max if higher is better, or {name}:min")
    return Metric(name, "max" if mode == "max" else "min")


def varied(text: str) -> tuple[str, str]:
    """Split ``lr=0.1,0.01``, ``config.lr=0.1,0.01`` or ``config["lr"]=0.1,0.01`` into target and expression."""
    found = re.fullmatch(r"\s*([^\W\d]\w*(?:\.[^\W\d]\w*|\[[^\]=]+\])*)\s*=(?!=)\s*(.+)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE,…, such as lr=0.1,0.01, not {text!r}")
    return found[1], found[2].strip()


def min_max(text: str) -> tuple[int, int]:
    """Parse ``2:4``."""
    found = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"expected MIN:MAX, such as 2:4, not {text!r}")
    return int(found[1]), int(found[2])


def memory_size(text: str) -> int:
    """Parse ``16G``, ``500M`` or ``64K`` as bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory: give a number and K, M, G or T, such as 16G")
    return int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2].upper())))


def hosts(text: str) -> tuple[HostSpec, ...]:
    """Parse ``a:2,b``."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, number = part.partition(":")
        if colon and not number.isdecimal():
            raise argparse.ArgumentTypeError(f"expected HOST[:N],…, such as a:2,b:2, not {text!r}")
        found.append(HostSpec(name=name, num_engines=int(number) if colon else None))
    if len({host.name for host in found}) < len(found):
        raise argparse.ArgumentTypeError(f"a host stands twice in {text!r}: give each once, with the number of its engines")
    return tuple(found)
