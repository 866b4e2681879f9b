"""Manifests: the contents of a folder with a checksum of each file, signed by the user who wrote it.

Checkpoints are pickles, and unpickling can run any code. So they are signed as Jupyter signs notebooks: with a secret of the user's in
Jupyter's data folder. The signature covers the manifest, and through its checksums all files. What was changed or written by others is
refused before unpickling, unless the user trusts it explicitly.

A manifest names its run, so that files cannot be moved to another run, and the versions that wrote it. The pickles contain instances of
this project's classes and bytecode, which other versions may not understand. `FORMAT` rises when those classes change
(`tests/unit/test_format.py` notices).
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
"""Most bytes of a manifest, enough to name a million buffers."""
Kind = Literal["task", "checkpoint", "ending"]


def write_manifest(path: Path, kind: Kind, content: dict[str, Any], *, run_id: str) -> dict[str, Any]:
    """Write a signed manifest of this `kind` for a run; return it."""
    manifest = {"format": FORMAT, "kind": kind, "run": run_id, "versions": versions(), **content}
    manifest["signature"] = _signature(manifest)
    write_whole(path, json.dumps(manifest, indent=1).encode(), durable=True)
    return manifest


def read_manifest(base: Path, *parts: str, kind: Kind, what: str) -> dict[str, Any]:
    """Return a manifest below `base`, without checking its signature; `what` names it in errors.

    Raises
    ------
    CheckpointError
        It cannot be read, or is of another `kind` or version.
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
    """Raise a `CheckpointError` unless this user has signed the manifest for this run.

    `advice` tells how to load it anyway.
    """
    unsigned = {name: value for name, value in manifest.items() if name != "signature"}
    if not hmac.compare_digest(str(manifest.get("signature")).encode(), _signature(unsigned).encode()):
        advice = advice or f"`%distribute resume {run_id} --trust` loads it anyway"
        raise CheckpointError(
            f"What {run_id} holds was not written by you here, or has been changed since, and reading it can run any code. "
            f"If you know where it comes from, {advice}."
        )
    if manifest["run"] != run_id:
        raise CheckpointError(f"What {run_id} holds belongs to another run, {manifest['run']}, and was moved there.")


def versions() -> dict[str, str]:
    """Return the versions on which pickles of this process depend."""
    packages = environment()["packages"]
    return {"python": platform.python_version(), **{name: packages[name] for name in ("torch", "jupyter_dtrain") if name in packages}}


def check_versions(manifest: dict[str, Any], what: str) -> None:
    """Raise a `CheckpointError` if Python's minor version differs, as functions are pickled as bytecode."""
    there, here = manifest["versions"].get("python", "?"), platform.python_version()
    if _minor(there) != _minor(here):
        raise CheckpointError(
            f"{what} was written by Python {there}, and this is Python {here}, which cannot load the other's bytecode: "
            f"start the kernel with Python {_minor(there)}, or run the cell again."
        )


def other_versions(manifest: dict[str, Any]) -> str:
    """Return the differences between the writer's and this process's versions: ``torch 2.12.0 (here 2.13.0)``."""
    there, here = manifest["versions"], versions()
    names = sorted(there.keys() | here.keys())
    return ", ".join(
        f"{name} {there.get(name, 'not given')} (here {here.get(name, 'not given')})" for name in names if there.get(name) != here.get(name)
    )


@contextmanager
def unpickling(manifest: dict[str, Any], what: str) -> Iterator[None]:
    """Turn unpickling errors in the ``with`` block into a `CheckpointError` that names differing versions."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, ValueError, LookupError, EOFError, pickle.UnpicklingError) as error:
        differs = other_versions(manifest)
        because = f"It was written with {differs}: use those versions" if differs else "Install or import what it needs"
        raise CheckpointError(f"{what} cannot be read here: {type(error).__name__}: {error}. {because}, or run the cell again.") from error


def unpickled(data: bytes, manifest: dict[str, Any], what: str) -> Any:
    """Return the unpickled `data`; raise a `CheckpointError` if its checksum is not that of the task's manifest."""
    if checksum_of(data) != manifest["data"]:
        raise CheckpointError(f"{what} has been changed on disk: run its cell again.")
    with unpickling(manifest, what):
        return pickle.loads(data)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def checksum_of(data: bytes | memoryview) -> str:
    """Return a cryptographic checksum: nobody can make other data with the same one."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def _signature(manifest: dict[str, Any]) -> str:
    return hmac.new(user_secret(), json.dumps(manifest, sort_keys=True).encode(), "sha256").hexdigest()
