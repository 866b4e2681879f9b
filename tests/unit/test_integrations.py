"""Integrations: each is imported with its library, and those of other packages are found where the notebook is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from jupyter_dtrain.capture.settings import make_settings, settings_now
from jupyter_dtrain.integrations import registry
from jupyter_dtrain.integrations.base import Integration


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    monkeypatch.setattr(registry, "_is_told", False)


@pytest.mark.parametrize("library", registry._OWN)
def test_integration_loads_each_of_our_own(library):
    if library == "transformers":
        pytest.importorskip("torch")
    assert isinstance(registry.integration(library), Integration)


def test_none_is_imported_before_its_library():
    code = (
        "import sys, jupyter_dtrain.capture.process_state as state, jupyter_dtrain.serialization.reducers as reducers\n"
        "from jupyter_dtrain.serialization.pickler import Packer\n"
        "state.ProcessSettings.now(); Packer(namespace={}).dump({'a': [1, object()]})\n"
        "ours = 'jupyter_dtrain.integrations.'\n"
        "print(*sorted(name.removeprefix(ours) for name in sys.modules if name.startswith(ours)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["base", "registry"]


def test_look_finds_those_of_installed_packages(tmp_path, monkeypatch):
    (tmp_path / "toy-1.0.dist-info").mkdir()
    (tmp_path / "toy-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (tmp_path / "toy-1.0.dist-info/entry_points.txt").write_text("[jupyter_dtrain.integrations]\ntoy = json:dumps\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert settings_now()[registry.KNOWN] == {"toy": "json:dumps"}
    monkeypatch.syspath_prepend(tmp_path / "none")
    (tmp_path / "toy-1.0.dist-info/entry_points.txt").unlink()
    assert settings_now()[registry.KNOWN] == {}


def test_an_engine_is_told_and_reads_no_packages(monkeypatch):
    def installed(_group):
        raise AssertionError("read")

    monkeypatch.setattr(registry, "installed", installed)
    make_settings({registry.KNOWN: {"toy": "json:dumps"}})
    assert registry.of_others() == {"toy": "json:dumps"}
    assert settings_now()[registry.KNOWN] == {"toy": "json:dumps"}
