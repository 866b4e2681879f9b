"""Loading the extension, and taking it away again."""

from __future__ import annotations

import pytest

from tests.notebook.test_clusters import gone

HEAVY = "[name for name in ('torch', 'numpy', 'ipyparallel', 'sqlite3', 'jupyter_dtrain.session') if name in sys.modules]"


@pytest.fixture(scope="module")
def fresh(module_notebook):
    notebook = module_notebook(launched=True)
    notebook.run("import sys\nbefore = set(sys.modules)")
    return notebook


def test_loading_imports_nothing_heavy(fresh):
    loaded = set(fresh.value(HEAVY))
    fresh.run("%load_ext jupyter_dtrain")
    assert set(fresh.value(HEAVY)) == loaded
    assert "No engines are running." in fresh.run("%distribute status").stdout
    assert fresh.run("%%distribute --help").stdout.startswith("usage:")
    assert fresh.fail("%%distribute --engines\n1").error[0] == "UsageError"
    assert set(fresh.value(HEAVY)) == loaded
    assert not {"torch", "ipyparallel"} & loaded


def test_unloading_stops_the_engines_and_takes_the_magics_away(fresh):
    fresh.run("%load_ext jupyter_dtrain\n%distribute start -n 1")
    processes = fresh.cluster_processes()
    fresh.run("%unload_ext jupyter_dtrain")
    fresh.wait(lambda: all(gone(process) for process in processes), "the end of the cluster")
    assert "`%%distribute` not found" in fresh.finish(fresh.start("%%distribute\n1")).stderr
    assert fresh.value("[t.name for t in __import__('threading').enumerate() if t.name.startswith('dtrain')]") == []


def test_unloading_gives_debug_back_to_who_had_it(fresh):
    fresh.run("get_ipython().debugger = before = lambda force=False: print('another one')")
    fresh.run("%load_ext jupyter_dtrain")
    assert fresh.value("get_ipython().debugger is not before")
    fresh.run("%unload_ext jupyter_dtrain")
    assert fresh.run("%debug").stdout == "another one\n"
    fresh.run("del get_ipython().debugger")


def test_loading_it_twice_and_again_gives_one_of_everything(fresh):
    fresh.run("%load_ext jupyter_dtrain\n%load_ext jupyter_dtrain\n%reload_ext jupyter_dtrain")
    assert fresh.run("%distribute status").stdout.count("No engines are running.") == 1
    names = "[t.name for t in __import__('threading').enumerate() if t.name.startswith('dtrain')]"
    assert fresh.value(names) == ["dtrain-telemetry"]
    assert fresh.value("len([f for f in get_ipython().input_transformers_cleanup if 'dtrain' in f.__module__])") == 1
