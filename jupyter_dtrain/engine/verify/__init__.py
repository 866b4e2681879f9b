"""Compares results on shards of a batch with those on the full batch while the cell runs, and corrects the run where they differ."""
