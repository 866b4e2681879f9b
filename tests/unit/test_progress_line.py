"""The line about files that are looked through: there where it takes long and somebody looks, and gone in the end."""

from __future__ import annotations

import io
import sys

import pytest

from jupyter_dtrain import api, data
from jupyter_dtrain.data import progress_line as module


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(module, "LONG", 0.0)
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    return Terminal()


def test_bytes_of_csv_files_and_footers_are_told_while_they_are_read(terminal, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    (tmp_path / "rows.csv").write_text("a\n" + "1\n" * 999)
    rows = data.csv(tmp_path / "rows.csv", features="a", block_bytes=500)
    first, *others = [line.rstrip() for line in terminal.getvalue().split("\r") if line.strip()]
    assert first.startswith("Looking for the rows of CSV files: 25% · 500 B of 2.0 KiB · ") and len(others) == 3
    assert terminal.getvalue().endswith("\r")
    assert len(rows) == 999
    with data.to_parquet(tmp_path / "parts", part_rows=1) as preds:
        for row in range(3):
            preds.append([row])
    data.parquet(tmp_path / "parts", features="value")
    assert "Reading footers: 67% · 2 of 3 files · " in terminal.getvalue()


def test_nothing_is_told_on_an_engine_or_in_a_log(terminal, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    monkeypatch.setattr(api, "current", object())
    data.csv(tmp_path / "rows.csv", features="a")
    monkeypatch.setattr(api, "current", None)
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    data.csv(tmp_path / "rows.csv", features="a")
    assert terminal.getvalue() == log.getvalue() == ""


def test_what_is_done_at_once_shows_nothing(terminal, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "LONG", 60.0)
    (tmp_path / "rows.csv").write_text("a\n1\n")
    data.csv(tmp_path / "rows.csv", features="a")
    assert terminal.getvalue() == ""
