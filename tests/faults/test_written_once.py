"""What a cell writes to files and logs while an engine dies: each line once, in its order."""

from __future__ import annotations

import os
import signal
import textwrap

import pytest

from tests.conftest import one_of

SETUP = """
import logging
def prepare():
    global log, model, optimizer, logger
    make()
    log = open("lines.txt", "w")
    logger = logging.getLogger("written.once")
    logger.handlers[:] = [logging.FileHandler("log.txt", mode="w")]
    logger.setLevel(logging.INFO)
"""
BATCHES = """
for number, (x, y, index) in enumerate(loader):
    for again in range(6):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace()
"""
CELL = f"""{BATCHES}
    log.write(f"{{number}}\\n")
    logger.info("batch %d", number)
"""


def run_and_kill(two, text, rank, *, after=80):
    """Run a cell to its end, whose engine of `rank` is killed after so many steps."""
    notebook = two.notebook
    (notebook.folder / "steps").unlink(missing_ok=True)
    notebook.run("%distribute start -n 2 --device cpu")  # a test before may have left some that others are to take the place of
    pids = notebook.engines()
    cell = notebook.start("%%distribute --engines 2" + text)
    two.wait_for_step(after, cell)
    os.kill(pids[rank], signal.SIGKILL)
    notebook.finish(cell)
    assert cell.ok, cell
    assert f"Lost rank {rank}" in cell.stderr
    return cell


@pytest.mark.parametrize("rank", one_of(2, [1, 0]))
def test_lines_of_steps_that_are_computed_again_are_there_once(two, rank):
    notebook = two.notebook
    notebook.run(SETUP + "prepare()")
    run_and_kill(two, CELL, rank)
    assert notebook.value("log.closed") is False
    notebook.run("log.close()")
    assert (notebook.folder / "lines.txt").read_text().split() == [str(number) for number in range(25)]
    assert (notebook.folder / "log.txt").read_text().splitlines() == [f"batch {number}" for number in range(25)]


LOGGING_CELL = f"""
class Counter(logging.Handler):
    count = 0
    def emit(self, record):
        self.count += 1

counter = Counter()
logging.basicConfig(filename="cells.txt", filemode="w", level=logging.INFO, format="%(levelname)s %(message)s", force=True)
kept = logging.getLogger("written.kept")
kept.addHandler(counter)
logging.getLogger("written.quiet").setLevel(logging.ERROR)
{BATCHES}
    kept.info("batch %d", number)
    logging.getLogger("written.quiet").warning("not told")
"""


@pytest.mark.parametrize("rank", one_of(2, [0, 1]))
def test_logging_that_the_cell_has_set_up_goes_on(two, rank):
    notebook = two.notebook
    notebook.run("import logging\nmake()")
    run_and_kill(two, LOGGING_CELL, rank)
    assert (notebook.folder / "cells.txt").read_text().splitlines() == [f"INFO batch {number}" for number in range(25)]
    assert notebook.value("counter.count, kept.handlers == [counter], len(logging.root.handlers)") == (25, True, 1)
    notebook.run("logging.root.handlers[0].close(); logging.root.handlers.clear()")


FILES = """
import shutil
from pathlib import Path
def prepare():
    global model, optimizer
    make()
    shutil.rmtree("files", ignore_errors=True)
    Path("files/old").mkdir(parents=True)
    Path("files/added.txt").write_text("before\\n")
    for number in range(25):
        Path(f"files/old/{number}").write_text("")
"""
FILES_CELL = """
class Log:
    def __init__(self):
        self.file, self.lines = open("files/held.txt", "w"), 0
    def line(self, text):
        self.file.write(text + "\\n")
        self.lines += 1

os.mkdir("files/batches")
held = Log()
with open("files/over.txt", "a") as over:
    anew = open("files/anew.txt", "w")
    for number, (x, y, index) in enumerate(loader):
        for again in range(6):
            try:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            except BaseException as error:
                print("this is none of", error)
                raise
            pace()
            with open("files/added.txt", "a") as added:
                added.write(f"{number} {again}\\n")
        over.write(f"{number}\\n")
        anew.write(f"{number}\\n")
        held.line(f"{number}")
        print(f"epoch {number}")
        os.remove(f"files/old/{number}")
        os.makedirs(f"files/batches/{number}")
        with open(f"files/batches/{number}/part", "x") as part:
            part.write(f"{number}")
        os.rename(f"files/batches/{number}/part", f"files/batches/{number}/whole")
    anew.close()
held.file.close()
lines = len(open("files/added.txt").readlines())
"""


@pytest.mark.parametrize(("rank", "steps"), [(0, 80), *(pytest.param(*case, marks=pytest.mark.long) for case in ((1, 80), (0, 10)))])
def test_files_are_as_if_nothing_had_died(two, rank, steps):
    notebook, numbers = two.notebook, [str(number) for number in range(25)]
    notebook.run(FILES + "prepare()")
    cell = run_and_kill(two, FILES_CELL, rank, after=steps)
    files = notebook.folder / "files"
    assert cell.stdout.splitlines() == [f"epoch {number}" for number in numbers]
    assert {name: (files / f"{name}.txt").read_text().split() for name in ("over", "anew", "held")} == dict.fromkeys(
        ("over", "anew", "held"), numbers
    )
    assert notebook.value("held.lines") == 25
    added = [f"{number} {again}" for number in range(25) for again in range(6)]
    assert (files / "added.txt").read_text().splitlines() == ["before", *added]
    assert notebook.value("lines") == 1 + 25 * 6
    assert list((files / "old").iterdir()) == []
    assert {path.parent.name: (path.name, path.read_text()) for path in files.glob("batches/*/*")} == {n: ("whole", n) for n in numbers}


WITH_MLFLOW = """
import mlflow
with mlflow.start_run() as run:
    for epoch in range(6):
        loss = train_one_epoch(model, loader, pace)
        mlflow.log_metric("loss", loss, step=epoch)
        history.append((epoch, loss))
"""


@pytest.mark.long
@pytest.mark.parametrize("rank", one_of(2, [0, 1]))
def test_a_run_of_mlflow_that_the_cell_is_in_goes_on(two, rank, tmp_path):
    notebook = two.notebook
    notebook.run("import os, mlflow\nos.environ['MLFLOW_ALLOW_FILE_STORE'] = 'true'\nmake()")
    notebook.run(f"mlflow.set_tracking_uri({f'file:{tmp_path}/mlruns'!r})\nmlflow.set_experiment('digits')")
    run_and_kill(two, WITH_MLFLOW, rank)
    assert notebook.value("[run.info.status for run in mlflow.search_runs(output_format='list')]") == ["FINISHED"]
    told = notebook.value("[(told.step, told.value) for told in mlflow.MlflowClient().get_metric_history(run.info.run_id, 'loss')]")
    assert sorted(set(told)) == notebook.value("history")


WITH_WANDB = f"""
import os
os.environ["WANDB_SILENT"] = "true"
import wandb
with wandb.init(project="p", mode="offline") as run:
{textwrap.indent(BATCHES, "    ")}
        run.log({{"loss": loss.item()}}, step=number)
    last = run.step, run.id
"""


@pytest.mark.long
@pytest.mark.parametrize("rank", one_of(2, [1, 0]))
def test_a_run_that_an_open_with_has_begun_is_one_run(two, rank):
    notebook = two.notebook
    notebook.run("make()")
    before = set(notebook.folder.glob("wandb/offline-run-*"))
    assert "Traceback" not in run_and_kill(two, WITH_WANDB, rank).stderr
    (folder,) = set(notebook.folder.glob("wandb/offline-run-*")) - before
    assert (notebook.value("last"), notebook.value("wandb.run")) == ((24, folder.name.rpartition("-")[2]), None)


TEMPORARY = textwrap.dedent("""
    import os, tempfile
    with tempfile.TemporaryDirectory(prefix="outer-") as outer, tempfile.TemporaryDirectory(prefix="inner-") as inner:
        best = os.path.join(inner, "best.pt")
        with open(os.path.join(outer, "notes.txt"), "w") as notes:
            notes.write("begun")
        torch.save(0, best)
        for number, (x, y, index) in enumerate(loader):
            for again in range(6):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                pace()
            if number == 3:
                torch.save(number, best)
        seen = torch.load(best), open(os.path.join(outer, "notes.txt")).read(), os.listdir(inner)
    left = [os.path.exists(folder) for folder in (outer, inner)]
""")


@pytest.mark.long
@pytest.mark.parametrize("rank", one_of(2, [0, 1]))
def test_temporary_folders_are_there_for_who_goes_on_and_gone_at_the_end(two, rank, tmp_path):
    notebook = two.notebook
    with notebook.changed(f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}; make()", "tempfile.tempdir = None"):
        run_and_kill(two, f"\nimport tempfile; tempfile.tempdir = {str(tmp_path)!r}" + TEMPORARY, rank)
    assert notebook.value("(seen, left)") == ((3, "begun", ["best.pt"]), [False, False])
    assert list(tmp_path.glob("*er-*")) == []
