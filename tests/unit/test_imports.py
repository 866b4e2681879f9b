"""Imports go one way: this reads those of every module and fails on an arrow that points up.

The tables below are the architecture (docs/architecture.md draws it). A module imports from parts of a lower level and from
its own part: there in any order without a circle, in ``engine/`` only from the files and folders that stand above its own
in `ENGINE_ORDER`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "jupyter_dtrain"
ROOT = Path(__file__).parents[2] / PACKAGE

LEVELS = {
    "errors": 0,
    "system": 1,
    "protocol": 2,
    "strategies": 2,
    "parallel_dims": 3,
    "shard_patterns": 2,
    "search": 2,
    "api": 1,
    "analysis": 2,
    "data": 2,
    "cluster_options": 3,
    "options": 4,
    "integrations": 3,
    "runs": 3,
    "cluster": 5,
    "serialization": 5,
    "capture": 6,
    "planning": 7,
    "transport": 7,
    "engine": 8,
    "checkpoint": 9,
    "elastic": 10,
    "detached": 11,
    "trials": 11,
    "session": 12,
    "notebook": 13,
    "host": 13,
    "host_app": 14,
    "__init__": 14,  # the package's own names, each imported when it is first used
}

ENGINE_ORDER = [
    "user_frames",
    "current_run",
    "busiest_line",
    "timing",
    "memory",
    "found_late",
    "identity_map",
    "module_tree",
    "staging",
    "dedup",
    "code_inspection",
    "arrival",
    "comm",
    "side_effects",
    "tensor",
    "rng",
    "result_pickler",
    "new_modules",
    "result_packing",
    "send_checks",
    "cell_results",
    "backward",
    "forward",
    "data",
    "verify",
    "resume",
    "optimizer_steps",
    "patching",
    "cell",
    "control",
    "task",
    "telemetry",
    "strategies",
    "snapshot",
    "post_mortem",
    "returned_results",
    "cell_boundary",
    "cell_run",
    "worker",
]


def modules() -> dict[str, Path]:
    """Return every module's dotted name below the package, with its file."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


MODULES = modules()


def imported(source: str, module: str, *, is_package: bool, known: set[str]) -> list[tuple[int, str]]:
    """Return (line, module) for what `source` imports of this project, wherever in the file: names below the package."""
    package = [PACKAGE, *module.split(".")] if module != "__init__" else [PACKAGE]
    if not is_package:
        package = package[:-1]
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            start = ".".join(part for part in (base, node.module) if part)
            # `from .engine import worker` imports the module engine.worker, `from .errors import UsageError` the module errors.
            targets = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target != PACKAGE and not target.startswith(PACKAGE + "."):
                continue
            name = target.removeprefix(PACKAGE).removeprefix(".")
            while name and name not in known:
                name = name.rpartition(".")[0]
            found.append((node.lineno, name or "__init__"))
    return sorted(set(found))


@cache
def imports_of(module: str) -> list[tuple[int, str]]:
    path = MODULES[module]
    return imported(path.read_text(), module, is_package=path.name == "__init__.py", known=set(MODULES))


def part(module: str) -> str:
    return module.partition(".")[0]


def problems(module: str, imports: list[tuple[int, str]]) -> list[str]:
    """Say for each import of `module` that points up what is wrong with it."""
    said = []
    for line, target in imports:
        arrow = f"{PACKAGE}.{module}, line {line}, imports {PACKAGE}.{target}"
        here, there = part(module), part(target)
        if there not in LEVELS:
            said.append(f"{arrow}: {there!r} has no place in LEVELS yet; give it one")
        elif here == there == "engine" and module != "engine" and target != "engine":
            ours, theirs = (name.split(".")[1] for name in (module, target))
            if ours == theirs:
                continue
            if theirs not in ENGINE_ORDER or ours not in ENGINE_ORDER:
                said.append(f"{arrow}: put both into ENGINE_ORDER")
            elif ENGINE_ORDER.index(theirs) > ENGINE_ORDER.index(ours):
                said.append(f"{arrow}: {theirs} stands below {ours} in ENGINE_ORDER")
        elif here != there and LEVELS[there] >= LEVELS[here]:
            said.append(f"{arrow}: {here!r} is on level {LEVELS[here]} and {there!r} is not below it, but on level {LEVELS[there]}")
    return said


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module):
    assert part(module) in LEVELS, f"{part(module)!r} has no place in LEVELS yet; give it one"
    found = problems(module, imports_of(module))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("module", MODULES)
def test_modules_that_its_docstrings_point_to_are_there(module):
    path = MODULES[module]
    parts = [PACKAGE, *module.split(".")]
    for dots, name in re.findall(r":mod:`(\.*)([\w.]+)`", path.read_text()):
        above = len(dots) - (path.name == "__init__.py")
        target = ".".join([*parts[: len(parts) - above], name]) if dots else name
        assert target.removeprefix(f"{PACKAGE}.") in MODULES, f"{path}: {dots}{name}"


ROLES = {"base", "strategy"}
"""Names that say what a file is in each folder of a kind: what all behind a seam have in common, and a strategy's own class."""


def test_a_file_is_known_by_its_name():
    times = Counter(module.rpartition(".")[2] for module, path in MODULES.items() if path.name != "__init__.py")
    assert {name for name, count in times.items() if count > 1} == ROLES


def test_no_file_has_more_than_250_lines():
    long = {str(path): lines for path in ROOT.rglob("*.py") if (lines := len(path.read_text().splitlines())) > 250}
    assert long == {}


def test_no_circles():
    graph = {
        module: {target for _, target in imports_of(module) if target != module}
        for module in MODULES
        if module != "__init__"  # imports lazily, so that a circle through it is none
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' → '.join(error.args[1])}")


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("capture.bundle", "from ..errors import CaptureError", []),
        ("session", "from .engine import worker", []),
        ("capture.bundle", "from . import preview", []),
        ("engine.worker", "from .forward import wrap", []),
        ("transport.parcel", "from ..capture.bundle import Bundle", []),
        ("capture.bundle", "from ..transport.parcel import ship", ["'transport' is not below it"]),
        (
            "capture.bundle",
            "def late():\n    from ..session import Session",
            ["line 2, imports jupyter_dtrain.session: 'capture' is on level 6"],
        ),
        ("engine.worker", "import jupyter_dtrain.notebook.magics", ["imports jupyter_dtrain.notebook"]),
        ("engine.forward.model_call", "from ..worker import run", ["worker stands below forward"]),
        ("errors", "from .protocol import Message", ["'protocol' is not below it, but on level 2"]),
        ("runs.store", "from jupyter_dtrain import cluster", ["'cluster' is not below it, but on level 5"]),
    ],
)
def test_the_check_itself(module, source, expected):
    known = {
        *MODULES,
        "session",
        "capture.bundle",
        "transport.parcel",
        "engine.worker",
        "engine.forward.model_call",
        "notebook.magics",
        "cluster",
    }
    said = problems(module, imported(source, module, is_package=False, known=known))
    assert len(said) == len(expected)
    for words, sentence in zip(expected, said, strict=True):
        assert words in sentence


AT_LOAD = {
    "api",
    "errors",
    "notebook.busy",
    "notebook.comm",
    "notebook.comm_targets",
    "notebook.lazy",
    "notebook.magics",
    "protocol.message",
    "runs.detached_index",
    "system.confined",
    # by the thread that looks for what dead kernels have left, beside
    "cluster.crash_log",
    "cluster.folders",
    "system.processes",
    "system.resources",
}
"""All of ours that ``%load_ext`` may import, besides the packages that these are in."""
HEAVY = {"torch", "ipyparallel", "numpy", "cloudpickle", "pynvml", "sqlite3", "psutil", "pyarrow", "dask", "pandas", "anywidget"}
LOAD_EXT = "shell.run_line_magic('load_ext', 'jupyter_dtrain'); assert 'jupyter_dtrain' in shell.extension_manager.loaded"
SHELL = "from IPython.core.interactiveshell import InteractiveShell; shell = InteractiveShell.instance()"


def imported_by(statement: str, before: str = "") -> set[str]:
    """Return the modules that a statement imports in a fresh process."""
    code = f"import sys; {before}\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60).stdout.split())


@pytest.mark.parametrize(("before", "statement"), [("", "import jupyter_dtrain"), (SHELL, LOAD_EXT)], ids=["import", "load_ext"])
def test_nothing_heavy_is_imported(before, statement):
    """What makes ``%load_ext jupyter_dtrain`` instant: the heavy parts come when they are first used."""
    loaded = imported_by(statement, before)
    assert "jupyter_dtrain" in loaded
    assert HEAVY.isdisjoint(loaded)


def test_an_agent_says_hello_before_anything_heavy_is_imported():
    """A start on several hosts waits for it; ZeroMQ is for agents that connect by themselves."""
    assert (HEAVY | {"zmq", "asyncio"}).isdisjoint(imported_by("import jupyter_dtrain.cluster.hosts.host_agent"))


def test_load_ext_imports_the_door_alone():
    """Parsers, options, messages and views come with the first line of a magic, or with the sidebar."""
    ours = {name.removeprefix(f"{PACKAGE}.") for name in imported_by(LOAD_EXT, SHELL) if name.startswith(f"{PACKAGE}.")}
    packages = {name.rpartition(".")[0] for name in AT_LOAD}
    assert not (more := ours - AT_LOAD - packages), f"%load_ext imports {sorted(more)}: import them where they are first used"
