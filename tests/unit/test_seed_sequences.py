"""How many children a seed sequence has had goes to engines and comes home, as the seeds of the next ones depend on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jupyter_dtrain.engine.rng.generators import generators_in, set_state, state_of
from jupyter_dtrain.serialization.seed_sequences import num_spawned, set_num_spawned

NUMPY = "import numpy as np\n"
# A notebook, a cell, and what both have the same of afterwards, wherever the cell ran.
SEEDS = {
    "a sequence": (
        "ss = np.random.SeedSequence(5); held = [ss]",
        "made = ss.spawn(2); t = ss\n[one.generate_state(1) for one in made]",
        "ss.state, held[0] is ss, t is ss, ss.spawn(1)[0].generate_state(1)",
    ),
    "that of a generator": (
        "rng = np.random.default_rng(1)",
        "child = rng.spawn(1)[0]\nchild.random()",
        "rng.bit_generator.seed_seq.n_children_spawned, rng.random(), child.random(), rng.spawn(1)[0].random()",
    ),
    "one of several generators": (
        "ss = np.random.SeedSequence([1, 2]); r, m = np.random.Generator(np.random.Philox(ss)), np.random.MT19937(ss)",
        "r.spawn(2); m.spawn(1)\nss.n_children_spawned",
        "ss.n_children_spawned, r.bit_generator.seed_seq is ss, m.seed_seq is ss, ss.spawn(1)[0].generate_state(2)",
    ),
    "one of the cell": (
        "",
        "ss = np.random.SeedSequence(7, spawn_key=(1,)); g = np.random.default_rng(ss); children = ss.spawn(3)",
        "ss.state, g.bit_generator.seed_seq is ss, g.random(), g.spawn(1)[0].random()",
    ),
    "in an object": (
        "class Rows:\n    rng = np.random.default_rng(3)\n    def get(self): return self.rng.spawn(1)[0].random()\nrows = Rows()",
        "[rows.get() for _ in range(3)]",
        "rows.get()",
    ),
}


@pytest.mark.parametrize("name", SEEDS)
def test_the_next_children_are_those_of_one_process(name, notebook, other_notebook):
    setup, cell, compared = SEEDS[name]
    other_notebook.plain(NUMPY + setup)
    expected = repr(other_notebook.plain(cell)), repr(other_notebook.plain(compared))
    notebook.plain(NUMPY + setup)
    assert (repr(notebook.distribute(cell)), repr(notebook.plain(compared))) == expected


@pytest.mark.parametrize("entropy", [5, None, [1, 2], np.arange(3), 2**200])
def test_a_count_is_set(entropy):
    sequence = np.random.SeedSequence(entropy, spawn_key=(3,), pool_size=8)
    expected = [child.generate_state(2).tolist() for child in sequence.spawn(2)]
    set_num_spawned(sequence, 0)
    assert num_spawned(sequence) == 0
    assert [child.generate_state(2).tolist() for child in sequence.spawn(2)] == expected


def test_what_is_read_again_spawns_the_same():
    held: dict[str, Any] = {"rng": np.random.default_rng(3), "seeds": np.random.SeedSequence(4)}
    found = generators_in(held)
    assert found == [held["rng"], held["seeds"]]

    def drawn() -> list[float]:
        children = [held["rng"].spawn(1)[0], np.random.default_rng(held["seeds"].spawn(1)[0])]
        return [float(one.random()) for one in (*children, held["rng"])]

    states = [state_of(one) for one in found]
    first = drawn()
    assert [state_of(one) for one in found] != states
    for one, state in zip(found, states, strict=True):
        set_state(one, state)
    assert drawn() == first
    assert drawn() != first
