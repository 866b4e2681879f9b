"""Write `docs/reference` from the code: `python docs/generate_reference.py`; a unit test compares what is there with it."""

from __future__ import annotations

import argparse
import inspect
import json
from pathlib import Path
from typing import Any

import jupyter_dtrain
from jupyter_dtrain.notebook.cell_line import cell_parser
from jupyter_dtrain.notebook.control_line import line_parser
from jupyter_dtrain.system import patches

ROOT = Path(__file__).parents[1]
VARIABLES = {
    "JUPYTER_DTRAIN_KEEP_MEMORY": ("60", "seconds after a cell for which engines keep its memory, to start the next one faster"),
    "JUPYTER_DTRAIN_STALL_AFTER": ("30", "seconds without progress after which ranks that wait for each other are reported"),
}
"""What a user may set before the kernel starts; other variables with this prefix are internal."""


def pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    return {"options.md": _options(), "api.md": _api(), "settings.md": _settings(), "patches.md": _patches()}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


_UNTITLED = {group.title for group in argparse.ArgumentParser()._action_groups}


def _rows(arguments: argparse.ArgumentParser) -> list[str]:
    arguments.format_help()  # which finds out what takes time
    rows = []
    for group in arguments._action_groups:
        actions = [one for one in group._group_actions if not isinstance(one, argparse._HelpAction | argparse._SubParsersAction)]
        if not actions:
            continue
        rows += ["", "| option | what |" if group.title in _UNTITLED else f"| {group.title} | what |", "|---|---|"]
        for action in actions:
            names = ", ".join(f"`{name}`" for name in action.option_strings)
            value = f"`{_cell(str(action.metavar))}`" if action.nargs != 0 and action.metavar else ""
            rows.append(f"| {' '.join(filter(None, (names, value)))} | {_cell((action.help or '').replace('%%', '%'))} |")
    return rows


def _options() -> str:
    lines = ["# Options", "", "Generated from the code. `%%distribute --help` shows the same.", "", "## `%%distribute`"]
    lines += _rows(cell_parser())
    line = line_parser()
    (actions,) = (action for action in line._actions if isinstance(action, argparse._SubParsersAction))
    helps = {choice.dest: choice.help or "" for choice in actions._choices_actions}
    for name, sub in actions.choices.items():
        lines += ["", f"## `%distribute {name}`", "", f"{helps[name].replace('%%', '%').capitalize()}."]
        lines += _rows(sub)
    return "\n".join(lines) + "\n"


def _api() -> str:
    lines = ["# Python API", "", "Generated from the docstrings. `import jupyter_dtrain` needs neither torch nor engines.", ""]
    for name in jupyter_dtrain.__all__:
        member = getattr(jupyter_dtrain, name)
        if inspect.ismodule(member) and not callable(member):
            for inner in member.__all__:
                lines += _entry(f"{name}.{inner}", getattr(member, inner))
        else:
            lines += _entry(name, member)
    return "\n".join(lines)


def _entry(name: str, member: Any) -> list[str]:
    """Return the section of a function or a class."""
    return [f"## `{name}`", "", "```text", f"{name}{inspect.signature(member)}", "", inspect.getdoc(member) or "", "```", ""]


def _settings() -> str:
    schema = json.loads((ROOT / "labextension" / "schema" / "sidebar.json").read_text(encoding="utf-8"))
    lines = ["# Settings and environment variables", "", "Generated from the code.", "", "## JupyterLab", ""]
    lines += ["*Settings → Distributed training*", "", "| setting | default | what |", "|---|---|---|"]
    for name, setting in schema["properties"].items():
        lines.append(f"| `{name}` | `{json.dumps(setting['default'])}` | {setting['title']}. {setting['description']} |")
    from jupyter_dtrain.notebook.magics import DistributeMagics

    lines += ["", "## IPython", "", "| trait | default | what |", "|---|---|---|"]
    for name, trait in sorted(DistributeMagics.class_own_traits(config=True).items()):
        lines.append(f"| `%config DistributeMagics.{name}` | `{trait.default_value!r}` | {trait.help} |")
    lines += ["", "## Environment", "", "Set before the kernel starts.", "", "| variable | default | what |", "|---|---|---|"]
    lines += [f"| `{name}` | `{default}` | {what} |" for name, (default, what) in VARIABLES.items()]
    return "\n".join(lines) + "\n"


def _patches() -> str:
    lines = ["# Replaced entry points", "", "Generated from the table in `jupyter_dtrain/system/patches.py`.", ""]
    lines += [
        "A cell and its objects stay as they are: what a run has to notice or do otherwise, it does where libraries are entered.",
        "On engines, and on these alone, the attributes below are others for a time. After a cell, an error or an interrupt",
        "each is what it was:",
        "`tests/notebook/test_patches_restored.py` compares them.",
    ]
    for scope in dict.fromkeys(row.scope for row in patches.TABLE):
        lines += ["", f"## Until the end of {scope}", "", "| of | what | why |", "|---|---|---|"]
        for row in patches.TABLE:
            if row.scope == scope:
                names = ", ".join(f"`{name}`" for name in row.names.split())
                lines.append(f"| `{row.owner}` | {names} | {_cell(row.why)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for name, text in pages().items():
        (ROOT / "docs" / "reference" / name).write_text(text, encoding="utf-8")
