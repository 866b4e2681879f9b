"""What the sidebar is told of the checkpoints of a run."""

from datetime import timedelta

from jupyter_dtrain.checkpoint import commands as module
from jupyter_dtrain.checkpoint.commands import CheckpointShelf
from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.protocol import Command
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.store import RunStore
from jupyter_dtrain.transport.blob_store import BlobFolder


def test_a_checkpoint_that_the_run_has_gone_back_behind_tells_no_loss_of_another_step(tmp_path, monkeypatch):
    store = RunStore(tmp_path / "runs")
    run_id = store.create_run("digits", "cell", 1, {}, {})
    steps = list(range(1, 31))
    loss = Curve(step=steps, time=[float(step) for step in steps], value=[1 / step for step in steps])
    store.add_points(run_id, [("loss", loss)])
    memory = BlobFolder(tmp_path / "memory")
    for step in (10, 20, 30):
        key = memory.put(memoryview(b"w" * step))
        CheckpointFolder(store.folder / run_id).write([b"rank 0"], memory, [key], step=step, place="line 7")
    shelf = CheckpointShelf(store.folder)

    def losses():
        found = shelf.answer(Command(id="1", name="list_checkpoints", run_id=run_id)).checkpoints
        return {info.step: info.loss for info in found}

    assert losses() == {10: 1 / 10, 20: 1 / 20, 30: 1 / 30}
    store.cut_curves(run_id, 10)
    assert losses() == {10: 1 / 10, 20: 1 / 10, 30: 1 / 10}, "it may be ahead of the record for a moment"
    monkeypatch.setattr(module, "LAG", timedelta(0))
    assert losses() == {10: 1 / 10, 20: None, 30: None}
    shelf.close()
    store.close()
