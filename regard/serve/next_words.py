"""What a language model might write next: whole words with their probabilities, for people who look over its shoulder."""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.generate.engines.decoder_jobs import Token
from regard.serve.served_writer import ServedWriter
from regard.writing.options import writing_options
from regard.writing.writer import GrowingText

_MOST_PIECES = 8  # of a word


@dataclass(frozen=True)
class NextWord:
    """A word that may follow."""

    word: str  # without the space before it
    probability: float


async def next_words(writer: ServedWriter, text: str, count: int) -> list[NextWord]:
    """The likeliest words after a text, at most `count`, best first: the likeliest tokens, each completed to a word."""
    prompt = await writer.texts.run(writer.writer.prompt_ids, text)
    first: list[Token] = []
    greedy = writing_options(temperature=0, max_tokens=1)
    async for written in writer.write([prompt], greedy, 2 * count, is_streamed=True):
        first += [*written.piece.tokens, *([written.piece.end] if written.piece.end else [])]
    texts = {one: value for one, value in first[0].top if value > -math.inf and writer.bundle.tokenizer.decode([one])}
    likeliest = list(texts.items())[: 2 * count]
    starts = {one: GrowingText(writer.bundle.tokenizer, prompt).of([one]) for one, _ in likeliest}
    rests: dict[int, list[Token]] = {one: [] for one in starts}
    unfinished = [one for one, start in starts.items() if start[-1:].isalnum()]
    if unfinished:
        longer = writing_options(temperature=0, max_tokens=_MOST_PIECES)
        prompts = [[*prompt, one] for one in unfinished if len(prompt) + 1 < writer.context]
        async for number, piece in writer.write(prompts, longer, 1):
            rests[unfinished[number]] += piece.tokens
    found: dict[str, float] = {}
    for one, value in likeliest:
        growing = GrowingText(writer.bundle.tokenizer, [*prompt, one])
        word, taken = starts[one], []
        for token in rests[one]:
            taken.append(token.id)
            rest = growing.of(taken)
            if not rest[:1].isalnum() or not (starts[one] + rest).strip().isalnum():
                break
            word, value = starts[one] + rest, value + token.log_prob
        shown = word.strip()
        if shown and "\ufffd" not in shown:
            found[shown] = max(found.get(shown, 0.0), min(1.0, math.exp(value)))
    ranked = sorted(found.items(), key=lambda pair: -pair[1])
    return [NextWord(word, probability) for word, probability in ranked[:count]]
