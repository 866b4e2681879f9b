"""Resumable loops: where a run is in the cell's code, and the jump to such a place."""
