"""How texts are read for an explanation: which window of a text, its pieces and words, and where the model answers. No torch
here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from regard.data.pieces import Piece, TokenizedSide, group_words
from regard.data.tokenizer import Tokenizer
from regard.errors import InputError
from regard.explain.encoder_explanation import ReadText
from regard.generate.encoding import EncoderInput
from regard.understanding.classifier import Classifier, Text
from regard.understanding.embedder import Embedder
from regard.understanding.filler import Filler
from regard.understanding.tagger import Tagger


@dataclass(frozen=True)
class ReadWindow:
    """What a model reads at once, and where it is asked."""

    input: EncoderInput
    side: TokenizedSide
    texts: list[ReadText]
    window: int = 1
    windows: int = 1
    places: Sequence[int] = ()  # pieces where words are tagged or blanks are filled
    first: int = 0  # the number of the first of them in the whole text


def read_classified(classifier: Classifier, text: Text, window: int | None) -> ReadWindow:
    """One window of a text, or of two."""
    windows = classifier.read(text)
    if not windows:
        raise InputError("there is no text to explain; give a text that is not empty")
    number = _number("window", window or 1, len(windows))
    texts = [text] if isinstance(text, str) else list(text)
    return _read(classifier.tokenizer, windows[number - 1], texts, number, len(windows))


def read_vectors(embedder: Embedder, texts: Sequence[str], window: int | None) -> list[ReadWindow]:
    """One window of each text whose vector is made; the last of one that has fewer."""
    read = embedder.read(texts)
    wanted = _number("window", window or 1, max(len(one.inputs) for one in read))
    found = []
    for text, one in zip(texts, read, strict=True):
        number = min(wanted, len(one.inputs))
        found.append(_read(embedder.tokenizer, one.inputs[number - 1], [text], number, len(one.inputs)))
    return found


def read_tagged(tagger: Tagger, text: str, at: int | None) -> ReadWindow:
    """The window in which word `at`, from 1, is farthest from the ends."""
    [read] = tagger.read([text])
    if not read.words:
        raise InputError("there is no text to explain; give a text that is not empty")
    word = _number("at", at or 1, len(read.words), " words") - 1

    def margin(number: int) -> int:
        one = read.windows[number]
        if not one.start <= word < one.stop:
            return -1
        before = word - one.start if one.start else len(read.words)
        return min(before, one.stop - 1 - word if one.stop < len(read.words) else len(read.words))

    number = max(range(len(read.windows)), key=margin)
    window = read.windows[number]
    words = read.words[window.start : window.stop]
    side, first = _tagged_side(tagger.tokenizer, window.input.ids, window.places, words)
    shown = text if len(read.windows) == 1 else " ".join(words)
    texts = [ReadText(shown, first, first + len(words))]
    return ReadWindow(window.input, side, texts, number + 1, len(read.windows), window.places, window.start)


def read_blanks(filler: Filler, text: str, at: int | None) -> ReadWindow:
    """The text with all its blanks or, of a long one, the window around blank `at`, from 1."""
    read = filler.read(text)
    blanks, text = len(read.parts) - 1, filler.mask.join(read.parts)
    number = _number("at", at or 1, blanks, " blanks") if len(read.inputs) > 1 or at else 1
    if len(read.inputs) == 1:
        [one] = read.inputs
        return dataclasses.replace(_read(filler.tokenizer, one, [text], 1, 1), places=one.places)
    one = read.inputs[number - 1]
    window = _read(filler.tokenizer, one, [text], number, blanks)
    return dataclasses.replace(window, places=one.places, first=number - 1)


def _number(name: str, given: int, most: int, what: str = "") -> int:
    if not 1 <= given <= most:
        raise InputError(f"{name} must be between 1 and {most}{what and f', the number of{what}'}, but is {given}")
    return given


def _read(tokenizer: Tokenizer, read: EncoderInput, texts: Sequence[str], number: int, windows: int) -> ReadWindow:
    special = {*tokenizer.opening, *tokenizer.between, *tokenizer.closing, tokenizer.mask_id} - {-1}
    side = group_words(read.ids, tokenizer.pieces(read.ids), sorted(special))
    # The words of each text: what stands between the tokens that open, separate and close an input.
    start, stop = len(tokenizer.opening), len(side.pieces) - len(tokenizer.closing)
    bounds = [(start, stop)]
    if len(texts) == 2:
        middle = _find(list(read.ids), list(tokenizer.between), start)
        bounds = [(start, middle), (middle + len(tokenizer.between), stop)]
    found = []
    for text, (first, last) in zip(texts, bounds, strict=True):
        words = (side.pieces[first].word, side.pieces[last - 1].word + 1) if first < last else (0, 0)
        found.append(ReadText(text.strip() if windows == 1 else " ".join(side.words[slice(*words)]), *words))
    return ReadWindow(read, side, found, number, windows)


def _find(ids: list[int], part: list[int], start: int) -> int:
    return next(place for place in range(start, len(ids)) if ids[place : place + len(part)] == part)


def _tagged_side(
    tokenizer: Tokenizer, ids: Sequence[int], places: Sequence[int], words: Sequence[str]
) -> tuple[TokenizedSide, int]:
    """The pieces of words as a tagger splits them, and the number of the first word after what opens the input."""
    frame = group_words(ids, tokenizer.pieces(ids), [*tokenizer.opening, *tokenizer.closing])
    opening, end = len(tokenizer.opening), len(ids) - len(tokenizer.closing)
    starts = set(places)
    pieces, number = list[Piece](), -1
    for place, piece in enumerate(frame.pieces):
        number += place < opening or place >= end or place in starts
        pieces.append(dataclasses.replace(piece, word=number))
    around = [piece.text for piece in pieces]
    return TokenizedSide(pieces, [*around[:opening], *words, *around[end:]]), opening
