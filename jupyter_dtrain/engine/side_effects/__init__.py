"""What a cell writes, to files and to trackers of experiments: once, whatever the number of ranks and however often a step is computed."""
