"""What a cell writes to open files and logs while an engine dies: each line once, in its order."""

from __future__ import annotations

import os
import signal

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
CELL = """
for number, (x, y, index) in enumerate(loader):
    for again in range(6):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pace()
    log.write(f"{number}\\n")
    logger.info("batch %d", number)
"""


def test_lines_of_steps_that_are_computed_again_are_there_once(two):
    notebook = two.notebook
    notebook.run(SETUP + "prepare()")
    (notebook.folder / "steps").unlink(missing_ok=True)
    pids = notebook.engines()
    cell = notebook.start("%%distribute --engines 2" + CELL)
    two.wait_for_step(80, cell)
    os.kill(pids[0], signal.SIGKILL)
    notebook.finish(cell)
    assert cell.ok, cell
    assert "Lost rank 0" in cell.stderr
    notebook.run("log.close()")
    assert (notebook.folder / "lines.txt").read_text().split() == [str(number) for number in range(25)]
    assert (notebook.folder / "log.txt").read_text().splitlines() == [f"batch {number}" for number in range(25)]
