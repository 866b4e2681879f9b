"""What listens while cells run: sockets in folders of this user's alone, and of ports those that docs/security.md names."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.notebook.conftest import IMPORTS, LOGGED
from tests.notebook.kernel import Notebook

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sockets of processes are read where Linux tells them")
WAIT = """
import os, pathlib, time
pathlib.Path("{place}", {who}).touch()  # not in the notebook's folder, where rank 0 writes for all
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
BY_HAND = """
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
"""
RANK = "str(os.getpid())"
CELLS = {
    "ordinary": ("--engines 2 --output all", "train(lambda _: None)", 2),
    "distributes itself": ("--engines 2 --strategy none", BY_HAND, 2),
    "trials": ("--engines 2 --vary lr=0.1,0.2 --best loss", "train(lambda _: None)\nprint(lr)", 2),
    "detached": ("--engines 2 --detach", "train(lambda _: None)", 2),
}
GLOO = {"ordinary": 2, "distributes itself": 2, "trials": 0, "detached": 2}
"""How many ports gloo has at most: one for each rank that is not alone."""


@pytest.fixture(scope="module")
def notebook(module_notebook) -> Notebook:
    notebook: Notebook = module_notebook()
    notebook.run(IMPORTS + LOGGED + "lr = 0.1")
    return notebook


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.long if kind == "trials" else ()) for kind in CELLS])
def test_nothing_listens_that_is_not_in_the_table(notebook, kind):
    options, body, ranks = CELLS[kind]
    place = notebook.folder.with_name(f"{notebook.folder.name}-there-{kind}")
    place.mkdir()
    (notebook.folder / "go").unlink(missing_ok=True)
    cell = notebook.start(f"%%distribute {options} --device cpu\n{body}\n{WAIT.format(who=RANK, place=place)}")
    there = lambda: len(list(place.iterdir())) >= ranks  # noqa: E731
    notebook.wait(lambda: there() or not cell.running, "the cell's end", cell)
    assert cell.running, cell
    kernel = psutil.Process(notebook.manager.provisioner.pid)
    ports: list[tuple[str, int]] = []
    paths: set[Path] = set()
    for process in kernel.children(recursive=True):
        try:
            connections = process.net_connections(kind="all")
        except psutil.NoSuchProcess:  # it has ended meanwhile
            continue
        ports += [(found.laddr.ip, found.laddr.port) for found in connections if found.status == psutil.CONN_LISTEN]
        paths |= {Path(name) for found in connections if (name := str(found.laddr)).startswith("/")}
    (notebook.folder / "go").touch()
    folders = {path.parent: path.parent.stat() for path in paths if path.parent.exists()}
    parents = {folder.parent: folder.parent.stat() for folder in folders}
    notebook.finish(cell)
    assert cell.ok, cell
    assert all(ipaddress.ip_address(ip.removeprefix("::ffff:")).is_loopback for ip, _ in ports), ports
    assert len(set(ports)) <= GLOO[kind], ports
    assert folders, "nothing was found at all"
    for folder, about in folders.items():
        private = [about.st_mode & 0o777 == 0o700, parents[folder.parent].st_mode & 0o777 == 0o700]
        assert about.st_uid == os.getuid()
        assert any(private), folder
