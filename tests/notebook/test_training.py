"""A training cell on engines leaves in the notebook what it would have left without ``%%distribute``."""

from __future__ import annotations

import re

import pytest

from tests.notebook.kernel import difference

DATA = """
torch.manual_seed(1)
inputs = torch.randn(45, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
dataset = TensorDataset(inputs, targets)
loader = DataLoader(dataset, batch_size=8, shuffle=True)  # the last batch has 5
"""
MODEL = """
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
"""
TRAIN = """
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""
STATE = "model.state_dict(), optimizer.state_dict()"


NOTHING_SHARED_OUT = re.compile(r"No DataLoader was sharded: every .*|No model was in training mode, .*|This cell shards nothing .*")


def assert_same_as_plain(notebook, setup, cell, state, *, engines=2):
    """Run `cell` plain and on engines, each after the same `setup`, and compare `state`, prints and the last line's value."""
    *before, last = [setup] if isinstance(setup, str) else setup
    random = "torch.rand(3).tolist()"  # the stream goes on where the cell left it

    def run(magic):
        for code in (*before, last):
            notebook.run(code)
        ran = notebook.run(magic + cell)
        return ran, notebook.value(f"({state}, {random})")

    plain, expected = run("")
    distributed, found = run(f"%%distribute --engines {engines}\n")
    assert difference(found, expected) is None
    assert distributed.stdout == plain.stdout
    assert distributed.result == plain.result
    assert [line for line in distributed.stderr.splitlines() if not NOTHING_SHARED_OUT.fullmatch(line)] == plain.stderr.splitlines()
    return distributed


# -- one cell, as typed ------------------------------------------------------------------------------------------------

NOTEBOOK = [
    DATA,
    """
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.last(torch.tanh(self.first(x)))
""",
    """
model = Net(8)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
criterion = nn.MSELoss()
epochs, num_steps, rates = 3, 0, []
same_model, same_optimizer, same_rates = model, optimizer, rates
""",
]
TRAIN_AND_SCHEDULE = """
for epoch in range(epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        num_steps += 1
    scheduler.step()
    rates.append(scheduler.get_last_lr())
    print("epoch", epoch, "rate", scheduler.get_last_lr())
names = {"a list": [epoch, 0.5], "a tensor": torch.arange(3)}
num_steps, rates[-1]
"""


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_everything_that_the_cell_changed_is_as_if_it_had_run_here(notebook, engines):
    state = "model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), rates, epoch, num_steps, names"
    cell = assert_same_as_plain(notebook, NOTEBOOK, TRAIN_AND_SCHEDULE, state, engines=engines)
    assert cell.stdout.splitlines()[-1] == "epoch 2 rate [0.00125]"
    assert cell.result == "(18, [0.00125])"
    assert notebook.value("optimizer.state[model.last.bias]['step'].item(), model.calls.item(), len(rates)") == (18, 18, 3)

    # The same objects as before, and still each other's.
    assert notebook.value("model is same_model and optimizer is same_optimizer and rates is same_rates")
    assert notebook.value("type(model) is Net and scheduler.optimizer is optimizer")
    assert notebook.value("[id(p) for p in optimizer.param_groups[0]['params']] == [id(p) for p in model.parameters()]")
    assert notebook.value("[id(p) for p in optimizer.state] == [id(p) for p in model.parameters()]")

    # And all of it goes on: a plain cell, then engines again.
    notebook.run(TRAIN_AND_SCHEDULE)
    assert notebook.run(f"%%distribute --engines {engines}" + TRAIN_AND_SCHEDULE).result == "(54, [1.953125e-05])"


def test_the_last_batch_its_loss_and_a_history_of_losses_are_those_of_the_whole_batch(notebook):
    cell = "history = []\n" + TRAIN + "        history.append(loss.item())\n"
    assert_same_as_plain(notebook, [DATA, MODEL], cell, "history, x, y, loss.item(), len(x), x.shape")
    assert notebook.value("len(history), len(x)") == (18, 5)


@pytest.mark.parametrize(
    ("loader", "engines"),
    [
        pytest.param("DataLoader(dataset, batch_size=7)", 2, id="a batch that does not divide"),
        pytest.param("DataLoader(dataset, batch_size=22, shuffle=True)", 3, id="a last batch with one sample, on three engines"),
        pytest.param("DataLoader(dataset, batch_size=1, shuffle=True)", 2, id="a batch of one"),
        pytest.param(
            "DataLoader(torch.utils.data.Subset(dataset, [3, 8]), batch_size=8, shuffle=True)", 3, id="fewer samples than engines"
        ),
        pytest.param("DataLoader(dataset, batch_size=8, drop_last=True)", 3, id="drop_last"),
        pytest.param("DataLoader(dataset, batch_size=8, shuffle=True, num_workers=1)", 2, id="a worker process"),
        pytest.param("DataLoader(dataset, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(3))", 2, id="a generator"),
        pytest.param(
            "DataLoader(dataset, sampler=torch.utils.data.WeightedRandomSampler(torch.arange(45.), 20), batch_size=6)", 2, id="a sampler"
        ),
        pytest.param("[(inputs[:9], targets[:9]), (inputs[9:], targets[9:])]", 2, id="no loader, but a list"),
    ],
)
def test_whatever_the_batches_the_weights_are_those_of_one_process(notebook, loader, engines):
    setup = [DATA, f"loader = {loader}", MODEL]
    assert_same_as_plain(notebook, setup, TRAIN, STATE, engines=engines)


SENTENCES = """
class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 13

    def __getitem__(self, index):
        return {"text": f"number {index}", "inputs": inputs[index], "target": targets[index], "index": index}
"""
BATCHES_AS_DICTS = """
texts, indices = [], []
for batch in DataLoader(Sentences(), batch_size=5, shuffle=True):
    optimizer.zero_grad()
    F.mse_loss(model(batch["inputs"]), batch["target"]).backward()
    optimizer.step()
    texts += batch["text"]
    indices += batch["index"].tolist()
"""
STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        for index in range(11):
            yield inputs[index], targets[index]

loader = DataLoader(Stream(), batch_size=4)
"""


def test_batches_that_are_dicts_of_texts_and_tensors(notebook):
    assert_same_as_plain(notebook, [DATA, SENTENCES, MODEL], BATCHES_AS_DICTS, f"{STATE}, texts, indices")
    assert sorted(notebook.value("texts")) == sorted(f"number {index}" for index in range(13))


def test_an_iterable_data_set(notebook):
    assert_same_as_plain(notebook, [DATA, STREAM, MODEL], TRAIN, STATE, engines=3)


def test_a_data_set_that_draws_random_numbers_leaves_the_ranks_in_agreement(notebook):
    """Each rank loads samples of its own, so each draws other numbers: the order of the next epoch must not come from these."""
    notebook.run(DATA + MODEL)
    notebook.run("""
import random
import numpy

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return len(inputs)

    def __getitem__(self, index):
        random.random(), numpy.random.rand()
        return inputs[index] + 0.1 * torch.randn(6), index
""")
    notebook.run("""%%distribute --engines 2
import torch.distributed as dist
epochs = []
for epoch in range(3):
    epochs.append([])
    for x, index in DataLoader(Noisy(), batch_size=8, shuffle=True):
        model(x).square().mean().backward()
        epochs[-1] += index.tolist()
next_draws = [None] * 2
dist.all_gather_object(next_draws, (torch.rand(1).item(), random.random(), numpy.random.rand()))
""")
    epochs, next_draws = notebook.value("(epochs, next_draws)")
    assert [sorted(epoch) for epoch in epochs] == [list(range(45))] * 3  # each sample once in each epoch
    assert epochs[0] != epochs[1] != epochs[2]
    assert next_draws[0] == next_draws[1]


def test_a_model_with_dropout_on_one_engine_draws_what_the_notebook_would(notebook):
    dropout = MODEL.replace("nn.Tanh()", "nn.Tanh(), nn.Dropout(0.3)")
    assert_same_as_plain(notebook, [DATA, dropout], TRAIN, STATE, engines=1)


def test_dropout_differs_between_ranks_and_leaves_them_in_agreement(notebook):
    notebook.run(DATA + "model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5))")
    notebook.run("""%%distribute --engines 2
import torch.distributed as dist
for (x,) in DataLoader(TensorDataset(torch.ones(2, 6)), batch_size=2):
    kept = model(x).ne(0).tolist()
next_draws = [None] * 2
dist.all_gather_object(next_draws, torch.rand(1).item())
""")
    kept, next_draws = notebook.value("(kept, next_draws)")
    assert [len(row) for row in kept] == [64, 64]
    assert kept[0] != kept[1]
    assert next_draws[0] == next_draws[1]


# -- over many cells ---------------------------------------------------------------------------------------------------


def test_a_loop_in_a_function_of_another_cell_and_its_global_counters(notebook):
    setup = [
        DATA,
        MODEL,
        "num_batches = 0\nbest = []",
        """
def step(x, y):
    global num_batches
    num_batches += 1
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
""",
        """
def train(epochs):
    for epoch in range(epochs):
        for batch in loader:
            step(*batch)
        best.append(epoch)
    return num_batches
""",
    ]
    cell = assert_same_as_plain(notebook, setup, "total = train(2)\ntotal", f"{STATE}, num_batches, best, total")
    assert cell.result == "12"
    assert notebook.value("(num_batches, best)") == (12, [0, 1])
    assert notebook.run("train(1)").result == "18"  # the function counts on in the notebook


def test_a_trainer_that_holds_model_and_optimizer(notebook):
    setup = [
        DATA,
        """
class Trainer:
    def __init__(self, model, **options):
        self.model, self.optimizer = model, torch.optim.Adam(model.parameters(), **options)
        self.steps, self.log = 0, {}

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            for x, y in loader:
                self.optimizer.zero_grad()
                self.loss(x, y).backward()
                self.optimizer.step()
                self.steps += 1
            self.log[epoch] = self.steps
        return self

    def loss(self, x, y):
        return F.mse_loss(self.model(x), y)
""",
        "model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))\ntrainer = Trainer(model, lr=0.02)",
    ]
    assert_same_as_plain(
        notebook, setup, "same = trainer.fit(loader, 2) is trainer", "model.state_dict(), trainer.optimizer.state_dict(), trainer.log, same"
    )
    assert notebook.value("(trainer.model is model, trainer.steps, trainer.log)") == (True, 12, {0: 6, 1: 12})
    assert notebook.value("isinstance(trainer, Trainer) and len(trainer.fit(loader, 1).log)") == 2


LINKED = """
class Node:
    def __init__(self, after, value):
        self.after, self.value, self.seen = after, value, []

def values_from(node):
    values = []
    while node is not None:
        values.append(node.value)
        node = node.after
    return values

last = None
for number in range(1500):
    last = Node(last, number)
"""
LINK = """
nested, first = [], last
for number in range(1200):
    nested = [nested]
for x, y in loader:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    last = Node(last, loss.item())
first.after.after.seen.append(len(values_from(last)))
"""


def test_objects_that_hold_one_another_a_thousand_deep(notebook):
    state = "model.state_dict(), values_from(last), first.after.after.seen, nested[0][0] is not nested"
    assert_same_as_plain(notebook, [DATA, MODEL, LINKED], LINK, state)


def test_the_same_cell_again_goes_on_from_where_it_was(notebook):
    twice = assert_same_as_plain(notebook, [DATA, MODEL, TRAIN], TRAIN, STATE)
    again = notebook.value(STATE)
    for code in (DATA, MODEL, "%%distribute -n 3\n" + TRAIN, "%%distribute -n 2\n" + TRAIN):
        notebook.run(code)
    assert difference(notebook.value(STATE), again) is None
    assert twice.ok


def test_cells_imports_functions_and_classes_stay_in_the_notebook(notebook):
    cell = (
        """
import fractions
from math import tau as circle

class Scaled(nn.Linear):
    def forward(self, x):
        return super().forward(x) * factor

def half(x):
    return fractions.Fraction(x, 2)

factor = 0.5
model = Scaled(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
"""
        + TRAIN
    )
    assert_same_as_plain(notebook, DATA, cell, f"{STATE}, circle, factor")
    assert notebook.value("str(half(3)), type(model).__name__, isinstance(model, Scaled)") == ("3/2", "Scaled", True)
    assert notebook.run("factor = 0.0\nmodel(inputs).abs().sum().item()").result == "0.0"  # reads the notebook's name


def test_models_of_a_module_beside_the_notebook_are_saved_and_loaded_whole(notebook):
    (notebook.folder / "mlp.py").write_text(
        "import torch\nfrom torch import nn\nwidth = 3\n\nclass MLP(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.linear = nn.Linear(width, 1)\n\n"
        "    def forward(self, x):\n        return self.linear(x)\n"
    )
    notebook.run("import mlp\nfrom mlp import MLP\nmlp.width = 2\nnet = MLP()")
    notebook.run(
        "%%distribute --engines 2\nfrom mlp import MLP as again\ntorch.save(net, 'net.pt')\n"
        "read = torch.load('net.pt', weights_only=False)\n"
        "kinds = [type(read) is type(net), again is MLP, isinstance(net, again), again().linear.in_features]"
    )
    assert notebook.value("kinds") == [True, True, True, 2]
    assert notebook.value("[type(read) is MLP, type(torch.load('net.pt', weights_only=False)) is MLP]") == [True, True]
    notebook.run(
        "%%distribute --engines 2\nwidth = mlp.width\nimport mlp as same\nkinds = [same is mlp, width, same.width]\nsame.width = 5"
    )
    assert notebook.value("[*kinds, mlp.width]") == [True, 2, 2, 5]


def test_a_module_beside_the_notebook_and_its_later_version(notebook):
    module = notebook.folder / "beside.py"
    module.write_text("def scale(x):\n    return 2 * x\n")
    notebook.run("import beside, importlib")
    assert notebook.run("%%distribute --engines 2\nbeside.scale(4)").result == "8"
    module.write_text("FACTOR = 30\ndef scale(x):\n    return FACTOR * x\n")
    notebook.run("importlib.reload(beside)")
    assert notebook.run("%%distribute --engines 2\nbeside.scale(4)").result == "120"


def test_a_module_that_the_cell_imports_again_is_as_the_notebook_has_changed_it(notebook):
    (notebook.folder / "setup_of.py").write_text("LR = 0.5\ndef rate():\n    import setup_of\n    return setup_of.LR\n")
    notebook.run("import setup_of\nfrom setup_of import rate\nsetup_of.LR = 0.1")
    assert notebook.run("%%distribute --engines 2\nimport setup_of as s\nfrom setup_of import LR\ns.LR, LR").result == "(0.1, 0.1)"
    assert notebook.run("%%distribute --engines 2\nrate()").result == "0.1"


def test_a_module_that_only_cells_import_is_read_again_once_it_was_edited(notebook):
    module = notebook.folder / "only_cells.py"
    for text in ("old", "newer"):
        module.write_text(f"def f():\n    return {text!r}\n")
        assert notebook.run("%%distribute --engines 2\nimport only_cells\nonly_cells.f()").result == repr(text)


def test_workers_that_live_on_draw_on_in_the_next_cell(notebook):
    setup = """
torch.manual_seed(0)
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, index):
        return torch.rand(6) + index, torch.rand(1)
workers = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
loader = torch.utils.data.DataLoader(Noisy(), batch_size=4, shuffle=True, **workers)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
seen = []
"""
    cell = """
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen.append((x.sum().item(), loss.item()))
"""
    found = []
    for magic in ("", "%%distribute --engines 2\n"):
        notebook.run(setup)
        notebook.run(magic + cell)
        notebook.run(magic + cell)
        found.append(notebook.value("(seen, torch.rand(1).item())"))
    (plain, drawn), (here, drawn_here) = found
    assert here == [pytest.approx(pair, rel=1e-9) for pair in plain]
    assert drawn == drawn_here


def test_settings_of_the_notebook_hold_on_the_engines_and_those_of_the_cell_hold_here(notebook, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "elsewhere.py").write_text("value = 5\n")
    try:
        notebook.run(f"import os, sys\nos.chdir({str(tmp_path)!r})\nsys.path.insert(0, 'lib')\ntorch.set_default_dtype(torch.float16)")
        notebook.run("%%distribute --engines 2\nimport elsewhere\nfound = elsewhere.value, os.getcwd(), str(torch.ones(1).dtype)")
        assert notebook.value("found") == (5, str(tmp_path), "torch.float16")
        notebook.run("%%distribute --engines 2\ntorch.set_default_dtype(torch.float32)\nos.chdir('lib')")
        assert notebook.value("(os.getcwd(), str(torch.ones(1).dtype))") == (str(tmp_path / "lib"), "torch.float32")
    finally:
        notebook.run(f"os.chdir({str(notebook.folder)!r})\nsys.path.remove('lib')\ntorch.set_default_dtype(torch.float64)")
        notebook.run("globals().pop('elsewhere', None)")  # which engines could not import for a later test's cell


def test_deleted_names_are_gone_and_others_are_left_alone(notebook):
    notebook.run("a, b = 1, [2]\nkept = b")
    assert notebook.run("%%distribute -n 2\ndel a\nb.append(3)\nb = 'new'").result is None
    assert notebook.value("('a' in globals(), b, kept)") == (False, "new", [2, 3])


# -- ways to train -----------------------------------------------------------------------------------------------------


MADE_INSIDE = DATA + MODEL + TRAIN

FROZEN = """
for parameter in model[0].parameters():
    parameter.requires_grad = False
for epoch in range(3):
    if epoch == 1:
        model[0].requires_grad_(True)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
"""

ACCUMULATED = """
for index, (x, y) in enumerate(loader):
    (F.mse_loss(model(x), y) / 2).backward()
    if index % 2:
        optimizer.step()
        optimizer.zero_grad()
"""

CLIPPED = """
norms = []
for x, y in loader:
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
    optimizer.step()
"""

GAN = """
for (real, _) in loader:
    fake = generator(torch.randn(len(real), 3))
    d_optimizer.zero_grad()
    d_loss = bce(critic(real), torch.ones(len(real), 1)) + bce(critic(fake.detach()), torch.zeros(len(real), 1))
    d_loss.backward()
    d_optimizer.step()
    g_optimizer.zero_grad()
    g_loss = bce(critic(fake), torch.ones(len(real), 1))
    g_loss.backward()
    g_optimizer.step()
"""
GAN_MODELS = """
generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6))
critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
d_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
g_optimizer = torch.optim.Adam(generator.parameters(), lr=0.01)
bce = nn.BCEWithLogitsLoss()
"""

LOSS_METHOD = """
class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(6, 3), nn.Linear(3, 6)

    def encode(self, x):
        return torch.tanh(self.down(x))

    def training_loss(self, batch):
        return F.mse_loss(self.up(self.encode(batch[0])), batch[0])

model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
"""

TIED = """
torch.manual_seed(1)
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 4), nn.Linear(4, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))

model = Tied()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
words = torch.randint(11, (21, 2))
loader = DataLoader(TensorDataset(words[:, 0], words[:, 1]), batch_size=4, shuffle=True)
"""

BY_HAND = """
for step in range(6):
    loss = ((torch.tanh(inputs @ w) @ v - targets) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in (w, v):
            p -= 0.1 * p.grad
            p.grad = None
losses = loss.item()
"""

CLOSURE = """
def closure():
    lbfgs.zero_grad()
    loss = F.mse_loss(model(inputs), targets)
    loss.backward()
    return loss

for _ in range(3):
    lbfgs.step(closure)
"""

EARLY_STOP = """
best, waited = float("inf"), 0
for epoch in range(20):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * x.size(0)
        if loss < 0.05:
            break
    print(f"{epoch} {total / len(dataset):.9f}")
    waited = 0 if total < best else waited + 1
    best = min(best, total)
    if waited == 2:
        break
"""

CLASSIFIER = """
torch.manual_seed(1)
images, labels = torch.randn(30, 1, 4, 4), torch.randint(3, (30,))
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
ACCURACY = """
for epoch in range(2):
    correct = count = 0
    confusion = torch.zeros(3, 3, dtype=torch.int64)
    for images_, labels_ in loader:
        images_, labels_ = images_.to(device), labels_.to(device)
        scores = model(images_)
        loss = F.cross_entropy(scores, labels_)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predicted = scores.argmax(dim=1)
        correct += (predicted == labels_).sum().item()
        count += labels_.size(0)
        for wanted, got in zip(labels_, predicted):
            confusion[wanted, got] += 1
    print(f"epoch {epoch}: accuracy {correct / count:.4f} of {count}")
"""

UNUSED = """
for index, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    F.mse_loss((left if index % 3 else right)(x), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("setup", "cell", "state"),
    [
        pytest.param("", MADE_INSIDE, STATE, id="model, loader and optimizer made in the cell"),
        pytest.param([DATA, MODEL], FROZEN, STATE, id="a frozen layer, thawed after an epoch"),
        pytest.param([DATA, MODEL], ACCUMULATED, STATE, id="gradients of two batches accumulated"),
        pytest.param([DATA, MODEL], TRAIN.replace("mse_loss(model(x), y)", "mse_loss(model(x), y, reduction='sum')"), STATE, id="a sum"),
        pytest.param([DATA, MODEL], EARLY_STOP, f"{STATE}, epoch, best", id="decisions on the loss"),
        pytest.param(CLASSIFIER, ACCURACY, f"{STATE}, correct, count, confusion", id="accuracy of training"),
        pytest.param([DATA, MODEL], CLIPPED, f"{STATE}, norms", id="clipped gradients"),
        pytest.param(
            [DATA, GAN_MODELS],
            GAN,
            "generator.state_dict(), critic.state_dict(), d_optimizer.state_dict(), g_optimizer.state_dict()",
            id="two models with an optimizer each",
        ),
        pytest.param(
            [DATA, LOSS_METHOD],
            "for batch in loader:\n    optimizer.zero_grad()\n    model.training_loss(batch).backward()\n    optimizer.step()",
            STATE,
            id="a method that computes the loss",
        ),
        pytest.param(
            TIED,
            TRAIN.replace("mse_loss", "cross_entropy"),
            f"{STATE}, model.head.weight is model.embed.weight",
            id="tied weights",
        ),
        pytest.param(
            [DATA, "w = torch.randn(6, 4, requires_grad=True)\nv = torch.randn(4, 1, requires_grad=True)"],
            BY_HAND,
            "w, v, losses, w.grad is None",
            id="by hand: no module, no optimizer, no loader",
        ),
        pytest.param([DATA, MODEL + "lbfgs = torch.optim.LBFGS(model.parameters())"], CLOSURE, "model.state_dict()", id="LBFGS"),
        pytest.param(
            [
                DATA,
                "left, right = nn.Linear(6, 1), nn.Linear(6, 1)\noptimizer = torch.optim.Adam([*left.parameters(), *right.parameters()])",
            ],
            UNUSED,
            "left.state_dict(), right.state_dict(), optimizer.state_dict()",
            id="parameters that a step does not use",
        ),
    ],
)
def test_ways_to_train(notebook, setup, cell, state):
    assert_same_as_plain(notebook, setup, cell, state)


# -- evaluation --------------------------------------------------------------------------------------------------------

EVALUATE = """
model.eval()
seen, error = 0, 0.0
with torch.no_grad():
    for x, y in loader:
        seen += len(x)
        error += F.mse_loss(model(x), y, reduction="sum").item()
print(f"mean squared error {error / seen:.10f} over {seen} of {len(dataset)}")
model.train()
"""


def test_evaluation_in_the_training_cell_sees_the_whole_loader(notebook):
    epoch = "        optimizer.step()\n"
    cell = TRAIN + epoch.rstrip() + "\n" + "\n".join("    " + line for line in EVALUATE.splitlines())
    shown = assert_same_as_plain(notebook, [DATA, MODEL], cell, f"{STATE}, seen, error, model.training")
    assert [line.partition("over ")[2] for line in shown.stdout.splitlines()] == ["45 of 45"] * 3


@pytest.mark.parametrize("options", ["--split-eval", "--batch-size per-rank"])
def test_evaluation_that_is_shared_out_reads_the_same(notebook, options):
    setup = [DATA, MODEL, "evaluated = DataLoader(dataset, batch_size=9)"]
    plain = notebook.run("".join(setup) + EVALUATE.replace("in loader", "in evaluated"))
    expected = notebook.value("(seen, error)")
    notebook.run("".join(setup))
    found = notebook.run(f"%%distribute --engines 3 {options}\n" + EVALUATE.replace("in loader", "in evaluated"))
    assert difference(notebook.value("(seen, error)"), expected) is None
    assert found.stdout == plain.stdout


@pytest.mark.parametrize("broken", ["weights.grad.no_such_name", "raise KeyError(1)"])
def test_advice_does_not_stand_above_an_error(notebook, broken):
    notebook.run("weights = torch.ones(4, requires_grad=True)\nnot_in_training = nn.Linear(4, 1).eval()")
    cell = notebook.fail(
        f"%%distribute --engines 3 --replicate\nfor step in range(3):\n    not_in_training(weights).sum().backward()\n{broken}"
    )
    assert (cell.stderr, cell.run_views[-1]["text/plain"].partition(" in ")[0].partition(": ")[2]) == ("", "failed, 3 steps")


def test_a_backward_pass_that_fails_is_no_step(notebook):
    notebook.run("weights = torch.ones(4, requires_grad=True)")
    cell = notebook.fail("%%distribute --engines 3 --replicate\n(weights * 2).backward()")
    assert (cell.error[0], cell.stderr) == ("RuntimeError", "")
    assert ": failed, no step finished in " in cell.run_views[-1]["text/plain"]


@pytest.mark.parametrize(("options", "said"), [("", "No model was in training mode"), ("--split-eval", "")])
def test_models_that_train_in_evaluation_mode(notebook, options, said):
    """As after a cell that has evaluated them, or with statistics that are to stay."""
    for code in (DATA, MODEL, "model.eval()"):
        notebook.run(code)
    notebook.run(TRAIN)
    expected = notebook.value(STATE)
    for code in (DATA, MODEL, "model.eval()"):
        notebook.run(code)
    cell = notebook.run(f"%%distribute --engines 3 {options}\n" + TRAIN)
    assert difference(notebook.value(STATE), expected) is None
    assert cell.stderr.startswith(said)
    assert bool(cell.stderr) == bool(said)


def test_batches_of_each_rank_train_as_one_process_with_a_larger_batch(notebook):
    cell = TRAIN + "    print(len(loader), loss.item())\n"
    for code in (DATA, "loader = DataLoader(dataset, batch_size=12, shuffle=True)", MODEL):
        notebook.run(code)
    plain = notebook.run(cell)
    expected = notebook.value(STATE)
    for code in (DATA, "loader = DataLoader(dataset, batch_size=4, shuffle=True)", MODEL):
        notebook.run(code)
    found = notebook.run("%%distribute --engines 3 --batch-size per-rank\n" + cell)
    assert difference(notebook.value(STATE), expected) is None
    assert [float(number) for number in found.stdout.split()] == pytest.approx([float(number) for number in plain.stdout.split()])
    assert notebook.value("len(loader)") == 12  # here, the loader is what it was


def test_a_cell_that_only_evaluates_sees_the_whole_loader(notebook):
    cell = assert_same_as_plain(notebook, [DATA, MODEL, TRAIN], EVALUATE, "seen, error", engines=3)
    assert "over 45 of 45" in cell.stdout


def test_no_grad_alone_is_evaluation_too(notebook):
    cell = "with torch.no_grad():\n    seen = sum(len(model(x)) for x, _ in loader)\nseen"
    assert assert_same_as_plain(notebook, [DATA, MODEL], cell, "seen").result == "45"


def test_a_random_state_of_the_cell_is_a_plain_tensor(notebook):
    notebook.run(
        "%%distribute --engines 2\nstate = torch.get_rng_state()\nwith torch.random.fork_rng():\n    torch.rand(2)\ndrawn = torch.rand(2)"
    )
    assert notebook.value("vars(state)") == {}
    notebook.run("torch.set_rng_state(state)")
    assert notebook.value("torch.equal(torch.rand(2), drawn)")


def test_annotations_that_an_earlier_cell_has_postponed(notebook):
    notebook.run("from __future__ import annotations\nannotations = 5")
    try:
        notebook.run("%%distribute --engines 2\ndef of(x: NotDefined) -> Neither:\n    return annotations\nsaid = of.__annotations__")
        assert notebook.value("of(1), said") == (5, {"x": "NotDefined", "return": "Neither"})
        cell = notebook.fail("%%distribute --engines 2\ndef of(x: NotDefined):\n    raise ValueError(x)\nof(1)")
        assert "raise ValueError(x)" in cell.traceback
    finally:
        notebook.run("get_ipython().compile.reset_compiler_flags()")


def test_annotations_that_the_cell_postpones_for_later_ones(notebook):
    try:
        notebook.run("%%distribute --engines 2\n'A text.'\nfrom __future__ import annotations\ndef of(x: NotDefined): pass")
        notebook.run("def of(x: NotDefined): pass")
    finally:
        notebook.run("get_ipython().compile.reset_compiler_flags()")


OLD_HEAD = """%matplotlib inline
from __future__ import print_function, division
import torch
def times(n):
    total = 0
    for i in range(n):
        total += i
    return total / 2
class Sum:
    def of(self, n):
        return [times(i) for i in range(n)]
"""
"""How old tutorials begin."""


def test_imports_from_the_future_below_others_in_an_earlier_cell(notebook):
    notebook.run(OLD_HEAD)
    assert notebook.run("%%distribute --engines 2\ntimes(4), Sum().of(3)").result == "(3.0, [0.0, 0.0, 0.5])"
    notebook.run(
        "def before(x: int): return [i for i in range(x)]\n"
        "from __future__ import annotations\n"
        "def after(x: Later):\n    for i in range(x): pass\n    return i"
    )
    try:
        cell = "[before(2), after(3), before.__annotations__, after.__annotations__]"
        notebook.run(f"%%distribute --engines 2\nfound = {cell}\nfor i in range(2): after(2)")
        assert notebook.value(f"found == {cell}, found[3]") == (True, {"x": "Later"})
        found = notebook.run("%%distribute --engines 2\nfrom __future__ import division\ndef of(x: Neither): pass\nof.__annotations__")
        assert found.result == "{'x': 'Neither'}"
    finally:
        notebook.run("get_ipython().compile.reset_compiler_flags()")


def test_imports_from_the_future_below_others_in_the_cell(notebook):
    head = "import math; from __future__ import (print_function,  # of Python 2\n    division as divided); half = 1 / 2\n%time\n"
    body = (
        "from __future__ import absolute_import\nfor i in range(3): kept = math.sqrt(i)\nraised = divided.optional[:2], kept, half\nraised"
    )
    plain = notebook.run(head + body).result
    assert notebook.run(f"%%distribute --engines 2\n{head}{body}").result == plain
    cell = notebook.fail(f"%%distribute --engines 2\n{head}{body}\nmath.sqrt(-1)")
    assert "math.sqrt(-1)" in cell.traceback
    cell = notebook.fail("%%distribute --engines 2\nimport math\nfrom __future__ import nothing")
    assert "future feature nothing is not defined" in cell.traceback
    assert ", line 3" in cell.traceback


def test_types_of_a_batch_are_kept_as_those_of_tensors(notebook):
    notebook.run("import collections\nx_all = torch.randn(12, 3)\nbatches = DataLoader(TensorDataset(x_all), batch_size=6)")
    notebook.run(
        "%%distribute --engines 2\ncounts, kinds, classes = collections.Counter(), {}, []\nfor x, in batches:\n"
        "    counts.update(map(type, [x, 1, x.sum()]))\n    kinds[type(x), 'key'] = {type(x)}\n    classes += [type(x), x.__class__]"
    )
    assert notebook.value("counts[torch.Tensor]") == 4
    kept = notebook.value("[kind is torch.Tensor for kind in (*classes, *counts, *[*kinds][0], *[*kinds.values()][0])]")
    assert kept == [True, True, True, True, True, False, True, False, True]
