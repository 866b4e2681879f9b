"""Interfaces to the operating system, the interpreter and installed packages."""
