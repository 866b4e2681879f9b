"""README's first cell in a browser: also in other versions of Jupyter, with the wheel installed there (`versions.sh`)."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

SNIPPETS = re.findall(
    r"^```python\n(.*?)^```$", (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
ASK = 'import importlib.metadata as installed\nprint({name: installed.version(name) for name in ("ipykernel", "ipython")})'
LOOK = "steps = {int(state['step']) for state in optimizer.state.values()}\nprint(steps)"
setup, train, use, long, look, ask = range(6)


def test_the_first_cell_of_the_readme_comes_home_and_a_longer_one_is_stopped(open_lab):
    assert "range(5)" in SNIPPETS[1]
    lab = open_lab(*SNIPPETS, SNIPPETS[1].replace("range(5)", "range(5000)"), LOOK, ASK)
    errors = lab.watch_console()
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(setup)
    print(lab.run(ask))
    has_subshells = "'ipykernel': '6" not in lab.output(ask)
    assert re.search(r"^4 \d\.\d+", lab.run(train), re.MULTILINE)
    lab.expect_phase("finished")
    lab.expect_points(5 * 64)
    error = re.search(r"mean squared error: ([\d.]+)", lab.run(use))
    assert error and float(error[1]) < 1  # a model that says 0 has 8
    assert lab.cut_off() == []

    lab.start(long)
    lab.expect_phase("running")
    lab.wait_for_points(40)
    view = lab.cell(long).locator(".jp-dtrain-cell")
    expect(view).to_have_attribute("data-phase", "running")
    for button in ("pause", "checkpoint-now"):  # which act while a cell runs, or say why not
        expect(lab.part(button)).to_have_attribute("aria-disabled", "false" if has_subshells else "true")
        if not has_subshells:
            expect(lab.part(button)).to_have_attribute("title", re.compile("answers between cells only"))
    assert lab.cut_off() == []
    lab.part("stop").click()
    lab.finish(long)
    expect(lab.error(long)).to_have_count(0)
    shown = re.search(r"Stopped after step ([\d,]+)", lab.output(long))
    assert shown, lab.output(long)
    lab.expect_phase("stopped")
    assert lab.run(look).strip() == f"{{{5 * 64 + int(shown[1].replace(',', ''))}}}"
    assert errors == []


@pytest.mark.skipif("LAB_PYTHON" not in os.environ, reason="the front end is not installed but linked")
def test_the_front_end_is_listed():
    listed = subprocess.run(
        [os.environ["LAB_PYTHON"], "-m", "jupyterlab.labextensions", "list"], capture_output=True, text=True, check=True, timeout=100
    )
    line = next(line for line in (listed.stdout + listed.stderr).splitlines() if "jupyter-dtrain" in line)
    assert re.search(r"v\S+ .*enabled.*OK.*\(python, jupyter_dtrain\)$", line)
