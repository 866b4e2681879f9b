"""Room that has run out, in the memory of a device or of the host or on a disk: how it is known, and what can be done."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .errors import CheckpointError

ON_DEVICE = (
    "The device has no room for this step. A smaller batch_size takes less of it, and so do more engines, which share each batch; "
    "`torch.autocast` in bfloat16 halves the activations."
)
ON_HOST = (
    "A smaller batch_size takes less memory, and so do fewer engines, as each has a model and an optimizer of its own; "
    "data that is read when it is needed (`np.load(..., mmap_mode='r')`, a Dataset that opens files) takes none before."
)
DISK = 1.1
"""Free space that a disk has to have, as a multiple of what is written."""
OVERFLOW = ".overflow"
"""Name of a link, in a folder of shared memory, to one on a disk for what finds no room."""
_ASKED = re.compile(r"you tried to allocate (\d+) bytes")
_HOST_ERRORS = ("MemoryError", "_ArrayMemoryError")  # Python's and NumPy's


def advice_for(name: str, message: str) -> str | None:
    """Return what can be done about an error of this type's name and message; ``None``: it is not about memory."""
    if name == "OutOfMemoryError":
        return ON_DEVICE
    if name not in _HOST_ERRORS and "DefaultCPUAllocator" not in message:
        return None
    asked = _ASKED.search(message)
    wanted = f"{gibibytes(int(asked[1]))} were asked for at once. " if asked else ""
    return f"{wanted}{ON_HOST}"


def check_disk(folder: Path, num_bytes: int, *, what: str) -> None:
    """Raise a `CheckpointError` where the disk of `folder` has no room for `num_bytes` more, which are `what`."""
    needed, free = DISK * num_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(f"There is no room for {what} in {folder}: {gibibytes(needed)} are needed, and {gibibytes(free)} are free.")


def gibibytes(num_bytes: float) -> str:
    """Return a number of bytes as people read it, with its unit."""
    if num_bytes < 2**27:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes < 10 * 2**30 else f"{num_bytes / 2**30:,.0f} GiB"
