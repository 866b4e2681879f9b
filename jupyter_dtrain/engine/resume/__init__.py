"""Loops that a run can go on in: where it is in the cell's text, and the jump to such a place."""
