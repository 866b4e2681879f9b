"""Is somebody's notebook the same on engines? A developer's tool.

    .venv/bin/python -m tests.notebook.compare NOTEBOOK.ipynb --engines 2 --double

It runs the notebook (or a script with ``# %%`` or sphinx-gallery's lines between its cells) in two kernels, plain and with
``%%distribute`` on its training cells, and says which names, which printed lines and which errors differ. Both begin with the same
seeds, in copies of the notebook's folder. Data sets that cannot be had are stood in for by a ``--prelude``, which is run first.

The training cells are told by their text: what calls ``.backward()`` or ``.step()``, or a function of an earlier cell that does.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

START = """
import random as _random, numpy as _numpy, torch as _torch
_torch.manual_seed(0), _numpy.random.seed(0), _random.seed(0)
"""
DOUBLE = "_torch.set_default_dtype(_torch.float64)\n"
END = """
from tests.notebook.compare import write_names as _write_names
_write_names({path!r}, {{**globals(), "random streams": [_torch.rand(3), _numpy.random.rand(3), _random.random()]}})
"""
BETWEEN_CELLS = re.compile(r"^(?:# ?%%.*|#{20,}\s*)$", re.MULTILINE)
NO_PYTHON = re.compile(r"^\s*(?:!|%pip|%conda|%matplotlib|%load_ext (?:autoreload|tensorboard)|%autoreload|%tensorboard).*$", re.MULTILINE)
OTHER_MAGIC = re.compile(r"%%(?!time|capture|prun)")  # what is beneath is no code of this kernel
NUMBER = re.compile(r"[-+]?\d+\.\d*(?:e[-+]?\d+)?|[-+]?\d+e[-+]?\d+|\bnan\b|\binf\b")
A_TIME = re.compile(r"\btimes?\b|\belapsed\b|\d ?(?:s|ms|sec|seconds|it/s)\b|0x[0-9a-f]{6,}", re.IGNORECASE)
STEPS = {"backward", "step"}


# -- cells -----------------------------------------------------------------------------------------------------------


def cells_of(path: Path) -> list[str]:
    """Return the code cells of a notebook or a script, without what only a shell or a front end understands."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    else:
        cells = BETWEEN_CELLS.split(text)
    return [cell for cell in (NO_PYTHON.sub("", cell).strip() for cell in cells) if cell]


def training_cells(cells: Sequence[str], known: set[str]) -> set[int]:
    """Return which cells train: by themselves, or by a function of theirs or of another cell. `known` are more names of such functions."""
    trees, training = [_tree(cell) for cell in cells], STEPS | known
    functions = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    while more := {function.name for function in functions if _called(function) & training} - training - {"__init__", "forward"}:
        training |= more
    return {number for number, tree in enumerate(trees) if any(_called(statement) & training for statement in _run_at_once(tree))}


def _tree(cell: str) -> ast.Module:
    try:
        return ast.parse("" if OTHER_MAGIC.match(cell) else re.sub(r"^%.*$", "", cell, flags=re.MULTILINE))
    except SyntaxError:
        return ast.Module([], [])


def _run_at_once(tree: ast.Module) -> Iterator[ast.stmt]:
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement


def _called(tree: ast.AST) -> set[str]:
    """Return the last names of what is called, and of functions that are handed on."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [part for call in calls for part in (call.func, *call.args)]
    return {name.attr if isinstance(name, ast.Attribute) else name.id for name in names if isinstance(name, ast.Attribute | ast.Name)}


# -- what is left in a kernel ----------------------------------------------------------------------------------------


def write_names(path: str, names: Mapping[str, Any]) -> None:
    """Write what there is to compare of a notebook's names. This runs in its kernel."""
    kept = {name: portable(value, ()) for name, value in names.items() if not name.startswith("_") and name not in {"In", "Out"}}
    Path(path).write_bytes(pickle.dumps({name: value for name, value in kept.items() if value is not None}))


def portable(value: Any, within: tuple[int, ...]) -> Any:
    """Return `value` in types that another process has, ``None`` for what says nothing of a result."""
    if isinstance(value, bool | int | float | complex | str):
        return value
    if id(value) in within or len(within) > 8:
        return None
    within = (*within, id(value))
    if isinstance(value, torch.Tensor) and not torch.nn.parameter.is_lazy(value):
        return value.detach().cpu().to_dense().double().numpy() if not value.is_complex() else value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value) if value.dtype.kind in "biufc" else str(value)
    if isinstance(value, torch.nn.Module):
        gradients = {name: (parameter.requires_grad, parameter.grad) for name, parameter in value.named_parameters()}
        own = {name: kept for name, kept in vars(value).items() if not name.startswith("_")}
        return portable({"state": value.state_dict(), "gradients": gradients, **own}, within)
    if isinstance(value, torch.optim.Optimizer):
        return portable(value.state_dict(), within)
    if isinstance(value, Mapping):
        return {str(key): kept for key, item in value.items() if (kept := portable(item, within)) is not None}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | range):
        return [portable(item, within) for item in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, type | ModuleType) or callable(value) or not hasattr(value, "__dict__"):
        return None
    return None if type(value).__module__.startswith(("matplotlib", "IPython", "torch.utils")) else portable(dict(vars(value)), within)


# -- comparing -------------------------------------------------------------------------------------------------------


def differences(left: Any, right: Any, tolerance: float, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield where two portable values differ, and how far relative to the larger one: ``inf`` where it is no matter of degree."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in {**left, **right}:
            if (key in left) != (key in right):
                yield f"{path}[{key!r}] is {'missing' if key in left else 'there'}", float("inf")
            else:
                yield from differences(left[key], right[key], tolerance, f"{path}[{key!r}]")
    elif isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            yield f"{path}: {len(left)} and {len(right)} items", float("inf")
        for number, (a, b) in enumerate(zip(left, right, strict=False)):
            yield from differences(a, b, tolerance, f"{path}[{number}]")
    elif isinstance(left, float | int | complex | np.ndarray) and isinstance(right, float | int | complex | np.ndarray):
        if (found := _relative(np.asarray(left), np.asarray(right))) > tolerance:
            shown = "" if isinstance(left, np.ndarray) else f": {left} and {right}"
            yield f"{path}{shown}", found
    elif type(left) is not type(right) or left != right:
        yield f"{path}: {str(left)[:60]!r} and {str(right)[:60]!r}", float("inf")


def _relative(left: np.ndarray, right: np.ndarray) -> float:
    if left.shape != right.shape or not np.array_equal(np.isfinite(left), np.isfinite(right)):
        return float("inf")
    left, right = np.nan_to_num(left).astype(complex), np.nan_to_num(right).astype(complex)
    largest = max(np.abs(left).max(initial=0.0), 1e-3)
    return float(np.abs(left - right).max(initial=0.0) / largest)


def lines_apart(left: str, right: str, tolerance: float) -> str | None:
    """Return the first two lines that differ by more than a time or a number's last digits."""
    first, second = ([line for line in text.splitlines() if not A_TIME.search(line)] for text in (left, right))
    for a, b in zip(first, second, strict=False):
        if NUMBER.sub("#", a) != NUMBER.sub("#", b):
            return f"{a!r} and {b!r}"
        for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True):
            last_digit = 1.5 * 10.0 ** -len(x.partition(".")[2].partition("e")[0])
            if x != y and not abs(float(x) - float(y)) <= max(tolerance * abs(float(x)), last_digit):
                return f"{a!r} and {b!r}"
    return None if len(first) == len(second) else f"{len(first)} and {len(second)} lines"


# -- running ---------------------------------------------------------------------------------------------------------


def run(cells: Sequence[str], distributed: Mapping[int, str], options: argparse.Namespace) -> tuple[dict[int, Any], dict[str, Any]]:
    """Run the cells in a new kernel; return those that were run and the names that are left. `distributed` has the first lines of some."""
    from tests.notebook import kernel

    kernel.LIMIT = options.limit
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "notebook"
        shutil.copytree(options.notebook.parent, copy, ignore=shutil.ignore_patterns("*.ipynb", ".git", ".venv"))
        os.environ.update(IPYTHONDIR=str(Path(folder) / "ipython"), OMP_NUM_THREADS="1", PYTHONHASHSEED="0", PYTHON_COLORS="0")
        os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        notebook = kernel.Notebook(copy)
        try:
            notebook.run(START + (DOUBLE if options.double else ""))
            if options.prelude:
                notebook.run(options.prelude.read_text(encoding="utf-8"))
            notebook.run("%load_ext jupyter_dtrain")
            ran = {}
            for number, cell in enumerate(cells):
                if number not in options.skip:
                    ran[number] = notebook.finish(notebook.start(distributed.get(number, "") + cell, stop_on_error=False))
                    if number in distributed and options.verbose:
                        print(f"[{number}] {ran[number].stderr[-300:]}", flush=True)
            notebook.run(END.format(path=str(Path(folder) / "names")))
            return ran, pickle.loads((Path(folder) / "names").read_bytes())
        finally:
            notebook.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--options", default="", help="what else stands behind %%%%distribute")
    parser.add_argument("--double", action="store_true", help="compute in float64, so that rounding tells itself from errors")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a cell")
    parser.add_argument("--prelude", type=Path, help="a file of Python that is run first")
    parser.add_argument("--train", type=lambda text: set(text.split(",")), default=set(), help="more names of functions that train")
    parser.add_argument("--skip", type=lambda text: {int(number) for number in text.split(",")}, default=set(), help="cells not to run")
    parser.add_argument("--replace", action="append", default=[], help="PATTERN=>TEXT in the cells, to shorten a training")
    parser.add_argument("--verbose", action="store_true", help="show what engines say")
    options = parser.parse_args(arguments)
    cells = cells_of(options.notebook)
    for replacement in options.replace:
        pattern, _, text = replacement.partition("=>")
        cells = [re.sub(pattern, text, cell) for cell in cells]
    training = training_cells(cells, options.train) - options.skip
    print(f"{options.notebook.name}: {len(cells)} cells, training: {sorted(training)}", flush=True)
    plain, plain_names = run(cells, {}, options)
    first_line = f"%%distribute --engines {options.engines} --device cpu {options.options}".strip() + "\n"
    on_engines, names = run(cells, dict.fromkeys(training, first_line), options)
    tolerance, found = (1e-9, 0) if options.double else (1e-3, 0)
    for number, cell in plain.items():
        other = on_engines[number]
        printed = lines_apart(f"{cell.stdout}{cell.result}", f"{other.stdout}{other.result}", tolerance)
        if not cell.ok:
            print(f"  cell {number} fails plain: {': '.join(cell.error)[:200]}" + ("" if not other.ok else ", but not on engines"))
            found += other.ok
        elif not other.ok:
            print(f"  cell {number} FAILS on engines: {other.traceback[-1500:]}")
            found += 1
        if cell.ok == other.ok and printed:
            print(f"  cell {number} PRINTS other lines: {printed[:400]}")
            found += 1
        if len(cell.displays) != len(other.displays):
            print(f"  cell {number} SHOWS {len(cell.displays)} displays plain, {len(other.displays)} on engines")
            found += 1
    for name in sorted({*plain_names, *names}):
        one, other_one = ({name: values[name]} if name in values else {} for values in (plain_names, names))
        places = sorted(differences(one, other_one, tolerance), key=lambda place: -place[1])
        for place, apart in places[:1]:
            print(f"  name {place}: {apart:.1e} apart" + (f" (and {len(places) - 1} more)" if places[1:] else ""))
        found += len(places[:1])
    print(f"  {len(plain_names)} names compared; {found or 'nothing'} differs", flush=True)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
