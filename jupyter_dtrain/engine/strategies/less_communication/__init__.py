"""Data parallelism that exchanges less than all of every gradient, where an option asks for it: numbers differ then."""
