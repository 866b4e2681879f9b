#!/usr/bin/env bash
# The wheel of `make dist` with the oldest and the newest Jupyter that it accepts, and between, each in a new environment: the front end
# is listed, README's first cell comes home, Stop stops. docs/supported.md says what came of it.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$PWD/.venv/bin/python
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# try PACKAGES...: in a new environment
try() {
    printf '\n-- %s\n' "$*"
    rm -rf "$folder/venv"
    "$python" -m venv "$folder/venv"
    "$folder/venv/bin/pip" install -q "${TORCH:-torch==2.13.0+cpu}"
    "$folder/venv/bin/pip" install -q dist/*.whl "$@"
    "$folder/venv/bin/python" -m compileall -q "$folder/venv/lib" || true # each of many processes would compile PyTorch else
    PYTHONPATH=$PWD LAB_PYTHON=$folder/venv/bin/python "$python" -m pytest -n0 -q -s -m 'long or not long' tests/browser/test_installed.py
}

try ipykernel==6.17.1 ipython==7.34.0 jupyterlab==4.4.0
try ipykernel==6.29.5 ipython==8.30.0 jupyterlab==4.4.0
try 'ipykernel<7' ipython jupyterlab
try ipykernel ipython jupyterlab==4.4.0
try ipykernel ipython jupyterlab notebook
