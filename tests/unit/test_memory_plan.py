"""What `%distribute plan` predicts of a training step, beside what a real step on one process holds."""

from __future__ import annotations

import ast
import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from jupyter_dtrain.engine.strategies.tensor_parallel import rules
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.planning import equal_blocks, fake_step, memory_plan, new_process
from jupyter_dtrain.planning.cell_batch import batch_size_of
from jupyter_dtrain.planning.engine_plan import plans
from jupyter_dtrain.planning.live_bytes import LiveBytes
from jupyter_dtrain.planning.memory_plan import choice, measure, table
from jupyter_dtrain.planning.work_space import most_allocated
from jupyter_dtrain.strategies import Divided, StrategyInfo, find
from tests.conftest import one_of

CELL = ast.parse("for x, y in loader:\n    F.cross_entropy(model(x), y).backward()\n    optimizer.step()")


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())

    def forward(self, x):
        return x + self.body(x)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(400, 48), kind(48, 96, 2, batch_first=True), nn.Linear(96, 400)

    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=0.1), 3)
        self.head = nn.Linear(64, 1000, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.encoder(self.embedding(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle, self.up = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, 2)
        self.last = nn.Conv2d(32, 5, 1)

    def forward(self, x):
        down = F.relu(self.down(x))
        return self.last(torch.cat([down, F.relu(self.up(F.relu(self.middle(F.max_pool2d(down, 2)))))], 1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(64, 192), nn.Linear(64, 10)

    def forward(self, x):
        q, k, v = self.q(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2).mean(1))


def numbers(*shape):
    return torch.randn(*shape)


def classes(count, *shape):
    return torch.randint(count, shape)


MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)), 64, (64,), 10, ()),
    "norms and dropout": (
        lambda: nn.Sequential(
            *[one for _ in range(6) for one in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Dropout(0.1))], nn.Linear(64, 10)
        ),
        64,
        (64,),
        10,
        (),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 10)
        ),
        32,
        (3, 16, 16),
        10,
        (),
    ),
    "resnet": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(4)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
        ),
        32,
        (3, 16, 16),
        10,
        (),
    ),
    "lstm": (lambda: Recurrent(nn.LSTM), 16, None, 400, (24,)),
    "gru": (lambda: Recurrent(nn.GRU), 16, None, 400, (6,)),
    "tied transformer": (Tied, 8, None, 1000, (32,)),
    "u-net": (UNet, 8, (3, 32, 32), 5, (32, 32)),
    "attention": (Attention, 16, (24, 64), 10, ()),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(5000, 32), nn.Linear(32, 10)), 64, "bag", 10, ()),
}


def made(name):
    """Return a model with its optimizer and loader, as a notebook has them."""
    model, size, shape, count, target = MODELS[name]
    torch.manual_seed(0)
    if shape is None:
        x = classes(count, 4 * size, *target)
    elif shape == "bag":
        x = classes(5000, 4 * size, 12)
    else:
        x = numbers(4 * size, *shape)
    there = model()
    loader = DataLoader(TensorDataset(x, classes(count, 4 * size, *target)), batch_size=size, shuffle=True)
    return {"model": there, "optimizer": torch.optim.AdamW(there.parameters()), "loader": loader}


def held(values, share):
    """Return the most bytes of tensors that two real steps on one process hold."""
    model, optimizer = values["model"], values["optimizer"]
    x, y = (part[:share].clone() for part in next(iter(values["loader"])))
    live = LiveBytes()
    for tensor in (*model.parameters(), *model.buffers(), x, y):
        live.add(tensor)

    def step():
        output = model(x)
        loss = F.cross_entropy(output, y) if output.dim() != 3 else F.cross_entropy(output.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        del output, loss
        optimizer.zero_grad()

    with live:
        step()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with more, some convolutions take more
    try:
        return live.bytes_now() + most_allocated(step)[0]
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", one_of(2, MODELS))
def test_the_bytes_of_a_step_are_predicted_within_a_tenth(name):
    values = made(name)
    before = [parameter.detach().clone() for parameter in values["model"].parameters()]
    state = torch.get_rng_state()
    size = MODELS[name][1]
    found = measure(CELL, values, engines=[1, 2], device="cpu")
    assert torch.equal(torch.get_rng_state(), state), "nothing of the notebook's has moved"
    assert all(map(torch.equal, before, (parameter.detach() for parameter in values["model"].parameters())))
    assert not values["optimizer"].state
    assert found.batch_size == size
    for share in (size, size // 2):
        assert found.steps[share].peak == pytest.approx(held(made(name), share), rel=0.1)


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_shares_between_the_smallest_and_the_largest_are_predicted_too(name):
    size = MODELS[name][1]
    found = measure(CELL, made(name), engines=[1, 2, 8], device="cpu")
    assert found.steps[size // 2].peak == pytest.approx(held(made(name), size // 2), rel=0.1)
    (one, *_) = plans(found, [find("auto")], [1])
    assert one.total == pytest.approx(held(made(name), size), rel=0.02), "which is put together from parts of a step"


def test_layers_divided_by_columns_and_meshes_have_rows():
    values = made("mlp")
    found = plans(measure(CELL, values, engines=[4], device="cpu"), [find(name) for name in ("auto", "zero3", "pipeline", "tensor")], [4])
    assert [plan.name for plan in found] == ["auto", "zero3", "pipeline", "tensor", "dp=2,dp_shard=2", "dp=2,pp=2", "dp=2,tp=2"]
    auto, zero3, pipeline, tensor, sharded, staged, grouped = found
    assert [plan.option for plan in (tensor, grouped)] == ["--strategy tensor", "--mesh dp=2,tp=2"]
    linear = [values["model"][0], values["model"][2]]  # 64 kB and more
    away = sum(parameter.nbytes for layer in linear for parameter in layer.parameters())
    rest = auto.gradients - away
    assert tensor.parameters == tensor.gradients == rest + away / 4
    assert grouped.parameters == rest + away / 4, "what engines of a place have is fetched to compute with it, as for a moment"
    assert grouped.gradients == tensor.gradients
    assert staged.gradients < pipeline.gradients
    assert sharded.parameters - zero3.parameters == pytest.approx(auto.gradients / 4, abs=4), "a group has all of them"
    assert (sharded.gradients, sharded.optimizer) == (zero3.gradients, zero3.optimizer)
    assert table(found).splitlines()[-1].split()[:2] == ["4", "dp=2,tp=2"]


@pytest.mark.parametrize("name", one_of(2, ["Adam", "SGD", "RMSprop", "Adagrad", "NAdam"]))
def test_an_optimizer_that_has_taken_steps_takes_as_much_as_a_new_one(name):
    sizes = []
    for steps in (0, 2):
        values = made("mlp")
        model = values["model"]
        optimizer = values["optimizer"] = getattr(torch.optim, name)(model.parameters(), lr=0.01)
        for _ in range(steps):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        optimizer.zero_grad()
        kept = {key: state["step"].item() for key, state in optimizer.state.items() if "step" in state}
        sizes.append(measure(CELL, values, engines=[2], device="cpu").steps[32])
        assert {key: state["step"].item() for key, state in optimizer.state.items() if "step" in state} == kept
    assert sizes[0] == sizes[1]


def test_what_is_divided_is_less_by_as_much():
    values = made("mlp")
    everything = StrategyInfo(name="all", summary="", implementation="", divides=frozenset(Divided))
    found = plans(measure(CELL, values, engines=[1, 4], device="cpu"), [find("auto"), find("zero1"), everything], [1, 4])
    one, auto, zero1, divided = found
    size = sum(parameter.nbytes for parameter in values["model"].parameters())
    assert (one.engines, auto.engines) == (1, 4)
    assert one.parameters == auto.parameters == zero1.parameters == auto.gradients == size
    assert auto.optimizer == pytest.approx(2 * size, rel=0.01)
    largest = max(parameter.nbytes for parameter in values["model"].parameters())
    assert zero1.optimizer == pytest.approx(2 * max(largest, size / 4), rel=0.01), "whole parameters, the largest first"
    assert divided.gradients == pytest.approx(size / 4, rel=0.01)
    assert size / 4 < divided.parameters, "blocks are whole while they are at work"
    assert divided.activations < zero1.activations == auto.activations, "an optimizer needs less for a moment of rows"
    assert auto.activations < one.activations, "of a quarter of the batch"
    (blocks,) = plans(measure(CELL, values, engines=[4], device="cpu"), [dataclasses.replace(everything, by_blocks=True)], [4])
    biggest = max(sum(parameter.nbytes for parameter in layer.parameters()) for layer in values["model"])
    assert blocks.gradients == pytest.approx(biggest, rel=0.01), "a part ends with a block"
    assert blocks.optimizer == pytest.approx(2 * blocks.gradients, rel=0.01)
    rows = table(found).splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["1", "auto"], ["4", "auto"], ["4", "zero1"], ["4", "all"]]


def test_the_choice_is_data_parallel_or_the_fastest_that_fits():
    found = plans(measure(CELL, made("mlp"), engines=[4], device="cpu"), [find("auto"), find("zero1")], [4])
    auto, zero1 = found
    assert choice(found, 4, 2 * auto.total) == (auto, choice(found, 4, 2 * auto.total)[1])
    plan, why = choice(found, 4, int(1.2 * zero1.total))
    assert plan is zero1
    assert "auto would take" in why
    assert choice(found, 4, 0) == (None, "How much memory each of 4 engines has is not known here.")
    plan, why = choice(found, 4, 1000)
    assert plan is None
    assert why.startswith("None has room: --strategy zero1 takes least")


class Words(Dataset):
    """Samples as Hugging Face's collators make batches of them."""

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.reads += 1
        return {"input_ids": classes(50, 6), "labels": classes(50, 6)}


class WithLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embedding(input_ids))
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def test_batches_by_name_and_a_loss_of_the_models_own():
    model, data = WithLoss(), Words()
    values = {"model": model, "loader": DataLoader(data, batch_size=8), "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    found = measure(ast.parse("for batch in loader:\n    model(**batch)['loss'].backward()"), values, engines=[1], device="cpu")
    assert found.steps[8].loss == "the model's own loss"
    assert data.reads == 0


class Unforeseeable(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


class Texts(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return "text"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (lambda: {"loader": made("mlp")["loader"]}, "The cell has no model from the notebook"),
        (lambda: {"model": nn.Linear(64, 10)}, "The cell has no DataLoader from the notebook"),
        (lambda: made("mlp") | {"model": Unforeseeable(64, 10)}, "What model takes cannot be predicted before the cell runs: "),
        (lambda: made("mlp") | {"model": nn.Linear(63, 10)}, "What model takes cannot be predicted before the cell runs: "),
        (lambda: made("mlp") | {"loader": DataLoader(Texts())}, "there is no tensor in the first batch of the loader"),
    ],
)
def test_what_cannot_be_predicted_is_said(values, says):
    with pytest.raises(UsageError, match=says):
        measure(CELL, values(), engines=[1], device="cpu")


@pytest.fixture
def gpu_here(monkeypatch):
    """A host that has a GPU, as far as the planner asks: what it computes on is the CPU still."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize("name", ["resnet", "lstm", "tied transformer", "bag"])
def test_a_host_with_a_gpu_plans_the_same_in_a_new_process(name, monkeypatch):
    values = made(name)
    forked = measure(CELL, values, engines=[1, 2], device="cpu", rules=rules)
    before, state = copy.deepcopy(values["model"].state_dict()), torch.get_rng_state()
    values["optimizer"].state[next(values["model"].parameters())]["kept"] = torch.ones(3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = measure(CELL, values, engines=[1, 2], device="cpu", rules=rules)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, before.values(), values["model"].state_dict().values()))
    assert len(values["optimizer"].state) == 1
    assert found.batch_size == forked.batch_size
    for share, step in found.steps.items():
        other = forked.steps[share]
        assert dataclasses.replace(step, work=other.work) == other
        assert (step.work.passes.flops, step.work.passes.traffic) == (other.work.passes.flops, other.work.passes.traffic)


def test_a_new_process_has_what_a_notebook_defines(gpu_here):
    space: dict[str, Any] = {"nn": nn, "torch": torch, "scale": torch.full((64,), 2.0), "asked": [], "__name__": "__main__"}
    exec(
        "def scaled(x):\n    asked.append(1)\n    return x * scale\n"
        "class Own(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 10)\n"
        "        self.weights = self.layer.weight.detach()[2:]\n"
        "    def forward(self, x):\n"
        "        return self.layer(scaled(x)) + self.weights.sum()\n",
        space,
    )
    found = measure(CELL, made("mlp") | {"model": space["Own"]()}, engines=[1], device="cpu")
    assert next(iter(found.steps.values())).parameters == 4 * 650
    assert space["asked"] == []


class StorageOnGpu:
    """As much of a GPU's storage as is asked before it is left out."""

    device = torch.device("cuda")

    def __init__(self, number):
        self._cdata = number

    def nbytes(self):
        return 8

    def is_shared(self):
        return False


def test_parameters_of_a_gpu_take_no_memory_there():
    parameter, mask = StorageOnGpu(1), StorageOnGpu(2)
    packer = new_process._ShapePacker(namespace={}, elsewhere={parameter._cdata: new_process.ON_CPU})
    packed = [packer._storage(storage) for storage in (parameter, mask)]  # type: ignore[arg-type]
    assert [leaf.device for leaf in new_process._leaves(packer.packed())] == ["cpu", "cuda"]
    assert packed == [0, 1]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (lambda: made("mlp") | {"model": nn.Linear(63, 10)}, "What model takes cannot be predicted before the cell runs: RuntimeError: "),
        (lambda: made("mlp") | {"model": Unforeseeable(64, 10)}, "What model takes cannot be predicted before the cell runs: "),
        (lambda: made("mlp") | {"loader": DataLoader(Texts())}, "there is no tensor in the first batch of the loader"),
    ],
)
def test_a_new_process_says_what_cannot_be_predicted(values, says, gpu_here):
    with pytest.raises(UsageError, match=says):
        measure(CELL, values(), engines=[1], device="cpu")


def test_the_size_of_a_batch_is_how_long_most_of_its_tensors_are():
    assert batch_size_of({"x": torch.zeros(4, 3), "y": [torch.zeros(4), torch.zeros(2, 4)]}) == 4
    assert batch_size_of("text") == 0


@pytest.mark.parametrize("kind", ["encoder", "residual"])
def test_equal_blocks_are_gone_through_once_and_take_what_each_takes(monkeypatch, kind):
    """What a step computes and keeps is what it is where each block is gone through, and the most of it but for what is soon freed."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.1)
    encoder = nn.Sequential(nn.Linear(8, 128), nn.TransformerEncoder(layer, 6), nn.Linear(128, 10))
    blocks = nn.Sequential(nn.Conv2d(3, 16, 3), *[Residual(16) for _ in range(5)], nn.Flatten(), nn.LazyLinear(10))
    model, inputs, target = {"encoder": (encoder, (16, 6, 8), (16, 6, 10)), "residual": (blocks, (16, 3, 8, 8), (16, 10))}[kind]
    model(numbers(*inputs))
    loader = DataLoader(TensorDataset(numbers(*inputs), numbers(*target)), batch_size=8)

    def steps(*, each: bool):
        calls: list[str] = []
        original = fake_step._pass
        stood = equal_blocks.EqualBlocks._stand

        def one_pass(*args, **kwargs):
            return original(*args, **{**kwargs, "once": not each})

        def stand(blocks, *args):
            calls.append("stands")
            return stood(blocks, *args)

        monkeypatch.setattr(memory_plan, "call_in_fork", lambda function, limit: function())
        monkeypatch.setattr(fake_step, "_pass", one_pass)
        monkeypatch.setattr(equal_blocks.EqualBlocks, "_stand", stand)
        one = copy.deepcopy(model)
        own = {"model": one, "optimizer": torch.optim.AdamW(one.parameters()), "loader": loader}
        found = measure(CELL, own, engines=[2], device="cpu", rules=rules).steps
        monkeypatch.undo()
        return found, calls

    def timeless(step):
        """Return what a step takes but for the seconds of what was tried."""
        work = step.work
        return dataclasses.replace(step, work=dataclasses.replace(work, passes=work.passes._replace(seconds=0.0)))

    (alone, no_calls), (found, calls) = steps(each=True), steps(each=False)
    assert not no_calls
    assert len(calls) == 2 * {"encoder": 4, "residual": 3}[kind], "on both shares, all but the first and the last"
    for samples, step in found.items():
        for name, value in vars(timeless(step)).items():
            expected = getattr(timeless(alone[samples]), name)
            assert value == (pytest.approx(expected, rel=0.05) if name in ("peak", "passing", "ungraded", "remaining") else expected), name


class Remembers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        self.seen = torch.tanh(self.layer(x))
        return self.seen * 2


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Remembers() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x + torch.stack([vars(block)["seen"] for block in self.blocks]).sum(0)


def test_a_model_that_looks_into_its_blocks_is_gone_through_as_it_is():
    model = nn.Sequential(nn.Linear(32, 32), Looks())
    loader = DataLoader(TensorDataset(numbers(16, 32), classes(32, 16)), 8)
    values = {"model": model, "optimizer": torch.optim.SGD(model.parameters()), "loader": loader}
    assert measure(CELL, values, engines=[2], device="cpu").steps[8].gradients == sum(one.nbytes for one in model.parameters())
