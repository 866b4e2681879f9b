"""JupyterLab and Chromium for the tests here: one server for all, a page and a notebook for each.

The browser belongs to a file and not to the session: while Playwright is up, the main thread has a running event loop, which
the tests of other folders must not find.

With ``LAB_PYTHON=/an/environment/bin/python`` the server is that environment's, with the package and the front end that are installed
there: other versions of Jupyter, a wheel.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.lab import Lab
from tests.browser.server import LIMIT, Server

# A browser that asks nobody anything.
ARGUMENTS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
THEMES = {"contrast": "JupyterLab Dark High Contrast", "dark": "JupyterLab Dark", "light": "JupyterLab Light"}
IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.fixture(scope="session")
def server(tmp_path_factory, request):
    folder, python = tmp_path_factory.mktemp("lab"), os.environ.get("LAB_PYTHON")
    server = Server(folder, python=python) if python else Server(folder, checkout=request.config.rootpath)
    yield server
    server.shut_down_kernels()
    server.stop()


@pytest.fixture(scope="module")
def browser():
    expect.set_options(timeout=LIMIT * 1000)
    with sync_playwright() as playwright:
        executable = next(filter(None, map(shutil.which, NAMES)), None)
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def open_lab(server, browser, request):
    """Return a function that opens a notebook with some cells in a new page; its kernel is shut down after the test."""
    folder = server.notebooks / request.node.name
    pages = []

    def open_one(*cells: str, name: str = "notebook.ipynb") -> Lab:
        folder.mkdir(exist_ok=True)
        context = browser.new_context(viewport={"width": 1280, "height": 840}, timezone_id="UTC", locale="en-US")
        context.set_default_timeout(LIMIT * 1000)
        page = context.new_page()
        pages.append(page)
        return Lab(page, server.url, server.token, folder / name, cells)

    yield open_one
    for number, page in enumerate(pages):
        page.screenshot(path=folder / f"end-{number}.png")  # for whoever looks into a failure
        page.context.close()
    server.shut_down_kernels()


@pytest.fixture
def screenshot():
    """Return a function that takes pictures in three themes for docs/images, where UPDATE_SCREENSHOTS=1 asks for them."""

    def take(lab: Lab, name: str, *, cell: int | None = None) -> None:
        if not os.environ.get("UPDATE_SCREENSHOTS"):
            return
        is_open = lab.page.locator("#jp-left-stack").is_visible()
        if is_open:
            lab.execute("application:toggle-left-area")
        lab.page.mouse.move(0, 0)  # no tooltip, no value under the pointer
        for shade, theme in THEMES.items():
            lab.change_theme(theme)
            if cell is not None:
                lab.cell(cell).evaluate("node => node.scrollIntoView({ block: 'start' })")
            lab.page.screenshot(path=IMAGES / f"{name}-{shade}.png")
        if is_open:
            lab.execute("application:toggle-left-area")

    return take
