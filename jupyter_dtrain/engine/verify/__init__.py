"""Whether a part of a batch comes to what the whole batch does: tried while the cell runs, and mended where it does not."""
