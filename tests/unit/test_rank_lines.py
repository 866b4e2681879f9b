"""Lines of several ranks: whole, in the order in which they were ended, each with its rank."""

from __future__ import annotations

from jupyter_dtrain.elastic.main_thread_output import RankLines


def shown(*printed: tuple[int, str, str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    lines = RankLines(lambda name, text: found.append((name, text)))
    for rank, name, text in printed:
        lines.stream(rank, name, text)
    lines.flush()
    return found


def test_a_line_is_shown_when_it_is_complete():
    assert shown((0, "stdout", "lo"), (1, "stdout", "loss 2\n"), (0, "stdout", "ss 1\n")) == [
        ("stdout", "[1] loss 2\n"),
        ("stdout", "[0] loss 1\n"),
    ]


def test_several_lines_at_once_and_an_empty_one():
    assert shown((2, "stdout", "a\n\nb\nc")) == [("stdout", "[2] a\n[2] \n[2] b\n"), ("stdout", "[2] c\n")]


def test_output_and_errors_are_kept_apart():
    assert shown((0, "stdout", "out"), (0, "stderr", "error\n"), (0, "stdout", "put\n")) == [
        ("stderr", "[0] error\n"),
        ("stdout", "[0] output\n"),
    ]


def test_of_a_progress_bar_the_last_state_is_shown():
    assert shown((0, "stderr", "\r 0%"), (0, "stderr", "\r50%\r"), (0, "stderr", "99%"), (0, "stderr", "\r100%\n")) == [
        ("stderr", "[0] 100%\n")
    ]
    assert shown((0, "stdout", "with a return\r\n")) == [("stdout", "[0] with a return\n")]
    assert shown((0, "stdout", "with a return\r"), (0, "stdout", "\n")) == [("stdout", "[0] with a return\n")]
