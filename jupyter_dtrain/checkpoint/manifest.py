"""Manifests: what a folder holds, with a checksum of each part, signed by the user who wrote it.

Checkpoints are pickles, which can run any code when they are read. So they are treated as Jupyter treats notebooks: a secret of the
user's own, in Jupyter's data folder, signs the manifest, and through its checksums all that the manifest names. What
somebody else has written or changed is refused before any of it is unpickled, unless the user says that they trust it.

A manifest names its run, so parts of one run are none of another, and the versions that wrote it: what is pickled are instances of this
project's classes and the bytecode of the notebook's functions, which other versions need not understand. `FORMAT` rises when those
classes change (`tests/unit/test_format.py` notices).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ..errors import CheckpointError
from ..runs.persister import environment
from ..system.atomic_files import write_whole
from ..system.confined import read_below
from ..system.user_secret import user_secret
from .manifest_shape import has_shape

FORMAT = 2
LARGEST = 1 << 26
"""Bytes of a manifest: one that names a million buffers has them."""
Kind = Literal["task", "checkpoint", "ending"]


def write_manifest(path: Path, kind: Kind, content: dict[str, Any], *, run_id: str) -> dict[str, Any]:
    """Write a manifest of this `kind` for a run, signed; return it."""
    manifest = {"format": FORMAT, "kind": kind, "run": run_id, "versions": versions(), **content}
    manifest["signature"] = _signature(manifest)
    write_whole(path, json.dumps(manifest, indent=1).encode(), durable=True)
    return manifest


def read_manifest(base: Path, *parts: str, kind: Kind, what: str) -> dict[str, Any]:
    """Return a manifest below `base`, whoever has written it; `what` is what errors call it.

    Raises
    ------
    CheckpointError
        It cannot be read, is not of this `kind` or not of this version.
    """
    try:
        manifest: Any = json.loads(read_below(base, *parts, limit=LARGEST))
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        version = None
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{what} is damaged: its manifest cannot be read.")
    if version > FORMAT:
        raise CheckpointError(
            f"{what} was written by a newer version of jupyter_dtrain (format {version}, this one knows {FORMAT}): "
            "update jupyter_dtrain to use it."
        )
    if version < FORMAT:
        raise CheckpointError(
            f"{what} was written by an older version of jupyter_dtrain (format {version}, this one reads {FORMAT}): "
            "run the cell again, or use the version that wrote it."
        )
    if not has_shape(manifest, kind):
        raise CheckpointError(f"{what} is damaged: its manifest was not written by jupyter_dtrain.")
    return dict(manifest)


def check_signature(manifest: dict[str, Any], run_id: str, *, advice: str | None = None) -> None:
    """Raise a `CheckpointError` where a manifest is not as this user has written it for this run.

    Where somebody else has, `advice` says how it is read all the same.
    """
    unsigned = {name: value for name, value in manifest.items() if name != "signature"}
    if not hmac.compare_digest(str(manifest.get("signature")).encode(), _signature(unsigned).encode()):
        advice = advice or f"`%distribute resume {run_id} --trust` loads it anyway"
        raise CheckpointError(
            f"What {run_id} holds was not written by you here, or has been changed since, and reading it can run any code. "
            f"If you know where it comes from, {advice}."
        )
    if manifest["run"] != run_id:
        raise CheckpointError(f"What {run_id} holds was written for another run, {manifest['run']}, and has been moved there.")


def versions() -> dict[str, str]:
    """Return the versions that what is pickled here depends on."""
    packages = environment()["packages"]
    return {"python": platform.python_version(), **{name: packages[name] for name in ("torch", "jupyter_dtrain") if name in packages}}


def check_versions(manifest: dict[str, Any], what: str) -> None:
    """Raise a `CheckpointError` where Python's minor version is another: functions are kept as its bytecode."""
    there, here = manifest["versions"].get("python", "?"), platform.python_version()
    if _minor(there) != _minor(here):
        raise CheckpointError(
            f"{what} was written by Python {there}, and this is Python {here}, which does not run what the other has compiled: "
            f"start the kernel with Python {_minor(there)}, or run the cell again."
        )


def other_versions(manifest: dict[str, Any]) -> str:
    """Return which versions wrote something and which would read it, where they differ: ``torch 2.12.0 (here 2.13.0)``."""
    there, here = manifest["versions"], versions()
    names = sorted(there.keys() | here.keys())
    return ", ".join(
        f"{name} {there.get(name, 'not given')} (here {here.get(name, 'not given')})" for name in names if there.get(name) != here.get(name)
    )


@contextmanager
def unpickling(manifest: dict[str, Any], what: str) -> Iterator[None]:
    """Say what is missing where what a manifest vouches for cannot be unpickled in the ``with`` block."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as error:
        differs = other_versions(manifest)
        because = f"It was written with {differs}: use those versions" if differs else "Install or import what it needs"
        raise CheckpointError(f"{what} cannot be read here: {type(error).__name__}: {error}. {because}, or run the cell again.") from error


def unpickled(data: bytes, manifest: dict[str, Any], what: str) -> Any:
    """Return what `data` is the pickle of, if the manifest of a run's task vouches for these bytes; a `CheckpointError` if not."""
    if checksum_of(data) != manifest["data"]:
        raise CheckpointError(f"{what} has been changed on disk: run its cell again.")
    with unpickling(manifest, what):
        return pickle.loads(data)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def checksum_of(data: bytes | memoryview) -> str:
    """Return what tells whether `data` are as they were, also where somebody has reason to make others that look alike."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _signature(manifest: dict[str, Any]) -> str:
    return hmac.new(user_secret(), json.dumps(manifest, sort_keys=True).encode(), "sha256").hexdigest()
