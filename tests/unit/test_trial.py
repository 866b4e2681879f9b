"""A trial leaves nothing outside: it is given up before a file is written, a process begins or a message is sent."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_dtrain.engine.verify.trial import GivenUp, unnoticed

EFFECTS = {
    "open(path, 'w').write('a')": "it writes a file",
    "Path(path).write_text('a')": "it writes a file",
    "Path(path).open('ab').write(b'a')": "it writes a file",
    "os.open(path, os.O_WRONLY | os.O_CREAT)": "it writes a file",
    "torch.tensor(1).numpy().tofile(path)": "it writes a file",
    "torch.save(1, path)": "it saves a file",
    "os.mkdir(path)": "os.mkdir",
    "os.rename(there, path)": "os.rename",
    "os.remove(there)": "os.remove",
    "os.symlink(there, path)": "os.symlink",
    "os.system('touch ' + path)": "os.system",
    "subprocess.run(['touch', path])": "subprocess.Popen",
    "sqlite3.connect(path).execute('create table t (x)')": "sqlite3.connect",
    "socket.socket().bind(('127.0.0.1', 0))": "socket.",
    "tempfile.mkdtemp()": "tempfile.mkdtemp",
    "jupyter_dtrain.log(loss=1.0)": "it asks for `log` of the run",
}


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    namespace = {"path": str(tmp_path / "made"), "there": str(tmp_path / "there")}
    (tmp_path / "there").write_text("text")
    exec("import os, socket, sqlite3, subprocess, tempfile, torch, jupyter_dtrain\nfrom pathlib import Path", namespace)
    return namespace


@pytest.mark.parametrize("code", EFFECTS)
def test_a_trial_is_given_up_before_it_does_anything_outside(code, names, tmp_path):
    with unnoticed(), pytest.raises(GivenUp, match=EFFECTS[code]):
        exec(code, names)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("there", "text")]


def test_what_it_reads_prints_and_logs_is_no_effect(names, capsys, caplog):
    with unnoticed() as said:
        texts = eval("open(there).read(), Path(there).read_text(), os.read(os.open(there, os.O_RDONLY), 9)", names)
        print("in a trial")
        logging.getLogger("of the cell").warning("in a trial")
    assert texts == ("text", "text", b"text")
    assert said.getvalue() == "in a trial\n"
    assert capsys.readouterr().out == ""
    assert caplog.records == []


def test_after_it_everything_works_again(names, tmp_path):
    with unnoticed(), pytest.raises(GivenUp):
        torch.save(1, names["path"])
    torch.save(1, names["path"])
    Path(names["there"]).write_text("new")
    os.mkdir(tmp_path / "folder")  # noqa: PTH102  # which is heard of
    assert torch.load(names["path"]) == 1
    assert (tmp_path / "there").read_text() == "new"
