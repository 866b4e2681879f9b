"""What ranks print, on its way into the record and out of it."""

from __future__ import annotations

import pytest

from jupyter_dtrain.protocol import Command
from jupyter_dtrain.runs import output_log as module
from jupyter_dtrain.runs.archive import RunArchive
from jupyter_dtrain.runs.output_log import OutputLog, read_output
from jupyter_dtrain.runs.recorded import RecordedRun
from jupyter_dtrain.runs.store import RunStore


@pytest.fixture
def folder(tmp_path):
    run = tmp_path / "dtrain-runs" / "2026-11-21-153012-digits"
    run.mkdir(parents=True)
    return run


def printed(text, name="stdout"):
    return "stream", {"name": name, "text": text}


def test_each_rank_has_its_lines_and_of_a_progress_bar_the_last_state(folder):
    log = OutputLog(folder)
    log.add(0, *printed("epoch "))
    log.add(1, *printed("other\n"))
    log.add(0, *printed("  0%\r 50%\r", "stderr"))
    log.add(0, *printed("1\nepoch 2"))
    log.write()
    assert read_output(folder, 0).text == "epoch 1\n"
    log.add(0, *printed("100%\n", "stderr"))
    log.add(0, "display_data", {"data": {"text/plain": "<Figure size 640x480>", "image/png": "…"}})
    log.add(0, "display_data", {"data": {"application/x-of-our-own": 1}})
    log.finish()
    assert read_output(folder, 0).text == "epoch 1\n100%\n<Figure size 640x480>\nepoch 2\n"
    assert (read_output(folder, 1).text, read_output(folder, 1).ranks, read_output(folder, 2).text) == ("other\n", [0, 1], "")


def test_the_newest_lines_stay_of_a_cell_that_prints_for_days(folder, monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 1000)
    log = OutputLog(folder)
    for number in range(1000):
        log.add(0, *printed(f"line {number:04d}\n"))
        log.write()
    assert sum(file.stat().st_size for file in (folder / "output").iterdir()) <= 2100
    output = read_output(folder, 0, limit=150)
    assert output.is_cut
    assert output.text.splitlines() == [f"line {number:04d}" for number in range(986, 1000)][-len(output.text.splitlines()) :]
    assert len(output.text.splitlines()) >= 13
    assert len(read_output(folder, 0, limit=None).text.splitlines()) >= 100


def test_a_link_in_its_place_is_neither_read_nor_written(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("mine\n")
    (folder / "output").mkdir()
    (folder / "output" / "rank-0.log").symlink_to(secret)
    log = OutputLog(folder)
    log.add(0, *printed("line\n"))
    log.finish()
    assert secret.read_text() == "mine\n"
    assert read_output(folder, 0).text == ""


def test_the_sidebar_and_python_get_it(tmp_path):
    store = RunStore(tmp_path / "dtrain-runs")
    run_id = store.create_run("digits", "cell", 2, {}, {})
    log = OutputLog(store.folder / run_id)
    log.add(1, *printed("from one\n"))
    log.finish()
    archive = RunArchive(store.folder)
    output = archive.answer(Command(id="1", name="get_output", run_id=run_id, rank=1)).output
    assert output is not None
    assert (output.text, output.ranks, output.is_cut) == ("from one\n", [1], False)
    assert RecordedRun(store.get_run(run_id), store.folder).output(1) == "from one\n"
    archive.close()
    store.close()
