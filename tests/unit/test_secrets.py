"""Environment variables that look like secrets stay in memory, and come from the kernel that goes on."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, replace

import pytest

from jupyter_dtrain.capture.process_state import ProcessSettings
from jupyter_dtrain.capture.secrets import is_secret
from jupyter_dtrain.capture.settings import ENVIRONMENT, SOME_OF_IT
from jupyter_dtrain.checkpoint.secrets_at_rest import part_with_secrets, part_without_secrets

SECRET = [
    *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "PGPASSWORD", "MYSQL_PWD", "DB_PASS"),
    *(
        "SSH_PASSPHRASE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "awsSecretAccessKey",
        "apiKey",
        "APIKEY",
        "NPM_AUTHTOKEN",
        "SENTRY_DSN",
        "GH_PAT",
    ),
    *("token", "kaggle_key", "KEY", "OPENAI_API_KEY2", "Secret"),
]
HARMLESS = [
    *("KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY", "PWD", "OLDPWD", "PATH", "COMPASS_DIR", "PASSENGERS", "HOTKEYS", "SECRETARY"),
    *("LANG", "DISPLAY", "SSH_AUTH_SOCK", "MAX_TOKENS", "PATTERN", "KEYRING_BACKEND", "DATA_DIR", "BYPASSED"),
]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name):
    assert is_secret(name, "x")


@pytest.mark.parametrize("name", HARMLESS)
def test_names_that_only_look_like_them(name):
    assert not is_secret(name, "/home/user")


def test_an_address_with_a_password_is_one():
    assert is_secret("DATABASE_URL", "postgres://me:hunter2@db/x")
    assert is_secret("https_proxy", "http://:hunter2@proxy:3128")
    assert not is_secret("DATABASE_URL", "postgres://db:5432/x")
    assert not is_secret("MAIL", "mailto://someone@example.org")


@dataclass(frozen=True)
class Part:
    surroundings: ProcessSettings
    step: int = 3


def test_what_lies_on_a_disk_has_none_and_the_kernel_that_goes_on_gives_its_own(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    monkeypatch.setenv("MY_SECRET", "gone")
    monkeypatch.setenv("DATA_DIR", "/data")
    now = ProcessSettings.now()
    part = pickle.dumps(Part(replace(now, settings={**now.settings, SOME_OF_IT: {"NEW_TOKEN": "hf_cell", "UNSET_KEY": None}})))
    stored = part_without_secrets(part)
    assert not any(secret in stored for secret in (b"hf_old", b"gone", b"hf_cell"))
    kept = pickle.loads(stored).surroundings
    assert kept.settings[ENVIRONMENT]["DATA_DIR"] == "/data"
    assert {"HF_TOKEN", "MY_SECRET", "NEW_TOKEN"} <= set(kept.withheld)
    assert part_without_secrets(stored) == stored

    monkeypatch.setenv("HF_TOKEN", "hf_new")
    monkeypatch.delenv("MY_SECRET")
    again = pickle.loads(part_with_secrets(stored)).surroundings
    assert again.settings[ENVIRONMENT]["HF_TOKEN"] == "hf_new"
    assert "MY_SECRET" in again.withheld and "HF_TOKEN" not in again.withheld
    again.set()
    assert (os.environ["HF_TOKEN"], os.environ.get("MY_SECRET"), os.environ["DATA_DIR"]) == ("hf_new", None, "/data")
