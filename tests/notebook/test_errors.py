"""What goes wrong is said once, with its cause and the next step, and the next cell works."""

from __future__ import annotations

import re

import pytest

from tests.notebook.kernel import SESSION, difference

MODEL = """
torch.manual_seed(1)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(8, 2)
"""
TRAIN = """%%distribute --engines 2 --replicate
for _ in range(2):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
len(optimizer.state), model.bias.item() == float(model.bias)
"""


@pytest.fixture(scope="module")
def trained(shared_notebook):
    """The notebook, whose engines have trained, and what that comes to plain: each test's fixture has them train again behind it."""
    shared_notebook.run(MODEL + "before = model.weight.tolist()" + "\n" + TRAIN.partition("\n")[2])
    before, expected = shared_notebook.value("(before, model.weight.tolist())")
    assert before != expected
    shared_notebook.run(MODEL)
    shared_notebook.run(TRAIN)
    return shared_notebook, expected


@pytest.fixture(autouse=True)
def _still_usable(trained):
    """After each error: the same processes as before it, none more, and a cell that trains."""
    notebook, expected = trained
    notebook.run(MODEL)
    processes = set(notebook.cluster_processes())
    yield
    assert set(notebook.cluster_processes()) == processes
    assert not notebook.value(f"{SESSION}.get().running")
    notebook.run(MODEL)
    notebook.run(TRAIN)
    assert notebook.value("model.weight.tolist()") == [pytest.approx(row, abs=1e-12) for row in expected]


# -- nothing was started -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setup", "use", "reason"),
    [
        (
            "import threading\nlock = threading.Lock(); lock.acquire()",
            "lock.release()",
            "'lock' (a lock), which cannot be sent to the engines: TypeError: cannot pickle a lock that is held",
        ),
        ("lines = (line for line in 'abc')", "next(lines)", "'lines' (a generator), which cannot be sent"),
        ("config = {'name': 'x', 'log': [open('log.txt', 'w+')]}", "config", "its ['log'][0] is a TextIOWrapper"),
        (
            "import socket\nmodel.cache = {'line': socket.socket()}",
            "model(inputs)",
            "'model' (a Linear), which cannot be sent to the engines: its .cache['line'] is a socket",
        ),
    ],
)
def test_a_name_that_cannot_be_sent(notebook, setup, use, reason):
    notebook.run(setup)
    cell = notebook.fail(f"%%distribute --engines 2\nprint('started')\n\n{use}")
    assert cell.error[0] == "CaptureError"
    name = reason.split("'")[1] if reason.startswith("'") else "config"
    assert f"line 4 uses {name!r}" in cell.traceback
    assert reason in cell.traceback
    assert f"Make {name!r} inside the cell instead" in cell.traceback
    assert "jupyter_dtrain" not in cell.traceback
    assert cell.stdout == ""


def test_a_name_that_cannot_be_sent_and_is_only_perhaps_needed_is_no_error(notebook):
    notebook.run("import threading\nlock, number = threading.Lock(), 3\nlock.acquire()")
    unread = "%%distribute --engines 2\nif number > 5:\n    lock = None\nif number > 4:\n    print(lock)\nnumber"
    assert notebook.run(unread).result == "3"
    assert notebook.value("type(lock).__name__") == "lock"
    cell = notebook.fail(unread.replace("> 4", "< 4"))
    assert cell.error == ("NameError", "name 'lock' is not defined")
    assert "('lock' exists in the notebook but could not be sent: TypeError: cannot pickle a lock that is held)" in cell.traceback


def test_a_cell_that_does_not_parse(notebook):
    cell = notebook.fail("%%distribute --engines 2\nprint('started')\nfor x in range(3)\n    print(x)")
    assert cell.error[0] == "SyntaxError"
    number = cell.contents("execute_input")[0]["execution_count"]
    assert f"Cell In[{number}], line 3\n    for x in range(3)\n                     ^\n" in cell.traceback
    assert "SyntaxError: expected ':'" in cell.traceback
    assert "jupyter_dtrain" not in cell.traceback
    assert cell.stdout == ""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--engine 2", "unrecognized arguments: --engine"),
        ("--engines", "argument --engines/-n: expected one argument"),
        ("--engines two", "'two' is not a whole number"),
        ("--engines 0", "--engines 0: a cluster has at least one engine; give a number from 1 up"),
        ("--device tpu", "--device tpu: choose auto, cpu or cuda"),
        ("--name 'x", "No closing quotation"),
        ("3", "unrecognized arguments: 3"),
    ],
)
def test_a_line_that_cannot_be_understood(notebook, line, message):
    for command in (f"%%distribute {line}\nprint('started')", f"%distribute start {line}"):
        if ("--name" in line or line == "3") and command.startswith("%distribute"):
            continue  # the first is of a cell alone, the second is a number of engines there
        cell = notebook.fail(command)
        assert cell.error[0] == "UsageError"
        assert message in cell.traceback
        assert "jupyter_dtrain" not in cell.traceback
        assert cell.stdout == ""
    if "unrecognized" in message and line != "3":
        assert "`%distribute start --help` explains each option" in cell.traceback


def test_more_engines_than_devices(notebook):
    cell = notebook.fail("%%distribute --engines 2 --device cuda\nprint('started')")
    assert cell.error[0] == "UsageError"
    assert "--device cuda: there is no NVIDIA GPU here." in cell.traceback
    assert "Use --device cpu, or omit --device." in cell.traceback
    assert cell.stdout == ""


# -- the cell itself ---------------------------------------------------------------------------------------------------


def test_a_cell_without_a_model_runs_on_every_engine(notebook):
    cell = notebook.run(
        "%%distribute --engines 3\n"
        "import torch.distributed as dist\n"
        "were_here = [None] * 3\n"
        "dist.all_gather_object(were_here, dist.get_rank())\n"
        "total = torch.tensor([dist.get_rank() + 1])\n"
        "dist.all_reduce(total)\n"
        "print('sum', int(total))\n"
        "int(total)"
    )
    assert (cell.stdout, cell.result) == ("sum 6\n", "6")
    assert notebook.value("total.tolist()") == [6]
    assert notebook.value("were_here") == [0, 1, 2]


def test_a_name_that_is_nowhere(notebook):
    cell = notebook.fail("%%distribute --engines 2\nstarted = 1\n\nmodle(inputs)\nprint('never')")
    number = cell.contents("execute_input")[0]["execution_count"]
    assert cell.error == ("NameError", "name 'modle' is not defined")
    assert cell.traceback.splitlines()[1:] == [
        "NameError                                                    on all 2 ranks",
        f"Cell In[{number}], line 4",
        "        2 started = 1",
        "        3",
        "---->   4 modle(inputs)",
        "        5 print('never')",
        "NameError: name 'modle' is not defined",
    ]
    assert notebook.value("started") == 1  # what was assigned before the error is there, as it would be in a plain cell


@pytest.mark.parametrize(
    "line",
    ["answer = input('Go on? ')", "import getpass\nanswer = getpass.getpass('Word? ')", "import pdb; pdb.set_trace()\nanswer = 1"],
)
def test_what_would_ask_somebody(notebook, line):
    cell = notebook.fail(f"%%distribute --engines 2\n{line}")
    assert "(Engines have no keyboard: " in cell.traceback


def test_an_error_in_functions_of_other_cells_shows_their_lines(notebook):
    first = notebook.run("def check(x):\n    if len(x) > 3:\n        raise ValueError(f'{len(x)} are too many')\n    return x")
    second = notebook.run("class Checker:\n    def run(self, x):\n        # passes it on\n        return check(x)")
    cell = notebook.fail("%%distribute --engines 2\nchecker = Checker()\nchecker.run(inputs)")
    one, two, three = (c.contents("execute_input")[0]["execution_count"] for c in (first, second, cell))
    assert cell.error == ("ValueError", "8 are too many")
    assert cell.traceback.splitlines()[1:] == [
        "ValueError                                                   on all 2 ranks",
        f"Cell In[{three}], line 3",
        "        2 checker = Checker()",
        "---->   3 checker.run(inputs)",
        f"Cell In[{two}], line 4, in run",
        "        2     def run(self, x):",
        "        3         # passes it on",
        "---->   4         return check(x)",
        f"Cell In[{one}], line 3, in check",
        "        1 def check(x):",
        "        2     if len(x) > 3:",
        "---->   3         raise ValueError(f'{len(x)} are too many')",
        "        4     return x",
        "ValueError: 8 are too many",
    ]
    assert notebook.run(
        "try:\n    get_ipython().run_cell_magic('distribute', '', 'check(inputs)')\nexcept ValueError as e:\n    print(e)"
    ).stdout


def test_an_error_inside_pytorch_shows_the_cells_line_and_where_it_was_raised(notebook):
    cell = notebook.fail("%%distribute --engines 2\nloss = model(inputs[:, :1]).sum()\nloss.backward()")
    assert cell.error[0] == "RuntimeError"
    assert "---->   2 loss = model(inputs[:, :1]).sum()" in cell.traceback
    assert "mat1 and mat2 shapes cannot be multiplied (8x1 and 2x1)" in cell.traceback
    assert "linear.py, line" in cell.traceback
    assert "jupyter_dtrain" not in cell.traceback
    assert len(cell.traceback.splitlines()) < 12


def test_an_error_after_some_steps_leaves_the_steps_that_were_done(notebook):
    notebook.run(MODEL + "before = model.weight.tolist()")
    cell = notebook.fail(TRAIN.replace("    optimizer.step()\n", "    optimizer.step()\n    done = _ + 1\n    assert done < 2, 'enough'\n"))
    assert cell.error == ("AssertionError", "enough")
    trained = notebook.value("model.weight.tolist()")
    assert trained != notebook.value("before")
    notebook.run(MODEL)
    notebook.run(TRAIN.partition("\n")[2])
    assert trained == [pytest.approx(row, abs=1e-12) for row in notebook.value("model.weight.tolist()")]


BEHIND = """losses = []
for x, in loader:
    loss = model(x).square().mean()
    losses.append(loss.detach())
    kept.append(x)
    {error}
"""


KINDS = "class DistanceError(RuntimeError): pass\nclass Enough(KeyboardInterrupt): pass\n"
OF_THE_CELL = [
    ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ("raise DistanceError('too far')", "DistanceError"),
    ("try: raise KeyboardInterrupt\n    except KeyboardInterrupt: raise ValueError('stopped')", "ValueError"),
    ("raise Enough('of it')", "Enough"),
]


@pytest.mark.parametrize(
    ("error", "name"), [("undefined", "NameError"), ("x @ inputs", "RuntimeError"), ("model(x[:, :1])", "RuntimeError"), *OF_THE_CELL]
)
def test_an_error_of_all_ranks_leaves_what_the_cell_has_of_its_batches(notebook, error, name):
    setup = MODEL + "from torch.utils.data import DataLoader, TensorDataset\nloader = DataLoader(TensorDataset(inputs), batch_size=3)\n"
    left = "torch.cat([t.detach().flatten() for t in (x, loss, *losses, *kept)]).tolist()"
    notebook.run(setup + KINDS + "kept, x = [], 'of another cell'")
    assert notebook.fail("%%distribute --engines 2\n" + BEHIND.format(error=error)).error[0] == name
    after = notebook.value(left)
    notebook.run(setup + "kept = []\n" + BEHIND.format(error="break"))
    assert after == pytest.approx(notebook.value(left), abs=1e-6)


ONE_RANK = """%%distribute --engines {engines}
import torch.distributed
for step in range(3):
    optimizer.zero_grad()
    loss = model(inputs).square().mean()
    if step == 1 and torch.distributed.get_rank() == {rank}:
        raise OverflowError("too much for this one")
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("rank", "engines"), [(0, 2), (1, 2), (1, 3)])
def test_an_error_on_one_rank_frees_the_others_and_names_the_rank(notebook, rank, engines):
    cell = notebook.fail(ONE_RANK.format(rank=rank, engines=engines))
    assert cell.error == ("OverflowError", "too much for this one")
    lines = cell.traceback.splitlines()
    assert lines[1] == "OverflowError" + f"on rank {rank}".rjust(62)
    assert '---->   7         raise OverflowError("too much for this one")' in lines
    assert lines[-1] == "OverflowError: too much for this one"  # and nothing about a connection that was closed
    assert "jupyter_dtrain" not in cell.traceback


UNREADABLE = """
class Unreadable(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == {index}:
            raise OSError("it is damaged")
        return torch.randn(4, generator=torch.Generator().manual_seed(index))

torch.manual_seed(2)
model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
READ = """
for x in DataLoader(Unreadable(), batch_size=8):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("index", [41, 46])
def test_a_batch_that_one_rank_cannot_load_is_seen_by_no_layer(notebook, index):
    """Rank 0 has the first half of it, and rank 1 the other."""
    states = []
    for line in ("", "%%distribute --engines 2"):
        notebook.run(UNREADABLE.format(index=index))
        cell = notebook.fail(line + READ)
        assert cell.error == ("OSError", "it is damaged")
        states.append(notebook.value("model.state_dict()"))
    assert int(states[0]["1.num_batches_tracked"]) == 5
    assert difference(states[1], states[0]) is None


def test_a_value_that_rank_0_alone_reads_is_an_error_at_once(notebook):
    notebook.run(
        """from jupyter_dtrain import is_main
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(inputs), batch_size=4)
def told(value):
    if is_main():
        return value.item()"""
    )
    ran = notebook.fail(
        """%%distribute --engines 2
for epoch in range(3):
    for x, in loader:
        loss = model(x).square().mean()
        if is_main():
            print(loss.item())
        loss.backward()"""
    )
    assert ran.error[0] == "RuntimeError"
    assert "Line 6 needs all engines" in ran.error[1]
    assert "as in `value = loss.item()`" in ran.error[1]
    assert "on rank 0" in ran.traceback
    ran = notebook.fail("%%distribute --engines 2\nfor x, in loader:\n    told(model(x).square().mean())")
    assert "Line 6 needs all engines" in ran.error[1]


def test_different_errors_of_two_ranks_are_both_told(notebook):
    cell = notebook.fail("""%%distribute --engines 3
import torch.distributed as dist
if dist.get_rank() == 1:
    {}["key"]
float(f"rank {dist.get_rank()}")
""")
    assert cell.error == ("ValueError", "could not convert string to float: 'rank 0'")
    assert "on ranks 0, 2" in cell.traceback
    assert cell.traceback.splitlines()[-1] == "rank 1 raised KeyError: 'key'"


@pytest.mark.parametrize(
    ("statement", "name", "value"),
    [
        ("raise SystemExit(3)", "SystemExit", "3"),
        pytest.param("exit()", "SystemExit", "", marks=pytest.mark.long),
        ("raise StopIteration", "StopIteration", ""),
        ("'\\udc80'.encode()", "UnicodeEncodeError", "'utf-8' codec can't encode character"),
        ("class Mine(Exception): pass\nraise Mine('own')", "Mine", "own"),
        pytest.param("import json; json.loads('{')", "JSONDecodeError", "Expecting property name", marks=pytest.mark.long),
        ("eval('1 +')", "SyntaxError", "invalid syntax"),
    ],
)
def test_whatever_is_raised_is_an_error_of_that_name(notebook, statement, name, value):
    cell = notebook.fail(f"%%distribute --engines 2\n{statement}")
    assert cell.error[0] == name
    assert value in cell.error[1]
    assert cell.traceback.splitlines()[-1].startswith(name)
    assert "jupyter_dtrain" not in cell.traceback


def test_what_an_object_itself_leaves_out_is_not_missed(notebook):
    notebook.run(
        "class Traced:\n    n = 0\n    def __getstate__(self): return {'n': self.n}\n"
        "    def __call__(self): self.own = (row for row in ()); self.n += 1\ntraced = Traced()"
    )
    cell = notebook.run("%%distribute --engines 2\ntraced()")
    assert "stays on the engines" not in cell.stderr
    assert notebook.value("vars(traced)") == {"n": 1}


def test_a_value_that_cannot_come_back_is_named_and_the_rest_comes(notebook):
    cell = notebook.run("%%distribute --engines 2\nimport threading\nown_lock = threading.Lock(); own_lock.acquire()\nnumber = 5\nnumber")
    assert cell.result == "5"
    assert "'own_lock' stays on the engines, because it cannot be sent back: TypeError: cannot pickle a lock that is held" in cell.stderr
    assert notebook.value("number, 'own_lock' in globals()") == (5, False)


ONLY_THERE = """%%distribute --engines 2
import os

def only_there(pid):
    if os.getpid() != pid:
        raise ConnectionError("nobody answers here")

class Connection:
    def __reduce__(self):
        return only_there, (os.getpid(),)

connection = Connection()
notes.append(["begun", connection])
for x in torch.ones(2, 3):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
made = nn.Linear(3, 1)
made.load_state_dict(model.state_dict())
5
"""


def test_a_value_that_cannot_be_read_here_is_named_and_the_rest_comes(notebook):
    notebook.run(
        "model = nn.Linear(3, 1)\noptimizer = torch.optim.Adam(model.parameters())\nnotes = ['own']\nbefore = model.weight.clone()"
    )
    cell = notebook.run(ONLY_THERE)
    assert "'notes' stays on the engines, because it cannot be read here: ConnectionError: nobody answers here\n" in cell.stderr
    assert (
        "'connection' stays on the engines, because it cannot be read here: it has something in common with what cannot be read\n"
        in cell.stderr
    )
    assert cell.result == "5"
    assert notebook.value("'connection' in globals(), notes") == (False, ["own"])
    assert notebook.value("torch.equal(model.weight, made.weight), torch.equal(model.weight, before)") == (True, False)
    assert notebook.value("optimizer.state_dict()['state'][0]['step'].item()") == 2
    cell = notebook.run(ONLY_THERE.replace("notes.append", "str"))
    assert "'connection' stays on the engines, because it cannot be read here: ConnectionError: nobody answers here\n" in cell.stderr
    assert notebook.value("optimizer.state_dict()['state'][0]['step'].item()") == 4


def test_memory_that_runs_out_on_one_rank(notebook):
    cell = notebook.fail("""%%distribute --engines 2
import torch.distributed as dist
if dist.get_rank() == 1:
    large = torch.empty(10**15)
""")
    assert re.search(r"RuntimeError +on rank 1\n", cell.traceback)
    told = cell.traceback.splitlines()[-1]
    assert re.match(r"\(The rank's process held \S+ [GM]iB; of the \S+ GiB that it may have, \S+ GiB were free\. ", told)
    assert re.search(r"free\. [\d,]+ GiB were asked for at once\. A smaller batch_size ", told)
    assert notebook.run("%%distribute --engines 2\n1 + 1").result == "2"


WIDE = """
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(32, 64), torch.randn(32, 1)), batch_size=16)
"""


def test_the_strategy_that_would_take_less_is_named_where_there_is_no_memory(notebook):
    """With what it takes, and the command that says so of all of them."""
    notebook.run(WIDE)
    cell = notebook.fail(
        "%%distribute --engines 2\nfor x, y in loader:\n    loss = F.mse_loss(model(x), y)\n    loss.backward()\n"
        "    torch.empty(10**15)\n    optimizer.step()\n"
    )
    said = re.search(r"`(--strategy \w+)` would take (\d\S+) MiB on each of 2 engines, where auto takes (\d\S+) MiB", cell.traceback)
    assert said is not None, cell.traceback
    rows = [line.split() for line in notebook.run("%distribute plan --engines 2 --device cpu").stdout.splitlines() if line]
    planned = {f"--strategy {row[1]}": row[2] for row in rows if row[0] == "2"}
    assert (planned[said[1]], planned["--strategy auto"]) == (said[2], said[3])
    assert "`%distribute plan` says what each strategy takes." in cell.traceback


def test_pythons_own_errors_name_a_batch_as_a_plain_run_does(notebook):
    notebook.run("loader = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4)\nmodel = nn.Linear(2, 1)")
    wrongs = "x.missing", "x + 'a'", "x()", "'a' + x.sum()", "open(x.mean())", "model(x).mean().missing"
    tries = "".join(f"    try:\n        {wrong}\n    except Exception as error:\n        said.append(str(error))\n" for wrong in wrongs)
    cell = f"said = []\nfor x, in loader:\n{tries}    model(x).mean().backward()"
    notebook.run(cell)
    plain = notebook.value("said")
    notebook.run(f"%%distribute --engines 2\n{cell}")
    assert notebook.value("said") == plain
    assert plain[0] == "'Tensor' object has no attribute 'missing'"


DRAWN = "for p in {order}(model.parameters()): nn.init.normal_(p, std=0.1)\n"
CHANGED = "with torch.no_grad():\n    for p in {order}(model.parameters()): p += torch.randn(p.shape)\n"
MANY = """
torch.manual_seed(1)
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(12, 8), torch.randn(12, 8)), batch_size=4)
losses = []
"""
LOOP = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""


SHARDED = ["--strategy zero3", "--strategy pipeline", "--strategy tensor"]


@pytest.mark.parametrize(("options", "made"), [*((one, False) for one in SHARDED), *((one, True) for one in [*SHARDED, "--sync-every 4"])])
def test_weights_that_differ_are_an_error_where_each_rank_keeps_a_part(notebook, options, made):
    """They are compared before they are sharded, and where the cell writes to sharded ones: then each rank has rows of its own alone."""
    in_order = "(lambda found: [*found][:: 1 - 2 * torch.distributed.get_rank()])"
    notebook.run(large := MANY.replace("8, 8)", "160, 160, bias=False)").replace("12, 8", "12, 160"))
    begin = "\n".join(large.splitlines()[2:4]) if made else ""
    cell = notebook.fail(f"%%distribute --engines 2 {options}\n{begin}\n{DRAWN}{LOOP}".replace("{order}", in_order))
    assert cell.error[0] == "RuntimeError"
    assert re.match(r"Rank 1 has other weights than rank 0: .* Does the cell fill or change them in ", cell.error[1])
    assert notebook.value("losses") == []
    assert notebook.run(f"%%distribute --engines 2 {options}\n{LOOP}").ok
    assert len(notebook.value("losses")) == 3


@pytest.mark.parametrize(("before", "after", "steps"), [(DRAWN, "", 0), ("", CHANGED, 3)])
def test_weights_that_differ_between_ranks_are_an_error(notebook, before, after, steps):
    """As where the cell fills them in the order of a set. What rank 0 has comes home."""
    in_order = "(lambda found: sorted(found, key=lambda p: hash((id(p), os.getpid()))))"
    cell = f"import os\n{before}{LOOP}{after}"
    notebook.run(MANY)
    failed = notebook.fail("%%distribute --engines 2\n" + cell.replace("{order}", in_order))
    assert failed.error[0] == "RuntimeError"
    assert re.match(
        r"Rank 1 has other weights than rank 0: `\d\.\w+` of `Sequential`.* Does the cell fill or change them in ", failed.error[1]
    )
    assert notebook.value("len(losses)") == steps
    states = []
    for line in ("", "%%distribute --engines 2\n"):
        notebook.run(MANY)
        notebook.run(line + cell.replace("{order}", "list"))
        states.append(notebook.value("(losses, model.state_dict())"))
    assert difference(*states) is None
