"""Execute digits.ipynb in a real kernel and show what its training cell prints, as it prints it.

The notebook is the demonstration; this only runs it the way JupyterLab would and adds a column with the number of
engines to its table.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

NOTEBOOK = Path(__file__).with_name("digits.ipynb")
ANNOUNCED = {  # cell id → what is said before the cell runs, where it takes its time
    "load": "Starting the engines.",
    "data": "\nImporting PyTorch and loading the digits.",
    "train": "Training on {engines} engines.\n",
}
NEXT = """
The same in JupyterLab, with the curves live beside it:  make lab
A first cell of your own:                                README.md
"""


class Demo(NotebookClient):
    """A client that passes on what the cells print, line by line, while they run."""

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> nbformat.NotebookNode | None:
        """Show a stream's text; leave everything else to nbclient."""
        if msg["msg_type"] == "stream":
            self.show(msg["content"]["text"], engines_of(cell))
        return super().process_message(msg, cell, cell_index)

    def show(self, text: str, engines: int | None) -> None:
        """Print the whole lines of `text`; rows of the table, and their heading, get the column of engines."""
        self.pending: str = getattr(self, "pending", "") + text
        *lines, self.pending = self.pending.split("\n")
        for line in lines:
            if engines and line.startswith("epoch "):
                line = f"{line}  engines"
            elif engines and re.match(r" *\d+ +\d", line):
                line = f"{line}  {engines:7d}"
            print(line, flush=True)


def engines_of(cell: nbformat.NotebookNode) -> int | None:
    """Return the engines that the cell asks for; ``None`` for a cell that runs in the notebook."""
    found = re.match(r"%%distribute .*--engines (\d+)", cell.source)
    return int(found[1]) if found else None


def main() -> int:
    """Run the notebook; return the exit code."""
    started = time.perf_counter()
    notebook = nbformat.reads(NOTEBOOK.read_text(), as_version=4)  # type: ignore[no-untyped-call]

    def announce(cell: nbformat.NotebookNode, cell_index: int) -> None:  # noqa: ARG001 (nbclient passes it)
        if cell.id in ANNOUNCED:
            print(ANNOUNCED[cell.id].format(engines=engines_of(cell)), flush=True)
        elif cell.id == "use":
            print()

    print(f"Running {NOTEBOOK.name} in a kernel of its own.", flush=True)
    client = Demo(
        notebook,
        timeout=300,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        on_cell_execute=announce,
        skip_cells_with_tag="picture",  # which a terminal cannot show
        config=Config(KernelManager={"transport_encryption": "auto"}),  # where the kernel can, and then it does not warn
    )
    try:
        client.execute()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Done in {time.perf_counter() - started:.0f} s.\n{NEXT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
