"""What the cell makes shares memory at home as it did on the engine: arrays, tensors, and what looks into the notebook's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from jupyter_dtrain.engine.cell_results import CellResults
from jupyter_dtrain.serialization.array_windows import Windows

# The notebook has, the cell makes, later cells write, what is compared.
MADE = {
    "arrays": (
        "",
        "memory = np.zeros((4, 3)); states = memory[:, :2]; last = memory[-1]",
        "memory[0] = 5; last += 1",
        "memory, states, last",
    ),
    "in an object": (
        "class Replay: pass",
        "replay = Replay(); replay.rows = np.zeros((4, 3)); replay.states = replay.rows[:, :2]",
        "replay.rows[:] = 2; replay.states[0] = 3",
        "replay.rows, replay.states",
    ),
    "a row of the notebook's": ("memory = np.zeros((4, 3))", "row = memory[2]; row += 1", "row *= 3; memory[2, 0] = 9", "memory, row"),
    "backwards": ("a = np.arange(6.0)", "b = a[::-2]", "b[0] = 50; a[1] = 7", "a, b"),
    "bytes of the notebook's": ("a = np.arange(4, dtype=np.int32)", "b = a.view(np.uint8)[2:6]", "b[:] = 255", "a, b"),
    "real parts": ("a = np.zeros(3, complex)", "r, i = a.real, a.imag", "r += 1; i[0] = 2", "a, r, i"),
    "of an array with gaps": (
        "big = np.arange(40.0).reshape(4, 10); x = big[:, 2:4]",
        "y = x[1:3, 1]",
        "y[:] = -1; x[1, 0] = 5",
        "big, x, y",
    ),
    "of a column": ("big = np.arange(40.0).reshape(4, 10); x = big[:, 7]", "y = x[1:]; z = x[::-2]", "y += 100; z[0] = 1", "big, x, y, z"),
    "of every third": (
        "big = np.arange(60.0).reshape(6, 10); x = big[::3, ::3]",
        "y = x[1]; z = x.T[2]",
        "y += 100; z[0] = 1",
        "big, x, y, z",
    ),
    "what is a copy of an array with gaps": (
        "big = np.arange(60.0).reshape(6, 10); x = big[::3, ::3]",
        "y = np.array(x.tolist()).reshape(-1); t = torch.from_numpy(np.ascontiguousarray(x)); y[0] = 1",
        "t[0] = 5; y[1] = 2",
        "y",
    ),
    "by columns": ("a = np.asfortranarray(np.arange(12.0).reshape(3, 4))", "c = a[1:, 2]", "c[:] = 0; a[0] = 1", "a, c"),
    "changed as well": ("a = np.zeros(5)", "v = a[1:3]; v += 4; a *= 2", "a += 1; v[0] = 0", "a, v"),
    "in the notebook's container": ("a = np.zeros(5); kept = {}", "kept['v'] = a[2:]", "kept['v'][0] = 3; a[4] = 1", "a, kept"),
    "of a part": ("a = np.zeros(8); v = a[2:6]", "w = v[1:3]", "w[:] = [1, 2]", "a, v, w"),
    "a tensor of an array": ("", "a = np.zeros(4); t = torch.from_numpy(a)", "t += 1; a[0] = 5", "a, t"),
    "two tensors of an array": ("", "a = np.zeros(4); t = torch.from_numpy(a); u = torch.from_numpy(a[1:])", "t += 1; a[1] = 5", "a, t, u"),
    "two tensors alone": ("", "a = np.zeros(4); t = torch.from_numpy(a); u = torch.as_tensor(a); del a", "t += 1; u[1] = 5", "t, u"),
    "an array of a tensor": ("", "t = torch.zeros(4); a = t.numpy()", "t += 1; a[0] = 5", "a, t"),
    "a part of a tensor": ("", "t = torch.zeros(4, 2); a = t[1].numpy(); b = t.T.numpy()", "t += 1; a[0] = 5; b[1] = 7", "a, b, t"),
    "an array of weights": (
        "",
        "torch.manual_seed(0); m = torch.nn.Linear(2, 2); w = m.weight.detach().numpy()",
        "w[:] = 4",
        "m.weight.tolist(), w",
    ),
    "an array of the notebook's tensor": ("t = torch.zeros(4)", "a = t.numpy(); a[1] = 2", "a[0] = 5; t[3] = 4", "a, t"),
    "an array of the notebook's part": ("t = torch.zeros(4, 4); p = t[1:3]", "a = p.numpy(); a[1] = 2", "a[0] = 5; t[2, 3] = 4", "a, t, p"),
    "a tensor of the notebook's array": ("a = np.zeros(4)", "t = torch.from_numpy(a); t[1] = 2", "t[0] = 5; a[3] = 4", "a, t"),
    "a tensor of a part": ("a = np.zeros((4, 2))", "t = torch.from_numpy(a[1:]); t[1] = 2; u = t[0]", "u += 5; a[3] = 4", "a, t, u"),
    "fields": ("", "r = np.zeros(3, [('x', 'f4'), ('y', 'i8')]); x = r['x']", "x[1] = 4; r['y'] = 2", "r.tolist(), x"),
    "read only": ("", "a = np.zeros(4); v = a[1:]; v.flags.writeable = False", "a[1] = 3", "a, v, v.flags.writeable"),
    "disjoint": ("", "a = np.zeros(6); v, w = a[:3], a[3:]; del a", "v += 1", "v, w"),
    "windows": ("", "s = np.arange(8.0); w = np.lib.stride_tricks.sliding_window_view(s, 3)", "s[2] = 0", "s, w"),
    "both of the notebook": ("t = torch.zeros(4); a = t.numpy()", "a[3] = 7; t[0] = 1; b = a[2:]", "a[1] = 1; t[2] = 9", "a, t, b"),
}
NOTEBOOK = "import numpy as np, torch\n"


@pytest.mark.parametrize("name", MADE)
def test_later_cells_write_to_both(name, notebook, other_notebook):
    setup, cell, later, compared = MADE[name]
    for one in (notebook, other_notebook):
        one.plain(NOTEBOOK + setup)
    other_notebook.plain(cell)
    seen = notebook.distribute(f"{cell}\nrepr(({compared}))")
    assert seen == other_notebook.plain(f"repr(({compared}))"), "in the cell"
    assert notebook.plain(f"repr(({compared}))") == seen, "at home"
    for one in (notebook, other_notebook):
        one.plain(later)
    assert notebook.plain(f"repr(({compared}))") == other_notebook.plain(f"repr(({compared}))"), "after another cell"


TOGETHER = {
    "an array of a tensor": ("t = torch.zeros(4); a = t.numpy()", "a[3] = 7; s = t.sum().item(); t[0] = 1", "a, t, s"),
    "a tensor of an array": ("a = np.zeros(4); t = torch.from_numpy(a)", "a[3] = 7; s = t.sum().item(); t[0] = 1", "a, t, s"),
    "parts": ("a = np.zeros((4, 2)); t = torch.from_numpy(a[1:3]); v = a[:, 1]", "v += 1; t[0, 0] = 5; s = a.sum()", "a, t, v, s"),
    "two tensors": ("a = np.zeros(4); t, u = torch.from_numpy(a), torch.from_numpy(a[1:])", "u += 1; s = t.sum().item()", "t, u, s"),
    "weights": (
        "m = torch.nn.Linear(2, 2); w = m.weight.detach().numpy()",
        "w[:] = 1; s = m.weight.sum().item()",
        "m.weight.tolist(), w, s",
    ),
    "fields": ("r = np.zeros(3, [('x', 'f4'), ('y', 'i8')]); x = r['x']", "x[1] = 4; s = r['x'].sum(); r['y'] = 2", "r.tolist(), x, s"),
    "with gaps": ("big = np.arange(40.0).reshape(4, 10); x = big[:, :9]", "f = x.reshape(-1); f += 1; s = x.sum()", "big, x, s"),
    "bits": ("t = torch.ones(2); a = t.numpy().view(np.int32)", "a[0] = 0; s = t.sum().item()", "t, a, s"),
    "half precision": (
        "t = torch.ones(2, dtype=torch.bfloat16); a = t.view(torch.int16).numpy()",
        "a[0] = 0; s = t.sum().item()",
        "t, a, s",
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_the_notebook_has_shares_memory_on_the_engine(name, notebook, other_notebook):
    setup, cell, compared = TOGETHER[name]
    for one in (notebook, other_notebook):
        one.plain(NOTEBOOK + setup)
    other_notebook.plain(cell)
    seen = notebook.distribute(f"{cell}\nrepr(({compared}))")
    assert seen == other_notebook.plain(f"repr(({compared}))"), "in the cell"
    assert notebook.plain(f"repr(({compared}))") == seen, "at home"


@pytest.mark.parametrize("name", MADE)
def test_a_process_that_goes_on_shares_it(name):
    """What a snapshot has shares memory in the process that goes on from it, with what that process has of the notebook too."""
    setup, cell, later, compared = MADE[name]

    def begun() -> tuple[CellResults, dict[str, Any]]:
        namespace: dict[str, Any] = {"np": np, "torch": torch}
        exec(setup, namespace)
        known = [value for value in namespace.values() if isinstance(value, torch.Tensor | np.ndarray | dict) and value is not namespace]
        return CellResults(namespace, [value for value in known if value is not namespace["__builtins__"]]), namespace

    (lost, before), (goes_on, after) = begun(), begun()
    exec(cell, before)
    saved = lost.save([], gather=lambda tensors: tensors, skip={})
    assert saved is not None
    goes_on.load(saved.packed, device_for=torch.device)
    assert repr(eval(f"({compared})", before)) == repr(eval(f"({compared})", after))
    for namespace in (before, after):
        exec(later, namespace)
    assert repr(eval(f"({compared})", before)) == repr(eval(f"({compared})", after))


def test_what_is_made_anew_each_time_is_packed_a_few_times():
    """A class that reduces itself to views of an array of its own would otherwise be pickled for ever."""
    windows, kept = Windows(), []
    for _ in range(10):
        kept.append(new := np.zeros(8))
        windows.region_of(new[:5])
        windows.region_of(new[3:])
        if not windows.grow():
            break
    assert 1 < len(kept) < 6


@pytest.mark.parametrize("made", ["x.reshape(-1)", "torch.from_numpy(x)", "x.ravel()[2:]", "torch.from_numpy(x)[1].numpy()"])
def test_a_view_that_is_none_at_home_comes_as_a_copy(made, notebook):
    """An array with wide gaps is sent without them: what is a view of it there may be none of the notebook's."""
    notebook.plain("import numpy as np, torch\nbig = np.arange(60.0).reshape(6, 10); x = big[::3, ::3]")
    assert notebook.distribute(f"y = {made}; x += 1\ny.tolist()") == notebook.plain("y.tolist()")


# The notebook has, the cell makes, which names are one array.
SAME = {
    "with a row": ("", "a = np.arange(6.).reshape(2, 3); b = a; r = a[0]", "a is b, r is a"),
    "in containers": ("", "a = np.arange(6.).reshape(2, 3); rows = [a[0]]; d = {'k': a, 'v': rows[0]}", "d['k'] is a, d['v'] is rows[0]"),
    "with a tensor": ("", "a = np.zeros(4); b = a; t = torch.from_numpy(a); u = t", "a is b, t is u"),
    "of attributes": (
        "class Env: pass",
        "env = Env(); env.obs = np.zeros((2, 3)); env.alias = env.obs; env.row = env.obs[1]; held = [env.row]",
        "env.obs is env.alias, env.row is held[0]",
    ),
    "in a memory of steps": (
        "",
        "obs, mem = np.zeros((2, 3)), []\nfor i in range(3): nobs = obs + 1; mem.append((obs, nobs, obs[0], nobs[0])); obs = nobs",
        "mem[0][1] is mem[1][0], mem[1][1] is mem[2][0], mem[2][1] is obs is nobs, mem[0][3] is mem[1][2]",
    ),
    "equal windows that are two": ("", "a = np.zeros(4); b = a[:]; c = b; r = a[1:]; s = a[1:]", "a is b, b is c, r is s"),
    "of the notebook's array": ("x = np.zeros((4, 3))", "r = x[1]; s = r; v = x[1]; w = x[:]; y = x", "r is s, r is v, w is x, y is x"),
    "of the notebook's tensor": ("x = torch.zeros(4, 3)", "r = x.numpy(); s = [r]; v = x.numpy()", "r is s[0], r is v"),
    "of the notebook": (
        "a = np.zeros((4, 3)); b = a; rows = [a[0]]; d = {'k': a, 'r': rows[0]}",
        "a[0] = 1",
        "a is b, d['k'] is a, d['r'] is rows[0]",
    ),
    "read only": ("", "a = np.zeros(4); a.flags.writeable = False; b = a", "a is b, a.flags.writeable"),
    "with gaps": ("", "a = np.zeros((4, 4))[:, 1:3]; b = a", "a is b"),
    "of a function": ("", "a = np.zeros((4, 4)); r = a[0]\ndef f(x=r, y=a): return x is r, y is a", "f()"),
}


@pytest.mark.parametrize("name", SAME)
def test_one_array_stays_one(name, notebook, other_notebook):
    """Arrays that share memory with others come as windows into it: one for each array, not for each place that holds it."""
    setup, cell, compared = SAME[name]
    for one in (notebook, other_notebook):
        one.plain(NOTEBOOK + setup)
    other_notebook.plain(cell)
    expected = other_notebook.plain(compared)
    assert notebook.distribute(f"{cell}\n{compared}") == expected, "in the cell"
    assert notebook.plain(compared) == expected, "at home"
    assert notebook.distribute(f"repr(({compared}))") == repr(expected), "in the next cell"
