"""What Tab offers on the magics' lines, and what their help is."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets import TraitError

from jupyter_dtrain import strategies
from jupyter_dtrain.notebook import magics
from jupyter_dtrain.notebook.completion import completions, names_to_offer
from jupyter_dtrain.notebook.control_line import line_parser


def offered(line: str) -> list[str]:
    return completions(line, runs=lambda: ["digits", "run-1"], detached=lambda: ["2026-11-21-digits"])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("%%distribute --eng", ["--engines", "--engines-per-trial"]),
        ("%%distribute -n 2 --checkpoint-a", ["--checkpoint-activations"]),
        ("%%distribute --strategy ", ["auto", "zero1", "zero3", "pipeline", "tensor", "none"]),
        ("%%distribute --strategy z", ["zero1", "zero3"]),
        ("%%distribute --rng per", ["per-rank"]),
        ("%distribute st", ["start", "status", "stop"]),
        ("%distribute start --en", ["--engines"]),
        ("%distribute start --device c", ["cpu", "cuda"]),
        ("%distribute resume ", ["digits", "run-1"]),
        ("%distribute resume d", ["digits"]),
        ("%distribute resume digits --tr", ["--trust"]),
        ("%distribute attach ", ["2026-11-21-digits"]),
        ("%distribute status ", []),
        ("%distribute nothing ", []),
    ],
)
def test_completions_of_a_line(line, found):
    assert offered(line) == found


def test_completions_of_an_empty_line_are_all_options():
    assert {"--engines", "--name", "--detach", "--vary", "--help"} <= set(offered("%%distribute "))


def test_names_to_offer_leaves_out_what_a_line_would_read_otherwise():
    assert names_to_offer(["digits", "a b", "{1+1}", "$HOME", "x'", "digits", "v1.0"]) == ["digits", "v1.0"]


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shell = InteractiveShell.instance()
    magics.load(shell)
    yield shell
    magics.unload(shell)
    InteractiveShell.clear_instance()


def test_completions_come_with_tab(shell):
    def tab(line: str) -> list[str]:
        return [found for found in shell.complete("", line, len(line))[1] if not found.startswith("%")]

    assert "--engines" in tab("%%distribute --eng")
    assert {"start", "status", "stop"} <= set(tab("%distribute st"))


def test_help_of_the_magics_has_their_options(shell):
    for asked in ("%%distribute", "%distribute", "distribute"):
        shown = shell.object_inspect_mime(asked, 0)["text/plain"]
        assert "--engines" in shown and "--strategy" in shown, asked
    assert line_parser().format_help() in vars(magics.DistributeMagics)["distribute"].getdoc()


def test_load_reads_no_installed_packages(monkeypatch):
    """They are read when their strategies are asked for, not while the extension loads."""
    asked = []

    def installed(group):
        asked.append(group)
        return {}

    monkeypatch.setattr(strategies, "installed", installed)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    try:
        magics.load(shell)
        assert asked == []
        shell.object_inspect_mime("%%distribute", 0)
        assert asked == [strategies.ENTRY_POINTS]
    finally:
        magics.unload(shell)
        InteractiveShell.clear_instance()


def test_config_of_the_view_takes_one_of_the_options_values(shell):
    shell.run_line_magic("config", "DistributeMagics.view = 'summary'")
    (loaded,) = [found for found in shell.configurables if isinstance(found, magics.DistributeMagics)]
    assert loaded.view == "summary"
    with pytest.raises(TraitError, match=r"DistributeMagics\.view = 'all': choose 'live' or 'summary' or 'off'"):
        loaded.view = "all"
    assert loaded.view == "summary"
