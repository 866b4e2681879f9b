"""What the sidebar shows where there is nothing to show yet."""

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.long
def test_a_notebook_without_the_extension_says_how_to_begin(open_lab):
    lab = open_lab("%load_ext jupyter_dtrain", "1 + 1")
    lab.open_sidebar()
    lab.resize_sidebar(300)
    status = lab.part("status")
    expect(status).to_have_attribute("data-status", "absent")
    expect(status.locator("pre")).to_have_text(["%load_ext jupyter_dtrain", "%%distribute"])
    assert lab.cut_off() == []
    lab.run(1)
    expect(status).to_have_attribute("data-status", "absent")

    lab.run(0)
    lab.expect_cluster("stopped")
    expect(status).to_have_count(0)
    expect(lab.part("run").locator("pre")).to_have_text("%%distribute")
    expect(lab.part("start-cluster")).to_have_attribute("aria-disabled", "false")
    assert lab.cut_off() == []


@pytest.mark.long
def test_a_page_without_a_notebook_asks_for_one(open_lab):
    lab = open_lab("1 + 1")
    lab.open_sidebar()
    lab.page.add_locator_handler(lab.page.get_by_text("Save your work"), lambda: lab.page.get_by_role("button", name="Discard").click())
    lab.execute("application:close-all")
    expect(lab.part("status")).to_have_text("Open a notebook with a Python kernel to see its runs.")
    assert lab.cut_off() == []
