"""What a cell writes is written once, and each rank reads what it has written."""

from __future__ import annotations

import os
import time

import pytest

from jupyter_dtrain.engine.side_effects import followed_folders, made_folders
from tests.engine.ranks import RankError, run_notebook, run_plain

CELLS = {
    "a log that grows": """
for number in range(3):
    with open("log.txt", "a") as log:
        log.write(f"{number}\\n")
found = open("log.txt").read()
""",
    "a checkpoint and back": """
for number in range(5):
    torch.save({"number": number, "weights": torch.arange(50_000.0)}, "best.pt")
    assert os.path.exists("best.pt")
    found = torch.load("best.pt", weights_only=False)["number"]
""",
    "folders and paths": """
os.makedirs("runs/first", exist_ok=True)
if not os.path.exists("plots"):
    os.mkdir("plots")
path = pathlib.Path("runs/first/metrics.json")
path.write_text(json.dumps({"loss": 0.5}))
pathlib.Path("runs/second").mkdir(parents=True)
found = json.loads(path.read_text()), os.path.isfile(path)
""",
    "a folder that is renamed": """
os.makedirs("runs/new")
pathlib.Path("runs/new/log.txt").write_text("x")
os.rename("runs", "done")
found = os.path.exists("runs"), os.path.isdir("done/new"), pathlib.Path("done/new/log.txt").read_text()
""",
    "written, read, renamed and removed": """
with open("before.txt", "a") as file:
    file.write("new")
np.save("array.npy", np.arange(3))
os.remove("gone.txt")
shutil.rmtree("old")
found = np.load("array.npy").tolist()
with open("left.txt", "w") as file:
    file.write("left")
os.replace("left.txt", "kept.txt")
found = found, open("kept.txt").read(), os.path.exists("kept.txt")
""",
    "looked up, copied and taken away": """
os.makedirs("kept", exist_ok=True)
for epoch in range(3):
    torch.save({"epoch": epoch}, f"kept/{epoch}.pt")
    shutil.copy(f"kept/{epoch}.pt", "best.pt")
    shutil.copy2("best.pt", pathlib.Path("kept") / "last.pt")
shutil.copy("before.txt", "kept")
found = torch.load("best.pt"), torch.load("kept/last.pt"), pathlib.Path("kept/before.txt").read_text(), os.path.getsize("best.pt") > 100
os.remove("gone.txt")
found = *found, os.path.exists("gone.txt"), pathlib.Path("gone.txt").exists(), pathlib.Path("kept/2.pt").is_file()
shutil.rmtree("old")
os.makedirs("old/deep")
pathlib.Path("old/deep/new.txt").write_text("new")
found = *found, pathlib.Path("old/deep").is_dir(), os.path.exists("old/deep/new.txt"), os.path.isdir("kept")
try:
    open("gone.txt").close()
except FileNotFoundError as error:
    found = *found, error.filename
""",
    "a folder removed and made anew, with one in it": """
shutil.rmtree("old", ignore_errors=True)
(pathlib.Path("old") / "deep").mkdir(parents=True)
shutil.rmtree("old")
(pathlib.Path("old") / "deep").mkdir(parents=True, exist_ok=True)
found = os.path.isdir("old/deep")
""",
    "folders made and removed": """
found = []
for name in ("a", "b", "a"):
    os.mkdir(name)
    found.append(os.path.isdir(name))
    os.rmdir(name)
    found.append(os.path.exists(name))
os.makedirs("a/b/c")
with open("a/b/c/file.txt", "w") as file:
    file.write("x")
found.append(open("a/b/c/file.txt").read())
shutil.rmtree("a")
found.append(os.path.exists("a/b"))
""",
    "read, and written over in its place": """
with open("before.txt", "r+") as file:
    count = len(file.read())
    file.seek(0)
    file.write("OLD")
found = count, open("before.txt").read()
""",
    "a temporary folder": """
with tempfile.TemporaryDirectory() as folder:
    os.mkdir(os.path.join(folder, "deep"))
    for path in (pathlib.Path(folder, "scratch.txt"), pathlib.Path(folder, "deep", "before.txt")):
        path.write_text("scratch")
    found = pathlib.Path(folder, "scratch.txt").read_text(), sorted(os.listdir(folder))
found = found, os.path.exists(folder), open("before.txt").read()
""",
    "a table and a figure": """
import pandas as pd
pd.DataFrame({"a": [1, 2]}).to_csv("table.csv", index=False)
found = pd.read_csv("table.csv").a.tolist()
""",
    "a database": """
import sqlite3
with sqlite3.connect("log.db") as db: db.execute("create table t(e, v)")
db = sqlite3.connect("log.db")
for e in range(3):
    db.execute("insert into t values (?, ?)", (e, 0.5)); db.commit()
found = db.execute("select * from t").fetchall(); db.close()
with sqlite3.connect(":memory:") as db: db.execute("create table t(e)"); found += db.execute("select * from t").fetchall()
""",
    "an array in a file": """
m = np.memmap("m.dat", dtype="f8", mode="w+", shape=(4,)); m[:] = np.arange(4); m[1] += 5; m.flush()
found = m.tolist(); del m
n = np.memmap("m.dat", dtype="f8", mode="r+", shape=(4,)); n += 1; n.flush(); found = found, n.tolist()
""",
    "archives": """
import zipfile, tarfile, gzip, bz2, lzma
pathlib.Path("a.txt").write_text("x")
with zipfile.ZipFile("z.zip", "w") as z: z.writestr(zipfile.ZipInfo("q", (2020,1,1,0,0,0)), "hello")
with zipfile.ZipFile("z.zip", "a") as z: z.writestr(zipfile.ZipInfo("r", (2020,1,1,0,0,0)), "hello2")
with gzip.GzipFile("g.gz", "ab", mtime=0) as g: g.write(b"abc")
with lzma.open("l.xz", "wb") as g: g.write(b"abc")
found = zipfile.ZipFile("z.zip").namelist(), gzip.open("g.gz").read()
""",
    "commands": """
import subprocess
for e in range(3): os.system(f"echo {e} >> sys.txt")
subprocess.run("echo x >> sub.txt", shell=True, check=True)
found = open("sys.txt").read(), open("sub.txt").read(), subprocess.getoutput("echo a")
try:
    subprocess.run(["false"], check=True)
except subprocess.CalledProcessError as error:
    found = *found, error.returncode
""",
    "links": """
pathlib.Path("best.txt").write_text("b")
os.symlink("best.txt", "latest"); found = [open("latest").read(), os.path.islink("latest"), os.readlink("latest")]
os.link("before.txt", "hard"); found.append(open("hard").read())
os.remove("latest"); os.symlink("before.txt", "latest"); found.append(open("latest").read())
""",
    "links over what is there": """
pathlib.Path("own.txt").write_text("own")
found = []
for make in (os.symlink, os.link):
    for name in ("before.txt", "own.txt", "old"):
        try:
            make("before.txt", name)
        except FileExistsError as error:
            found.append((error.errno, error.filename, error.filename2))
with tempfile.TemporaryDirectory() as folder:
    os.symlink(os.path.abspath("before.txt"), folder + "/link")
    found.append((open(folder + "/link").read(), os.path.islink(folder + "/link")))
""",
    "folders in place of files": """
found = []
for mode in ("a", "r+", "w", "x", "r"):
    try:
        open("old", mode).close()
    except OSError as error:
        found.append((mode, type(error).__name__, error.filename))
for flags in (os.O_WRONLY, os.O_RDWR | os.O_CREAT):
    try:
        os.open("old", flags)
    except OSError as error:
        found.append((type(error).__name__, error.filename))
""",
    "files that must be new": """
found = []
with open("own.txt", "x") as file: file.write("new")
for make in (lambda name: open(name, "x"), pathlib.Path, lambda name: os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR)):
    for name in ("before.txt", "own.txt", "old", "gone.txt"):
        try:
            made = make(name) if make is not pathlib.Path else make(name).touch(exist_ok=False)
            os.close(made) if isinstance(made, int) else made.close()
        except FileExistsError as error:
            found.append((name, error.errno, str(error.filename)))
    os.remove("gone.txt")
    with open("gone.txt", "x") as file: file.write("again")
    found.append(open("gone.txt").read())
""",
    "removed files": """
os.remove("gone.txt")
found = []
for look in (open, pathlib.Path.read_text, lambda name: os.open(name, os.O_RDONLY), lambda name: os.open(name, os.O_WRONLY), os.stat):
    try:
        look(pathlib.Path("gone.txt"))
    except FileNotFoundError as error:
        found.append((error.errno, str(error.filename)))
""",
    "what is in a folder": """
os.symlink("before.txt", "latest")
os.makedirs("new/deep")
with os.scandir(".") as entries:
    found = sorted((e.name, e.path, os.fspath(e), repr(e), e.is_file(), e.is_dir(), e.is_symlink()) for e in entries)
before, = [e for e in os.scandir(".") if e.name == "before.txt"]
found += before.is_file(follow_symlinks=False), before.stat().st_size, before.inode() == before.stat().st_ino
""",
    "descriptors": """
fd = os.open("low.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND); os.write(fd, b"x"); os.close(fd)
fd = os.open("low.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND); os.write(fd, b"y"); os.close(fd)
fd = os.open("low.txt", os.O_RDONLY); found = open("low.txt").read(), os.read(fd, 9); os.close(fd)
""",
    "a file that replaces another at once": """
for e in range(3):
    fd, name = tempfile.mkstemp(dir=".")
    with os.fdopen(fd, "w") as f: f.write(str(e))
    os.replace(name, "state.txt")
found = open("state.txt").read(), sorted(os.listdir("."))
""",
    "a named temporary file that replaces another": """
for e in range(3):
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as f: f.write(str(e))
    os.replace(f.name, "state.txt")
found = open("state.txt").read(), sorted(os.listdir("."))
""",
    "the newest of what is there": """
for e in range(3): torch.save(e, f"ck_{e}.pt")
import glob
found = [sorted(glob.glob("ck_*.pt")), sorted(p.name for p in pathlib.Path(".").glob("ck_*.pt")), sorted(os.listdir("."))]
for f in sorted(glob.glob("ck_*.pt"))[:-1]: os.remove(f)
found.append(sorted(glob.glob("ck_*.pt")))
found.append(sorted(e.name for e in os.scandir(".") if e.name.startswith("ck")))
found.append(max(glob.glob("ck_*.pt"), key=os.path.getmtime))
""",
    "a walk through folders": """
os.makedirs("r/a"); os.makedirs("r/b"); pathlib.Path("r/a/f").write_text("1"); pathlib.Path("r/b/g").write_text("22")
found = sorted((d, sorted(x), sorted(y)) for d, x, y in os.walk("r"))
found = found, [p.stat().st_size for p in sorted(pathlib.Path("r").rglob("*")) if p.is_file()]
""",
    "a scripted model": """
m = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
for e in range(3): torch.jit.save(m, "m.pt"); n = torch.jit.load("m.pt")
found = tuple(n(torch.ones(1,2)).shape)
os.remove("m.pt")
""",
    "a copy of a folder": """
os.makedirs("r/a"); pathlib.Path("r/a/f").write_text("1")
found = shutil.copytree("r", "s"), pathlib.Path("s/a/f").read_text(), os.path.exists("t")
try:
    shutil.copytree("r", "s")
except FileExistsError as error:
    found = *found, error.filename
""",
    "files that are moved": """
torch.save(3, "tmp.pt"); shutil.move("tmp.pt", "final.pt")
found = torch.load("final.pt"), os.path.exists("tmp.pt"), pathlib.Path("final.pt").stat().st_size > 0
pathlib.Path("x.txt").write_text("q"); pathlib.Path("x.txt").rename("y.txt"); pathlib.Path("y.txt").replace("z.txt")
found = *found, pathlib.Path("z.txt").read_text()
pathlib.Path("z.txt").unlink(); pathlib.Path("z.txt").unlink(missing_ok=True); found = *found, pathlib.Path("z.txt").exists()
""",
    "times, lengths and rights": """
pathlib.Path("done").touch(); pathlib.Path("done").touch(); found = [os.path.exists("done")]
pathlib.Path("q.txt").write_text("abcdef"); os.truncate("q.txt", 3); found.append(open("q.txt").read())
os.chmod("q.txt", 0o600); found.append(oct(os.stat("q.txt").st_mode & 0o777))
os.utime("q.txt", (1, 1)); found.append(os.path.getmtime("q.txt"))
""",
    "lines changed in place": """
import fileinput
pathlib.Path("f.txt").write_text("a\\nb\\n")
with fileinput.input("f.txt", inplace=True) as f:
    for line in f: print(line.strip().upper())
found = open("f.txt").read()
""",
    "what is from before gets other names": """
found = []
for number in range(3):
    os.replace("before.txt", "backup.txt")
    found += [open("backup.txt").read(), os.path.exists("before.txt")]
    pathlib.Path("backup.txt").rename("before.txt")
    found += [os.path.exists("backup.txt"), pathlib.Path("before.txt").read_text()]
with open("own.txt", "w") as file:
    file.write("own")
os.rename("own.txt", "own.txt")
found.append(open("own.txt").read())
shutil.move("old", "older")
found += [os.path.isdir("older/deep"), os.path.exists("old"), sorted(os.listdir("older"))]
shutil.move("before.txt", "older")
found += [open("older/before.txt").read(), shutil.move("older/before.txt", "before.txt"), open("before.txt").read()]
""",
    "what is not there cannot be removed": """
found = []
for change in (os.remove, os.rmdir, shutil.rmtree, lambda name: os.rename(name, "x"), lambda name: pathlib.Path(name).unlink()):
    for name in ("missing", "gone.txt", "gone.txt"):
        try:
            change(name)
            found.append(name)
        except OSError as error:
            found.append(type(error).__name__)
""",
    "commands that make what was removed": """
import subprocess
for number in range(3):
    os.remove("gone.txt")
    subprocess.run(f"echo {number} > gone.txt", shell=True, check=True)
    found = open("gone.txt").read(), os.path.exists("gone.txt")
""",
    "a file with rights of its own": """
with open("op.txt", "w", opener=lambda p, f: os.open(p, f, 0o600)) as f: f.write("x")
found = open("op.txt").read()
""",
}
SETUP = """
import json, os, pathlib, shutil, tempfile
import numpy as np
import torch
os.chdir({folder!r})
os.makedirs("old/deep", exist_ok=True)
pathlib.Path("before.txt").write_text("old ")
pathlib.Path("gone.txt").write_text("")
"""


@pytest.mark.parametrize("name", CELLS)
def test_files_are_written_once(name, ranks, tmp_path):
    folders = []
    for kind in ("plain", "shared"):
        (tmp_path / kind).mkdir()
        folders.append(tmp_path / kind)
    plain, shared = folders
    # Set up once: the ranks' own setup only goes there.
    (expected,) = ranks.call(1, run_plain, SETUP.format(folder=str(plain)), CELLS[name], "found")
    ranks.call(1, run_plain, SETUP.format(folder=str(shared)), "", "0")
    for path in shared.rglob("*"):
        os.utime(path, (1e9, 1e9))  # which are from before the cell, by more than the clocks of files lag behind
    time.sleep(0.03)  # and have changed for the last time
    setup = SETUP.partition("os.makedirs")[0].format(folder=str(shared))
    for rank in ranks.call(3, run_notebook, setup, CELLS[name], "found"):
        assert rank["compared"] == expected["compared"]
    left = [{str(path.relative_to(folder)): path.is_dir() or path.read_bytes() for path in folder.rglob("*")} for folder in folders]
    assert left[0] == left[1]


def test_a_command_is_run_once_and_all_ranks_have_what_it_says(ranks, tmp_path):
    cell = "import subprocess\nfound = subprocess.check_output('echo $$; echo x >> log.txt', shell=True), os.system('exit 3')"
    setup = SETUP.partition("os.makedirs")[0].format(folder=str(tmp_path))
    first, *others = [rank["compared"] for rank in ranks.call(3, run_notebook, setup, cell, "found")]
    assert others == [first, first]
    assert (tmp_path / "log.txt").read_text() == "x\n"


def test_what_rank_0_alone_asks_waits_for_nobody(ranks, tmp_path):
    cell = """
import jupyter_dtrain, subprocess
found = 0
if jupyter_dtrain.is_main():
    subprocess.run(["true"])
    os.system("true")
    found = len(os.listdir("."))
found = found, os.listdir(".")
"""
    setup = SETUP.partition("os.makedirs")[0].format(folder=str(tmp_path))
    assert [rank["compared"] for rank in ranks.call(2, run_notebook, setup, cell, "found")] == [(0, []), (0, [])]


def test_ranks_that_ask_different_things_are_told(ranks, tmp_path):
    cell = "import time\nfound = os.listdir('.') if torch.distributed.get_rank() else time.time()"
    setup = SETUP.partition("os.makedirs")[0].format(folder=str(tmp_path))
    with pytest.raises(RankError, match=r"different lines of the cell: rank 0 asks for the time or random bytes, this one what is in '\.'"):
        ranks.call(2, run_notebook, setup, cell, "found")


def test_what_was_there_is_an_error_as_before(ranks, tmp_path):
    (tmp_path / "there").mkdir()
    cell = "try:\n    os.mkdir('there')\n    found = 'made'\nexcept FileExistsError:\n    found = 'there'"
    setup = SETUP.partition("os.makedirs")[0].format(folder=str(tmp_path))
    assert [rank["compared"] for rank in ranks.call(2, run_notebook, setup, cell, "found")] == ["there", "there"]


def test_folders_that_no_other_rank_makes_are_waited_for_once(ranks, tmp_path):
    setup = f"""
from jupyter_dtrain.engine.side_effects import followed_folders
followed_folders.MKDIR_TIMEOUT = 2.0
{SETUP.partition("os.makedirs")[0].format(folder=str(tmp_path))}
"""
    cell = """
began = followed_folders.time.monotonic()
path = f"runs/{os.getpid()}/files/media/images/of/epochs"
os.makedirs(path)
found = os.path.isdir(path) and followed_folders.time.monotonic() - began < 5 * followed_folders.MKDIR_TIMEOUT
"""
    assert [rank["compared"] for rank in ranks.call(2, run_notebook, setup, cell, "found")] == [True, True]


def test_folders_that_no_other_rank_makes_are_removed_by_who_has_made_them(ranks, tmp_path):
    setup = f"""
from jupyter_dtrain.engine.side_effects import followed_folders
followed_folders.MKDIR_TIMEOUT = 1.0
{SETUP.partition("os.makedirs")[0].format(folder=str(tmp_path))}
"""
    cell = """
with tempfile.TemporaryDirectory(dir=".") as folder:
    found = os.path.isdir(folder)
found = found, os.path.exists(folder)
"""
    assert [rank["compared"] for rank in ranks.call(3, run_notebook, setup, cell, "found")] == [(True, False)] * 3
    assert list(tmp_path.iterdir()) == []


def test_outside_of_the_folder_only_what_torch_saves_is_the_ranks_own(ranks, tmp_path):
    (tmp_path / "notebook").mkdir()
    cell = f"""
with open({str(tmp_path / "log")!r}, "a") as log:
    log.write("x")
torch.save(1, {str(tmp_path / "saved.pt")!r})
found = torch.load({str(tmp_path / "saved.pt")!r})
"""
    setup = SETUP.partition("os.makedirs")[0].format(folder=str(tmp_path / "notebook"))
    assert [rank["compared"] for rank in ranks.call(2, run_notebook, setup, cell, "found")] == [1, 1]
    assert (tmp_path / "log").read_text() == "xx"


FOLDERS = """
found = []

def attempt(make, *args, **options):
    try:
        make(*args, **options)
    except OSError as error:
        found.append(type(error).__name__)
    else:
        found.append("made")

attempt(os.mkdir, "there")
attempt(os.makedirs, "there/deep/new/one")
if os.path.basename(os.getcwd()) == "0":
    time.sleep(0.3)  # the other rank asks first
attempt(os.mkdir, "earlier/two")
attempt(os.makedirs, "there/deep")
attempt(os.makedirs, "there/deep", exist_ok=True)
attempt(os.mkdir, "missing/three")
attempt(pathlib.Path("a/b/c").mkdir, parents=True)
attempt(os.makedirs, name=os.path.abspath("x/y"))
pathlib.Path("a/b/c/file.txt").write_text("x")
found += [open("a/b/c/file.txt").read(), os.path.isdir("there/deep/new"), os.path.isdir("x")]
os.rmdir("x/y")
attempt(os.makedirs, "x/y")
os.rmdir("x/y")
found.append(os.path.exists("x/y"))
os.environ.pop("JUPYTER_DTRAIN_HOST", None)
"""
FAR = """
import os, pathlib, time
import torch.distributed as dist
os.environ["JUPYTER_DTRAIN_HOST"] = f"host{{dist.get_rank()}}"
os.chdir(f"{folder}/{{dist.get_rank()}}")
"""


def test_on_hosts_without_the_notebooks_folder_ranks_fare_as_rank_0_with_its_folders(ranks, tmp_path):
    """Each has another folder for relative paths, and what an earlier cell has made is in rank 0's alone."""
    for name in ("plain", "0", "1"):
        (tmp_path / name).mkdir()
    for name in ("plain", "0"):
        (tmp_path / name / "there/deep").mkdir(parents=True)
        (tmp_path / name / "earlier").mkdir()
    setup = f"import os, pathlib, time\nos.chdir({str(tmp_path / 'plain')!r})"
    (expected,) = ranks.call(1, run_plain, setup, FOLDERS, "found")
    assert expected["compared"] == [
        *("FileExistsError", "made", "made", "FileExistsError", "made", "FileNotFoundError", "made", "made"),
        *("x", True, True, "made", False),
    ]
    ranks.call(2, run_notebook, FAR.format(folder=tmp_path), "", "0")  # who meet for the first time take theirs
    began = time.monotonic()
    for rank in ranks.call(2, run_notebook, FAR.format(folder=tmp_path), FOLDERS, "found"):
        assert rank["compared"] == expected["compared"]
    assert time.monotonic() - began < followed_folders.MKDIR_TIMEOUT
    assert (tmp_path / "0/there/deep/new/one").is_dir()
    assert (tmp_path / "0/a/b/c/file.txt").read_text() == "x"
    assert list((tmp_path / "1").iterdir()) == []


FROM_BEFORE = """
found = []
pathlib.Path("there").mkdir(exist_ok=True)
for name in ("there", "there/deep", "new"):
    if not os.path.exists(name):
        os.mkdir(name)
    found.append(os.path.isdir(name))
pathlib.Path("there/deep/file.txt").write_text("x")
os.rename("there/deep", "there/moved")
found += [os.path.exists("there/deep"), pathlib.Path("there/moved/file.txt").read_text(), pathlib.Path("there/moved").is_dir()]
os.mkdir("there/deep")
shutil.rmtree("there")
found.append(os.path.exists("there"))
os.environ.pop("JUPYTER_DTRAIN_HOST", None)
"""


def test_folders_from_before_are_there_on_hosts_without_them(ranks, tmp_path):
    """Nobody waits for what rank 0 says of a folder that it does not make, and none is made elsewhere."""
    for name in ("plain", "0", "1"):
        (tmp_path / name).mkdir()
    for name in ("plain", "0"):
        (tmp_path / name / "there/deep").mkdir(parents=True)
    (expected,) = ranks.call(1, run_plain, f"import os, pathlib, shutil\nos.chdir({str(tmp_path / 'plain')!r})", FROM_BEFORE, "found")
    assert expected["compared"] == [True, True, True, False, "x", True, False]
    setup = FAR.format(folder=tmp_path) + "import shutil"
    ranks.call(2, run_notebook, setup, "", "0")
    began = time.monotonic()
    for rank in ranks.call(2, run_notebook, setup, FROM_BEFORE, "found"):
        assert rank["compared"] == expected["compared"]
    assert time.monotonic() - began < followed_folders.MKDIR_TIMEOUT
    assert [path.name for path in (tmp_path / "0").iterdir()] == ["new"]
    assert list((tmp_path / "1").iterdir()) == []


def test_a_folder_that_ranks_were_not_told_of_may_be_made_with_exist_ok(ranks, tmp_path):
    for name in ("plain", "0", "1"):
        (tmp_path / name).mkdir()
    for name in ("plain", "0"):
        (tmp_path / name / "there").mkdir()
        (tmp_path / name / "file").touch()
    cell = """
found = []
for name in ("there", "file"):
    try:
        pathlib.Path(name).mkdir(exist_ok=True)
        found.append(os.path.isdir(name))
    except OSError as error:
        found.append((type(error).__name__, error.errno, os.path.isdir(name)))
os.environ.pop("JUPYTER_DTRAIN_HOST", None)
"""
    (expected,) = ranks.call(1, run_plain, f"import os, pathlib\nos.chdir({str(tmp_path / 'plain')!r})", cell, "found")
    assert expected["compared"] == [True, ("FileExistsError", 17, False)]
    few = "from jupyter_dtrain.engine.side_effects import made_folders\nmade_folders.MOST_ENTRIES = {}"
    setup = FAR.format(folder=tmp_path) + few.format(0)
    ranks.call(2, run_notebook, setup, "", "0")
    for rank in ranks.call(2, run_notebook, setup, cell, "found"):
        assert rank["compared"] == expected["compared"]
    ranks.call(2, run_notebook, few.format(made_folders.MOST_ENTRIES), "", "0")


def test_folders_are_looked_for_among_so_many_entries(tmp_path, monkeypatch):
    for name in ("a/deep", "b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "to_itself").symlink_to(tmp_path)
    assert sorted(made_folders.folders_below(tmp_path)) == ["a", "a/deep", "b", "to_itself"]
    monkeypatch.setattr(made_folders, "MOST_ENTRIES", 3)
    assert sorted(made_folders.folders_below(tmp_path)) == ["a", "b", "to_itself"]
    assert made_folders.folders_below(tmp_path / "missing") == ()
