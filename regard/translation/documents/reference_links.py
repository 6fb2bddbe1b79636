"""Reference links in Markdown whose text is also their label: `[user guide]` and `[user guide][]`, defined by a line
`[user guide]: http://...`. Translating the text would break the link, so the link is written in full, `[user guide][user guide]`,
and only the first half is translated."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection

_LABEL = r"\[(?!\^)((?:[^\[\]\\]|\\[^\[\]]){1,300})\]"  # but not a footnote, [^1]
_DEFINITION = re.compile(
    rf"{_LABEL}:\s*(?:<[^<>]{{0,999}}>|[^\s<]\S{{0,999}})(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*"
)
# Escapes, code, addresses and other kinds of links, which must not be mistaken for one; then such a link.
_LINK = re.compile(
    r"\\.|(?<!`)(`{1,9})(?!`).{0,300}?(?<!`)\1(?!`)|<[^<>\s]{1,999}>|"
    rf"!?{_LABEL}(?:\([^)]{{0,999}}\)|\[[^\[\]]{{1,300}}\])|"
    rf"!?{_LABEL}(?:\[\])?"
)
_BOTH = re.compile(rf"{_LABEL}\[\1\](?![\[(:])")


def defined_by(line: str) -> str | None:
    """The label that a line defines, normalized.

    >>> defined_by("[User  Guide]: http://x.y 'title'"), defined_by("[Anna]: not a link"), defined_by("[^1]: note")
    ('user guide', None, None)
    """
    found = _DEFINITION.fullmatch(line)
    return _normalized(found[1]) if found else None


def spelled_out(text: str, defined: Collection[str]) -> str:
    """A text with its links written in full.

    >>> spelled_out("See [User guide], [it][], ![it], `[it]` and [it](x).", {"user guide", "it"})
    'See [User guide][User guide], [it][it], ![it][it], `[it]` and [it](x).'
    """

    def spell(link: re.Match[str]) -> str:
        label = link[3]
        if label is None or _normalized(label) not in defined:
            return link[0]
        return f"{link[0].removesuffix('[]')}[{label}]"

    return _LINK.sub(spell, text) if defined and "[" in text else text


def shortened(translation: str, text: str, defined: Collection[str]) -> str:
    """The translation with those links short again whose text is unchanged."""
    if translation == (spelled := spelled_out(text, defined)):
        return text
    if spelled == text:
        return translation
    already_full = {link[0] for link in _BOTH.finditer(text)}
    written: dict[str, deque[str]] = {}
    for link in _LINK.finditer(text):
        if link[3] is not None:
            written.setdefault(link[3], deque()).append(link[0].removeprefix("!"))

    def shorten(link: re.Match[str]) -> str:
        forms = written.get(link[1])
        return forms.popleft() if forms and link[0] not in already_full else link[0]

    return _BOTH.sub(shorten, translation)


def _normalized(label: str) -> str:
    return " ".join(label.split()).casefold()
