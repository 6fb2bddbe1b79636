"""Links of Markdown that are found by their words: `[user guide]` and `[user guide][]`, which a line `[user guide]: http://...`
defines elsewhere. Translated words would not be found, so the model is given `[user guide][user guide]`, of which the first half is
translated."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection

_LABEL = r"\[(?!\^)((?:[^\[\]\\]|\\[^\[\]]){1,300})\]"  # not [^1], which is a footnote
_DEFINITION = re.compile(
    rf"{_LABEL}:\s*(?:<[^<>]{{0,999}}>|[^\s<]\S{{0,999}})(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*"
)
# What may look like such a link and is none, or is another kind of link; then one.
_LINK = re.compile(
    r"\\.|(?<!`)(`{1,9})(?!`).{0,300}?(?<!`)\1(?!`)|<[^<>\s]{1,999}>|"
    rf"!?{_LABEL}(?:\([^)]{{0,999}}\)|\[[^\[\]]{{1,300}}\])|"
    rf"!?{_LABEL}(?:\[\])?"
)
_BOTH = re.compile(rf"{_LABEL}\[\1\](?![\[(:])")


def defined_by(line: str) -> str | None:
    """The label that a line defines, as it is compared.

    >>> defined_by("[User  Guide]: http://x.y 'title'"), defined_by("[Anna]: not a link"), defined_by("[^1]: note")
    ('user guide', None, None)
    """
    found = _DEFINITION.fullmatch(line)
    return _compared(found[1]) if found else None


def spelled_out(text: str, defined: Collection[str]) -> str:
    """A text with both halves of its links.

    >>> spelled_out("See [User guide], [it][], ![it], `[it]` and [it](x).", {"user guide", "it"})
    'See [User guide][User guide], [it][it], ![it][it], `[it]` and [it](x).'
    """

    def spell(link: re.Match[str]) -> str:
        label = link[3]
        if label is None or _compared(label) not in defined:
            return link[0]
        return f"{link[0].removesuffix('[]')}[{label}]"

    return _LINK.sub(spell, text) if defined and "[" in text else text


def shortened(translation: str, text: str, defined: Collection[str]) -> str:
    """The translation of a text that was spelled out, with the links whose words have stayed the same as they were in the text."""
    if translation == (spelled := spelled_out(text, defined)):
        return text
    if spelled == text:
        return translation
    as_they_were = {link[0] for link in _BOTH.finditer(text)}
    written: dict[str, deque[str]] = {}
    for link in _LINK.finditer(text):
        if link[3] is not None:
            written.setdefault(link[3], deque()).append(link[0].removeprefix("!"))

    def shorten(link: re.Match[str]) -> str:
        forms = written.get(link[1])
        return forms.popleft() if forms and link[0] not in as_they_were else link[0]

    return _BOTH.sub(shorten, translation)


def _compared(label: str) -> str:
    return " ".join(label.split()).casefold()
