"""Data parallelism with less communication than all gradients in every step, as an option; the numbers then differ."""
