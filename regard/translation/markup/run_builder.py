"""A text cut into what stays and runs of text with elements in them, for markups that are read from left to right (see
`marked_text.py`). What is an element and what stays is the reader's to say."""

from __future__ import annotations

from regard.translation.markup.elements import MAX_DEPTH, MAX_ELEMENTS, Inline, Tag, TextRun, separate


class RunBuilder:
    """What was read so far. An element that is still open where something separates reaches over it, so it separates, too."""

    def __init__(self) -> None:
        self._parts: list[str | TextRun] = []
        self._run = TextRun()
        self._around: list[Inline] = []  # elements that are open
        self._count = 0

    @property
    def innermost(self) -> str:
        """The opening of the innermost element that is open."""
        return self._around[-1].opening if self._around else ""

    def text(self, text: str) -> None:
        if text:
            self._run.tokens.append(text)

    def open(self, opening: str) -> None:
        """An element begins; where there are too many, its mark separates."""
        if len(self._around) == MAX_DEPTH or self._count == MAX_ELEMENTS:
            self.separator(opening)
            return
        self._count += 1
        self._around.append(Inline(opening))
        self._run.tokens.append(Tag(self._around[-1], False))

    def close(self, closing: str) -> None:
        """The innermost element ends."""
        self._around[-1].closing = closing
        self._run.tokens.append(Tag(self._around.pop(), True))

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
