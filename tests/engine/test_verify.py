"""`--verify`: what a model, or loading, comes to on parts of a batch is compared with all of it, and mended before it is used."""

from __future__ import annotations

import pytest
import torch

from jupyter_dtrain.engine.tensor.recompute import BackwardPasses
from jupyter_dtrain.engine.verify.gradient_probes import differ, projections
from tests.conftest import in_turn
from tests.engine.ranks import RankError, Ranks, run_notebook, run_plain
from tests.notebook.corpus_cells import CELLS, apart

SETUP = """
import functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.manual_seed(1)
X = torch.randn(26, 4)
Y = X.sin().sum(1, keepdim=True)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
class Meter:
    def __init__(self): self.total = 0.0; self.n = 0
    def update(self, v, n): self.total += v * n; self.n += n
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, g): return g * (1 + g.shape[0] / 100)
seen = []
"""
MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 1)
        {made}
    def forward(self, x):
        out = self.l(x)
        {done}
        return out
model = Net()
"""
DATA = """
{made}
class Data(Dataset):
    def __init__(self): self.n, self.before, self.cache = 0, None, dict()
    def __len__(self): return 26
    def __getitem__(self, i):
        {done}
loader = DataLoader(Data(), batch_size=6, shuffle=True)
model = nn.Linear(4, 1)
"""
CALLABLE = """
from torch.utils.checkpoint import checkpoint
{made}
class Model:
    def parameters(self): return [*block.parameters(), *head.parameters()]
    def __call__(self, x):
        {done}
model = Model()
"""
PADDED = """
def padded(samples):
    longest = max(int(x.abs().sum() * 5) % 4 for x, _ in samples)
    return torch.stack([F.pad(x, (0, longest)) for x, _ in samples]), torch.stack([y for _, y in samples])
class First(nn.Linear):
    def forward(self, x): return super().forward(x[:, :4])
loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True, collate_fn=padded)
model = First(4, 1)
"""
BESIDE_RESULTS = """
class Beside(nn.Linear):
    def forward(self, x, times, *, shift):
        out = super().forward(x)
        return out * times + shift, out.detach(), (out > 0).sum(1), out[:, :0], torch.ones(2).to_sparse(), "name"
block, head = Beside(4, 1), nn.Identity()
"""
ROWS = """
class Rows(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        {done}
rows = Rows(4, 1)
class Model:
    parameters = rows.parameters
    def __call__(self, x): return rows(x)[0]
model = Model()
{made}
"""
MADE = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
LOOP = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
"""
UNMENDED = """
from jupyter_dtrain.engine.data import dataloader as _dataloader, fetch_state as _fetch_state, loader_plan as _loader_plan
from jupyter_dtrain.engine.forward import cross_sample as _cross_sample, learning_calls as _learning_calls, watch as _watch
def accepted(calls, changes, names):
    names.update(name for change in changes for name in change.names())
    return False
_learning_calls.LearningCalls.note_by_samples = accepted
_cross_sample.depends_across_samples = lambda *_, **__: False
_watch.Watch.changed = lambda *_, **__: False
_dataloader.has_effects = _loader_plan.has_effects = lambda *_: False
_fetch_state.FetchState.changed = lambda *_: False
"""
"""Lets what finds such cells by other means find nothing: here it is seen what comparing finds."""
EARLY = """
from jupyter_dtrain.engine.verify import schedule as _schedule
_schedule.PART, _schedule.ASKED_FIRST = 1e6, 2
"""
"""Lets `auto` check as soon as it can."""
COUNTED = """
from jupyter_dtrain.engine.verify import schedule as _schedule
_schedule.made = 0
def follow(self, turn, of_ranks, follow=_schedule.Schedule.follow):
    _schedule.made += 1
    follow(self, turn, of_ranks)
_schedule.Schedule.follow = follow
"""
BUFFERS = "[*model.buffers()] if isinstance(model, nn.Module) else []"
COMPARE = "[seen, [p.detach() for p in model.parameters()], {kept}]"

FOUND = {
    "a tensor": (MODEL, "self.n = torch.zeros(())", "self.n += len(x)", "model.n", "`Net` ", "`Net.n`"),
    "an array": (MODEL, "self.s = np.zeros(2)", "self.s += [len(x), out.mean().item()]", "model.s.tolist()", "`Net` ", "`Net.s`"),
    "an object": (MODEL, "self.m = Meter()", "self.m.update(out.mean().item(), len(x))", "model.m.n", "`Net` ", "`Meter.total`"),
    "a mean that results depend on": (
        *(MODEL, "self.e = torch.zeros(4)", "self.e.lerp_(x.mean(0), 0.1); out = out + (x - self.e).sum(1, keepdim=True)"),
        *("model.e.tolist()", "`Net` ", "what it returns"),
    ),
    "gradients alone": (MODEL, "self.k = 0", "out = Scaled.apply(out)", "0", "`Net` ", "its gradients"),
    "a list": (MODEL, "self.means = []", "self.means.append(out.mean().item())", "model.means", "`Net` ", "`Net.means`"),
    "how many results there are": (ROWS, "", "return [x] * len(x)", "0", "`Rows` ", "what it returns"),
    "a counter of samples": (DATA, "", "self.n += 1; return X[i], Y[i]", "loader.dataset.n", "`Data` ", "`Data.n`"),
    "samples that depend on the one before": (
        *(DATA, "", "x = X[i] if self.before is None else X[i] + 0.3 * self.before; self.before = X[i]; return x, Y[i]"),
        *("0", "`Data` ", "`Data.before`"),
    ),
    "a global": (DATA, "total = 0", "global total; total += 1; return X[i], Y[i]", "total", "`Data` ", "`total`"),
    "samples that depend on the one before, in a worker": (
        *(DATA.replace("shuffle=True", "shuffle=True, num_workers=1, multiprocessing_context='fork'"), ""),
        *("x = X[i] if self.before is None else X[i] + 0.3 * self.before; self.before = X[i]; return x, Y[i]", "0"),
        *("`Data` ", "samples that come later"),
    ),
    "a dict that loses entries": (
        *(DATA, "left = dict.fromkeys(range(26))", "left.pop(i, None); return X[i], Y[i]", "[*left]", "`Data` ", "`left`"),
    ),
    "a cache of a method": (
        *(DATA.replace("def __getitem__", "@functools.lru_cache(None)\n    def load(self, i): return X[i], Y[i]\n    def __getitem__"), ""),
        *("return self.load(i)", "Data.load.cache_info().currsize", "`Data` ", "a cache"),
    ),
    "a cache in a table": (
        *(DATA, "loads = dict(one=functools.lru_cache(None)(lambda i: (X[i], Y[i])))", "return loads['one'](i)"),
        *("loads['one'].cache_info().currsize", "`Data` ", "a cache"),
    ),
    "a cache of a function": (
        *(DATA, "load = functools.lru_cache(None)(lambda i: (X[i], Y[i]))", "return load(i)"),
        *("load.cache_info().currsize", "`Data` ", "a cache"),
    ),
}
RIGHT = {
    "BatchNorm and dropout": "model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 1))",
    "a number of calls": MODEL.format(made="self.k = 0", done="self.k += 1"),
    "numbers of its own streams": DATA.format(made="", done="return X[i] + torch.randn(4), Y[i]"),
    "a cell over the steps of a sequence": CALLABLE.format(
        made="block, head = nn.RNNCell(2, 5), nn.Linear(5, 1)",
        done="h = torch.zeros(len(x), 5); h = block(x[:, :2], h); h = block(x[:, 2:], h); return head(h)",
    ),
    "a layer that computes a part of itself again in the backward pass": CALLABLE.format(
        made="class Again(nn.Sequential):\n    def forward(self, x): return checkpoint(self[1], self[0](x), use_reentrant=True)\n"
        "block, head = Again(nn.Linear(4, 6), nn.Tanh()), nn.Linear(6, 1)",
        done="return head(block(x))",
    ),
    "statistics that it keeps itself": MODEL.format(
        made="self.register_buffer('m', torch.zeros(4)); self.register_buffer('v', torch.ones(4))",
        done="out = self.l(F.batch_norm(x, self.m, self.v, training=True))",
    ),
    "objects of every kind": MODEL.format(
        made="self.m, self.g, self.k = Meter(), np.float32(0), 0",
        done="self.k += 1; self.g = np.float32(self.k); self.m = Meter(); self.m.n = self.k; self.a = np.array([None, 'a']); "
        "self.last = dict(n=len(x), s={self.k}, b=bytearray(self.k)), {torch.relu: [np.int64(self.k), max, self.l, [[[[[[[[0]]]]]]]]]}",
    ),
    "a layer that is told more than the batch, and returns more": CALLABLE.format(
        made=BESIDE_RESULTS,
        done="out, *_ = block(x, 2, shift=0.5); return out",
    ),
    "a part that does not learn": CALLABLE.format(
        made="block, head = nn.Linear(4, 6), nn.Linear(6, 1)",
        done="\n        with torch.no_grad(): h = block(x)\n        return head(h)",
    ),
    "a loss that it returns": CALLABLE.format(
        made="class Loss(nn.Linear):\n    def forward(self, x): return super().forward(x).square().mean()\n"
        "block, head = Loss(4, 1), nn.Linear(4, 1)",
        done="return head(x) + block(x)",
    ),
    "a block that is computed again": CALLABLE.format(
        made="block, head = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()), nn.Linear(6, 1)",
        done="return head(checkpoint(block, x, use_reentrant=False))",
    ),
    "batches that are filled up to their longest sample": PADDED,
    "a list of samples": DATA.format(made="kept = [(x, y) for x, y in zip(X, Y)]", done="return kept[i]"),
}


@pytest.fixture(scope="module")
def ranks():
    with Ranks(most=3) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def unmended():
    with Ranks(most=3) as ranks:
        yield ranks


@pytest.mark.parametrize(("name", "world_size"), in_turn(FOUND, [2, 3]))
def test_a_difference_is_found_named_and_mended_before_it_is_used(ranks, unmended, name, world_size):
    kind, made, done, kept, who, what = FOUND[name]
    setup = SETUP + kind.format(made=made, done=done) + MADE
    (plain,) = ranks.call(1, run_plain, setup, LOOP, COMPARE.format(kept=kept))
    options = {"global_draws": True, "global_batchnorm": True, "verify": "first"}
    first, *_ = unmended.call(world_size, run_notebook, UNMENDED + setup, LOOP, COMPARE.format(kept=kept), options)
    assert apart(plain["compared"], first["compared"]) is None
    (note,) = [note for note in first["notes"] if "gave another result " in note]
    assert note.startswith(who)
    assert what in note


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_left_alone_to_the_last_bit(ranks, name):
    setup, compare = SETUP + RIGHT[name] + "\n" + MADE, COMPARE.format(kept=BUFFERS)
    options = {"global_draws": True, "global_batchnorm": True}
    without, *_ = ranks.call(2, run_notebook, setup, LOOP, compare, options)
    checked, *_ = ranks.call(2, run_notebook, setup, LOOP, compare, options | {"verify": "always"})
    assert checked["notes"] == without["notes"]
    assert checked["compared"][0] == without["compared"][0]
    for number in (1, -1):
        assert all((left == right).all() for left, right in zip(checked["compared"][number], without["compared"][number], strict=True))
    assert checked["random"][1:] == without["random"][1:]


NOT_COMPARED = {
    "dropout": "model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))",
    "noise": MODEL.format(made="", done="out = out + torch.randn_like(out)"),
    "rows of other lengths": MODEL.format(made="self.t = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])", done=""),
    "a model that writes a file": MODEL.format(made="", done="with open('/dev/null', 'w') as file: file.write('a')"),
    "data that write a file": DATA.format(made="", done="open('/dev/null', 'w').close(); return X[i], Y[i]"),
    "statistics": "model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))",
}


@pytest.mark.parametrize("name", NOT_COMPARED)
def test_what_cannot_be_compared_is_left_alone(ranks, name):
    setup, compare = COUNTED + SETUP + NOT_COMPARED[name] + "\n" + MADE, COMPARE.format(kept=f"_schedule.made, {BUFFERS}")
    without, *_ = ranks.call(2, run_notebook, setup, LOOP, compare, {"verify": "off"})
    checked, *_ = ranks.call(2, run_notebook, setup, LOOP, compare, {"verify": "always"})
    assert checked["notes"] == without["notes"]
    assert checked["compared"][0] == without["compared"][0]
    for number in (1, -1):
        assert all((left == right).all() for left, right in zip(checked["compared"][number], without["compared"][number], strict=True))


FAILING = """
try:
    model(x)
except {error} as error:
    seen.append(str(error))
else:
    seen.append("fine")
"""
ERRORS = {  # what the model does at one of the batches, and what is said of it
    "an error of a sample": ("if bool((x == X[9]).all(1).any()): raise ValueError(f'{len(x)} samples')", "ValueError", None),
    "an error of a larger batch": (
        "if len(x) > 5: raise MemoryError",
        "ZeroDivisionError",
        "The whole batch of `Net` does not fit one engine",
    ),
    "an error of one call": ("self.k += 1\n        if self.k == 3: raise KeyError(self.k)", "KeyError", None),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_checked_call_fails_as_on_one_process(ranks, name):
    done, error, said = ERRORS[name]
    setup = SETUP + MODEL.format(made="self.k = 0", done=done) + MADE
    cell = "for x, y in loader:" + FAILING.format(error=error).replace("\n", "\n    ")
    options = {"global_draws": True, "global_batchnorm": True, "verify": "always"}
    first, *_ = ranks.call(2, run_notebook, setup, cell, "seen, model.k", options)
    if said is None:
        (plain,) = ranks.call(1, run_plain, setup, cell, "seen, model.k")
        assert first["compared"] == plain["compared"]
        assert len(set(plain["compared"][0])) == 2
    else:
        assert first["compared"][0] == ["fine"] * 4
    assert [note[: len(said)] for note in first["notes"] if said and "whole batch" in note] == ([said] if said else [])


@pytest.mark.parametrize("name", RIGHT)
def test_a_check_that_is_put_off_changes_no_bit_either(ranks, name):
    setup, compare = SETUP + RIGHT[name] + "\n" + MADE, COMPARE.format(kept=f"(_schedule.made, ), {BUFFERS}")
    options = {"global_draws": True, "global_batchnorm": True}
    with Ranks(most=2) as own:
        without, *_ = own.call(2, run_notebook, EARLY + COUNTED + setup, LOOP, compare, options | {"verify": "off"})
        checked, *_ = own.call(2, run_notebook, EARLY + COUNTED + setup, LOOP, compare, options | {"verify": "auto"})
    assert without["compared"][2] == (0,)
    assert checked["compared"][2] > (0,)
    assert checked["notes"] == without["notes"]
    assert checked["compared"][0] == without["compared"][0]
    for number in (1, -1):
        assert all((left == right).all() for left, right in zip(checked["compared"][number], without["compared"][number], strict=True))
    assert checked["random"][1:] == without["random"][1:]


@pytest.mark.parametrize("compiled", ["[0, 1]", "[1]"], ids=["all ranks", "one rank"])
def test_where_something_was_compiled_nothing_is_checked_by_itself(compiled):
    """An engine that has taken the place of a lost one has compiled nothing, so that ranks may differ."""
    before = f"""
import torch.distributed, jupyter_dtrain.engine.verify.models as _models
_models.has_compiled = lambda: torch.distributed.get_rank() in {compiled}
"""
    setup = SETUP + EARLY + COUNTED + before + MODEL.format(made="", done="") + MADE
    options = {"global_draws": True, "global_batchnorm": True, "verify": "auto"}
    with Ranks(most=2) as own:
        of_ranks = own.call(2, run_notebook, setup, LOOP, "len(seen), _schedule.made", options)
    assert [of_rank["compared"] for of_rank in of_ranks] == [(8, 0)] * 2


BESIDE = """
import logging, threading
ticks, records, done = [], [], threading.Event()
class Kept(logging.Handler):
    def emit(self, record): records.append(record.msg)
logging.getLogger("beside").addHandler(Kept())
def say():
    while not done.wait(1e-4):
        ticks.append(len(ticks))
        print(ticks[-1])
        logging.getLogger("beside").warning(ticks[-1])
thread = threading.Thread(target=say)
"""
TRIED_NEVERTHELESS = """
import jupyter_dtrain.engine.verify.compared_call as _compared, jupyter_dtrain.engine.verify.fetches as _fetches
_compared.obstacle = _fetches.obstacle = str
"""


@pytest.mark.parametrize(("before", "is_checked"), [("", False), (TRIED_NEVERTHELESS, True)], ids=["of the cell", "of a library"])
def test_what_another_thread_says_is_not_lost(before, is_checked):
    """While one of the cell runs nothing is tried at all: what it changes would be undone with what the trial does."""
    setup = SETUP + BESIDE + COUNTED + before + MODEL.format(made="", done="") + MADE
    options = {"global_draws": True, "global_batchnorm": True, "verify": "always"}
    cell = f"thread.start()\n{LOOP}\ndone.set(); thread.join()"
    with Ranks(most=2) as own:
        first, *_ = own.call(2, run_notebook, setup, cell, "ticks, records, _schedule.made", options)
    ticks, records, made = first["compared"]
    assert len(ticks) > 10
    assert ticks == records == list(range(len(ticks)))
    assert first["printed"].split() == [str(number) for number in ticks]
    assert first["notes"] == []
    assert (made > 0) is is_checked


def test_gradients_that_are_no_numbers_leave_the_others_to_be_compared():
    nothing, some = torch.full((3,), torch.nan), torch.tensor([0.5, -1.0, 2.0])
    assert not differ([nothing, some], [[nothing, some / 2], [nothing, some / 2]], torch.float64)
    assert differ([nothing, some], [[nothing, some / 2], [nothing, some]], torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex128])
@pytest.mark.parametrize("shape", [(), (7,), (5, 1), (3, 4, 2)], ids=str)
def test_gradients_of_every_shape_and_type_add_up_and_one_other_number_is_seen(shape, dtype):
    module = torch.nn.ParameterDict({"weight": torch.zeros(shape, dtype=dtype), "none": torch.zeros(0)})
    gradient = torch.arange(1, 1 + module["weight"].numel()).reshape(shape).to(dtype)

    def probed(gradient, scale=1.0):
        results = torch.view_as_real(module["weight"] * gradient) if dtype.is_complex else module["weight"] * gradient
        return projections(module, [results.sum()[None] + module["none"].sum()], [None], scale=scale, passes=BackwardPasses(None))

    whole, half = probed(gradient), probed(gradient, scale=2.0)
    assert not differ(whole, [half, half], dtype)
    for number in range(gradient.numel() if dtype != torch.bfloat16 else 0):  # in 16 bits it takes more
        other = gradient.clone()
        other.view(-1)[number] *= 2
        assert differ(whole, [probed(other, scale=2.0), half], dtype)


def test_a_later_difference_is_found_where_every_call_is_checked(ranks, unmended):
    made = MODEL.format(made="self.k = 0; self.n = torch.zeros(())", done="self.k += 1; self.n += len(x) if self.k > 3 else 0")
    setup, compare = SETUP + made + MADE, COMPARE.format(kept="model.n")
    (plain,) = ranks.call(1, run_plain, setup, LOOP, compare)
    first, *_ = unmended.call(2, run_notebook, UNMENDED + setup, LOOP, compare, {"verify": "always"})
    assert apart(plain["compared"], first["compared"]) is None
    assert sum("`Net.n`" in note for note in first["notes"]) == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", ["first", "auto"])
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_no_cell_of_the_corpus_is_accused(ranks, tmp_path, cell, world_size, mode):
    setup = cell.setup_in(tmp_path)
    setup = EARLY + setup if mode == "auto" else setup
    asked = world_size, run_notebook, setup, cell.cell, cell.compare, {"global_draws": True, "global_batchnorm": True}
    try:
        without, *_ = ranks.call(*asked)
    except RankError as error:
        pytest.skip(f"it needs more of an engine than a rank of this test is: {error}")
    checked, *_ = ranks.call(*asked[:5], asked[5] | {"verify": mode})
    assert [note for note in checked["notes"] if "gave another result " in note] == []
    assert apart(without["compared"], checked["compared"], cell.tolerance) is None
