"""Side effects of a cell (files, folders, output, commands): they happen once, on any number of ranks, also if a step is recomputed."""
