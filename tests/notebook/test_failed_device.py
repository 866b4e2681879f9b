"""A GPU that fails in an operation: its engines are replaced, and the notebook goes on."""

from __future__ import annotations


def test_an_engine_whose_gpu_has_failed_is_replaced(notebook):
    """There is none here: the cell says so of the CPU, and raises what PyTorch raises."""
    before = notebook.engines()
    cell = notebook.fail("""%%distribute --engines 2
import jupyter_dtrain.engine.cell_run as cell_run
cell_run.can_be_used = lambda _device: False
raise RuntimeError("CUDA error: device-side assert triggered")
""")
    assert "device-side assert" in cell.traceback
    assert "CUDA_LAUNCH_BLOCKING=1" in cell.traceback
    assert notebook.run("%%distribute --engines 2\n1 + 1").result == "2"
    after = notebook.engines()
    assert set(before[:2]).isdisjoint(after)
    assert after[2:] == before[2:], "the third had no part in it"
