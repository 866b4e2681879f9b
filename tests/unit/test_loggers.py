"""Records that one process makes and another one's handlers get."""

import json
import logging

import pytest

from jupyter_dtrain.capture.log_records import handle, written
from jupyter_dtrain.capture.loggers import Loggers, LoggerSettings, logger_changes
from jupyter_dtrain.engine.side_effects.shown_output import logged_at_home


class Kept(logging.Handler):
    def __init__(self, level=logging.NOTSET):
        super().__init__(level)
        self.records = []

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def logger():
    logger = logging.getLogger("dtrain.test")
    yield logger
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate, logger.disabled = True, False


def test_settings_hold_within_the_block_and_not_after_it(logger):
    logger.setLevel(logging.ERROR)
    there = Loggers({"dtrain.test": LoggerSettings(logging.DEBUG, propagate=False, disabled=False, handled=True)}, disabled=5)
    with there.installed() as handled:
        assert handled == ["dtrain.test"]
        assert (logger.level, logger.propagate, logging.root.manager.disable) == (logging.DEBUG, False, 5)
    assert (logger.level, logger.propagate, logging.root.manager.disable) == (logging.ERROR, True, 0)


def test_only_what_is_set_is_told(logger):
    assert "dtrain.test" not in Loggers.now().settings
    logger.addHandler(Kept())
    logger.setLevel(logging.INFO)
    assert Loggers.now().settings["dtrain.test"] == LoggerSettings(logging.INFO, propagate=True, disabled=False, handled=True)


def test_a_record_arrives_as_it_was(logger):
    handler, strict = Kept(), Kept(logging.ERROR)
    logger.addHandler(handler)
    logger.addHandler(strict)
    try:
        raise ValueError("seen")
    except ValueError as error:
        made = logger.makeRecord("dtrain.test", logging.WARNING, "f.py", 3, "%s at %d", (object, 7), (ValueError, error, None), "here")
    made.step, made.model = 12, object()
    handle(json.loads(json.dumps(written(made, "dtrain.test"))))
    (record,) = handler.records
    assert (record.getMessage(), record.lineno, record.funcName, record.step) == ("<class 'object'> at 7", 3, "here", 12)
    assert "ValueError: seen" in logging.Formatter().format(record)
    assert not hasattr(record, "model")
    assert strict.records == []


def test_a_warning_that_nobody_handles_is_shown(logger, capsys):
    for level in (logging.INFO, logging.WARNING):
        handle(written(logger.makeRecord("dtrain.test", level, "f.py", 1, "level %s", (level,), None), "dtrain.test"))
    assert capsys.readouterr().err == "level 30\n"


@pytest.mark.parametrize("handled", [True, False])
def test_handlers_that_a_library_has_made_in_both_processes_write_once(logger, monkeypatch, handled):
    published: list[object] = []
    of_library, of_cell = Kept(), Kept()
    monkeypatch.setattr("IPython.display.publish_display_data", published.append)
    logger.addHandler(of_library)  # when it was imported on the engine
    there = Loggers({"dtrain.test": LoggerSettings(logging.INFO, propagate=False, disabled=False, handled=handled)})
    with logged_at_home(there, rank=0):
        logger.addHandler(of_cell)
        logger.info("a line")
    assert (len(published), len(of_library.records), len(of_cell.records)) == (int(handled), 0, 1)
    assert logger.handlers == [of_library]
    assert [change.parts[2] for change in logger_changes()] == [[of_cell]]  # goes to the notebook


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_put_messages_together_and_one_sends_them(logger, monkeypatch, rank):
    """What a message is made of may be a value over the batch, which ranks read together."""
    published: list[object] = []
    read: list[str] = []
    monkeypatch.setattr("IPython.display.publish_display_data", published.append)

    class Value:
        def __str__(self):
            read.append("here")
            return "0.5"

    there = Loggers({"dtrain.test": LoggerSettings(logging.INFO, propagate=False, disabled=False, handled=True)})
    with logged_at_home(there, rank=rank):
        logger.info("loss %s", Value())
        logger.debug("loss %s", Value())
    assert (read, len(published)) == (["here"], 1 - rank)
