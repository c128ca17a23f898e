"""Text from outside, made safe for a terminal or a log."""

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.cli.broker_report import shown
from hansa.printable import LogFormatter, printable, printable_json


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plant-1 · Ü ◆ 工場", "plant-1 · Ü ◆ 工場"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202e\u2028\ufeff", r"\u202e\u2028\ufeff"),
        ("\ud800", r"\ud800"),
        ("[/x]", "[/x]"),
    ],
)
def test_control_characters_become_visible(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_result_is_always_printable(text):
    assert printable(text).isprintable()
    assert printable(printable(text)) == printable(text)


def test_some_characters_can_be_kept():
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_nested_texts_are_made_printable():
    given = {"\x1b": ["\x07", 1, None, {"a": "\n"}], "b": True}
    assert printable_json(given) == {r"\x1b": [r"\x07", 1, None, {"a": r"\n"}], "b": True}


def test_log_has_one_line_per_record_and_keeps_tracebacks():
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LogFormatter("%(levelname)s %(message)s"))
    log = logging.Logger("test")
    log.addHandler(handler)
    log.warning("name %s", "\x1b[2J\nERROR forged")
    try:
        raise ValueError("\x1b")
    except ValueError:
        log.exception("fault")
    first, second, *trace = out.getvalue().splitlines()
    assert first == r"WARNING name \x1b[2J\nERROR forged"
    assert second == "ERROR fault"
    assert trace[0].startswith("Traceback")
    assert trace[-1] == r"ValueError: \x1b"


def test_doctor_shows_what_a_broker_says_without_markup():
    assert shown("\x1b mosquitto [/x]") == r"\x1b mosquitto \[/x]"
