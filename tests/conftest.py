"""Tests that need what a machine may not have are skipped there, with the reason."""

from __future__ import annotations

import os
import shutil
from functools import cache

import pytest


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
    parser.addoption("--kills", type=int, default=4, help="moments at which tests/faults kills something")


@pytest.fixture(scope="session", autouse=True)
def own_jupyter_data(tmp_path_factory):
    """What signs checkpoints lies in Jupyter's data folder: tests, and the kernels that they start, have one of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("jupyter")))
        yield


def pytest_collection_modifyitems(config, items):
    if "long" not in (config.option.markexpr or ""):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    for item in items:
        if config.pluginmanager.hasplugin("xdist"):
            # Tests of a file share kernels and clusters; those with a browser would be too much for a machine two at a time.
            item.add_marker(pytest.mark.xdist_group("browser" if item.get_closest_marker("browser") else item.path.stem))
        for marker, missing in (("gpu", no_gpu), ("browser", no_browser)):
            if item.get_closest_marker(marker) and (reason := missing()):
                item.add_marker(pytest.mark.skip(reason=reason))
