"""What shares memory with a parameter sees what is written to it, and the other way round, under each strategy that shards parameters."""

from __future__ import annotations

import pytest

from tests.conftest import one_of
from tests.engine import test_pipeline, test_tensor_parallel, test_zero3
from tests.engine.ranks import RankError
from tests.engine.test_zero3 import CLOSE, distance
from tests.engine.zero3_cells import LOOP, MODELS
from tests.engine.zero3_cells import STATE as TRAINED

SETUP = MODELS["MLP"] + "import numpy as np\nseen = []\ndef note(*ts): seen.extend(t.tolist() for t in ts)\n"
STATE = TRAINED + ", seen"
STRATEGIES = {
    "zero3": test_zero3.run_sharded,
    "pipeline": test_pipeline.run_staged,
    "tensor": test_tensor_parallel.run_divided,
}
ARRAY = "a = np.random.rand(24, 24) * 0.1\n"
TENSOR = "t = torch.rand(24, 24) * 0.1\n"
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)\n"
OF_ARRAY = f"{ARRAY}model = copy.deepcopy(model)\nmodel[2].weight = nn.Parameter(torch.from_numpy(a))\n{OPTIMIZER}"
BUFFER = """
b = bytearray((np.random.rand(24, 24) * 0.1).tobytes())
model = copy.deepcopy(model)
model[2].weight = nn.Parameter(torch.frombuffer(b, dtype=torch.float64).view(24, 24))
"""
FLAT = """
flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
i = 0
for p in model.parameters():
    p.data = flat[i : i + p.numel()].view_as(p); i += p.numel()
"""
VECTOR = """
v = nn.utils.parameters_to_vector(model.parameters()).detach() * 0.9
nn.utils.vector_to_parameters(v, model.parameters())
"""
SWAP = "model[2].weight.data, model[4].weight.data = model[4].weight.data, model[2].weight.data\n"
MADE_OF_IT = "m = nn.Linear(24, 24); m.weight = nn.Parameter(model[2].weight.detach())\n"
LOADED = "import io\nf = io.BytesIO(); torch.save(model, f); f.seek(0)\nmodel = torch.load(f, weights_only=False)\n" + OPTIMIZER
MOMENT = "optimizer.state[model[2].weight]['exp_avg']"

CELLS = {
    "made of an array that is written to": OF_ARRAY + LOOP + "a[0] = 1\nnote(model[2].weight)\n" + LOOP,
    "made of an array that is read": OF_ARRAY + LOOP + "note(a)\n" + LOOP + "note(a)\n",
    "made of an array by asarray": OF_ARRAY.replace("from_numpy", "asarray") + LOOP + "a[0] = 1\n" + LOOP + "note(a)\n",
    "made of an array by dlpack": OF_ARRAY.replace("from_numpy", "from_dlpack") + LOOP + "a[0] = 1\n" + LOOP + "note(a)\n",
    "made of a buffer": BUFFER + OPTIMIZER + LOOP + "np.frombuffer(b)[:] = 0.5\n" + LOOP,
    "data set to an array": LOOP
    + ARRAY
    + "model[2].weight.data = torch.from_numpy(a)\n"
    + LOOP
    + "a[0] = 1\nnote(a)\n"
    + LOOP
    + "note(a)\n",
    "data set to an array, written to at once": (
        LOOP + ARRAY + "model[2].weight.data = torch.from_numpy(a)\na[0] = 1\n" + LOOP + "note(a)\n"
    ),
    "data set to a tensor": (
        LOOP + TENSOR + "model[2].weight.data = t\n" + LOOP + "t.mul_(0.5)\nnote(t, model[2].weight)\n" + LOOP + "note(t)\n"
    ),
    "data set to what is transposed": LOOP + TENSOR + "model[2].weight.data = t.t()\n" + LOOP + "t.mul_(0.5)\n" + LOOP + "note(t)\n",
    "data set to a part of a tensor": (
        LOOP + "t = torch.rand(48, 24)\nmodel[2].weight.data = t[:24]\n" + LOOP + "t.mul_(0.5)\n" + LOOP + "note(t)\n"
    ),
    "data set to another's": LOOP + "model[4].weight.data = model[2].weight.data\n" + LOOP + "note(model[2].weight, model[4].weight)\n",
    "data set to another's at first": "model[4].weight.data = model[2].weight.data\n" + LOOP + "note(model[4].weight)\n" + LOOP,
    "data swapped": LOOP + SWAP + LOOP,
    "set": LOOP + TENSOR + "with torch.no_grad(): model[2].weight.set_(t)\n" + LOOP + "t.mul_(0.5)\n" + LOOP + "note(t)\n",
    "views of one tensor": FLAT + LOOP + "flat.mul_(0.9)\nnote(flat)\n" + LOOP + "note(flat)\n",
    "a vector": LOOP + VECTOR + LOOP + "v.zero_()\nnote(v)\n" + LOOP,
    "a parameter of its memory": LOOP + MADE_OF_IT + LOOP + "with torch.no_grad(): m.weight.mul_(0.5)\n" + LOOP + "note(m.weight)\n",
    "a row of its data": "r = model[2].weight.data[3]\n" + LOOP + "r.fill_(0.3)\nnote(r)\n" + LOOP + "note(r)\n",
    "an array of it that is read": "a = model[2].weight.detach().numpy()\n" + LOOP + "note(a)\n" + LOOP + "note(a)\n",
    "a moment that is an array": (
        LOOP + f"a = np.zeros((24, 24)); {MOMENT} = torch.from_numpy(a)\n" + LOOP + "note(a)\na[0] = 1e-3\n" + LOOP + "note(a)\n"
    ),
    "an array of a moment": LOOP + f"m = {MOMENT}.numpy()\n" + LOOP + "note(m)\nm *= 0.5\n" + LOOP + "note(m)\n",
}
SHORT = ("made of an array that is written to", "data set to a tensor", "data set to another's", "set", "a moment that is an array")
PRIVATE = {
    "data swapped": LOOP + SWAP + LOOP,
    "data set to what nobody holds": LOOP + "for p in model.parameters(): p.data = p.data * 0.9\n" + LOOP,
    "a vector that nobody holds": LOOP + VECTOR + "del v\n" + LOOP,
    "loaded in the cell": LOADED + LOOP,
    "moments loaded in the cell": (
        LOOP
        + "import io\nf = io.BytesIO(); torch.save(optimizer.state_dict(), f); f.seek(0)\noptimizer.load_state_dict(torch.load(f))\n"
        + LOOP
    ),
    "an array of a moment that is gone": LOOP + f"seen.append({MOMENT}.numpy().mean())\n" + LOOP,
}
"""Memory that is the parameter's alone: it goes on to be sharded."""
UNCOUNTED = {
    "an array": "a = model[2].weight.detach().numpy()\n" + LOOP + "a *= 0.5\n" + LOOP,
    "data of what has its memory": "m = nn.Parameter(model[2].weight.data)\n" + LOOP + "m.data.mul_(0.5)\n" + LOOP,
    "data of a state": LOOP + "sd = model.state_dict()\n" + LOOP + "for v in sd.values(): v.data.mul_(0.9)\n" + LOOP,
}


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        pytest.param(strategy, name, marks=() if name in SHORT and strategy == "zero3" else pytest.mark.long)
        for strategy in STRATEGIES
        for name in CELLS
    ],
)
def test_what_shares_memory_with_a_parameter_goes_on_to(ranks, strategy, name):
    check(ranks, strategy, CELLS[name])


@pytest.mark.parametrize("name", one_of(2, PRIVATE))
def test_memory_of_its_own_leaves_a_parameter_sharded(ranks, name):
    for of_rank in check(ranks, "zero3", PRIVATE[name]):
        assert not of_rank["notes"]


def test_what_is_kept_whole_is_said(ranks):
    for cell, says in (
        (CELLS["made of an array that is read"], "keeps `2.weight` of `Sequential` on every engine: their memory may be an array's"),
        (CELLS["set"], "keeps 1 parameters on every engine from now on: something else looks into what the cell has set their `data` to"),
    ):
        assert [note for note in check(ranks, "zero3", cell)[0]["notes"] if says in note]


@pytest.mark.parametrize("name", one_of(3, UNCOUNTED))
def test_what_nothing_counts_is_an_error(ranks, name):
    with pytest.raises(RankError, match="The cell wrote to a parameter by NumPy, or in another way that PyTorch does not count"):
        ranks.call(2, test_zero3.run_sharded, SETUP, UNCOUNTED[name], STATE)


def check(ranks, strategy, cell):
    (one,) = ranks.call(1, test_zero3.run_sharded, SETUP, cell, STATE)
    found = ranks.call(2, STRATEGIES[strategy], SETUP, cell, STATE)
    for of_rank in found:
        assert distance(one["compared"], of_rank["compared"]) < CLOSE
    return found
