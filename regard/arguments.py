"""Types of arguments in the Python API: a wrong one is a TypeError that says what is wanted and what came."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from regard.escaping import shorten


def check_text(name: str, value: Any) -> str:
    """
    >>> check_text("text", 5)
    Traceback (most recent call last):
    TypeError: `text` must be a string, but is 5 (int)
    """
    if not isinstance(value, str):
        raise TypeError(f"`{name}` must be a string, but is {_came(value)}")
    return value


def check_texts(name: str, value: Any, of: str = "strings", alternative: str = "") -> list[str]:
    """A list of the strings of any iterable; `alternative` is what else may be given.

    >>> check_texts("text", ["a", None])
    Traceback (most recent call last):
    TypeError: `text` must be a list of strings, but its item 1 is None
    """
    wanted = f"{alternative}a list of {of}"
    if isinstance(value, str):
        raise TypeError(f"`{name}` must be {wanted}, but is one string")
    if isinstance(value, (bytes, Mapping, os.PathLike)) or not isinstance(value, Iterable):
        raise TypeError(f"`{name}` must be {wanted}, but is {_came(value)}")
    items = list(value)
    for number, item in enumerate(items):
        if not isinstance(item, str):
            raise TypeError(f"`{name}` must be {wanted}, but its item {number} is {_came(item)}")
    return items


def check_path(name: str, value: Any) -> Path:
    """
    >>> check_path("source", None)
    Traceback (most recent call last):
    TypeError: `source` must be a path, but is None
    """
    if not isinstance(value, (str, Path)):
        raise TypeError(f"`{name}` must be a path, but is {_came(value)}")
    return Path(value)


def check_instance(name: str, value: Any, wanted: type, remedy: str) -> None:
    """Refuse a value that is no `wanted`."""
    if not isinstance(value, wanted):
        raise TypeError(f"`{name}` must be a {wanted.__name__}, but is {_came(value)}; {remedy}")


def _came(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, bytes):
        return f"{shorten(value)} (bytes); decode it first"
    if isinstance(value, os.PathLike):
        return f"a path ({shorten(str(value))}); read the file, or call translate_file"
    return f"{shorten(value)} ({type(value).__name__})"
