"""Fault tolerance: snapshots in shared memory, checkpoints on disk, and generations of ranks one after the other."""
