"""Text from files that strangers made, as it may be written to a terminal or a log: control characters could move the cursor, hide
what came before or forge a line, and a value may be a million characters long."""

from __future__ import annotations

import re
import reprlib
from typing import Any

# C0 and C1 controls, line and paragraph separators, bidirectional overrides, and surrogates, which no terminal can encode.
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother, _SHORT.maxlong = 2, 80, 80, 40


def escape(text: str, keep: str = "") -> str:
    r"""The text with its control characters escaped as in a Python string, except those in `keep`.

    >>> print(escape("a\x1b[2Jb\nc\u202e"), escape("one\ntwo\r", keep="\n"), sep="; ")
    a\x1b[2Jb\nc\u202e; one
    two\r
    """
    return CONTROLS.sub(lambda match: match[0] if match[0] in keep else repr(match[0])[1:-1], text)


def for_terminal(text: str) -> str:
    r"""A translation as a terminal may show it: a model with hostile pieces cannot move the cursor. Line breaks, tabs and
    bidirectional marks stay, which text needs.

    >>> print(for_terminal("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return escape(text, keep="\n\t\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape_json(text: str) -> str:
    r"""JSON with the control characters escaped that `json.dumps` leaves as they are. Line breaks between values stay.

    >>> print(escape_json('{"a":\n "\x9b\u202e"}'))
    {"a":
     "\u009b\u202e"}
    """
    return CONTROLS.sub(lambda match: match[0] if match[0] == "\n" else f"\\u{ord(match[0]):04x}", text)


def shorten(value: Any) -> str:
    """A value of a file as an error message quotes it: its repr, with the middle left out where it is long.

    >>> shorten("x"), shorten([[[1]]]), len(shorten("x" * 1_000_000))
    ("'x'", '[[[...]]]', 80)
    """
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a value of type {type(value).__name__}"
