"""What came with a cell of a module beside the notebook is found by the module's name, for the time of the run."""

from __future__ import annotations

import importlib
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest

from jupyter_dtrain.engine.arrival.modules import found_by_name

CODE = "made = []\n\nclass Net:\n    pass\n\ndef make():\n    made.append(1)\n    return Net()\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "beside_us.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("beside_us", None)


def sent() -> Any:
    """Return the module as it comes by value: no module of this process knows of it."""
    module = ModuleType("beside_us")
    exec(CODE, vars(module))
    return module


@pytest.mark.parametrize("imported", [True, False])
def test_classes_are_found_where_pickle_looks_for_them(folder, imported):
    own = importlib.import_module("beside_us").Net if imported else None
    net = sent().Net()
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(net)
    if not imported:
        del sys.modules["beside_us"]
    with found_by_name([type(net)], {}):
        assert type(pickle.loads(pickle.dumps(net))) is type(net)
        assert type(sys.modules["beside_us"].make()) is type(net)
    assert sys.modules["beside_us"].Net is not type(net)
    assert own in (None, sys.modules["beside_us"].Net)


def test_a_module_that_came_whole_is_the_one_that_is_imported(folder):
    module = sent()
    with found_by_name([module, module.Net, module.make], {}):
        assert importlib.import_module("beside_us") is module
    assert "beside_us" not in sys.modules


def test_nothing_is_imported_that_nobody_asks_for(folder):
    with found_by_name([sent().Net], {}):
        assert "beside_us" not in sys.modules


def test_what_the_cell_puts_there_stays(folder):
    module: Any = importlib.import_module("beside_us")
    with found_by_name([sent().Net, sent().make], {}):
        module.Net = int
    assert module.Net is int
    assert module.make.__globals__ is vars(module)


def test_classes_of_the_notebook_are_found_though_the_cell_does_not_name_them(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", main := ModuleType("__main__"))
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec(CODE, notebook)
    main.make = 1  # type: ignore[attr-defined]  # a name that the cell has given something else
    with found_by_name([notebook["Net"], notebook["make"]], {}):
        assert type(pickle.loads(pickle.dumps(notebook["Net"]()))) is notebook["Net"]
        assert vars(main)["make"] == 1
    assert "Net" not in vars(main)


def test_what_the_cell_defines_is_found_in_main():
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(CODE, namespace)
    other = type("Other", (), {"__module__": "__main__"})
    before = sys.modules["__main__"]
    with found_by_name([other], namespace):
        main: Any = sys.modules["__main__"]
        assert vars(main) is namespace
        assert [type(pickle.loads(pickle.dumps(kind()))) for kind in (namespace["Net"], other)] == [namespace["Net"], other]
        main.added = 1
        assert "Other" not in namespace
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            _ = main.nothing
    assert namespace["added"] == 1
    assert sys.modules["__main__"] is before


def test_a_nested_class_is_found_though_the_one_around_it_has_not_come():
    notebook: dict[str, Any] = {"__name__": "__main__"}
    exec("class Outer:\n    class Config:\n        class Part: pass\nclass Other:\n    class Config: pass", notebook)
    config, other = notebook["Outer"].Config, notebook["Other"].Config
    for came in ([config.Part, other], [config, config.Part, other], [config.Part, config, notebook["Other"], other]):
        with found_by_name(came, {}):
            assert all(type(pickle.loads(pickle.dumps(kind()))) is kind for kind in came)
    with found_by_name([config, other], {"Outer": 1}), pytest.raises(pickle.PicklingError):
        pickle.dumps(config())
