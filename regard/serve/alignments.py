"""Word alignments of whole texts: those of their sentences, shifted to their places in the text and in its translation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from regard.generate.options import Engine
from regard.serve.batched_sentences import portions_of
from regard.serve.thread_pool import ThreadPool
from regard.translation.alignment import TextAlignment, align_texts
from regard.translation.sentences import Split
from regard.translation.text_side import TextSide

_PORTION_CHARACTERS = 300  # aligned in one go: some tens of milliseconds, after which it is another client's turn

if TYPE_CHECKING:
    from regard.serve.service import OnSentence, SentenceProgress


class _Served(Protocol):
    @property
    def engine(self) -> Engine: ...
    @property
    def text_side(self) -> TextSide: ...
    @property
    def threads(self) -> ThreadPool: ...


class SentenceCollector:
    """Collects the translations of sentences and passes them on."""

    def __init__(self, on_sentence: OnSentence | None) -> None:
        self._on_sentence, self._found = on_sentence, dict[tuple[int, int], str]()

    def __call__(self, progress: SentenceProgress) -> None:
        self._found[progress.text, progress.sentence] = progress.translation
        if self._on_sentence is not None:
            self._on_sentence(progress)

    def translations(self, text: int, split: Split) -> list[str]:
        """The translations of the sentences of text number `text`, in order."""
        return [self._found[text, number] for number in range(len(split.places))]


async def align(served: _Served, split: Split, translations: Sequence[str]) -> TextAlignment:
    """Align the words of a text with those of its translation, sentence by sentence."""
    pairs = list(zip(split.sentences, translations, strict=True))
    return place(split, translations, await align_sentences(served, pairs, served.threads))


async def align_sentences(
    served: _Served, pairs: Sequence[tuple[str, str]], threads: ThreadPool
) -> list[TextAlignment]:
    """Align sentences with their translations, on these threads, a few at a time."""
    side = served.text_side
    portions = [pairs[slice(*bounds)] for bounds in portions_of([source for source, _ in pairs], _PORTION_CHARACTERS)]
    found = await threads.run_each(
        lambda portion: align_texts(served.engine, side.tokenizer, portion, side.max_length, side.options.languages[1]),
        portions,
    )
    return [one for some in found for one in some]


def place(split: Split, translations: Sequence[str], found: Sequence[TextAlignment]) -> TextAlignment:
    """Combine the alignments of sentences into one of the whole text.

    >>> split = Split(("Yes.", " ", "No."), (0, 2))
    >>> ours = [TextAlignment(((0, 3),), ((0, 2),), ((0, 0),)), TextAlignment(((0, 2),), ((0, 4),), ((0, 0),))]
    >>> place(split, ["Ja.", "Nein."], ours)
    TextAlignment(source=((0, 3), (5, 7)), target=((0, 2), (4, 8)), pairs=((0, 0), (1, 1)))
    """
    source: list[tuple[int, int]] = []
    target: list[tuple[int, int]] = []
    pairs: list[tuple[int, int]] = []
    sentences = dict(zip(split.places, zip(translations, found, strict=True), strict=True))
    here = there = 0  # characters before this piece, in the text and in its translation
    for number, piece in enumerate(split.pieces):
        translation, aligned = sentences.get(number, (piece, TextAlignment()))
        pairs += [(i + len(source), j + len(target)) for i, j in aligned.pairs]
        source += [(a + here, b + here) for a, b in aligned.source]
        target += [(a + there, b + there) for a, b in aligned.target]
        here += len(piece)
        there += len(translation)
    return TextAlignment(tuple(source), tuple(target), tuple(pairs))
