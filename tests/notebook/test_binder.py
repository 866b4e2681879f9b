"""Binder's steps in an empty environment: what a visitor of the link gets is what is tested here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def registry():
    """Skip where packages cannot be had (never under ``CI=true``): this is the one test that installs anything."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["build-system"]["requires"], *project["project"]["optional-dependencies"]["demo"]]
    ask = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--no-cache-dir", "--retries=0"]
    if os.environ.get("CI") != "true" and subprocess.run([*ask, *wanted], capture_output=True, timeout=120, check=False).returncode:
        pytest.skip("no package registry can be reached to fill an empty environment from")


@pytest.fixture
def checkout(tmp_path):
    """Return a copy of the project as a clone would have it: no build, no environment."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            target = tmp_path / "clone" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    return tmp_path / "clone"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("registry")
def test_the_demonstration_runs_after_post_build(checkout, tmp_path):
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment["PIP_COMPILE"] = "0"  # Python does it with what is imported
    environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=checkout, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900, check=False
        )
        assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout[-4000:]}"
        return done.stdout

    run("binder/postBuild")
    assert re.search(r"jupyter-dtrain v[\d.]+ .*enabled.*OK", run("jupyter", "labextension", "list"))
    shown = run("python", "examples/run_demo.py")
    rows = [line.split() for line in shown.splitlines() if re.match(r" *\d+ +\d", line)]
    accuracies = [float(row[2].rstrip("%")) for row in rows]
    assert accuracies[-1] > 90, shown
    assert {row[-1] for row in rows} == {"2"}, "the demonstration runs on two engines"
