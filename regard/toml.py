"""Writing TOML, which the standard library only reads.

Not tomli-w: it breaks every list over several lines, so recipes in run folders and bundles would change, and training would
need one more package for these few lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def dump_toml(sections: Mapping[str, Any]) -> str:
    """Plain values, which must come first, and tables of them as TOML; a table inside a table gets a heading of its own. Characters
    that are not printable are escaped.

    >>> print(dump_toml({"data": {"source": "en", "train": ["a.tsv", {"path": "b.tsv", "weight": 2.0}]}}), end="")
    [data]
    source = "en"
    train = ["a.tsv", { path = "b.tsv", weight = 2.0 }]
    """
    blocks = []
    for name, values in sections.items():
        if not isinstance(values, Mapping):
            blocks.append(f"{name} = {_toml_value(values)}\n")
            continue
        inner = {key: value for key, value in values.items() if isinstance(value, Mapping)}
        plain = {key: value for key, value in values.items() if key not in inner}
        lines = [f"[{name}]", *(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items())]
        for key, table in inner.items():
            lines += [
                "",
                f"[{name}.{key}]",
                *(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items()),
            ]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _toml_key(key: str) -> str:
    """A key as TOML writes it: with quotes, unless it is plain."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = "".join(_TOML_ESCAPES.get(c, c if c.isprintable() else f"\\U{ord(c):08X}") for c in value)
        return f'"{escaped}"'
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    return "[" + ", ".join(_toml_value(item) for item in value) + "]"


_TOML_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
