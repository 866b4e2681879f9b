"""Cells on the hosts of an ipyparallel cluster that somebody else has started."""

from __future__ import annotations

import sys
import sysconfig
import time
from pathlib import Path

import pytest

from tests.hosts.conftest import ROOT
from tests.hosts.test_several_hosts import SETUP, SHORT, assert_same, hosts_of, trained, waiting_for

UP = 60.0  # seconds for a controller or an engine
BARE = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


class Theirs:
    """A controller on the notebook's host, and engines on others."""

    def __init__(self, lab, notebook):
        self._lab, self._notebook, self._started = lab, notebook, []
        folder = lab.folder / "ipython"
        folder.mkdir()
        security = folder / "profile_default/security"
        self.file, self._of_engines = security / "ipcontroller-client.json", security / "ipcontroller-engine.json"
        options = ["--ip=10.77.0.10", "--location=10.77.0.10", f"--ipython-dir={folder}", "--IPController.enable_curve=True"]
        self._started.append(lab[0].popen([lab.python, "-m", "ipyparallel.controller", *options]))
        waiting_for(lambda: self._of_engines.exists() and self.file.exists(), UP)

    def start(self, host, *, python=None, **variables):
        """Start an engine on `host`."""
        given = [f"{name}={value}" for name, value in variables.items()]
        folder = f"/tmp/engine-{len(self._started)}"
        host.run(["mkdir", folder])
        engine = [python or self._lab.python, "-m", "ipyparallel.engine", f"--file={self._of_engines}", f"--ipython-dir={folder}"]
        process = host.popen(["env", *given, *engine])
        self._started.append(process)

    def end(self, host):
        """End the engines of `host`."""
        host.run(["pkill", "-9", "-f", "ipyparallel[.]engine"])

    def wait_for(self, count):
        """Wait until the controller has so many engines."""
        ask = f"import ipyparallel\nwith ipyparallel.Client({str(self.file)!r}, timeout=20) as found: ids = found.ids"
        waiting_for(lambda: notebook_says(self._notebook, ask) == count, UP)

    def close(self):
        for host in self._lab.up:
            host.run(["sh", "-c", "pkill -9 -f 'ipyparallel[.](engine|controller)' || true"])
        for process in self._started:
            process.wait()


def notebook_says(notebook, ask):
    notebook.run(ask)
    return len(notebook.value("ids"))


@pytest.fixture(scope="module")
def theirs(lab, notebook):
    cluster = Theirs(lab, notebook)
    yield cluster
    cluster.close()


@pytest.mark.long
def test_engines_without_this_package_or_with_another_torch_are_refused_in_a_sentence(notebook, lab, theirs):
    metadata = lab.folder / "other/torch-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    theirs.start(lab[1], PYTHONPATH=f"{metadata.parent}:{ROOT}")
    theirs.start(lab[2], python=BARE, PYTHONPATH=sysconfig.get_path("purelib"))
    for count, host, said in (
        (2, lab[2], "h2: jupyter_dtrain is not installed for /"),
        (1, lab[1], "h1: it has torch 1.0, and the notebook "),
    ):
        theirs.wait_for(count)
        began = time.monotonic()
        cell = notebook.fail(f"%distribute start --connect {theirs.file}")
        assert time.monotonic() - began < 15
        assert cell.error[0] == "ClusterError"
        assert said in cell.error[1]
        shown = notebook.run(f"%distribute doctor --connect {theirs.file}").stdout
        assert "`%distribute start` would fail on these hosts." in shown
        theirs.end(host)
    theirs.wait_for(0)


@pytest.mark.long
def test_a_cell_is_run_beside_its_engines_which_stay(notebook, lab, theirs):
    for host in (lab[1], lab[1], lab[2]):
        theirs.start(host)
    theirs.wait_for(3)
    notebook.run(SETUP + SHORT)
    expected = trained(notebook)
    notebook.run(SETUP)
    notebook.run(f"%%distribute --connect {theirs.file}\n{SHORT}")
    assert sorted(hosts_of(notebook)) == ["h1", "h1", "h2"]
    assert_same(notebook, expected)
    notebook.run("%distribute stop")
    assert not any("host_agent" in line for host in (lab[1], lab[2]) for line in host.processes())
    theirs.wait_for(3)
