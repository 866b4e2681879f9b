"""Hosts on which no engines can start, and what cannot be done on several yet: one sentence each, from a start and from the doctor."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def healthy(lab, notebook):
    """The hosts, on which nothing runs, and whose logins are as they were afterwards."""
    notebook.run("%distribute stop")
    keys = lab[2].state / "root/.ssh/authorized_keys"
    before = keys.read_text()
    yield lab
    keys.write_text(before)


def no_key(lab):
    (lab[2].state / "root/.ssh/authorized_keys").write_text("")
    return "--hosts h1:1,h2:1"


def no_python(_lab):
    return "--hosts h2:1 --remote-python /nowhere/python"


def other_torch(lab):
    """A Python there that finds another version of PyTorch first."""
    metadata = lab.folder / "site/torch-1.0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0\n")
    return f"--hosts h2:1 --remote-python {script(lab, 'python-torch', f'export PYTHONPATH={metadata.parent}')}"


def not_installed(lab):
    python = script(lab, "python-bare", 'set -- -E -S "$@"')
    return f"--hosts h2:1 --remote-python {python}"


def script(lab, name, line):
    python = lab.folder / name
    python.write_text(f'#!/bin/sh\n{line}\nexec {lab.python} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (no_key, "h2: SSH refuses the login: run `ssh-copy-id h2` in a terminal to log in without a password."),
        (no_python, "h2: there is no /nowhere/python: use `--remote-python PATH` to name the Python there."),
        (lambda _: "--hosts h1:1,h99:1", "h99: the host name cannot be resolved: add it to ~/.ssh/config, or use an address."),
        (other_torch, "h2: it has torch 1.0, and the notebook "),
        (not_installed, "h2: jupyter_dtrain is not installed for "),
        (lambda _: "--hosts h2:1,10.77.0.12:1", "10.77.0.12: it is the same host as h2: name each host once."),
    ],
    ids=["key", "python", "name", "torch", "installed", "twice"],
)
def test_a_host_that_is_not_ready_is_refused_with_what_to_do(notebook, healthy, broken, said):
    options = broken(healthy)
    began = time.monotonic()
    cell = notebook.fail(f"%distribute start {options}")
    took = time.monotonic() - began
    assert cell.error[0] == "ClusterError"
    assert said in cell.error[1]
    assert took < 10
    shown = notebook.run(f"%distribute doctor {options}").stdout
    _, _, todo = said.partition(": ")[2].partition(": ")
    assert todo.rstrip(".") in shown
    assert "`%distribute start` would fail on these hosts." in shown


def test_the_doctor_tells_what_it_has_found(notebook):
    shown = notebook.run("%distribute doctor --hosts h1:1,h2:1").stdout
    for words in ("an agent is up at 10.77.0.11", "it reaches h2", "it reaches the notebook's host", "Engines can start on these hosts."):
        assert words in shown


def test_what_does_not_work_yet_is_refused(notebook):
    notebook.run("lr = 1")
    cell = notebook.fail("%%distribute --hosts h1:1,h2:1 --strategy none\nlr + 1")
    assert cell.error[0] == "UsageError"
    assert "--strategy none does not work on several hosts yet" in cell.error[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--hosts h1:1,h1:2", "a host stands twice"),
        ("--hosts=-oProxyCommand=x", "is not a host name"),
        ("--hosts h1:0", "a host has at least one engine"),
        ("--hosts h1:1 --launcher local", "--hosts and --launcher local: omit one of them"),
        ("--remote-python /usr/bin/python3", "--remote-python needs --hosts or --launcher"),
        ("--nodes 2", "are for a scheduler: add --launcher slurm"),
        ("--hosts h1 --show-script", "--show-script: --launcher ssh submits no job, so there is no script."),
        ("--connect /nowhere.json", "--connect /nowhere.json: there is no such file"),
        ("--profile x --hosts h1", "--profile names a cluster that runs: omit --hosts and --launcher"),
        ("--profile x --connect y", "--connect and --profile name a cluster that runs: omit the other"),
        ("--launcher connect", "--launcher connect needs --connect FILE"),
        ("--launcher ssh", "--launcher ssh needs --hosts"),
        ("--hosts h1 --engines 3", "--hosts says how many engines there are"),
        ("--hosts h1 --device cuda", "--device cuda does not work on several hosts yet"),
    ],
)
def test_options_that_cannot_be_understood(notebook, line, said):
    notebook.run("%distribute stop")  # what a refused cell has begun to start would do for some
    assert said in notebook.fail(f"%distribute start {line}").error[1]
