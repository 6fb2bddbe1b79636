"""Reads the text of a web page by paragraphs, including code, which people search for and which the reader for translation
leaves out."""

from __future__ import annotations

from html.parser import HTMLParser

_SILENT = frozenset(("script", "style", "template", "noscript", "svg", "math"))
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark q s samp small span strike strong sub sup "
    "time tt u var wbr".split()
)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[int, str]] = []
        self._parts: list[str] = []
        self._line, self._silent = 0, 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _INLINE:
            self.end()
        self._silent += tag in _SILENT

    def handle_endtag(self, tag: str) -> None:
        if tag not in _INLINE:
            self.end()
        self._silent = max(0, self._silent - (tag in _SILENT))

    def handle_data(self, data: str) -> None:
        if self._silent or (not self._parts and data.isspace()):
            return
        if not self._parts:
            self._line = self.getpos()[0] + data[: len(data) - len(data.lstrip())].count("\n")
        self._parts.append(data)

    def end(self) -> None:
        """A paragraph ends."""
        if text := " ".join("".join(self._parts).split()):
            self.found.append((self._line, text))
        self._parts.clear()


def html_paragraphs(text: str) -> list[tuple[int, str]]:
    """The paragraphs of a page, each with the line on which it begins.

    >>> html_paragraphs("<p>Use <code>-m</code>.</p>\\n<ul><li>one<li>two</ul><script>x</script>")
    [(1, 'Use -m.'), (2, 'one'), (2, 'two')]
    """
    reader = _Reader()
    reader.feed(text)
    reader.close()
    reader.end()
    return reader.found
