"""Parameters sharded by rows: what cells do with them comes to what one process comes to, on 2 and 3 ranks."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm.process_group import shared_memory
from jupyter_dtrain.engine.comm.shared_memory import SharedMemory
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.strategies.zero3.sharded_training import ShardedTraining
from jupyter_dtrain.serialization.scheduler_steps import tracked_step
from tests.conftest import one_of
from tests.engine.ranks import RankError, Run, double_precision, models_in
from tests.engine.zero3_cells import IDIOMS, LOOP, MODELS, MORE, STATE

CLOSE = 1e-9


@double_precision()
def run_connected(
    run: Run,
    setup: str,
    cell: str,
    compare: str,
    connect: Callable[[DataParallelTraining, SharedMemory], ShardedTraining],
    kind: type[DataParallelTraining] = DataParallelTraining,
    output: io.StringIO | None = None,
) -> tuple[Any, ShardedTraining | None]:
    """Run `setup` as it is and `cell` as the rank's part of a run that `connect` connects; plain on one rank, with no such.

    What the cell prints is in `output` afterwards.

    Returns
    -------
    compared : object
        What `compare` comes to afterwards.
    sharded : ShardedTraining, optional
        What `connect` has returned.
    """
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run_cell(setup, "setup", namespace)
    with contextlib.redirect_stdout(io.StringIO() if output is None else output):
        if run.world_size == 1:
            run_cell(cell, "cell", namespace)
            return eval(compare, namespace), None
        optimizers = [value for value in namespace.values() if isinstance(value, torch.optim.Optimizer)]
        for optimizer in optimizers:
            if "step" in vars(optimizer):  # a scheduler's, which is made again where an optimizer arrives
                optimizer.step = tracked_step(optimizer)  # type: ignore[method-assign]
        training = run.training(*models_in(namespace), *optimizers, kind=kind, global_batchnorm=True, global_draws=True)
        memory = shared_memory()
        assert memory is not None
        sharded = connect(training, memory)
        with training.installed(), sharded.installed():
            run_cell(cell, "cell", namespace)
            sharded.full.make_whole()
            training.materialize(None, namespace)
    return eval(compare, namespace), sharded


def run_sharded(run: Run, setup: str, cell: str, compare: str) -> dict[str, Any]:
    """Run `cell` with parameters of two rows and more sharded."""
    num_sharded = 0

    def connect(training: DataParallelTraining, memory: SharedMemory) -> ShardedTraining:
        nonlocal num_sharded
        sharded = ShardedTraining(training, memory, say=run.notes.append, least=0)
        num_sharded = len(sharded.store.shards())
        return sharded

    compared, sharded = run_connected(run, setup, cell, compare, connect)
    return {"compared": compared, "num_sharded": num_sharded, "notes": run.notes if sharded is not None else []}


def distance(one: Any, other: Any) -> float:
    """Return the largest relative difference of two values, infinite where they are not alike."""
    if isinstance(one, torch.Tensor):
        one, other = one.detach().double(), other.detach().double()
        if one.shape != other.shape:
            return float("inf")
        found = float(((one - other).abs() / (1 + one.abs())).max()) if one.numel() else 0.0
        return found if found == found else float("inf")  # NaN is what is away
    if isinstance(one, list | tuple):
        return max([0.0 if len(one) == len(other) else float("inf"), *map(distance, one, other)])
    if isinstance(one, float):
        return abs(one - other) / (1 + abs(one)) if other == other else float("inf")
    return 0.0 if one == other else float("inf")


def check(ranks, num_ranks: int, model: str, cell: str) -> list[dict[str, Any]]:
    """Check that the ranks come to what one process comes to; return what came out on each."""
    (one,) = ranks.call(1, run_sharded, MODELS[model], cell, STATE)
    found: list[dict[str, Any]] = ranks.call(num_ranks, run_sharded, MODELS[model], cell, STATE)
    for of_rank in found:
        assert of_rank["num_sharded"]
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
    return found


@pytest.mark.parametrize("name", one_of(5, [*IDIOMS, *MORE]))
def test_cell_with_sharded_parameters(ranks, name):
    check(ranks, 2, "MLP", {**IDIOMS, **MORE}[name])


@pytest.mark.long
@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", IDIOMS)
def test_cell_with_sharded_parameters_of_other_models(ranks, name, model, num_ranks):
    check(ranks, num_ranks, model, IDIOMS[name])


@pytest.mark.parametrize("model", one_of(2, MODELS))
def test_sharded_training_on_three_ranks(ranks, model):
    check(ranks, 3, model, LOOP)


def test_parameters_with_hooks_are_on_every_engine_and_said_so(ranks):
    found = check(ranks, 2, "MLP", IDIOMS["hooks on params"])
    assert found[0]["notes"] == ["`--strategy zero3` keeps 8 parameters on every engine from now on: they have hooks."]


def known_after_replicating(run: Run) -> int:
    """Return of how many addresses of memory it is known that a parameter lies there, when all parameters are plain again."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    training = run.training(model)
    memory = shared_memory()
    assert memory is not None
    homes = [parameter.untyped_storage()._cdata for parameter in model.parameters()]
    sharded = ShardedTraining(training, memory, least=0, homes=homes)
    with training.installed(), sharded.installed():
        with sharded.store.in_use(sharded.store.shards()):
            sharded.store.replicate([*model.parameters()], "the test")
        return len(sharded.store.saved._by_storage)


def test_memory_that_parameters_have_left_is_not_taken_for_theirs(ranks):
    """A tensor that a graph keeps may lie there later."""
    assert ranks.call(2, known_after_replicating) == [0, 0]


WITHOUT_A_PASS = """
import weakref
class Token: pass
tokens = []
for p in model.parameters():
    unused, token = torch.tanh(p), Token()  # its node keeps what it returns
    unused.grad_fn.metadata["token"] = token
    tokens.append(weakref.ref(token))
del unused, token
"""


def test_a_graph_without_a_backward_pass_is_freed(ranks):
    for of_rank in ranks.call(2, run_sharded, MODELS["MLP"], WITHOUT_A_PASS, "[token() is None for token in tokens]"):
        assert all(of_rank["compared"])


READERS = """
import io, os, pickle, threading, weakref
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from torch.utils._python_dispatch import TorchDispatchMode

@torch.jit.script
def scripted(x):
    return x.sum()

def in_a_thread(p):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: p.sum().item()).result()

def in_a_file(p):
    file = io.BytesIO()
    torch.save(p, file)
    file.seek(0)
    return torch.load(file).sum().item()

def dispatched(p):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))
    with Mode():
        return p.sum().item()

readers = [
    scripted, in_a_thread, in_a_file, dispatched, copy.copy, copy.deepcopy, torch.clone, torch.as_tensor,
    lambda p: torch.tensor(p.detach()), lambda p: p.as_subclass(torch.Tensor), lambda p: torch.Tensor._make_subclass(torch.Tensor, p),
    lambda p: pickle.loads(pickle.dumps(p)), lambda p: np.asarray(p.detach()), lambda p: np.from_dlpack(p.detach()),
    lambda p: torch.tensor(p.untyped_storage().tolist()[:1]) * 0 + p.sum(), lambda p: torch._C.TensorBase.sum(p),
    lambda p: torch.ops.aten.sum.default(p), lambda p: torch._C._nn.gelu(p), lambda p: torch.stack([*p]),
    lambda p: torch.tensor(p.tolist()), lambda p: nn.Parameter(p.data), lambda p: p.detach().to_sparse(),
    lambda p: torch.einsum("i...->", p), lambda p: torch._foreach_norm([p])[0], lambda p: torch.vmap(torch.sum)(p),
    lambda p: weakref.ref(p)(), lambda p: torch.empty(0).set_(p.data), lambda p: torch.compile(torch.sum, backend="eager")(p),
]
for p in model.parameters():
    losses.append([float(reader(p).sum()) if not isinstance(reader(p), float) else reader(p) for reader in readers])
"""


def test_whoever_reads_a_parameter_in_the_cell_reads_all_of_it(ranks):
    """By PyTorch's Python and C++, NumPy, pickle, threads, modes: what is away is NaN, and none of them comes to that."""
    check(ranks, 2, "MLP", LOOP + READERS)


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (
            "with torch._C.DisableTorchFunctionSubclass():\n    model[0].weight.sum()\n",
            "hides reads of parameters from `--strategy zero3`",
        ),
        ("model[0].weight.data = torch.zeros(2)\n", "its `data` was set to a tensor of another shape"),
    ],
)
def test_what_cannot_be_followed_is_an_error(ranks, cell, says):
    with pytest.raises(RankError, match=says):
        ranks.call(2, run_sharded, MODELS["MLP"], LOOP + cell, STATE)


def read_after_the_end(run: Run) -> list[str]:
    """Read what is on other ranks when the cell has ended, in the ways in which results are written."""
    model = torch.nn.Linear(8, 8)
    training = run.training(model)
    memory = shared_memory()
    assert memory is not None
    sharded = ShardedTraining(training, memory, least=0)
    with training.installed(), sharded.installed():
        sharded.full.make_whole(on=0)
    found = []
    for read in (torch.sum, pickle.dumps, lambda p: p.detach().numpy(), lambda p: p.data, copy.deepcopy):
        try:
            read(model.weight)
            found.append("read")
        except RuntimeError as error:
            found.append(str(error))
    return found


def test_what_is_away_when_the_cell_has_ended_is_read_by_nobody(ranks):
    whole, away = ranks.call(2, read_after_the_end)
    assert whole == ["read"] * 5
    assert set(away) == {"The values of this parameter are on other engines, and its cell has ended."}


KEPT = "losses.append([float(v.double().sum()) for v in kept])\n"


@pytest.mark.parametrize(
    "cell",
    [
        LOOP + "kept = [v for s in optimizer.state_dict()['state'].values() for v in s.values()]\n" + LOOP + KEPT,
        LOOP + "kept = [s['exp_avg'][0] for s in optimizer.state.values()]\n" + LOOP + KEPT,
        "model = copy.deepcopy(model); kept = [*model.state_dict().values()]; optimizer = torch.optim.Adam(model.parameters())\n"
        + LOOP
        + KEPT,
        LOOP + "losses.append(sum(float(v.double().sum()) for s in optimizer.state.values() for v in s.values()))\n" + LOOP,
        LOOP + "kept = copy.deepcopy(optimizer.state_dict())\noptimizer.load_state_dict(kept)\n" + LOOP,
    ],
    ids=["state_dict", "view of a moment", "state_dict of a model of the cell", "read between", "loaded"],
)
def test_what_the_cell_has_kept_of_what_it_trains(ranks, cell):
    """It follows what is trained where it does so in one process, and else stays as it was."""
    check(ranks, 2, "MLP", cell)


FUSED = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)\n"
OWN_STEP = """
class Own(torch.optim.AdamW):
    def step(self, closure=None):
        return super().step(closure)
optimizer = Own(model.parameters(), lr=1e-3, fused=True)
"""
BY_FUNCTION = """
from torch.optim.sgd import sgd
model[0].weight.sum().item()
with torch.no_grad():
    sgd([*model.parameters()], [torch.ones_like(p) for p in model.parameters()], [None] * 8, fused=True, weight_decay=0.0, momentum=0.0,
        lr=0.1, dampening=0.0, nesterov=False, maximize=False)
"""


@pytest.mark.parametrize(
    "cell",
    [FUSED + LOOP + "kept = [s['exp_avg'] for s in optimizer.state.values()]\n" + LOOP + KEPT, OWN_STEP + LOOP, BY_FUNCTION + LOOP],
    ids=["moments are held", "a step of the cell's own", "a function"],
)
def test_fused_optimizers_of_all_of_a_parameter(ranks, cell):
    """They write without PyTorch counting it."""
    check(ranks, 2, "MLP", cell)


def snapshot_gradients(run: Run) -> list[bool]:
    """Return for each gradient that this rank puts together for a snapshot whether it is that of all rows."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6)))
    training = run.training(model)
    memory = shared_memory()
    assert memory is not None
    sharded = ShardedTraining(training, memory, least=0)
    with training.installed(), sharded.installed():
        for parameter in model.parameters():
            parameter.grad = torch.arange(float(parameter.numel())).view(parameter.shape) + parameter.numel()
        for shard in sharded.store.shards():
            shard.cut_gradient()
        with sharded.full.standing_in() as apart:
            for held in apart.held:
                assert held.read is not None
                held.read(torch.empty(0, dtype=torch.uint8).set_(held.storage) if held.rank == run.rank else None)
            own = {held.storage._cdata for held in apart.held if held.rank == run.rank}
            found = [p.grad for p in model.parameters() if p.grad is not None and p.grad.untyped_storage()._cdata in own]
            return [torch.equal(grad, torch.arange(float(grad.numel())).view(grad.shape) + grad.numel()) for grad in found]


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_gradients_in_a_snapshot_are_whole_on_the_rank_that_writes_them(ranks, num_ranks):
    found = ranks.call(num_ranks, snapshot_gradients)
    assert [one for of_rank in found for one in of_rank] == [True] * 12


def snapshot_parameters(run: Run, way: str) -> list[bool]:
    """Return for each parameter whether a snapshot has it, of which the cell holds all: in memory of the rank's, or of the cell's."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 12), torch.nn.Linear(12, 5))
    expected = [parameter.detach() + 1 for parameter in model.parameters()]
    training = run.training(model)
    memory = shared_memory()
    assert memory is not None
    sharded = ShardedTraining(training, memory, least=0)
    with training.installed(), sharded.installed():
        held = model.state_dict()
        with torch.no_grad():
            if way == "views":
                for value in held.values():
                    value += 1
            else:
                torch.nn.utils.vector_to_parameters(torch.cat([value.reshape(-1) + 1 for value in held.values()]), model.parameters())
        with sharded.full.standing_in() as apart:
            written = {}
            for one in apart.held:
                assert one.read is not None
                written[one.storage._cdata] = torch.empty(one.storage.nbytes(), dtype=torch.uint8)
                one.read(written[one.storage._cdata])
            found = []
            for parameter in model.parameters():
                flat = written.get(parameter.untyped_storage()._cdata)
                found.append(parameter if flat is None else flat.view(parameter.dtype).view(parameter.shape))
            return [torch.equal(one, other) for one, other in zip(found, expected, strict=True)]


@pytest.mark.parametrize("way", ["views", "a vector"])
def test_parameters_that_the_cell_holds_are_in_a_snapshot(ranks, way):
    assert ranks.call(2, snapshot_parameters, way) == [[True] * 4] * 2


def test_writing_by_numpy_is_an_error(ranks):
    """PyTorch counts no such write, and whether all ranks have seen it cannot be told: loud rather than wrong."""
    cell = LOOP + "for p in model.parameters():\n    a = p.detach().numpy()\n    a *= 0.5\n"
    with pytest.raises(RankError, match="The cell wrote to a parameter by NumPy"):
        ranks.call(2, run_sharded, MODELS["MLP"], cell, STATE)
