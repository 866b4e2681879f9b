"""Reports of an engine to the kernel while a cell runs, commands to it, and the output of the cell."""
