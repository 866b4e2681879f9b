"""What the cell prints and displays is shown in the cell, once, while it runs."""

from __future__ import annotations

import re


def test_a_line_is_shown_while_the_cell_goes_on(notebook):
    cell = notebook.start("""%%distribute --engines 2
import pathlib, time
print("loss 0.5")
deadline = time.monotonic() + 60
while not pathlib.Path("seen").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
print("loss 0.4")
""")
    notebook.wait_for_stdout(cell, "loss 0.5\n")
    assert cell.running
    assert "0.4" not in cell.stdout
    (notebook.folder / "seen").touch()
    assert notebook.finish(cell).stdout == "loss 0.5\nloss 0.4\n"


def test_everything_is_shown_in_order_and_by_one_rank_only(notebook):
    cell = notebook.run("""%%distribute --engines 3
import sys
from IPython.display import HTML, clear_output

print("to stdout", "ünïcødé")
sys.stdout.flush()
print("to stderr", file=sys.stderr)
sys.stderr.flush()
display(HTML("<b>bold</b>"))
for number in range(1000):
    print(number, end=" ")
print("", flush=True)
handle = display("first", display_id=True)
handle.update("second")
clear_output(wait=True)
!echo from a shell
number
""")
    assert cell.stdout.replace("\r", "") == "to stdout ünïcødé\n" + "".join(f"{n} " for n in range(1000)) + "\nfrom a shell\n"
    assert cell.stderr == "to stderr\n"
    assert [data["text/plain"] for data in cell.displays] == ["<IPython.core.display.HTML object>", "'first'"]
    assert cell.displays[0]["text/html"] == "<b>bold</b>"
    (update,) = cell.contents("update_display_data")
    assert update["data"]["text/plain"] == "'second'"
    assert update["transient"] == cell.contents("display_data")[-1]["transient"]
    assert cell.contents("clear_output") == [{"wait": True}]
    assert cell.result == "999"
    kinds = [message["msg_type"] for message in cell.messages if message["msg_type"] not in ("status", "execute_input")]
    shown = [kind for index, kind in enumerate(kinds) if index == 0 or kind != kinds[index - 1]]
    assert shown == ["stream", "display_data", "stream", "display_data", "update_display_data", "clear_output", "stream", "execute_result"]


def test_lines_of_all_ranks_on_request(notebook):
    cell = notebook.run("""%%distribute --engines 3 --output all
import sys
import torch.distributed
print("rank", torch.distributed.get_rank())
print("without an end", end="", file=sys.stderr)
display("once")
""")
    assert sorted(cell.stdout.splitlines()) == ["[0] rank 0", "[1] rank 1", "[2] rank 2"]
    assert sorted(cell.stderr.splitlines()) == [f"[{rank}] without an end" for rank in range(3)]
    assert [data["text/plain"] for data in cell.displays] == ["'once'"]


def test_a_warning_is_shown_once_with_the_cells_line(notebook):
    cell = notebook.run("%%distribute --engines 2\nimport warnings\nfor _ in range(3):\n    warnings.warn('take care')")
    (line, source) = cell.stderr.splitlines()
    assert re.search(r":4: UserWarning: take care$", line)
    assert source == "  warnings.warn('take care')"


def test_a_warning_behind_a_function_that_is_ours_names_the_cells_line(notebook):
    warned = notebook.run("%%distribute --engines 2\nimport torch\n\ncopied = torch.tensor(torch.ones(2))").stderr
    assert re.search(r"ipykernel\S+:4: UserWarning: To copy construct", warned)
    assert "copied = torch.tensor" in warned


def test_a_warning_behind_pytorchs_dispatch_is_shown_once_with_the_cells_line(notebook):
    notebook.run("import torch")
    cell = """
loader = torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2)
model = torch.nn.Linear(2, 2)
for x in loader:
    for values in (x, model(x)):
        torch.nn.functional.log_softmax(values)
"""
    warned = notebook.run(f"%%distribute --engines 2{cell}").stderr
    assert warned.count("UserWarning") == 1
    assert re.search(r"ipykernel\S+:6: UserWarning: Implicit dimension choice", warned)


def test_what_a_library_warns_of_is_shown_once_though_models_are_tried_and_snapshots_taken(notebook):
    notebook.run("import torch\nfrom torch import nn")
    cell = """
layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
model = nn.Sequential(nn.Linear(3, 4), nn.Dropout2d(0.5), nn.Linear(4, 1))  # which is meant for images, and says so
loader = torch.utils.data.DataLoader(torch.randn(8, 3), batch_size=4)
optimizer = torch.optim.SGD([*model.parameters(), *layer.parameters()], lr=0.1)
for epoch in range(4):
    for x in loader:
        optimizer.zero_grad()
        (model(x).mean() + layer(x.repeat(1, 4)[:, :8].view(-1, 2, 4)).mean()).backward()
        optimizer.step()
"""
    assert notebook.run(cell).stderr.count("UserWarning") == 1
    assert notebook.run("%%distribute --engines 2 --checkpoint-every 2" + cell).stderr.count("UserWarning") == 1


def test_filters_for_warnings_of_the_notebook_hold_in_the_cell_and_stay(notebook):
    notebook.run("import warnings\nclass Mine(UserWarning): pass\nwarnings.simplefilter('error', Mine)\nbefore = warnings.filters.copy()")
    cell = notebook.run("""%%distribute --engines 2
warnings.filterwarnings("ignore", message="boring")
class New(UserWarning): pass
warnings.simplefilter("error", New)
caught = []
for kind in (Mine, New):
    try: warnings.warn("dear", kind)
    except UserWarning as error: caught.append(type(error).__name__)
warnings.warn("boring")
""")
    assert cell.stderr == ""
    left = notebook.value("caught, warnings.filters[2:] == before, warnings.filters[0][2] is New, warnings.filters[1][1].pattern")
    assert left == (["Mine", "New"], True, True, "boring")
    cell = notebook.run("%%distribute --engines 2\ntry: warnings.warn('dear', New)\nexcept New: caught.append('again')")
    assert cell.stderr == ""
    assert notebook.value("caught[2:]") == ["again"]
    notebook.run("warnings.filters[:] = before[1:]; warnings._filters_mutated()")


def test_an_untouched_cell_brings_no_warnings_of_ours_or_pytorchs(notebook):
    notebook.run("model = nn.Linear(3, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    notebook.run("scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)")
    notebook.run("loader = DataLoader(TensorDataset(torch.randn(10, 3)), batch_size=4)")
    for engines in (1, 2):
        cell = notebook.run(f"""%%distribute --engines {engines}
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        out = model(x.requires_grad_())
        slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.square().mean() + slope.square().mean()).backward()
        optimizer.step()
    scheduler.step()
""")
        assert (cell.stderr, cell.stdout, cell.displays) == ("", "", [])


def test_a_text_progress_bar(notebook):
    notebook.run("from tqdm import tqdm")
    cell = notebook.run("%%distribute --engines 2\nfor _ in tqdm(range(20), desc='epoch'):\n    pass")
    lines = [line for line in re.split(r"[\r\n]+", cell.stderr) if line]
    assert lines[0].startswith("epoch:   0%|")
    assert re.match(r"epoch: 100%\|█+\| 20/20 \[", lines[-1])
    assert sum("20/20" in line for line in lines) == 1


def test_a_progress_bar_of_widgets(notebook):
    notebook.run("from tqdm.auto import tqdm")
    cell = notebook.run("%%distribute --engines 2\nfor _ in tqdm(range(3), desc='epoch'):\n    pass")
    (view,) = [data["application/vnd.jupyter.widget-view+json"]["model_id"] for data in cell.displays]
    states = {content["comm_id"]: content["data"]["state"] for content in cell.contents("comm_open")}
    for content in cell.contents("comm_msg"):
        states[content["comm_id"]].update(content["data"].get("state", {}))
    _, bar, _ = (states[reference.removeprefix("IPY_MODEL_")] for reference in states[view]["children"])
    assert (bar["_model_name"], bar["value"], bar["max"]) == ("FloatProgressModel", 3.0, 3.0)


def test_a_progress_bar_comes_home_at_rest(notebook):
    notebook.run("from tqdm.auto import tqdm as widgets\nfrom tqdm import tqdm as text\nitems = [1, 2, 3]")
    made = "bars = [bar := text(items), widgets(enumerate(items), total=3)]"
    cell = notebook.run(f"%%distribute --engines 2\n{made}\nfor each in bars:\n    for _ in each: pass")
    assert "stays on the engines" not in cell.stderr
    assert notebook.value("[(each.n, each.total, each.disable) for each in bars]") == [(3, 3, True)] * 2
    assert notebook.value("(bar is bars[0], bar.iterable is items, list(bar), bar.close())") == (True, True, [1, 2, 3], None)


def test_a_progress_bar_says_at_home_what_it_has_said(notebook):
    notebook.run("from tqdm import tqdm\nfrom tqdm.auto import tqdm as widgets")
    made = "with kind(total=4, desc='steps', unit='batch', leave=False) as bar:\n    bar.update(4)\n    bar.set_postfix(loss=0.25)"
    said = "(bar.desc, bar.unit, bar.postfix, bar.format_dict['elapsed'] > 0)"
    for kind in ("tqdm", "widgets"):
        notebook.run(f"kind = {kind}\n{made}")
        plain = notebook.value(said)
        notebook.run("del bar")
        notebook.run(f"%%distribute --engines 2\n{made}")
        assert notebook.value(said) == plain == ("steps", "batch", "loss=0.25", True)
        notebook.run("bar.set_description('again')\nbar.update()\nbar.reset(), bar.close()")


def test_what_holds_a_closed_progress_bar_trains_again(notebook):
    notebook.run("""
from tqdm.auto import tqdm

class Named(tqdm):
    def __init__(self, name, **options):
        super().__init__(desc=name, **options)
        self.seen = []

class Trainer:
    def __init__(self):
        self.model, self.bars = nn.Linear(3, 1), []

    def fit(self, loader):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        bar = Named(f"fit {len(self.bars)}", total=len(loader))
        self.bars.append(bar)
        for x in loader:
            loss = self.model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.update()
            bar.seen.append(loss.item())
        bar.close()

trainer, loader = Trainer(), DataLoader(torch.randn(20, 3), batch_size=6)
""")
    notebook.run("trainer.fit(loader)")
    for _ in range(2):
        assert "stays on the engines" not in notebook.run("%%distribute --engines 2\ntrainer.fit(loader)").stderr
    said = notebook.value("[(bar.desc, bar.n, len(bar.seen), type(bar) is Named) for bar in trainer.bars]")
    assert said == [(f"fit {number}", 4, 4, True) for number in range(3)]
    notebook.run("trainer.bars[0] = Named('under way', total=3)")
    name, text = notebook.fail("%%distribute --engines 2\ntrainer.fit(loader)").error
    assert (name, "a progress bar stays where it was made" in text) == ("CaptureError", True)
    notebook.run("trainer.bars[0].close()")


def test_figures_have_the_formats_that_the_notebook_has_chosen(notebook):
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    notebook.run("%matplotlib inline\n%config InlineBackend.figure_format = 'svg'")
    (shown,) = notebook.run(f"%%distribute --engines 2\n{draw}").displays
    assert set(shown) == {"image/svg+xml", "text/plain"}
    notebook.run("from matplotlib_inline.backend_inline import set_matplotlib_formats\nset_matplotlib_formats('jpeg', 'pdf')")
    (shown,) = notebook.run(f"%%distribute --engines 2\n{draw}\nset_matplotlib_formats('png')").displays
    assert set(shown) == {"image/jpeg", "application/pdf", "text/plain"}
    (shown,) = notebook.run(draw).displays
    assert set(shown) == {"image/png", "text/plain"}, "the cell has chosen another one"


def test_a_library_finds_a_notebook_on_the_engines_too(notebook):
    library = notebook.folder / "library" / "site-packages"
    library.mkdir(parents=True)
    (library / "bars_for_notebooks.py").write_text("""
try:
    in_notebook = get_ipython().__class__.__name__ == "ZMQInteractiveShell"
except NameError:
    in_notebook = False
if in_notebook:
    from IPython.display import HTML

def bar(value): return HTML(f"<progress value={value}>")
""")
    notebook.run(f"import sys; sys.path.append({str(library)!r})\nfrom bars_for_notebooks import bar")
    cell = notebook.run("%%distribute --engines 2\ndisplay(bar(1))")
    assert [data["text/html"] for data in cell.displays] == ["<progress value=1>"]


def test_a_plot_is_shown(notebook):
    notebook.run("history = [3.0, 2.0, 1.5]")
    cell = notebook.run("%%distribute --engines 2\nimport matplotlib.pyplot as plt\nplt.plot(history)\nplt.show()")
    (data,) = cell.displays
    assert data["image/png"].startswith("iVBOR")


def test_the_last_lines_value_is_shown_as_the_notebook_shows_it(notebook):
    cell = notebook.run("%%distribute --engines 2\nmodel = nn.Linear(3, 1)\nmodel")
    assert cell.result == "Linear(in_features=3, out_features=1, bias=True)"
    assert notebook.value("list(Out.values())[-1] is model")
    assert notebook.run("%%distribute --engines 2\nfrom fractions import Fraction\nFraction(1, 3)").contents("execute_result")[0][
        "data"
    ] == {"text/plain": "Fraction(1, 3)"}
    assert notebook.run("%%distribute --engines 2\nnumber = 7\nnumber;").result is None
    assert notebook.run("%%distribute --engines 2\nNone").result is None


def test_a_shell_line_is_run_once_and_every_rank_has_what_it_says(notebook):
    notebook.run("""%%distribute --engines 2
import jupyter_dtrain
!echo x >> said_once.txt
said = !echo $$
alike = len({*jupyter_dtrain.gather(said[0])})
def shown(name):
    !echo $name {name.upper()} '{{}}' "$$" >> said_once.txt
    !exit 3
shown("here")
codes = jupyter_dtrain.gather(get_ipython().user_ns["_exit_code"])
""")
    text, alike, codes = notebook.value("open('said_once.txt').read(), alike, codes")
    assert (alike, codes) == (1, [3, 3])
    assert text.startswith("x\nhere HERE {} ")
    assert text.count("\n") == 2


def test_magics_and_shell_commands_in_the_cell(notebook):
    notebook.run("number = 20\ndef files():\n    found = !ls -d /\n    return list(found)")
    cell = notebook.run("""%%distribute --engines 2
doubled = 2 * number
%time tripled = 3 * number
!echo {doubled} in the shell
with open("written", "w") as file:
    file.write("by the cell")
tripled, files()
""")
    assert cell.result == "(60, ['/'])"
    assert "Wall time" in cell.stdout
    assert "40 in the shell" in cell.stdout
    assert (notebook.folder / "written").read_text() == "by the cell"


def test_a_file_that_the_cell_opens_is_written_once(notebook):
    notebook.run("import os\ndef log(number):\n    with open('log of calls', 'a') as file:\n        file.write(f'{number}')")
    cell = notebook.run("""%%distribute --engines 2
for number in range(3):
    log(number)
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} ")
print(len(open("pids").read().split()))
""")
    assert cell.stdout == "3\n"
    assert (notebook.folder / "log of calls").read_text() == "012"
    assert len((notebook.folder / "pids").read_text().split()) == 3


def test_a_cell_that_awaits(notebook):
    notebook.run("""
import asyncio
async def fetched(number):
    await asyncio.sleep(0)
    return number
model = nn.Linear(2, 1)
loader = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4)
""")
    cell = notebook.run("""%%distribute --engines 2
one, two = await asyncio.gather(fetched(1), fetched(2))
for (x,) in loader:
    loss = model(x).square().mean() * await fetched(3)
    loss.backward()
    print(f"{len(x)} of {await fetched(8)}")
await fetched((one, two, loss.item() >= 0))
""")
    assert cell.stdout == "4 of 8\n4 of 8\n"
    assert cell.result == "(1, 2, True)"
    failed = notebook.fail("%%distribute --engines 2\nawait fetched(1)\nawait asyncio.wait_for(fetched(1 / 0), 60)")
    assert "---->   3 await asyncio.wait_for(fetched(1 / 0), 60)" in failed.traceback
    assert "on all 2 ranks" in failed.traceback


def test_names_that_only_a_magic_mentions(notebook):
    notebook.run("number, folder = 20, '/'\nmodel = nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)")
    assert "/ in the shell" in notebook.run("%%distribute --engines 2\n!echo $folder in the shell").stdout
    assert notebook.run("%%distribute --engines 2\n%time tripled = 3 * number\ntripled").result == "60"
    cell = notebook.run("""%%distribute --engines 2
%%time
before = model.weight.tolist()
for _ in range(2):
    model(torch.ones(4, 2)).square().mean().backward()
    optimizer.step()
""")
    assert "Wall time" in cell.stdout
    assert notebook.value("model.weight.tolist() != before and model.weight.grad is not None")


def test_a_cell_that_asks_for_input_gets_an_error_and_does_not_hang(notebook):
    notebook.fail("%%distribute --engines 2\nexit()")  # closes nothing
    cell = notebook.fail("%%distribute --engines 2\ninput('your name? ')")
    assert cell.error[0] == "EOFError"
    assert "ask with input() or getpass() in another cell" in cell.traceback
