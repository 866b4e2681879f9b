"""What an engine wrote last, where it is lost."""

from pathlib import Path

import jupyter_dtrain
from jupyter_dtrain.cluster.crash_log import last_words

ROUTINE = """\
2026-11-23 21:35:48.132 [Engine.1.1] Loading IPython extension: storemagic
2026-11-23 21:35:48.138 [Engine.1.1] WARNING | debugpy_stream undefined, debugging will not be enabled
2026-11-23 21:35:48.456 [Engine.1.1] Handling apply_request: e4969f47-4e889c80aa3fe53c67f24ad7_2403_2
of an earlier cell
2026-11-23 21:35:49.456 [Engine.1.1] Handling apply_request: e4969f47-4e889c80aa3fe53c67f24ad7_2403_3
"""
ENGINE = str(Path(jupyter_dtrain.__file__).parent / "engine")
CRASH = f"""\
Fatal Python error: Segmentation fault

Thread 0x00007f0000000001 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "{ENGINE}/emit.py", line 61 in _run

Current thread 0x00007f0000000002 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/tmp/ipykernel_7/1.py", line 4 in crash
  File "{ENGINE}/loops.py", line 98 in run
  File "{ENGINE}/worker.py", line 60 in run
  File "/usr/lib/python3.11/asyncio/base_events.py", line 608 in run_forever

Extension modules: zmq._zmq, numpy.core._multiarray_umath (total: 2)
"""


def test_routine_is_none():
    assert last_words("") == last_words(ROUTINE) == ""


def test_what_the_program_wrote_since_its_task_began():
    wrong = "2026-11-23 21:35:50.000 [Engine.1.1] ERROR | Error in message handler\n"
    assert last_words(f"{ROUTINE}terminate called\n{wrong}  what(): no\n") == f"terminate called\n{wrong}  what(): no"


def test_a_crash_is_told_by_the_lines_of_the_cell():
    interleaved = CRASH.replace("zmq._zmq,", "zmq._zmq\n,")
    assert last_words(ROUTINE + CRASH) == last_words(f"{ROUTINE}{interleaved}")
    assert last_words(f"{ROUTINE}loading{CRASH}").startswith("loading\nFatal")
    assert last_words(ROUTINE + CRASH).splitlines() == [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f0000000002 (most recent call first):",
        '  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at',
        "  Cell, line 4 in crash",
    ]


def test_a_crash_of_another_thread_is_told_with_where_the_cell_was():
    crash = CRASH.replace("Current t", "T").replace("Thread 0x00007f0000000001", "Current thread 0x00007f0000000001")
    crash = crash.replace(f"{ENGINE}/emit.py", "/elsewhere/emit.py")
    said = last_words(ROUTINE + crash)
    assert "/elsewhere/emit.py" in said
    assert "line 4 in crash" in said
    assert "asyncio" not in said
