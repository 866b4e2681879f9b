"""An integration that another package brings for its library: it is found by its entry point, and a cell has what the notebook has."""

from __future__ import annotations

import pytest

PACKAGE = {
    "toytracker.py": """
import threading


class State:
    def __init__(self):
        self.level, self.lines = "info", []


state = State()

class Run:
    def __init__(self, name):
        self.name, self.lock = name, threading.Lock()

    def log(self, text):
        state.lines.append(f"{self.name}: {text}")

    def __reduce__(self):
        raise TypeError("a run belongs to its process")


runs = {}


def begin(name):
    return runs.setdefault(name, Run(name))
""",
    "toytracker_dtrain.py": """
import sys
from contextlib import contextmanager

from jupyter_dtrain.integrations.base import Integration, Setting


def _level():
    return sys.modules["toytracker"].state.level if "toytracker" in sys.modules else "info"


def _set_level(level):
    import toytracker
    toytracker.state.level = level


class ToyTracker(Integration):
    settings = {"level": Setting(_level, _set_level, default="info", of_other_ranks=lambda level: "silent")}

    def reduce(self, obj):
        import toytracker
        return (toytracker.begin, (obj.name,)) if isinstance(obj, toytracker.Run) else NotImplemented

    @contextmanager
    def run_scope(self, run):
        import toytracker
        toytracker.state.lines.append(f"rank {run.rank} begins")
        try:
            yield
        finally:
            toytracker.state.lines.append(f"rank {run.rank} ends")


INTEGRATION = ToyTracker()
""",
    "brokentracker.py": "",
    "toytracker_dtrain-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: toytracker-dtrain\nVersion: 1.0\n",
    "toytracker_dtrain-1.0.dist-info/entry_points.txt": """
[jupyter_dtrain.integrations]
toytracker = toytracker_dtrain:INTEGRATION
brokentracker = toytracker_dtrain:MISSING
""",
}


@pytest.fixture
def installed(notebook, tmp_path):
    """The shared notebook, with the library and its integration installed."""
    for name, text in PACKAGE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    notebook.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")
    yield notebook
    notebook.run(
        f"sys.path.remove({str(tmp_path)!r})\n"
        "for name in ('toytracker', 'toytracker_dtrain', 'brokentracker'): sys.modules.pop(name, None); globals().pop(name, None)\n"
        "globals().pop('tracker', None)"
    )


def test_a_cell_uses_a_library_through_an_integration_of_another_package(installed):
    installed.run("import toytracker\ntracker = toytracker.begin('mine')\ntoytracker.state.level = 'debug'")
    installed.run(
        "%%distribute --engines 2 --strategy auto --replicate\n"
        "import torch.distributed as dist\n"
        "tracker.log('from the cell')\n"
        "levels, own, seen = [None] * 2, tracker is toytracker.begin('mine'), [*toytracker.state.lines]\n"
        "dist.all_gather_object(levels, toytracker.state.level)\n"
        "toytracker.state.level = 'warning'\n"
    )
    assert installed.value("levels") == ["debug", "silent"]
    assert installed.value("own") is True
    assert installed.value("seen") == ["rank 0 begins", "mine: from the cell"]
    assert installed.value("(tracker is toytracker.begin('mine'), toytracker.state.level)") == (True, "warning")
    again = installed.run("%%distribute --engines 2 --replicate\ntoytracker.state.lines[-1]")
    assert again.result == "'rank 0 begins'"  # of this cell; it began where the last one had ended


def test_one_that_cannot_be_used_is_an_error_once_its_library_is_there(installed):
    assert installed.run("%%distribute --engines 2\n1 + 1").result == "2"
    installed.run("import brokentracker")
    cell = installed.fail("%%distribute --engines 2\n1 + 1")
    assert cell.error[0] == "UsageError"
    assert "The integration of brokentracker: toytracker_dtrain:MISSING cannot be used (AttributeError: " in cell.error[1]
    installed.run("del sys.modules['brokentracker'], brokentracker")
    assert installed.run("%%distribute --engines 2\n1 + 1").result == "2"


def test_what_stays_on_the_engines_of_one_that_is_gone_is_none_of_a_cells(installed):
    """The engines keep the library that a cell has used; the notebook has neither it nor its integration any more."""
    installed.run("import toytracker\ntracker = toytracker.begin('mine')")
    installed.run("%%distribute --engines 2\nimport math\ntracker.log('from the cell')\nassert toytracker.state.lines")
    installed.run("folder = sys.path.pop(0)\nfor name in ('toytracker', 'toytracker_dtrain'): sys.modules.pop(name, None)")
    installed.run("del toytracker, tracker, name")
    try:
        cell = installed.run("%%distribute --engines 2\nimport math\nmath.floor(1.5)")
    finally:
        installed.run("sys.path.insert(0, folder)\ndel folder")
    assert (cell.result, cell.stderr) == ("1", "")
