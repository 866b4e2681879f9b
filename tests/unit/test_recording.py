"""A run on its way into the record, while the record cannot be written for a time."""

import pytest

from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.protocol import Steps
from jupyter_dtrain.runs import persister as module
from jupyter_dtrain.runs.persister import Recording
from jupyter_dtrain.runs.store import RunStore


class Run:
    """A run of one rank, whose folder of runs can be taken away and given back; `said` is what the user was told."""

    def __init__(self, folder):
        self.folder, self.away = folder, folder.with_name("away")
        self.said: list[str] = []
        self.step = 0
        self.store = RunStore(folder)
        self.recording = Recording.start(self.store, name="digits", cell="train()", world_size=1, arguments={}, say=self.said.append)

    def train(self, num_steps):
        steps = list(range(self.step + 1, self.step + num_steps + 1))
        self.step += num_steps
        ones, rates = [1.0] * num_steps, [0.1] * num_steps
        event = Steps(
            rank=0, step=steps, time=[*map(float, steps)], loss=[*ones], weight=ones, learning_rate=[*rates], samples=[4] * num_steps
        )
        self.recording.recorder.apply(event)
        self.recording.tick()

    @property
    def recorded(self):
        """The steps that another process sees, and the phase."""
        record = RunStore(self.folder).get_run(self.recording.run_id)
        return RunStore(self.folder).points(record.run_id, "loss").step, record.phase


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    run = Run(tmp_path / "dtrain-runs")
    yield run
    run.store.close()


def test_what_could_not_be_written_is_written_as_soon_as_it_can_be(run):
    run.train(2)
    run.folder.rename(run.away)
    run.train(2)
    run.train(2)
    (said,) = run.said
    assert said.startswith("This run cannot be recorded now: ")
    run.away.rename(run.folder)
    assert run.recorded[0] == [1, 2]
    run.train(2)
    assert run.said[1:] == ["This run is recorded again, with what was missing."]
    assert run.recorded == ([1, 2, 3, 4, 5, 6, 7, 8], "running")
    run.recording.finish("finished", None)
    assert run.recorded == ([1, 2, 3, 4, 5, 6, 7, 8], "finished")


def test_a_run_that_ends_keeps_an_overview_of_its_long_curves(run):
    for _ in range(6):
        run.train(4000)
        run.recording.recorder.drain()
    run.recording.finish("finished", None)
    with run.store._database.reading() as connection:
        kept = [name for (name,) in connection.execute("SELECT name FROM overviews JOIN curves USING (curve) ORDER BY name")]
    assert kept == ["learning_rate", "loss", "samples_per_second"]
    curve, thinned = run.store.view(run.recording.run_id, "loss", limit=10_000)
    assert thinned
    assert 4000 < len(curve.step) <= 10_000
    assert (curve.step[0], curve.step[-1]) == (1, 24_000)
    record = run.store.get_run(run.recording.run_id)
    again = Recording.resume(run.store, record, world_size=1, say=run.said.append)
    again.go_back(8000)
    again.finish("stopped", None)
    assert run.store.view(record.run_id, "loss", limit=10_000)[0].step == list(range(1, 8001))
    assert run.said == []


def test_steps_that_are_taken_back_meanwhile_are_recorded_once(run):
    run.train(4)
    run.folder.rename(run.away)
    run.train(2)
    run.recording.go_back(3)
    run.step = 3
    run.train(2)
    run.away.rename(run.folder)
    run.train(1)
    assert run.recorded == ([1, 2, 3, 4, 5, 6], "running")


def test_an_end_that_cannot_be_written_is_known_here_and_written_with_the_next(run):
    run.train(2)
    run.folder.rename(run.away)
    run.train(2)
    run.recording.finish("finished", None)
    run.away.rename(run.folder)
    assert run.recorded[1] == "finished"
    (row,) = _phases(run.store)
    assert row == "running"
    second = run.store.create_run("second", "train()", 1, {}, {})
    run.store.finish_run(second, "stopped")
    assert _phases(run.store) == ["finished", "stopped"]


def test_a_run_whose_beginning_cannot_be_written_is_not_recorded(tmp_path):
    (tmp_path / "file").touch()
    said: list[str] = []
    recording = Recording.start(RunStore(tmp_path / "file"), name=None, cell="", world_size=1, arguments={}, say=said.append)
    recording.tick()
    recording.finish("finished", None)
    assert recording.folder is None
    assert [text.partition(":")[0] for text in said] == ["This run is not recorded"]


def _phases(store):
    with store._database.reading() as connection:
        return [phase for (phase,) in connection.execute("SELECT phase FROM runs ORDER BY number")]


def test_a_run_that_two_kernels_go_on_with_at_once_is_one_kernels(run):
    run.train(4)
    run.recording.finish("stopped", None)
    record = run.store.get_run(run.recording.run_id)
    Recording.resume(run.store, record, world_size=2, say=run.said.append)
    with pytest.raises(UsageError, match="still running in another process"):
        Recording.resume(RunStore(run.folder), record, world_size=3, say=run.said.append)
    assert run.recorded == ([1, 2, 3, 4], "running")
    assert run.store.get_run(record.run_id).world_size == 2
    assert run.said == []
