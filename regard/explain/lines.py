"""The explanation of an encoder as lines for a terminal: answers with their probabilities, and the words that decided them."""

from __future__ import annotations

from collections.abc import Iterator

from regard.explain.encoder_explanation import Attribution, EncoderExplanation, Reading

_WORDS = 10  # that are printed of an answer, those that decided most
_PAIRS = 10


def lines(explanation: EncoderExplanation) -> Iterator[str]:
    """What `regard explain` prints."""
    task = explanation.model.task
    if task == "tag":
        yield from _tags(explanation)
    for one in explanation.attributions[: None if task == "fill" else 1]:  # other labels and tags are on the page
        yield from _attributed(explanation, one)
    if explanation.similarity is not None:
        yield f"cosine {explanation.similarity.cosine:.4f}"
        if explanation.similarity.pieces is not None:
            yield from _pairs(explanation)
    elif task == "embed":
        yield "attention only; give a second text after a tab to see which words make the two similar"


def window_note(explanation: EncoderExplanation) -> str:
    """A note for texts that are explained only in part; empty if all of the text is."""
    notes = []
    for reading in explanation.readings:
        if reading.windows > 1:
            notes.append(
                f"the text is longer than the model reads at once: this is part {reading.window} of {reading.windows}"
            )
        shown = reading.shown[1] - reading.shown[0]
        if shown < (count := len(reading.side.pieces)):
            notes.append(f"attention is drawn for {shown} of its {count} pieces, from piece {reading.shown[0] + 1} on")
    explained, answers = len({one.prediction for one in explanation.attributions}), len(explanation.predictions)
    if explained < answers:
        notes.append(f"the words that decided were computed for {explained} of {answers} answers")
    return "; ".join(dict.fromkeys(notes))


def _tags(explanation: EncoderExplanation) -> Iterator[str]:
    words = explanation.readings[0].side.words
    for one in explanation.predictions:
        best = one.candidates[0]
        yield f"{words[one.word or 0]}\t{best.text} {best.probability:.3f}"
    yield ""


def _attributed(explanation: EncoderExplanation, one: Attribution) -> Iterator[str]:
    reading = explanation.readings[0]
    word = explanation.predictions[one.prediction].word
    where = f"{reading.side.words[word]}: " if word is not None else ""
    answer = one.answer.strip()
    if one.probability is None:
        yield f"{where}{answer} {one.value:.4f} (with the words hidden {one.hidden_value:.4f})"
    else:
        yield f"{where}{answer} {one.probability:.3f} (with the words hidden {one.hidden_probability:.3f})"
    parts = explanation.by_words(one)
    order = sorted(_words(reading), key=lambda n: -abs(parts[n]))[:_WORDS]
    yield from (f"  {parts[n]:+8.3f}  {reading.side.words[n]}" for n in order)


def _pairs(explanation: EncoderExplanation) -> Iterator[str]:
    first, second = explanation.readings
    pairs = explanation.word_pairs()
    order = sorted(((i, j) for i in _words(first) for j in _words(second)), key=lambda one: -abs(pairs[one[0]][one[1]]))
    for i, j in order[:_PAIRS]:
        yield f"  {pairs[i][j]:+8.4f}  {first.side.words[i]} - {second.side.words[j]}"


def _words(reading: Reading) -> list[int]:
    """The words of the texts, without what frames them."""
    return [word for text in reading.texts for word in range(text.start, text.stop)]
