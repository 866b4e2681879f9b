"""Nothing is lost: snapshots in memory, checkpoints on disk, and generations of ranks one after the other."""
