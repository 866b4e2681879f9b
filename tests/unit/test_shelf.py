"""What the sidebar is told of the checkpoints of a run."""

from datetime import timedelta

import pytest

from jupyter_dtrain.checkpoint import checkpoint_commands as module
from jupyter_dtrain.checkpoint.checkpoint_commands import CheckpointShelf, keep_facts
from jupyter_dtrain.checkpoint.folder import CheckpointFolder
from jupyter_dtrain.protocol import Command
from jupyter_dtrain.runs.curves import Curve
from jupyter_dtrain.runs.store import RunStore
from jupyter_dtrain.transport.blob_store import BlobFolder


def test_a_checkpoint_tells_its_own_loss_and_epoch_also_when_the_run_has_gone_back_behind_it(tmp_path, monkeypatch):
    store = RunStore(tmp_path / "runs")
    run_id = store.create_run("digits", "cell", 1, {}, {})
    steps = list(range(1, 31))
    loss = Curve(step=steps, time=[float(step) for step in steps], value=[1 / step for step in steps])
    epochs = Curve(step=[0, 9, 19, 26], time=[0.0, 9.0, 19.0, 26.0], value=[0.0, 0.9, 1.9, 2.6])  # ten steps each; told now and then
    store.add_points(run_id, [("loss", loss), ("epoch", epochs)])
    memory = BlobFolder(tmp_path / "memory")
    for step in (10, 20, 30):
        key = memory.put(memoryview(b"w" * step))
        CheckpointFolder(store.folder / run_id).write([b"rank 0"], memory, [key], step=step, place="line 7")
    shelf = CheckpointShelf(store.folder)

    def losses():
        found = shelf.answer(Command(id="1", name="list_checkpoints", run_id=run_id)).checkpoints
        assert [info.epoch for info in reversed(found)] == [None if told is None else pytest.approx(told) for told in epochs_told.values()]
        return {info.step: info.loss for info in found}

    epochs_told: dict[int, float | None] = {10: 1.0, 20: 2.0, 30: 3.0}
    assert losses() == {10: 1 / 10, 20: 1 / 20, 30: 1 / 30}
    keep_facts(store.folder / run_id, 10, store)
    store.cut_curves(run_id, 10)
    epochs_told = {10: 1.0, 20: 1.0, 30: 1.0}
    assert losses() == {10: 1 / 10, 20: 1 / 10, 30: 1 / 10}, "it may be ahead of the record for a moment"
    monkeypatch.setattr(module, "LAG", timedelta(0))
    epochs_told = {10: 1.0, 20: 2.0, 30: 3.0}
    assert losses() == {10: 1 / 10, 20: 1 / 20, 30: 1 / 30}
    (store.folder / run_id / "facts.json").write_text('{"20": {"loss": "<b>", "epoch": 2}, "30": 7}')
    epochs_told = {10: 1.0, 20: 2.0, 30: None}
    assert losses() == {10: 1 / 10, 20: None, 30: None}
    shelf.close()
    store.close()
