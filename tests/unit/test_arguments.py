"""The magics' lines: what each means, and what is said of one that cannot be understood."""

from __future__ import annotations

import pytest

from jupyter_dtrain.cluster_options import ClusterOptions
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.notebook.cell_line import cell_parser, parse_cell_line
from jupyter_dtrain.notebook.control_line import LineCommand, parse_line
from jupyter_dtrain.notebook.magic_arguments import HelpRequested, renamed
from jupyter_dtrain.options import RunOptions

CELL_LINES = {
    "": RunOptions(),
    "   ": RunOptions(),
    "--engines 4": RunOptions(cluster=ClusterOptions(num_engines=4)),
    "-n 4": RunOptions(cluster=ClusterOptions(num_engines=4)),
    "-n4": RunOptions(cluster=ClusterOptions(num_engines=4)),
    "--engines=4 --device cpu": RunOptions(cluster=ClusterOptions(num_engines=4, device="cpu")),
    "--launcher slurm": RunOptions(cluster=ClusterOptions(launcher="slurm")),
    "--device cuda": RunOptions(cluster=ClusterOptions(device="cuda")),
    "--devices shared -n 2": RunOptions(cluster=ClusterOptions(devices="shared", num_engines=2)),
    "--name first": RunOptions(name="first"),
    "--name 'with two words'": RunOptions(name="with two words"),
    '--name "it\'s"': RunOptions(name="it's"),
    "--name α -n 1": RunOptions(name="α", cluster=ClusterOptions(num_engines=1)),
    "--name -5": RunOptions(name="-5"),
    "--output all": RunOptions(output="all"),
    "--split-eval": RunOptions(split_eval=True),
    "--split-inputs": RunOptions(split_inputs=True),
    "--replicate": RunOptions(replicate=True),
    "--detach": RunOptions(detach=True),
    "--batch-size per-rank": RunOptions(batch_size="per-rank", split_eval=True),
}


@pytest.mark.parametrize("line", CELL_LINES)
def test_a_cells_line(line):
    assert parse_cell_line(line) == CELL_LINES[line]


LINES = {
    "start": LineCommand(action="start", cluster=ClusterOptions()),
    "start -n 3": LineCommand(action="start", cluster=ClusterOptions(num_engines=3)),
    "start 3": LineCommand(action="start", cluster=ClusterOptions(num_engines=3)),
    "start 3 --force": LineCommand(action="start", cluster=ClusterOptions(num_engines=3, force=True)),
    "start --engines 3 --device cpu": LineCommand(action="start", cluster=ClusterOptions(num_engines=3, device="cpu")),
    "start --launcher slurm": LineCommand(action="start", cluster=ClusterOptions(launcher="slurm")),
    " status ": LineCommand(action="status", cluster=ClusterOptions()),
    "attach": LineCommand(action="attach", cluster=ClusterOptions()),
    "attach digits --trust": LineCommand(action="attach", cluster=ClusterOptions(), run="digits", trusted=True),
    "start 2 --devices shared": LineCommand(action="start", cluster=ClusterOptions(num_engines=2, devices="shared")),
    "stop": LineCommand(action="stop", cluster=ClusterOptions()),
}


@pytest.mark.parametrize("line", LINES)
def test_a_line(line):
    assert parse_line(line) == LINES[line]


CELL_MISTAKES = {
    "--engine 2": ["--engine 2. Did you mean --engines?\n", "%%distribute --help"],  # no abbreviations: a later option could take them
    "--engines": ["--engines", "expected one argument"],
    "--engines two": ["'two' is not a whole number"],
    "--engines 2.5": ["'2.5' is not a whole number"],
    "--engines 0": ["--engines 0", "at least one engine"],
    "-n -1": ["--engines -1", "at least one engine"],
    "--devices 2": ["--devices 2", "exclusive or shared", "`--engines 2` says how many"],
    "--device tpu": ["--device tpu", "auto, cpu or cuda"],
    "--split-inputs --strategy none": [
        "--split-inputs needs batches that are sharded over the engines, which --strategy none does not have: leave out"
    ],
    "--output some": ["--output some", "main or all"],
    "--batch-size local": ["--batch-size local", "global or per-rank"],
    "--batch-size per-rank --strategy none": ["--batch-size", "--strategy none"],
    "--strategy none --checkpoint-every 10": ["--checkpoint-every needs snapshots of the cell, which --strategy none does not have"],
    "--strategy none --verify first": ["--verify needs calls on shards", "--strategy none"],
    "--strategy none --best loss": ["--best needs snapshots of the cell, to keep the best of", "--strategy none"],
    "--best accuracy": ["--best", "write accuracy:max if higher is better, or accuracy:min"],
    "--best val_acc1": ["write val_acc1:max if higher is better"],
    "--best val/f1": ["write val/f1:max if higher is better"],
    "--gpus 2": ["Did you mean --engines?"],
    "--nproc_per_node=2": ["Did you mean --engines?"],
    "-np 2": ["Did you mean --engines?"],
    "--strategy ddp": ["--strategy ddp: choose auto or zero1 or zero3 or pipeline or tensor or none. auto is data parallel"],
    "--strategy fsdp": ["zero3 also shards parameters"],
    "--strategy gpipe": ["pipeline cuts models into stages"],
    "--strategy megatron": ["tensor has each engine compute some columns of every large linear layer"],
    "--frobnicate": ["unrecognized arguments: --frobnicate\n`%%distribute --help` explains each option."],
    "--chekpoint-every=10 --wiew off": ["Did you mean --checkpoint-every --view?"],
    "two": ["unrecognized arguments: two"],
    "--name 'open": ["--name 'open", "No closing quotation"],
}


@pytest.mark.parametrize("line", CELL_MISTAKES)
def test_a_mistake_in_a_cells_line_says_what_to_do(line):
    with pytest.raises(UsageError) as caught:
        parse_cell_line(line)
    assert all(part in str(caught.value) for part in CELL_MISTAKES[line]), str(caught.value)


MISTAKES = {
    "begin": [
        "There is no `%distribute begin`; there are start, status, preview, plan, resume, attach, debug, doctor, stop.\n",
        "\n`%distribute --help`",
    ],
    "statsu": ["Did you mean status?"],
    "start 2 3": ["unrecognized arguments: 3"],
    "start 2 -n 3": ["give one number of engines"],
    "--engines 2": ["Did you mean `%distribute start --engines 2`, or `%%distribute` on top of a cell?"],
    "2": ["Did you mean `%distribute start 2`"],
    "start -n x": ["'x' is not a whole number"],
    "start --engines 0": ["at least one engine"],
    "attach digits@120": ["omit @120", "%distribute resume"],
    "stop now": ["unrecognized arguments: now", "%distribute stop"],
    "status --engines 2": ["unrecognized arguments: --engines 2"],
    "'": ["No closing quotation"],
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_in_a_line_says_what_to_do(line):
    with pytest.raises(UsageError) as caught:
        parse_line(line)
    assert all(part in str(caught.value) for part in MISTAKES[line]), str(caught.value)


@pytest.mark.parametrize("line", ["--help", "-h", "-n 2 --help"])
def test_help_on_a_cell(line):
    with pytest.raises(HelpRequested) as caught:
        parse_cell_line(line)
    text = str(caught.value)
    assert text.startswith("usage: %%distribute")
    assert all(option in text for option in ("--engines", "-n", "--device", "--name", "default"))


def test_help_on_a_cell_has_its_options_in_groups_and_those_of_schedulers_last():
    groups = {
        group.title: [option for action in group._group_actions for option in action.option_strings]
        for group in cell_parser()._action_groups
    }
    assert groups.pop("options") == ["-h", "--help"]
    titles = [title for title, options in groups.items() if options]
    assert titles[0] == "engines"
    assert titles[-1] == "hosts and schedulers"
    assert "--strategy" in groups["how the cell is distributed"]
    assert max(len(options) for options in groups.values()) <= 15


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", ["start", "status", "stop"]),
        ("--help", ["start", "status", "stop"]),
        ("start --help", ["usage: %distribute start", "--engines"]),
        ("stop -h", ["usage: %distribute stop"]),
    ],
)
def test_help_on_a_line(line, parts):
    with pytest.raises(HelpRequested) as caught:
        parse_line(line)
    assert all(part in str(caught.value) for part in parts)
    assert not str(caught.value).endswith("\n")


def test_nothing_is_printed_and_nothing_exits(capsys):
    for line in ("--help", "--nonsense", "-n"):
        with pytest.raises((HelpRequested, UsageError)):
            parse_cell_line(line)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", (None, None)),
        ("digits", ("digits", None)),
        ("digits@120", ("digits", 120)),
        ("@120", (None, 120)),
        ("digits@best", ("digits", "best")),
        ("@best", (None, "best")),
    ],
)
def test_which_checkpoint_a_run_goes_on_from(text, found):
    command = parse_line(f"resume {text} --trust")
    assert ((command.run, command.step), command.trusted) == (found, True)


def test_a_step_is_a_number():
    with pytest.raises(UsageError, match="after the @ comes the step of a checkpoint"):
        parse_line("resume digits@last")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--vary lr=0.1,0.01", ("lr", "0.1,0.01")),
        ("--vary=lr=0.1,0.01", ("lr", "0.1,0.01")),
        ("--vary 'lr=0.1, 0.01'", ("lr", "0.1, 0.01")),
        ('--vary="lr = [0.1, 0.01]"', ("lr", "[0.1, 0.01]")),
        ("--vary config['lr']=0.1", ("config['lr']", "0.1")),
        ("--vary config.net['a b'][0]=1,2", ("config.net['a b'][0]", "1,2")),
        ("--vary kind='a b',\"c\"", ("kind", "'a b',\"c\"")),
        ("--vary make=dict(a=1),dict(a=2)", ("make", "dict(a=1),dict(a=2)")),
        ("--name 'a b' --vary x=1 --keep-checkpoints 3", ("x", "1")),
    ],
)
def test_what_varies(line, expected):
    assert parse_cell_line(line).vary == (expected,)


def test_several_names_vary_in_their_order():
    assert [name for name, _ in parse_cell_line("--vary b=1,2 --name n --vary a=3,4").vary] == ["b", "a"]


@pytest.mark.parametrize("text", ["lr", "=1", "lr=", "2x=1", "f()=1", "lr==1"])
def test_what_cannot_vary(text):
    with pytest.raises(UsageError, match=r"expected NAME=VALUE,…, such as lr=0\.1,0\.01"):
        parse_cell_line(f"--vary '{text}'")


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("--numbers local", "--semantics local"),
        ("--draws=per-rank", "--rng=per-rank"),
        ("--batch per-rank", "--batch-size per-rank"),
        ("--vary lr=1,2 --each 2", "--vary lr=1,2 --engines-per-trial 2"),
        ("--keep 3", "--keep-checkpoints 3"),
    ],
)
def test_parse_cell_line_understands_the_name_that_an_option_had(before, now):
    assert parse_cell_line(before) == parse_cell_line(now)
    (sentence,) = renamed(before)
    assert now.rpartition("--")[2].replace("=", " ").split()[0] in sentence
    assert renamed(now) == []
