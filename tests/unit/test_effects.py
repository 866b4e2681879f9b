"""What a notebook has imported for its effect is imported on engines, where what goes along has to do with it."""
# ruff: noqa: E501  # a table: one case a line

from __future__ import annotations

import sys
import textwrap

import ipywidgets  # noqa: F401  # whose integration is asked about each object
import pytest

MODULES = {
    "firstlib/__init__.py": "from .core import Base, make, REGISTRY",
    "firstlib/core.py": """
        REGISTRY = {}
        class Base:
            def run(self): return 'base'
        def make(name): return REGISTRY[name]()
    """,
    "firstlib/experimental/__init__.py": "",
    "firstlib/experimental/enable_more.py": "from firstlib import core\ncore.more = lambda: 'more'\nprint('enabled')",
    "secondlib.py": """
        import firstlib
        def extra(self): return 'extra of ' + self.run()
        firstlib.Base.extra = extra
        class Own(firstlib.Base): pass
        firstlib.REGISTRY['own'] = Own
    """,
    "thirdlib.py": "import firstlib\nfirstlib.Base.extra = property(lambda self: 'third')\nraise_here = 1",
    "accessors.py": """
        import pandas
        @pandas.api.extensions.register_dataframe_accessor('twice')
        class Twice:
            def __init__(self, frame): self._frame = frame
            def all(self): return int(2 * self._frame.to_numpy().sum())
    """,
    "modulepatch.py": "from torch import nn\ndef count(self): return sum(p.numel() for p in self.parameters())\nnn.Module.count_of_a_test = count",
    "lazylib.py": """
        class Lazy:
            '''As a proxy of a request, or what PyTorch says is deprecated.'''
            def __getattribute__(self, name): raise RuntimeError(f'somebody has looked at {name}')
        request = Lazy()
        class Base:
            request = request
            def run(self): return 'lazy'
    """,
    "aside.py": "import json",
}
CASES = {
    "patch of a class": ("import firstlib\nimport secondlib\nb = firstlib.Base()", "k = b.extra()", "extra of base"),
    "registry": ("import firstlib, secondlib", "k = type(firstlib.make('own')).__name__", "Own"),
    "registry by an import in the cell": ("import secondlib", "from firstlib import make\nk = type(make('own')).__name__", "Own"),
    "function of the library": ("from firstlib import make\nfrom secondlib import *", "k = type(make('own')).__name__", "Own"),
    "part of the library": (
        "import firstlib\nfrom firstlib.experimental import enable_more",
        "from firstlib import core\nk = core.more()",
        "more",
    ),
    "by importlib": ("import firstlib, importlib\nimportlib.import_module('secondlib')", "k = firstlib.Base().extra()", "extra of base"),
    "accessor": ("import pandas as pd\nimport accessors\ndf = pd.DataFrame({'a': [1, 2]})", "k = df.twice.all()", 6),
    "object that is not to be looked at": ("import lazylib", "k = lazylib.Base().run()", "lazy"),
    "object of a class that has one": ("import lazylib\nb = lazylib.Base()", "k = b.run()", "lazy"),
    "patch of PyTorch": ("import torch\nimport modulepatch\nmodel = torch.nn.Linear(2, 1)", "k = model.count_of_a_test()", 3),
}


@pytest.fixture
def installed(tmp_path, monkeypatch, notebook):
    """Libraries of a test, which are forgotten here and on the engine afterwards."""
    folder = tmp_path / "installed"
    for name, text in MODULES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    names = {name.partition("/")[0].removesuffix(".py") for name in MODULES}
    forget = f"import sys\nfor name in [name for name in sys.modules if name.partition('.')[0] in {names!r}]:\n    sys.modules.pop(name)\n"
    forget += "import torch\nif 'count_of_a_test' in vars(torch.nn.Module):\n    del torch.nn.Module.count_of_a_test\n"
    forget += "if 'pandas' in sys.modules:\n    pandas = sys.modules['pandas']\n    pandas.DataFrame._accessors.discard('twice')\n    vars(pandas.DataFrame).get('twice') and delattr(pandas.DataFrame, 'twice')\n"
    yield
    notebook.plain(forget)
    notebook.distribute(forget)


def run(notebook, setup: str) -> None:
    notebook.plain(setup)
    notebook.names["In"] = ["", *setup.splitlines()]


@pytest.mark.parametrize("name", CASES)
def test_what_an_import_does_is_done_on_engines(name, installed, notebook):
    setup, cell, expected = CASES[name]
    run(notebook, setup)
    notebook.distribute(cell)
    assert notebook.names["k"] == expected


def test_what_has_nothing_to_do_with_the_cell_is_not_imported(installed, notebook):
    run(notebook, "import firstlib\nimport secondlib\nimport aside\nimport modulepatch\nn = 1")
    notebook.distribute("import sys\nk = [name for name in ('firstlib', 'secondlib', 'aside') if name in sys.modules], n")
    assert notebook.names["k"] == ([], 1)


def test_the_notebooks_order_is_kept(installed, notebook):
    run(notebook, "import firstlib\nimport thirdlib\nimport secondlib\nb = firstlib.Base()")
    notebook.distribute("k = b.extra()")
    assert notebook.names["k"] == "extra of base"


def test_a_module_that_cannot_be_imported_there_is_left_to_the_cell(installed, notebook):
    run(notebook, "import firstlib\nimport secondlib\nb = firstlib.Base()")
    sys.modules["gone_lib"] = sys.modules["secondlib"]
    notebook.names["In"].append("import gone_lib")
    try:
        notebook.distribute("k = b.run()")
    finally:
        del sys.modules["gone_lib"]
    assert notebook.names["k"] == "base"
