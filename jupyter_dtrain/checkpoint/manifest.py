"""Manifests: what a folder holds, with a checksum of each part, signed by the user who wrote it.

Checkpoints are pickles, which can run any code when they are read. So they are treated as Jupyter treats notebooks: a secret of the
user's own, in Jupyter's data folder, signs the manifest, and through its checksums all that the manifest names. What
somebody else has written or changed is refused before any of it is unpickled, unless the user says that they trust it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..system.atomic_files import write_whole

FORMAT = 1
SECRET_BYTES = 32


def write_manifest(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Write a manifest, signed; return it."""
    manifest = {"format": FORMAT, **content}
    manifest["signature"] = _signature(manifest)
    write_whole(path, json.dumps(manifest, indent=1).encode(), durable=True)
    return manifest


def read_manifest(path: Path, what: str) -> dict[str, Any]:
    """Return a manifest, whoever has written it; `what` is what errors call it.

    Raises
    ------
    CheckpointError
        It cannot be read, or is of a newer version.
    """
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        version = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{what} is damaged: its manifest cannot be read.") from None
    if version > FORMAT:
        raise CheckpointError(
            f"{what} was written by a newer version of jupyter_dtrain (format {version}, this one knows {FORMAT}): "
            "update jupyter_dtrain to use it."
        )
    return manifest


def check_signature(manifest: dict[str, Any], run_id: str, *, command: str = "resume") -> None:
    """Raise a `CheckpointError` where a manifest is not as this user has written it; `command` reads it all the same."""
    unsigned = {name: value for name, value in manifest.items() if name != "signature"}
    if not hmac.compare_digest(str(manifest.get("signature")).encode(), _signature(unsigned).encode()):
        raise CheckpointError(
            f"What {run_id} holds was not written by you here, or has been changed since, and reading it can run any code. "
            f"If you know where it comes from, `%distribute {command} {run_id} --trust` reads it all the same."
        )


def checksum_of(data: bytes | memoryview) -> str:
    """Return what tells whether `data` are as they were, also where somebody has reason to make others that look alike."""
    return hashlib.blake2b(data, digest_size=20).hexdigest()


def key_for(purpose: str) -> bytes:
    """Return a key that this user's processes have in common, another one for each purpose."""
    return hmac.new(_secret(), purpose.encode(), "sha256").digest()


def _signature(manifest: dict[str, Any]) -> str:
    return hmac.new(_secret(), json.dumps(manifest, sort_keys=True).encode(), "sha256").hexdigest()


def _secret() -> bytes:
    """Return the user's secret; make it if there is none."""
    from jupyter_core.paths import jupyter_data_dir

    path = Path(jupyter_data_dir()) / "jupyter_dtrain" / "secret"
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
            os.link(name, path)  # as a whole, and never over another that has just been made
        except FileExistsError:
            pass
        finally:
            Path(name).unlink()
    return path.read_bytes()
