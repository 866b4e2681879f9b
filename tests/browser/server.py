"""A real JupyterLab server for tests: on loopback, with folders, settings and a token of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import psutil

LIMIT = 120.0  # seconds; every wait ends at a condition, this is for the day it never comes


class Server:
    """JupyterLab, serving the notebooks of `folder`/notebooks.

    Parameters
    ----------
    folder : Path
        Empty; the server's settings, notebooks and log go there.
    checkout : Path, optional
        What kernels import the package from, installed or not; the front end that was built there is the one that is served.
        Without it both are those that are installed beside `python`.
    python : str, optional
        The interpreter of an environment with JupyterLab; this one's where nothing is said.
    """

    def __init__(self, folder: Path, *, checkout: Path | None = None, python: str = sys.executable) -> None:
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        self.log = folder / "log.txt"
        self.settings = folder / "settings"
        settings = self.settings / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        quiet = {"fetchNews": "false", "checkForUpdates": False}  # a question in the corner covers what it lies on
        (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
        extensions = folder / "checkout" / "labextensions"
        extensions.mkdir(parents=True)
        if checkout is not None:
            (extensions / "jupyter-dtrain").symlink_to(checkout / "jupyter_dtrain" / "labextension")
        self.token = uuid.uuid4().hex
        own_folders = {
            "IPYTHONDIR": "ipython",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_PATH": "checkout",
            "JUPYTER_RUNTIME_DIR": "runtime",
        }
        environment = os.environ | {name: str(folder / own) for name, own in own_folders.items()} | {"PYTHONPATH": str(checkout or "")}
        options = [
            "--no-browser",
            "--allow-root",
            "--ServerApp.ip=127.0.0.1",
            "--ServerApp.port=18888",
            "--ServerApp.port_retries=200",
            f"--ServerApp.root_dir={self.notebooks}",
            f"--IdentityProvider.token={self.token}",
            "--LabApp.expose_app_in_browser=True",
        ]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [python, "-m", "jupyterlab", *options], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        # The port is another one where that one is taken; the server writes down which.
        self._written = folder / "runtime" / f"jpserver-{self._process.pid}.json"
        self.url = ""
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + LIMIT
        while True:
            assert self._process.poll() is None, f"the server has ended: {self.log.read_text()}"
            assert time.monotonic() < deadline, f"the server does not answer: {self.log.read_text()}"
            try:
                self.url = json.loads(self._written.read_text())["url"]
                self.request("GET", "status")
                return
            except (OSError, ValueError):
                time.sleep(0.1)

    def request(self, method: str, path: str) -> Any:
        """Ask the server's REST interface."""
        request = urllib.request.Request(f"{self.url}api/{path}", method=method, headers={"Authorization": f"token {self.token}"})
        with urllib.request.urlopen(request, timeout=LIMIT) as response:
            body = response.read()
        return json.loads(body) if body else None

    def descendants(self) -> list[psutil.Process]:
        """Return the kernels, and all that they have started."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def shut_down_kernels(self) -> None:
        """Shut down every kernel; fails where one leaves a process behind."""
        processes = self.descendants()
        for session in self.request("GET", "sessions"):
            self.request("DELETE", f"sessions/{session['id']}")
        _, left = psutil.wait_procs(processes, timeout=LIMIT)
        assert not left, f"left behind: {left}"

    def stop(self) -> None:
        """Stop the server, its kernels too."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LIMIT)
            raise
