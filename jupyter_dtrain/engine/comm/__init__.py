"""How the ranks of a run meet and what they exchange: over shared memory on one host, else over PyTorch's process group or its store."""
