"""HTML and XHTML pages. `markup/tags.py` finds the text of a page; here are its attributes: those that are texts, such as `alt`,
are translated as texts of their own, and `lang` is set."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from regard.translation.documents.document import Document, read_text
from regard.translation.markup.tags import TagReader

_ATTRIBUTE = re.compile(r"""(?<![^\s"'])(?P<name>[A-Za-z][\w:-]{0,50})\s*=\s*(?P<value>"[^"]*"|'[^']*'|[^\s"'=<>`]+)""")
_TEXTS = frozenset(("alt", "title", "placeholder", "aria-label"))
_DESCRIPTIONS = frozenset(("description", "og:description", "og:title", "twitter:description", "twitter:title"))
_BUTTONS = frozenset(("submit", "button", "reset"))
# What stands for an attribute in the page while it is translated; no page contains it.
_MARK = "\x01"
_MARKED = re.compile(f"{_MARK}([0-9]+){_MARK}")


def open_html(data: bytes, target: str = "", is_xml: bool = False) -> Document:
    """`target` is the language for `lang`; `is_xml` avoids names that only HTML knows."""
    text, bom = read_text(data)
    page, values = _taken_out(_with_language(text, target)) if _MARK not in text else (text, [])

    def save(translations: Sequence[str]) -> bytes:
        written = [_quoted(value, translation) for value, translation in zip(values, translations[1:], strict=True)]
        filled = _MARKED.sub(lambda mark: written[int(mark[1])], translations[0]) if values else translations[0]
        return bom + (filled.replace("&nbsp;", "&#160;") if is_xml else filled).encode()

    return Document([page, *map(_bare, values)], save, is_html=True)


def _taken_out(text: str) -> tuple[str, list[str]]:
    """A page with marks for the values of attributes that are texts, and those values as written."""
    pieces, values, position = [], list[str](), 0
    for start, name, raw in _start_tags(text):
        for attribute in _text_attributes(name, raw):
            begin, end = attribute.span("value")
            pieces += [text[position : start + begin], f"{_MARK}{len(values)}{_MARK}"]
            values.append(attribute["value"])
            position = start + end
    return "".join([*pieces, text[position:]]), values


def _start_tags(text: str) -> Iterator[tuple[int, str, str]]:
    reader = TagReader()
    reader.parse(text)
    yield from reader.start_tags


def _text_attributes(name: str, raw: str) -> list[re.Match[str]]:
    """The attributes of a tag that are texts.

    >>> [one["value"] for one in _text_attributes("img", '<img src=x alt="A cat" title=Tom>')]
    ['"A cat"', 'Tom']
    """
    found = {one["name"].lower(): one for one in _ATTRIBUTE.finditer(raw, len(name) + 1)}
    bare = {key: _bare(one["value"]).strip().lower() for key, one in found.items()}
    wanted = [one for key, one in found.items() if key in _TEXTS]
    if name == "meta" and (bare.get("name") or bare.get("property")) in _DESCRIPTIONS and "content" in found:
        wanted.append(found["content"])
    if name == "input" and bare.get("type") in _BUTTONS and "value" in found:
        wanted.append(found["value"])
    return sorted((one for one in wanted if _bare(one["value"]).strip()), key=lambda one: one.start())


def _bare(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') else value


def _quoted(value: str, translation: str) -> str:
    """A translated value as it is written; unchanged, as it was."""
    if translation == _bare(value):
        return value
    if value.startswith("'"):
        return "'" + translation.replace("'", "&#39;") + "'"
    return '"' + translation.replace('"', "&quot;") + '"'


def _with_language(text: str, target: str) -> str:
    r"""The page with the language of its root element set.

    >>> _with_language('<html lang="en" xml:lang=en><p>', "de")
    '<html lang="de" xml:lang="de"><p>'
    >>> _with_language("<html><p lang='fr'>", "de"), _with_language("<p>", "de")
    ('<html lang="de"><p lang=\'fr\'>', '<p>')
    """
    root = re.search(r"<html(?=[\s>/])[^<>]{0,9999}>", text[:100_000], re.IGNORECASE)
    if root is None or not target:
        return text
    tag = re.sub(r"""(?i)(?<=\s)((?:xml:)?lang\s*=\s*)(?:"[^"]*"|'[^']*'|[^\s"'=<>`]+)""", rf'\g<1>"{target}"', root[0])
    if tag == root[0] and not re.search(r"(?i)\slang\s*=", tag):
        tag = f'{tag[:5]} lang="{target}"{tag[5:]}'
    return text[: root.start()] + tag + text[root.end() :]
