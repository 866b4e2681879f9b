"""Writes ``labextension/src/protocol.ts`` from ``jupyter_dtrain/protocol``, so that the wire is defined once.

``python labextension/scripts/protocol_types.py`` writes the file; with ``--check`` it writes nothing and fails when
the file is out of date. The dataclasses are read as they are (fields, types, docstrings): there is no second
description to keep in step. The cost is that only the types that the wire uses can be translated; a new kind of
annotation stops the generator with a message instead of becoming ``unknown``.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
import types
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "labextension" / "src" / "protocol.ts"

if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from jupyter_dtrain import protocol  # noqa: E402

HEADER = """\
// Generated from jupyter_dtrain/protocol by labextension/scripts/protocol_types.py: do not edit.
// To write it again: python labextension/scripts/protocol_types.py
"""
CONSTANTS = ("PROTOCOL_VERSION", "TELEMETRY_TARGET", "COMMAND_TARGET", "RECORD_TARGET", "WIDGET_MODULE")
NAMED_LITERALS = ("ClusterPhase", "RunPhase", "CommandName")
WIDTH = 80
SCALARS: dict[Any, str] = {str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}


def typescript_type(annotation: Any) -> str:
    """Return the TypeScript of a Python `annotation`; ``TypeError`` for one that the wire has not used so far."""
    if annotation in SCALARS:
        return SCALARS[annotation]
    for name in NAMED_LITERALS:
        if annotation == getattr(protocol, name):
            return name
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is list:
        item = typescript_type(arguments[0])
        return f"({item})[]" if " | " in item else f"{item}[]"
    if origin is dict:
        return f"Record<{', '.join(map(typescript_type, arguments))}>"
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(typescript_type, arguments)))
    if origin is Literal:
        return " | ".join(quoted(argument) for argument in arguments)
    if inspect.isclass(annotation) and issubclass(annotation, protocol.Message):
        return f"Nested<I{annotation.__name__}>"
    raise TypeError(f"no TypeScript type is known for {annotation!r}: teach typescript_type in {Path(__file__).name}")


def quoted(value: object) -> str:
    """Return a Python literal as prettier writes it."""
    return f"'{value}'" if isinstance(value, str) else str(value)


def comment(docstring: str, indent: str = "") -> str:
    """Return a docstring as a TSDoc comment; reStructuredText literals and names become Markdown code."""
    text = re.sub(r"``([^`]*)``", r"`\1`", inspect.cleandoc(docstring)).replace("`None`", "`null`")
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), WIDTH - 3 - len(indent))]
    return "\n".join([f"{indent}/**", *(f"{indent} * {line}".rstrip() for line in lines[1:]), f"{indent} */"]) + "\n"


def union(name: str, members: list[str], docstring: str) -> str:
    """Return an exported union, broken over lines where prettier would break it."""
    start, joined = f"export type {name} =", " | ".join(members)
    line = f"{start} {joined};"
    if len(line) > WIDTH:
        line = f"{start}\n  {joined};"
    if len(joined) + 3 > WIDTH:
        line = f"{start}\n" + "\n".join(f"  | {member}" for member in members) + ";"
    return comment(docstring) + line + "\n"


def interface(cls: type[protocol.Message]) -> str:
    """Return the interface of one message. Fields with a default are always sent, save in what the front end sends."""
    hints = get_type_hints(cls)
    optional = cls is protocol.Command
    lines = [f"  type: {quoted(cls.type)};"]
    for field in fields(cls):
        has_default = field.default is not MISSING or field.default_factory is not MISSING
        lines.append(f"  {field.name}{'?' if optional and has_default else ''}: {typescript_type(hints[field.name])};")
    return f"{comment(cls.__doc__ or '')}export interface I{cls.__name__} {{\n" + "\n".join(lines) + "\n}\n"


def message_classes() -> list[type[protocol.Message]]:
    """Return every message of the wire, in the order in which the modules of ``protocol`` define them."""
    modules = (protocol.events, protocol.updates, protocol.commands)
    found = (value for module in modules for value in vars(module).values() if inspect.isclass(value))
    return list(dict.fromkeys(cls for cls in found if issubclass(cls, protocol.Message) and cls is not protocol.Message))


def generate() -> str:
    """Return the text of ``protocol.ts``."""
    parts = [HEADER, comment(protocol.__doc__ or "")]
    parts.append("".join(f"export const {name} = {quoted(getattr(protocol, name))};\n" for name in CONSTANTS))
    parts += [
        union(name, [quoted(value) for value in get_args(getattr(protocol, name))], f"The values of `{name}`.") for name in NAMED_LITERALS
    ]
    parts.append(
        comment("A message inside another one: the field that holds it says what it is, so it has no `type`.")
        + "export type Nested<T extends { type: string }> = Omit<T, 'type'>;\n"
    )
    parts += [interface(cls) for cls in message_classes()]
    parts += [
        union("EngineEvent", [f"I{cls.__name__}" for cls in protocol.ENGINE_EVENTS], "What an engine sends to the kernel."),
        union("Update", [f"I{cls.__name__}" for cls in protocol.UPDATES], "What the kernel sends on the telemetry comm."),
        comment("The data of one comm message on the telemetry comm.") + "export interface IBatch {\n  messages: Update[];\n}\n",
    ]
    ended = sorted(protocol.RUN_PHASES_ENDED, key=get_args(protocol.RunPhase).index)
    parts.append(
        comment("The phases after which a run changes no more.")
        + "export const RUN_PHASES_ENDED: readonly RunPhase[] = [\n"
        + ",\n".join(f"  {quoted(phase)}" for phase in ended)
        + "\n];\n"
    )
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Write ``protocol.ts``, or with ``--check`` return 1 when it is out of date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is out of date")
    options = parser.parse_args(arguments)
    text = generate()
    if options.check:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print(
                f"{TARGET.relative_to(ROOT)} does not say what jupyter_dtrain/protocol says; "
                "write it again with: python labextension/scripts/protocol_types.py",
                file=sys.stderr,
            )
            return 1
        return 0
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
