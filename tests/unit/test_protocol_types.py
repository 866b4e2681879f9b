"""The two languages agree on the wire: the generated TypeScript is up to date, and the recordings parse."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from jupyter_dtrain import protocol

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = sorted((ROOT / "tests" / "recorded").glob("*.json"))
NESTED: dict[str, type[protocol.Message]] = {
    "cluster": protocol.ClusterUpdate,
    "run": protocol.RunUpdate,
    "points": protocol.Points,
    "devices": protocol.DeviceUse,
    "engines": protocol.EngineInfo,
}


def load_generator() -> Any:
    """Import the generator, which is a script and no part of the package."""
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("protocol_types", ROOT / "labextension" / "scripts" / "protocol_types.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_nested_fields(cls: type[protocol.Message], value: dict[str, Any]) -> None:
    """A message inside another one has every field of its class, no other, and no ``type``."""
    assert set(value) == {field.name for field in fields(cls)}
    for engine in value.get("engines", []):
        assert_nested_fields(protocol.EngineInfo, engine)


def test_typescript_types_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert load_generator().main(["--check"]) == 0, capsys.readouterr().err


def test_check_fails_when_the_types_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    generator = load_generator()
    stale = tmp_path / "protocol.ts"
    stale.write_text(generator.generate().replace("world_size: number;", ""), encoding="utf-8")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    monkeypatch.setattr(generator, "TARGET", stale)
    assert generator.main(["--check"]) == 1
    assert "protocol.ts does not say what jupyter_dtrain/protocol says" in capsys.readouterr().err


def test_an_annotation_without_translation_is_named() -> None:
    with pytest.raises(TypeError, match="no TypeScript type is known for <class 'bytes'>"):
        load_generator().typescript_type(bytes)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_messages_are_messages_of_this_protocol(recording: Path) -> None:
    messages = json.loads(recording.read_text(encoding="utf-8"))
    assert messages, f"{recording.name} holds no message"
    for message in messages:
        parsed = protocol.parse(message)
        assert isinstance(parsed, protocol.UPDATES)
        assert set(message) == {"type", *(field.name for field in fields(parsed))}
        for name, cls in NESTED.items():
            nested = message.get(name)
            for value in nested if isinstance(nested, list) else [nested]:
                if value is not None:
                    assert_nested_fields(cls, value)
        for columns in [message] if isinstance(parsed, protocol.Points) else message.get("points", []):
            assert len(columns["step"]) == len(columns["time"]) == len(columns["value"])


def test_there_are_recordings() -> None:
    assert {path.stem for path in RECORDINGS} >= {"digits-two-engines", "failed-run", "reload-mid-run"}
