"""Predict the memory and time of a cell's step on the engines before any engine is started."""
