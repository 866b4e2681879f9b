"""Each cell of the corpus comes to the same plain and on engines: weights, optimizer state, histories, what it prints.

One notebook and one cluster of four engines serve all cells; `--engines` takes the first of them. Before each
run of a cell the notebook's names are removed, and the setup runs again, from the same seeds.
"""

from __future__ import annotations

import itertools
from weakref import WeakKeyDictionary

import pytest

from jupyter_dtrain.engine.strategies.zero3.parameter_registry import LEAST
from tests.conftest import in_turn
from tests.notebook.corpus_cells import AGAIN, CELLS, NEED_AN_ENGINE, WITH_A_KERNEL, CorpusCell, apart, text_apart
from tests.notebook.kernel import SESSION, Notebook

PLAIN = 0
SEEDS = """
import random as _random, numpy as _numpy, torch as _torch
_torch.set_default_dtype(_torch.float64)
_torch.manual_seed(0), _numpy.random.seed(0), _random.seed(0)
"""
FORGET = """
_names = globals().setdefault("_names", set(globals()))
for _name in [name for name in globals() if name not in _names and not name.startswith("_")]:
    del globals()[_name]
"""
"""Removes what earlier runs have left: a name that does not come home is not to be found with the value of the plain run."""
DRAW_WHEN_IMPORTED = "import sklearn.metrics\n"
"""pandas, where PyArrow is installed, draws from Python's stream the first time: in the plain run of a cell, and in no other."""
RANDOM = "(_torch.rand(3), _numpy.random.rand(3).tolist(), _random.random())"

TRAINED = """
{_name: [_p.requires_grad for _p in _model.parameters()]
 for _name, _model in globals().items() if isinstance(_model, _torch.nn.Module) and not _name.startswith("_")}
""".replace("\n", " ")
"""Which parameters further cells train: of each model that the notebook has by a name."""


@pytest.fixture(scope="module")
def notebook(module_notebook):
    opened = module_notebook()
    opened.run(DRAW_WHEN_IMPORTED + "%load_ext jupyter_dtrain\n%distribute start -n 4 --device cpu")
    return opened


def run(notebook: Notebook, cell: CorpusCell, engines: int, options: str = "") -> dict[str, object]:
    """Run a corpus cell on that many engines, or plain, and return what must be the same."""
    notebook.run(FORGET + SEEDS)
    notebook.run(cell.setup)
    ran = notebook.run((f"%%distribute --engines {engines} {options}\n" if engines else "") + cell.cell)
    compared, random, trained = notebook.value(f"(({cell.compare}), {RANDOM}, {TRAINED})")
    return {"compared": compared, "random": random, "trained": trained, "printed": ran.stdout, "result": ran.result or ""}


PLAIN_RUNS: WeakKeyDictionary[Notebook, dict[str, dict[str, object]]] = WeakKeyDictionary()


def run_plain(notebook: Notebook, cell: CorpusCell) -> dict[str, object]:
    """Return what :func:`run` has returned of a cell without engines: of several tests of a cell the first runs it."""
    runs = PLAIN_RUNS.setdefault(notebook, {})
    if cell.name not in runs:
        runs[cell.name] = run(notebook, cell, PLAIN)
    return runs[cell.name]


def difference(first: dict[str, object], second: dict[str, object], tolerance: float) -> str | None:
    """Return where two runs of a cell differ."""
    for name in ("compared", "random", "trained"):
        found = apart(first[name], second[name], tolerance, name)
        if found:
            return found
    for name in ("printed", "result"):
        found = text_apart(str(first[name]), str(second[name]), tolerance)
        if found:
            return found
    return None


def test_there_are_enough():
    assert len(CELLS) - len(AGAIN) >= 100
    assert {cell.name for cell in CELLS} > AGAIN | WITH_A_KERNEL
    assert not AGAIN & WITH_A_KERNEL
    assert len(WITH_A_KERNEL) >= (len(CELLS) - len(AGAIN)) / 3


ENGINES = {cell.name: number for cell, number in zip(CELLS, itertools.cycle((2, 3, 2, 3, 4, 2, 3, 1)))}
"""On how many engines a cell is tried every time: `pytest -m long` tries the other numbers."""
EACH_TIME = [pytest.param(cell, id=cell.name, marks=() if cell.name in WITH_A_KERNEL else pytest.mark.long) for cell in CELLS]


@pytest.mark.parametrize("cell", EACH_TIME)
def test_a_cell_comes_to_the_same(notebook, cell):
    assert_same(notebook, cell, [ENGINES[cell.name]])


@pytest.mark.long
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell_comes_to_the_same_on_the_numbers_of_engines_that_are_left(notebook, cell):
    assert_same(notebook, cell, [number for number in (1, 2, 3, 4) if number != ENGINES[cell.name]])


@pytest.mark.long
@pytest.mark.parametrize(("index", "cell"), list(enumerate(CELLS)), ids=[cell.name for cell in CELLS])
def test_a_cell_comes_to_the_same_where_each_engine_has_a_part_of_the_optimizers(notebook, index, cell):
    assert_same(notebook, cell, [2 + index % 2], "--strategy zero1")


SHARDED = ("gradients_with_a_graph", "kept_gradients", "label_missing_late", "lbfgs", "own_backward")
"""Those of the corpus that the ways of sharded parameters are tried with each time: `pytest -m long` tries all."""
REFUSED: dict[str, str] = {}
"""What cannot be done with sharded parameters, and what is said of it."""


@pytest.fixture(scope="module")
def sharding(notebook):
    notebook.run("import tests.notebook.sharded_strategy")
    return notebook


@pytest.mark.parametrize(("name", "engines"), in_turn(SHARDED, [2, 3]))
def test_a_cell_comes_to_the_same_where_parameters_are_sharded(sharding, name, engines):
    (cell,) = (cell for cell in CELLS if cell.name == name)
    assert_same(sharding, cell, [engines], "--strategy zero3-all")


@pytest.mark.long
@pytest.mark.parametrize("engines", [2, 3, 4])
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell_comes_to_the_same_where_all_parameters_are_sharded_or_says_why_not(sharding, cell, engines):
    if (said := REFUSED.get(cell.name)) is None:
        assert_same(sharding, cell, [engines], "--strategy zero3-all")
        return
    sharding.run(FORGET + SEEDS + cell.setup)
    failed = sharding.fail(f"%%distribute --engines {engines} --strategy zero3-all --replicate\n" + cell.cell)
    assert said in str(failed.error)


ONE_ROW = {"draws_by_name", "folders_made_anew", "held_functions", "lazy_and_saved", "shared_memory"}
"""Those whose layers have one row, or no shape before the first batch: `tensor` divides none."""
DIVIDED = {"--strategy pipeline": 2, "--strategy tensor": 2, "--mesh dp=2,dp_shard=2": 4, "--mesh dp=2,pp=2": 4, "--mesh dp=2,tp=2": 4}
"""Other ways to divide models, and on how many engines: `tests/engine/test_divided_models.py` has the cells that need none."""


@pytest.fixture(scope="module")
def dividing(notebook):
    """Return the notebook, whose engines divide layers of any size meanwhile."""
    divide = "__import__('tests.notebook.sharded_strategy', fromlist=['divide_from']).divide_from"
    for num_bytes in (0, LEAST):
        notebook.value(f"{SESSION}.get().cluster.view.apply_sync({divide}, {num_bytes})")
        if not num_bytes:
            yield notebook


@pytest.mark.long
@pytest.mark.parametrize("way", DIVIDED)
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in NEED_AN_ENGINE], ids=lambda cell: cell.name)
def test_a_cell_comes_to_the_same_where_models_are_divided(dividing, cell, way):
    assert_same(dividing, cell, [DIVIDED[way]], way)
    *_, ran = (one for one in dividing.cells.values() if one.code.startswith("%%distribute"))
    divides_none = any("shards no layer" in notice for notice in ran.notices)
    assert divides_none == (way in ("--strategy tensor", "--mesh dp=2,tp=2") and cell.name in ONE_ROW)


def assert_same(notebook: Notebook, cell: CorpusCell, numbers: list[int], options: str = "") -> None:
    plain = run_plain(notebook, cell)
    for engines in numbers:
        # Cells that shard nothing run on one engine; where all compute all of it, it comes to the same too.
        whole = f"{options} --replicate" if engines > 2 else options
        found = difference(plain, run(notebook, cell, engines, whole), cell.tolerance)
        assert found is None, f"{engines} engines: {found}"


@pytest.mark.parametrize(("name", "option"), [("dropout_in_a_model", "--rng per-rank"), ("batchnorm", "--batchnorm per-rank")])
def test_what_may_be_per_rank_is_exact_on_one_engine_and_the_same_every_time(notebook, name, option):
    (cell,) = (cell for cell in CELLS if cell.name == name)
    plain = run_plain(notebook, cell)
    assert difference(plain, run(notebook, cell, 1, option), cell.tolerance) is None
    first, second = run(notebook, cell, 3, option), run(notebook, cell, 3, option)
    assert difference(first, second, cell.tolerance) is None
    assert difference(plain, first, cell.tolerance) is not None


def test_a_set_of_texts_has_one_order_on_all_engines(notebook):
    notebook.run(
        "%%distribute --engines 3\nimport jupyter_dtrain as dtrain\norders = dtrain.gather(list({str(number) for number in range(50)}))"
    )
    first, *others = notebook.value("orders")
    assert all(order == first for order in others)
    assert sorted(first, key=int) == [str(number) for number in range(50)]


def test_all_engines_read_one_clock_by_whatever_name(notebook):
    notebook.run("""
import time
import jupyter_dtrain
from time import time as now
class Watch:
    def __init__(self, read=time.perf_counter): self.read, self.at = read, read()
    def lap(self): self.at, before = self.read(), self.at; return self.at - before
watch = Watch()
""")
    notebook.run("""%%distribute --engines 3
n, begun = 0, now()
while now() - begun < 0.1: n += 1
first, laps = watch.lap(), [watch.lap() for _ in range(3)]
everyone = jupyter_dtrain.gather((n, begun, laps, watch.at))
""")
    assert notebook.value("len(everyone), len(set(map(repr, everyone))), n > 0, watch.read is time.perf_counter") == (3, 1, True, True)
