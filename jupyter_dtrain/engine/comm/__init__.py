"""Rendezvous and communication of a run's ranks: over shared memory on one host, otherwise over PyTorch's process group or its store."""
