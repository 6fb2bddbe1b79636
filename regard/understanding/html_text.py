"""Reads the text of a web page by paragraphs, including code, which people search for and which the reader for translation
leaves out."""

from __future__ import annotations

from html.parser import HTMLParser

_SILENT = frozenset(("script", "style", "template", "noscript", "svg", "math"))
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i ins kbd label mark q s samp small span strike strong sub sup "
    "time tt u var wbr".split()
)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[int, str, bool]] = []
        self._parts: list[str] = []
        self._line, self._silent = 0, 0
        self._heading: int | None = None  # where the paragraphs of an open heading begin

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in _INLINE:
            self.end()
        if tag in _HEADINGS:
            self._heading = len(self.found)
        self._silent += tag in _SILENT

    def handle_endtag(self, tag: str) -> None:
        if tag not in _INLINE:
            self.end()
        if tag in _HEADINGS and self._heading is not None:
            self.found[self._heading :] = [(line, text, True) for line, text, _ in self.found[self._heading :]]
            self._heading = None
        self._silent = max(0, self._silent - (tag in _SILENT))

    def handle_data(self, data: str) -> None:
        if self._silent or (not self._parts and data.isspace()):
            return
        if not self._parts:
            self._line = self.getpos()[0] + data[: len(data) - len(data.lstrip())].count("\n")
        self._parts.append(data)

    def end(self) -> None:
        """A paragraph ends. Of a heading that nothing closes, the first paragraph is the heading."""
        if text := " ".join("".join(self._parts).split()):
            self.found.append((self._line, text, self._heading == len(self.found)))
        self._parts.clear()


def html_paragraphs(text: str) -> list[tuple[int, str, bool]]:
    """The paragraphs of a page: the line on which each begins, its text, and whether it is a heading.

    >>> html_paragraphs("<h1>Use <code>-m</code></h1>\\n<ul><li>one<li>two</ul><script>x</script>")
    [(1, 'Use -m', True), (2, 'one', False), (2, 'two', False)]
    >>> html_paragraphs("<h2><img src=x> Title<br>of two lines</h2>Text. <h3>Not closed<p>Text.")[1:]
    [(1, 'of two lines', True), (1, 'Text.', False), (1, 'Not closed', True), (1, 'Text.', False)]
    """
    reader = _Reader()
    reader.feed(text)
    reader.close()
    reader.end()
    return reader.found
