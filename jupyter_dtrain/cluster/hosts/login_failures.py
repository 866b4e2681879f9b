"""Explanations of failed agent starts, from the output of ssh, a shell or Python."""

from __future__ import annotations

from collections.abc import Iterable

_NOT_INSTALLED = "jupyter_dtrain is not installed for {python} there, or is another version: install the notebook's"
_SAID = {
    "Permission denied": "SSH refuses the login: run `ssh-copy-id {name}` in a terminal to log in without a password",
    "Could not resolve hostname": "the host name cannot be resolved: add it to ~/.ssh/config, or use an address",
    "Host key verification failed": "its host key is unknown here: run `ssh {name}` in a terminal once, to check and accept it",
    "Connection refused": "nothing listens at its SSH port: start sshd there",
    "No route to host": "there is no route to it: check that it is on and in this network",
    "timed out": "it does not answer at its SSH port: check that it is on and that no firewall blocks SSH",
    "No module named 'jupyter_dtrain": _NOT_INSTALLED,
    "No module named jupyter_dtrain": _NOT_INSTALLED,
    "No module named": "a dependency of jupyter_dtrain is not installed for {python} there: {line}",
    "the notebook's process cannot be reached": "it cannot connect to the notebook's host: allow TCP from it in that firewall ({line})",
    "No such file or directory": "there is no {python}: use `--remote-python PATH` to name the Python there",
    "not found": "there is no {python}: use `--remote-python PATH` to name the Python there",
}
"""Texts in the output of ssh, a shell or Python → their explanation for the user."""
_DOWN = (
    *[_SAID[said] for said in ("Connection refused", "No route to host", "timed out", "the notebook's process cannot be reached")],
    "has not come up within",
    "no agent came up there",
)


def meaning_of(words: Iterable[str], *, name: str, python: str) -> str | None:
    """Return the explanation of some output, ``None`` if nothing in it is known.

    Parameters
    ----------
    words : iterable of str
        Lines of output.
    name : str
        Name of the host.
    python : str
        The Python that should have run there.
    """
    words = list(words)
    for said, meaning in _SAID.items():
        line = next((word for word in words if said in word), None)
        if line is not None:
            return meaning.format(name=name, python=python, line=line)
    return None


def is_down(why: str) -> bool:
    """Return whether a host was unreachable or failed for unknown reasons, rather than refused for a finding."""
    return any(said.partition("{")[0] in why for said in _DOWN)
