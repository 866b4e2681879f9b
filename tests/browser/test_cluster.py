"""More ranks than this machine could run, made up by the kernel: what the sidebar shows of them."""

import re

import pytest
from playwright.sync_api import expect

from bench.sidebar import SOURCE, STEPS

pytestmark = [pytest.mark.browser, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]


def test_many_ranks_are_a_heat_map_and_rows_in_sight(open_lab):
    lab = open_lab(SOURCE.format(ranks=64, curves=2, points=1000, hertz=10, steps=STEPS))
    lab.open_sidebar()
    lab.resize_sidebar(300)
    lab.run(0)
    lab.expect_cluster("running")
    heat_map = lab.part("heat-map")
    expect(heat_map).to_have_attribute("aria-label", re.compile(r"Utilization of 64 ranks: mean \d+%, min \d+% on rank \d+"))
    rows = lab.part("rank")
    expect(rows.first).to_contain_text("Rank 0")
    expect(rows.first).to_contain_text(re.compile(r"cuda:0 · node-0.*step [\d,]+ · H100.*32 / 64 GiB · 60 °C · 300 W"))
    assert 6 <= rows.count() <= 12
    assert lab.cut_off() == []

    # The last square leads to the last rank, and only the rows in sight are there.
    heat_map.scroll_into_view_if_needed()
    box = heat_map.bounding_box()
    columns = int((box["width"] + 2) // 20)  # squares of 18 pixels, with 2 between
    heat_map.click(position={"x": ((63 % columns) + 0.5) * 20, "y": box["height"] - 5})
    expect(lab.sidebar.locator('[data-rank="63"][data-testid="jp-dtrain-rank"]')).to_be_visible()
    expect(lab.sidebar.locator('[data-rank="0"][data-testid="jp-dtrain-rank"]')).to_have_count(0)
    assert rows.count() <= 12

    # As many bars of times as tell something.
    expect(lab.part("rank-times")).to_have_count(16)
    expect(lab.part("times")).to_contain_text("16 of 64 ranks")
    assert lab.cut_off() == []
    assert lab.faults_in_every_theme() == []


def test_ranks_of_several_hosts_stand_below_their_host(open_lab):
    lab = open_lab(SOURCE.format(ranks=16, curves=1, points=100, hertz=10, steps=STEPS))
    lab.open_sidebar()
    lab.run(0)
    lab.expect_cluster("running")
    hosts = lab.part("host")
    expect(hosts).to_have_count(2)
    for number in range(2):
        host = hosts.nth(number)
        expect(host.get_by_role("heading")).to_have_text(f"node-{number}")
        ranks = host.get_by_test_id("jp-dtrain-rank")
        expect(ranks).to_have_count(8)
        expect(ranks.first).to_contain_text(f"Rank {8 * number}")
        expect(ranks.first).not_to_contain_text("node-")
    assert lab.cut_off() == []
    assert lab.faults_in_every_theme() == []
