"""Environment variables that hold secrets: they are sent to engines, but not written to disk."""

from __future__ import annotations

import re

_WORDS = frozenset(
    {
        *("TOKEN", "SECRET", "SECRETS", "KEY", "KEYS", "APIKEYS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASS"),
        *("CREDENTIAL", "CREDENTIALS", "CREDS", "COOKIE", "JWT", "PAT", "DSN"),
    }
)
_ENDINGS = (
    "TOKEN",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIALS",
    "APIKEY",
    "ACCESSKEY",
    "SECRETKEY",
    "PRIVATEKEY",
    "AUTHKEY",
)
_AMONG_OTHERS = frozenset({"PWD"})  # alone, it is the working directory
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_WITH_PASSWORD = re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@", re.IGNORECASE)


def is_secret(name: str, value: str = "") -> bool:
    """Return whether an environment variable looks like a secret: a word of its name, or a URL with a password as its value.

    ``HF_TOKEN``, ``awsSecretAccessKey`` and ``MYSQL_PWD`` do; ``TOKENIZERS_PARALLELISM``, ``KEYBOARD`` and ``PWD`` do not.
    """
    words = [word.upper() for word in _WORD.findall(name)]
    return (
        not _WORDS.isdisjoint(words)
        or any(word.endswith(_ENDINGS) for word in words)
        or (len(words) > 1 and not _AMONG_OTHERS.isdisjoint(words))
        or _WITH_PASSWORD.search(value) is not None
    )
