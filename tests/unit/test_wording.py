"""Messages, help, the sidebar and documents use the field's words: phrases that were replaced once do not come back."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts)]
LONGEST, MEDIAN = 25, 16
"""Words of a sentence, at most and in the middle."""
READ = {
    "jupyter_dtrain": (".py",),
    "labextension/src": (".ts", ".tsx"),
    "labextension/schema": (".json",),
    "docs": (".md",),
}
REPLACED = {
    "'Go on'": "Resume",
    "End the pause": "Resume training",
    "Let the Distributed Run Go On": "Resume the Distributed Run",
    "at the speed of late": "the recent speed",
    "about %1 left": "ETA %1",
    '"least", "greatest"': "min, max",
    "has what the trial": "Best trial: …",
    '"not begun"': "pending",
    "running side by side: they can be stopped": "Trials can't be paused. Stop ends all of them.",
    "The engines wait after": "Paused after",
    "It goes on when its kernel ends": "The run continues if its kernel stops",
    "no checkpoint was on disk yet": "there is no checkpoint yet",
    "None on disk": "No checkpoints",
    "Delete it from the disk": "Delete this checkpoint",
    "reads what the cell’s names held": "loads this checkpoint",
    "Keep it only while it is among the last": "Unpin: may be removed",
    "What the curves are drawn over": "X axis",
    "What curves are drawn over": "X axis",
    "how much of it is the past": "Smoothing (EMA factor)",
    "the moving average is the past": "smoothing (EMA) factor",
    "Leave the part that is zoomed to": "Reset zoom",
    "Notify of runs that took at least so many seconds": "Notify when a run longer than N seconds finishes",
    "It does so once, and switches this off": "once",
    "empty: one a device": "one per device",
    "stay warm for later cells": "are reused by later cells",
    "so many times as long for a step as most": "Straggler",
    "fewer exchanges, fewer engines smaller ones": "Increase batch_size to communicate less often",
    "To train on several engines, run this cell": "load the extension",
    "go on with a run whose kernel has died": "resume an interrupted run",
    "read it whoever has written it": "even if not signed by you",
    "share out what models are called on": "shard model inputs along dim 0",
    "the state of optimizers too, for memory": "also shard optimizer state",
    "noise, augmentation are drawn": "random numbers of dropout, noise and augmentation",
    "numbers and curves while it goes on": "progress, then a summary",
    "is no name with its values": "expected NAME=VALUE,…",
    "none has ended whose results": "no detached run to attach to",
    "behind the @": "after the @",
    "what it was computed from is not here": "autograd graph is not available",
    "No loader shared out the data": "No DataLoader was sharded",
    "and with more as soon as one does": "and on more as soon as one is available",
    "somebody ends that process": "killed by the OOM killer",
    "have different versions of jupyter_dtrain": "Version mismatch",
    "again to break it off": "again to abort now",
    "A mistake costs a message": "Clear errors",
    "shares out over the engines what optimizers keep": "shards optimizer state",
    "and no time is told": "no ETA is shown",
    "and whose `backward()` comes behind it": "one fact a sentence",
    "Same arguments and versions": "Arguments and package versions are identical.",
    "%1 has finished: %2": "“%1” finished (%2)",
    "%1 % done": "%1%",
}
"""What was said, and what is said now."""


def texts() -> dict[str, str]:
    files = [path for folder, kinds in READ.items() for path in (ROOT / folder).rglob("*") if path.suffix in kinds]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files if "_build" not in path.parts}


TEXTS = texts()


@pytest.mark.parametrize("phrase", REPLACED)
def test_a_phrase_that_was_replaced_is_not_used(phrase):
    assert [name for name, text in TEXTS.items() if phrase in text] == [], f"say: {REPLACED[phrase]}"


def _sentences(page: Path) -> list[str]:
    """Return the sentences of a page, without tables, code, headings and addresses; what is marked as code counts as one word."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = []
    for paragraph in re.split(r"\n\s*\n|^(?=[-*] |\d+\. )", text, flags=re.MULTILINE):
        if paragraph.strip() and not paragraph.strip().startswith(("#", "|", "!", "<", ":::", "(", "{")):
            plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "X", paragraph))
            found += re.split(r"(?<=[.!?:])\s+(?=[A-Z“X-])", " ".join(re.sub(r"[*_]", "", plain).split()))
    return [sentence for sentence in found if len(_words(sentence)) > 1]


def _words(sentence: str) -> list[str]:
    return [word for word in sentence.split() if re.search(r"\w", word)]


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_sentences_of_pages_are_short(page):
    sentences = _sentences(page)
    assert sentences
    assert [sentence for sentence in sentences if len(_words(sentence)) > LONGEST] == []
    assert statistics.median(len(_words(sentence)) for sentence in sentences) <= MEDIAN
