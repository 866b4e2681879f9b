"""The session of a kernel: its engines, its runs, and what views are told and may command."""
