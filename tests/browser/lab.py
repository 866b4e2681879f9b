"""JupyterLab as a person sees it: a notebook's cells, and our sidebar beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Locator, Page, expect

SIDEBAR = "jp-dtrain-sidebar"
CELLS = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-NotebookPanel-notebook .jp-CodeCell"  # of the notebook in front
AXE = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"


class Lab:
    """A page with one notebook of its own.

    Parameters
    ----------
    page : Page
        Empty.
    url : str
        The server's, with its slash.
    path : Path
        Where the notebook goes: into the folder of notebooks or a folder in it.
    """

    def __init__(self, page: Page, url: str, token: str, path: Path, cells: Sequence[str]) -> None:
        self.page = page
        self.path = path
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, path)
        where = f"{path.parent.name}/{path.name}"
        # A workspace of its own: nothing of another test's layout is restored.
        page.goto(f"{url}lab/workspaces/{path.parent.name}/tree/{where}?token={token}")
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until the notebook is there, its kernel connected and the keyboard served: a cell that is run earlier may hang."""
        expect(self.page.locator(CELLS).first).to_be_visible()
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)
        self.page.wait_for_function(READY)

    # -- cells -------------------------------------------------------------------------------------------------------

    def cell(self, index: int) -> Locator:
        return self.page.locator(CELLS).nth(index)

    def start(self, index: int) -> Locator:
        """Run a cell with Shift+Enter, and do not wait for its end."""
        cell = self.cell(index)
        cell.locator(".jp-InputArea-editor .cm-content").click()
        expect(cell.locator(".jp-InputArea-editor .cm-editor")).to_have_class(re.compile("cm-focused"))
        self.page.keyboard.press("Shift+Enter")
        expect(self.prompt(index)).to_have_text(re.compile(r"\[(\*|\d+)\]:"))
        return cell

    def run(self, index: int) -> str:
        """Run a cell that must end without an error; return what it shows."""
        self.start(index)
        self.finish(index)
        expect(self.error(index)).to_have_count(0)
        return self.output(index)

    def finish(self, index: int) -> None:
        """Wait for the end of a cell, however it ends."""
        expect(self.prompt(index)).to_have_text(re.compile(r"\[\d+\]:"))

    def write(self, index: int, code: str) -> None:
        """Put other code into a cell."""
        self.cell(index).locator(".jp-InputArea-editor .cm-content").click()
        self.page.keyboard.press("Control+A")
        self.page.keyboard.insert_text(code)

    def save(self) -> None:
        """Save the notebook as it is now, while a cell runs too."""
        self.execute("docmanager:save")  # which has saved it when it returns

    def prompt(self, index: int) -> Locator:
        return self.cell(index).locator(".jp-InputPrompt")

    def is_running(self, index: int) -> bool:
        return self.prompt(index).inner_text() == "[*]:"

    def error(self, index: int) -> Locator:
        """Return the errors that a cell shows."""
        shown = self.cell(index).locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]')
        return shown.filter(has_text=re.compile("-{20}|Traceback"))

    def output(self, index: int) -> str:
        """Return the text of all that a cell shows."""
        return "\n".join(self.cell(index).locator(".jp-OutputArea-output").all_inner_texts())

    def execute(self, command: str, **arguments: Any) -> None:
        """Execute one of JupyterLab's commands, as its menu does: after the page has loaded, extensions register theirs in their time."""
        self.page.wait_for_function("id => window.jupyterapp?.commands.hasCommand(id)", arg=command)
        self.page.evaluate("async ([id, args]) => { await window.jupyterapp.commands.execute(id, args); }", [command, arguments])

    def change_theme(self, theme: str) -> None:
        """Change JupyterLab's theme, and wait until it is in place."""
        self.execute("apputils:change-theme", theme=theme)
        expect(self.page.locator("body")).to_have_attribute("data-jp-theme-name", theme)
        expect(self.page.locator("#jupyterlab-splash")).to_have_count(0)

    def watch_console(self) -> list[str]:
        """Return a list that gets the errors of the page's console, and what nothing has caught, from now on."""
        errors: list[str] = []
        self.page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: errors.append(str(error)))
        return errors

    # -- the sidebar -------------------------------------------------------------------------------------------------

    @property
    def sidebar(self) -> Locator:
        return self.page.locator(f"#{SIDEBAR}")

    def open_sidebar(self) -> None:
        """Open the sidebar, which may have opened by itself."""
        if not self.sidebar.is_visible():
            self.execute("jupyter-dtrain:show")
        expect(self.sidebar).to_be_visible()

    def close_sidebar(self) -> None:
        self.page.locator(f'.jp-SideBar .lm-TabBar-tab[data-id="{SIDEBAR}"]').click()
        expect(self.sidebar).not_to_be_visible()

    def part(self, name: str) -> Locator:
        """Return the part of the sidebar that is marked as `name` for tests."""
        return self.sidebar.get_by_test_id(f"jp-dtrain-{name}")

    def selector(self, name: str) -> str:
        """Return what finds that part in a page."""
        return f'#{SIDEBAR} [data-testid="jp-dtrain-{name}"]'

    def curve_selector(self, curve: str) -> str:
        """Return what finds the chart of a curve in a page."""
        return f'#{SIDEBAR} figure[data-series="{curve}"]'

    def expect_phase(self, phase: str) -> None:
        expect(self.part("run")).to_have_attribute("data-phase", phase)

    def expect_cluster(self, phase: str) -> None:
        expect(self.part("cluster")).to_have_attribute("data-phase", phase)

    def number(self, name: str) -> float:
        """Return one of the run's numbers."""
        return float(self.part(name).inner_text().replace(",", ""))

    def points(self, curve: str = "loss") -> int:
        """Return how many points of a curve are drawn; 0 where there is no such curve."""
        chart = self.page.locator(self.curve_selector(curve))
        return int(chart.get_attribute("data-points") or 0) if chart.count() else 0

    def wait_for_points(self, number: int, curve: str = "loss") -> None:
        """Wait until a curve has at least so many points."""
        self.page.wait_for_function(
            "([selector, number]) => Number(document.querySelector(selector)?.dataset.points ?? 0) >= number",
            arg=[self.curve_selector(curve), number],
        )

    def expect_points(self, number: int, curve: str = "loss") -> None:
        """Expect a curve of so many points, and as many steps."""
        expect(self.sidebar.locator(f'figure[data-series="{curve}"]')).to_have_attribute("data-points", str(number))
        expect(self.part("step")).to_have_text(f"{number:,}")

    def resize_sidebar(self, width: int) -> None:
        """Drag the sidebar's edge until it has this width."""
        handle = self.page.locator("#jp-main-split-panel > .lm-SplitPanel-handle:not(.lm-mod-hidden)").last
        grip, before = handle.bounding_box(), self.sidebar.bounding_box()
        assert grip is not None and before is not None
        x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
        self.page.mouse.move(x, y)
        self.page.mouse.down()
        self.page.mouse.move(x + before["width"] - width, y, steps=5)
        self.page.mouse.up()
        self.page.wait_for_function("([id, width]) => Math.abs(document.getElementById(id).clientWidth - width) <= 2", arg=[SIDEBAR, width])

    def faults(self, part: Locator | None = None) -> list[str]:
        """Return what axe finds wrong with the sidebar, or another part, for those who do not see it or use no mouse, if it is serious."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found: list[str] = (part or self.sidebar).evaluate(SERIOUS)
        return found

    def faults_in_every_theme(self, part: Locator | None = None) -> list[str]:
        """Return what axe finds in each of JupyterLab's themes; the light one is there afterwards."""
        found = []
        for theme in ("JupyterLab Dark High Contrast", "JupyterLab Dark", "JupyterLab Light"):
            self.change_theme(theme)
            found += [f"{theme}: {fault}" for fault in self.faults(part)]
        return found

    def cut_off(self, part: Locator | None = None) -> list[str]:
        """Return the texts of the sidebar, or another part, that do not fit. What is shortened and has its whole in a tooltip fits."""
        found: list[str] = (part or self.sidebar).evaluate(CUT_OFF)
        return found


READY = """
() => {
  const { commands, shell } = window.jupyterapp ?? {};
  const session = shell?.currentWidget?.sessionContext;
  return (
    session?.isReady &&
    session.session?.kernel?.connectionStatus === 'connected' &&
    ['idle', 'busy'].includes(session.session.kernel.status) &&
    commands.keyBindings.some(binding => binding.command === 'notebook:run-cell-and-select-next')
  );
}
"""

SERIOUS = """
async sidebar => {
  const { violations } = await window.axe.run(sidebar, { resultTypes: ['violations'] });
  return violations
    .filter(({ impact }) => ['serious', 'critical'].includes(impact))
    .flatMap(({ id, nodes }) => nodes.map(node => `${id}: ${node.html.slice(0, 200)} ${node.failureSummary}`));
}
"""

CUT_OFF = """
sidebar => {
  const edge = sidebar.getBoundingClientRect().right;
  return [sidebar, ...sidebar.querySelectorAll('*')].filter(node => {
    const box = node.getBoundingClientRect();
    const isShown = box.width > 0 && box.height > 0 && getComputedStyle(node).visibility !== 'hidden';
    const isTooWide = node.clientWidth > 0 && node.scrollWidth > node.clientWidth && !node.closest('[title]');
    return isShown && (isTooWide || box.right > edge + 0.5);
  }).map(node => `${node.localName}.${node.className}: ${node.textContent}`);
}
"""
