"""Tests that need what a machine may not have are skipped there, with the reason."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
from functools import cache

import pytest

LONGEST_FIRST = (
    "tests/browser/",
    "tests/notebook/test_corpus.py",
    "tests/hosts/",
    "tests/faults/test_detached.py",
    "tests/faults/test_kills.py",
    "tests/faults/",
    "tests/notebook/test_training.py",
    "tests/notebook/",
    "tests/gpu/",
    "tests/engine/",
    "tests/",
)
"""In which order files are run: one that takes minutes and begins last would be waited for by all other processes."""


def one_of(number, values):
    """Return values of a parameter: one in `number` is tried each time, the first among them, and `pytest -m long` tries the others."""
    return [value if index % number == 0 else pytest.param(value, marks=pytest.mark.long) for index, value in enumerate(values)]


def in_turn(more, few, share=1):
    """Return the pairs of two parameters: each of `more` with `share` of the `few`, in turn; `pytest -m long` tries the others."""
    pairs = itertools.product(enumerate(more), enumerate(few))
    return [pytest.param(a, b, marks=() if (i + j) % len(few) < share else pytest.mark.long) for (i, a), (j, b) in pairs]


AS_ONE = ("tests/browser/", "tests/hosts/", "tests/faults/")
"""Folders whose tests are run by one process, one after the other."""


@cache
def no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA device"


@cache
def no_browser() -> str | None:
    # Under CI=true a missing browser is a failure: there, nothing is skipped silently.
    if os.environ.get("CI") == "true" or any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        return None
    return "no Chromium: tests/browser/chromium.sh installs it where apt-get can"


def pytest_addoption(parser):
    parser.addoption("--on-cpu", action="store_true", help="run those of tests/gpu that can be without a GPU, to try the tests themselves")
    parser.addoption("--kills", type=int, default=4, help="moments at which tests/faults kills something")


@pytest.fixture(scope="session", autouse=True)
def own_jupyter_data(tmp_path_factory):
    """What signs checkpoints lies in Jupyter's data folder: tests, and the kernels that they start, have one of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        yield


@pytest.hookimpl(optionalhook=True)  # there with pytest-xdist
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        """Gives a process whole files, whose tests share kernels and clusters, and of some folders all.

        Two browsers at once would be too much for a machine, and so would two labs of hosts; tests that kill share their notebooks.
        """

        def _split_scope(self, nodeid):
            return next((folder for folder in AS_ONE if nodeid.startswith(folder)), nodeid.split("::")[0])

    return ByFile(config, log)


def _place(item):
    return next((place for place, begin in enumerate(LONGEST_FIRST) if item.nodeid.startswith(begin)), len(LONGEST_FIRST))


def _may_be_on_cpu(item):
    """Return whether a test that is written for a GPU can be tried without one: its nearest mark says so."""
    mark = item.get_closest_marker("gpu")
    return mark is not None and mark.kwargs.get("on_cpu", False)


def pytest_collection_finish():
    """Leave the thousands of tests to no later collection of garbage: each would look at all of them, which takes a second."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    if "long" not in (config.option.markexpr or ""):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    items.sort(key=_place)
    for item in items:
        if config.option.on_cpu and _may_be_on_cpu(item):
            continue
        for marker, missing in (("gpu", no_gpu), ("browser", no_browser)):
            if item.get_closest_marker(marker) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=reason))
