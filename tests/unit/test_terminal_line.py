"""The line of IPython's terminal, as the terminal shows it."""

from __future__ import annotations

import io

from jupyter_dtrain.notebook import terminal_line as module
from jupyter_dtrain.notebook.terminal_line import TerminalLine
from jupyter_dtrain.protocol import Extent, Steps, TimeSplit
from jupyter_dtrain.runs.recorder import RunRecorder


class Terminal(io.StringIO):
    """A terminal; `lines` are what one sees."""

    def isatty(self):
        return True

    @property
    def lines(self):
        shown = []
        for line in self.getvalue().split("\n"):
            cells: list[str] = []
            for part in line.split("\r"):
                cells[: len(part)] = part
            shown.append("".join(cells).rstrip())
        return shown


def trained(run, step):
    run.apply(Steps(rank=0, step=[step], time=[float(step)], loss=[0.5], weight=[1.0], learning_rate=[0.1], samples=[8]))


def test_a_start_and_a_run_are_one_line_that_goes_when_the_cell_prints(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    terminal = Terminal()
    line = TerminalLine(terminal)
    for number in (0, 0, 1, 2):
        line.show(f"{number} of 2 engines up")
    assert terminal.lines == ["2 of 2 engines up"]
    run = RunRecorder(run_id="r", name="run-1", world_size=1)
    line.show_run(run)
    assert terminal.lines == ["2 of 2 engines up"]
    trained(run, 1)
    run.apply(Extent(rank=0, time=1.0, fraction=0.25))
    line.show_run(run)
    assert terminal.lines == ["run-1: step 1 · loss 0.5 · 25%"]
    line.clear()
    terminal.write("epoch 1\n")
    assert terminal.lines == ["epoch 1", ""]
    trained(run, 2)
    line.show_run(run)
    assert terminal.lines == ["epoch 1", "run-1: step 2 · loss 0.5 · 25%"]
    run.finish("finished")
    line.show_run(run)
    assert terminal.lines == ["epoch 1", ""]


def test_a_run_that_reads_large_data_says_how_fast(monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    terminal = Terminal()
    line = TerminalLine(terminal)
    run = RunRecorder(run_id="r", name="run-1", world_size=1)
    times = dict.fromkeys(("forward", "backward", "communication", "optimizer", "other"), 0.0)
    run.apply(TimeSplit(rank=0, step=0, data=2.0, **times, rows=50_000, bytes_read=3 << 20))  # type: ignore[arg-type]
    run.apply(Extent(rank=0, time=1.0, fraction=0.25))
    line.show_run(run)
    assert terminal.lines == ["run-1: 25% · 25,000 rows/s, 1.5 MiB/s"]


def test_a_log_has_each_state_of_a_start_once_and_none_of_a_run():
    log = io.StringIO()
    line = TerminalLine(log)
    for number in (0, 0, 1, 1, 2):
        line.show(f"{number} of 2 engines up")
    run = RunRecorder(run_id="r", name="run-1", world_size=1)
    trained(run, 1)
    line.show_run(run)
    assert log.getvalue().splitlines() == ["0 of 2 engines up", "1 of 2 engines up", "2 of 2 engines up"]
