"""A run in short: what stays of it in a notebook, for those who have no kernel and run no scripts."""

from __future__ import annotations

import base64
import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from jupyter_dtrain.notebook.run_view import MAX_POINTS
from jupyter_dtrain.notebook.summary import Summary
from jupyter_dtrain.protocol import Points, RunUpdate, Steps
from jupyter_dtrain.runs.recorder import RunRecorder
from jupyter_dtrain.runs.svg_chart import picture


def run(**changes):
    facts: dict[str, Any] = {
        "run_id": "r",
        "name": "digits",
        "phase": "finished",
        "world_size": 2,
        "started": 0.0,
        "elapsed": 75.4,
        "step": 1380,
    }
    return RunUpdate(**facts | changes)


def curve(name, *values):
    return Points(run_id="r", name=name, step=list(range(1, len(values) + 1)), time=[], value=list(values))


def drawing(html):
    """Return the picture in `html` as a tree."""
    found = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert found
    return ElementTree.fromstring(base64.b64decode(found[1]))


def lines(tree):
    """Return the lines of the curves: those that are not frames."""
    return [path.get("d") for path in tree.findall(".//{*}path") if path.get("stroke-opacity") is None]


def texts(tree):
    return [text.text for text in tree.findall(".//{*}text")]


def test_a_run_in_text():
    curves = [curve("epoch", 0.0, 1.0), curve("accuracy", 0.1, 0.5, 0.9), curve("loss", 2.303, 1.0, None, 0.3128)]
    assert Summary(run(samples_per_second=8512.3), curves).text() == (
        "digits: finished, 1,380 steps in 1:15 min, 8,512 samples/s on 2 engines\n"
        "  loss      2.303 → 0.3128  █▃▁\n"
        "  accuracy  0.1 → 0.9  ▁▅█"
    )


def test_a_curve_that_ends_in_no_number_says_so():
    summary = Summary(run(), [curve("loss", 2.303, 1.0, None), curve("norm", None, None)])
    assert summary.text().splitlines()[1:] == ["  loss  2.303 → not finite  █▁", "  norm  not finite → not finite"]
    assert "<td>loss</td><td>2.303</td><td>not finite</td><td>1</td><td>2.303</td>" in summary.html()


@pytest.mark.parametrize(("elapsed", "told"), [(0.04, "0.0 s"), (59.9, "59.9 s"), (60, "1:00 min"), (3723, "1:02:03")])
def test_how_long_it_took(elapsed, told):
    assert f"1 step in {told} on 1 engine" in Summary(run(elapsed=elapsed, step=1, world_size=1), []).text()


def test_a_run_that_failed_in_its_first_step_has_made_none():
    for phase, steps in (("failed", "no step finished"), ("stopped", "no step finished"), ("finished", "0 steps")):
        summary = Summary(run(phase=phase, step=0, elapsed=0.3), [curve("accuracy", 0.5)])
        assert summary.sentence == f"{phase}, {steps} in 0.3 s on 2 engines"


def test_a_run_that_goes_on_says_what_stays_true_when_its_kernel_ends():
    so_far = Summary(run(phase="running", samples_per_second=512.0), [curve("loss", 2.0, 1.0)])
    assert so_far.text().splitlines()[:2] == [
        "digits: at step 1,380 after 1:15 min, 512 samples/s on 2 engines",
        "  If the kernel was lost, run the cell again (there is no checkpoint yet).",
    ]
    assert "<p>If the kernel was lost, run the cell again" in so_far.html()
    can_go_on = Summary(run(run_id="2026-digits", phase="paused", checkpoint=1200), [])
    way = "If the kernel was lost, {0}%load_ext jupyter_dtrain{1} and {0}%distribute resume 2026-digits{1} continue from step 1,200."
    assert can_go_on.text().splitlines()[1] == "  " + way.format("", "")
    assert f"<p>{way.format('<code>', '</code>')}</p>" in can_go_on.html()
    detached = Summary(run(run_id="2026-digits", phase="running", checkpoint=1200, detached=True), [])
    way = "The run continues if its kernel stops. To reattach: %load_ext jupyter_dtrain, then %distribute attach 2026-digits."
    assert detached.text().splitlines()[1] == "  " + way
    assert "kernel" not in Summary(run(checkpoint=1200), []).html()


def test_a_run_that_did_nothing_is_empty():
    assert Summary(run(step=0), [curve("epoch", 0.0)]).is_empty
    assert not Summary(run(step=1), []).is_empty
    assert not Summary(run(step=0), [curve("accuracy", 0.5)]).is_empty


def test_a_table_and_a_picture_for_pages_without_scripts():
    html = Summary(run(name="a <b> & c"), [curve("loss", 2.0, 0.5, 1.0)]).html()
    assert "<b>a &lt;b&gt; &amp; c</b>" in html
    assert re.findall(r"<td>(.*?)</td>", html) == ["loss", "2", "1", "0.5", "2"]
    assert not re.search(r"<script|<style|style=|onload", html)
    (line,) = lines(drawing(html))
    assert line.count("L") == 2


def test_one_chart_for_a_quantity_in_training_and_validation():
    tree = drawing(picture([curve("acc", 0.1, 0.2), curve("val_loss", 3.0, 2.0), curve("loss", 2.0, 1.0), curve("lr <x>", 1.0, 2.0)]))
    groups = [texts(group) for group in tree.findall("{*}g")]
    assert [group[: group.index("step 1") - 2] for group in groups] == [["loss", "val_loss"], ["acc"], ["lr <x>"]]
    assert groups[0][2:4] == ["3", "1"]  # the greatest and the least of both


def test_gaps_constants_and_extremes_can_be_drawn():
    (line,) = lines(drawing(picture([curve("loss", 1.0, None, 2.0, 3.0)])))
    assert (line.count("M"), line.count("L")) == (2, 1)
    (flat,) = lines(drawing(picture([curve("loss", 1.0, 1.0)])))
    (huge,) = lines(drawing(picture([curve("loss", -1.7e308, 1.7e308)])))
    for numbers in (re.findall(r"-?[\d.]+|nan|inf", path) for path in (flat, huge)):
        assert all(0 <= float(number) <= 340 for number in numbers)
    assert picture([curve("loss", 1.0), curve("none", None, None)]) == ""


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(1.2e-5, 0.000123, ["1.23e-4", "1.2e-5"]), (-1.234e-15, 123456.0, ["1.23e5", "-1.23e-15"]), (-0.0123, 2.3026, ["2.3", "-0.0123"])],
)
def test_numbers_beside_the_axis_have_room_there(low, high, shown):
    assert texts(drawing(picture([curve("loss", high, low)])))[1:3] == shown


def test_a_spark_of_a_long_curve_is_short_and_of_a_wild_one_is_flat():
    spark = Summary(run(), [curve("loss", *(math.cos(i / 400) for i in range(1000)))]).text().split()[-1]
    assert len(spark) == 24 and spark[0] == "█" and spark[-1] == "▁"
    assert Summary(run(), [curve("loss", 1.7e308, -1.7e308)]).text().endswith("▁▁")


def test_a_long_run_has_the_very_numbers_that_it_began_and_ended_with():
    values = [6.0 - step / 300 + math.sin(step) for step in range(1, 1281)]
    values[700], values[701] = 40.0, math.nan
    recorder = RunRecorder(run_id="r", name="digits", world_size=1)
    for first in range(0, 1280, 128):
        steps = list(range(first + 1, first + 129))
        ones = [1.0] * len(steps)
        told = Steps(
            rank=0, step=steps, time=ones, loss=[*values[first : first + 128]], weight=ones, learning_rate=[*ones], samples=[8] * 128
        )
        recorder.apply(told)
        recorder.drain()
    html = Summary(recorder.run_update(), recorder.outline(MAX_POINTS)).html()
    expected = [f"{value:.4g}" for value in (values[0], values[-1], min(value for value in values if value == value), 40.0)]
    assert re.findall(r"<td>(.*?)</td>", html)[:5] == ["loss", *expected]
    assert f"{expected[0]} → {expected[1]}" in Summary(recorder.run_update(), recorder.outline(MAX_POINTS)).text()
    assert texts(drawing(html))[3:5] == ["step 1", "1,280"]
