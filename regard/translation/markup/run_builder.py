"""Builds literal markup and runs of text from what a parser finds from left to right. The parser decides what is an element
and what is literal."""

from __future__ import annotations

from regard.translation.markup.elements import MAX_DEPTH, MAX_ELEMENTS, Inline, Tag, TextRun, separate


class RunBuilder:
    """The parts so far. An element that is still open at a separator spans it, so the element's tags become separators, too."""

    def __init__(self) -> None:
        self._parts: list[str | TextRun] = []
        self._run = TextRun()
        self._around: list[Inline] = []  # open elements, innermost last
        self._count = 0

    @property
    def innermost(self) -> str:
        """The opening tag of the innermost open element, or an empty string."""
        return self._around[-1].opening if self._around else ""

    def text(self, text: str) -> None:
        if text:
            self._run.tokens.append(text)

    def open(self, opening: str) -> None:
        """Begin an element; beyond the limits, its tag becomes a separator."""
        if len(self._around) == MAX_DEPTH or self._count == MAX_ELEMENTS:
            self.separator(opening)
            return
        self._count += 1
        self._around.append(Inline(opening))
        self._run.tokens.append(Tag(self._around[-1], False))

    def close(self, closing: str) -> None:
        """End the innermost element."""
        self._around[-1].closing = closing
        self._run.tokens.append(Tag(self._around.pop(), True))

    def empty(self, literal: str) -> None:
        """An element without words."""
        self.open(literal)
        if self.innermost == literal:  # within the limits
            self.close("")

    def separator(self, literal: str) -> None:
        self._end_run()
        self._parts.append(literal)

    def parts(self) -> list[str | TextRun]:
        self._end_run()
        return self._parts

    def _end_run(self) -> None:
        self._parts += separate(self._run, self._around)
        self._around.clear()
        self._run, self._count = TextRun(), 0
