"""What a language model makes of the beginnings of held-out passages: the same ones throughout a run, so that its progress can be
read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regard.data.corpus import Texts
from regard.data.tokenizer import Tokenizer
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import forbidden_ids
from regard.models.transformer import Transformer
from regard.recipe import Recipe
from regard.writing.options import writing_options
from regard.writing.writer import Writer

NUM_SAMPLES = 3
PROMPT, REFERENCE = 40, 160  # characters, about
MAX_TOKENS, MAX_CHARACTERS = 48, 120  # of a continuation, in subword pieces or single characters


@dataclass(frozen=True)
class ContinuationSampler:
    """Continues prompts with a model, by the same random numbers each time."""

    passages: tuple[tuple[str, str], ...]  # a prompt, and what follows it in the document
    tokenizer: Tokenizer
    max_tokens: int
    max_length: int
    seed: int

    @classmethod
    def of(cls, records: Sequence[Texts], tokenizer: Tokenizer, recipe: Recipe) -> ContinuationSampler:
        """Passages of these documents. A prompt and its continuation fit into a row."""
        wanted = MAX_CHARACTERS if recipe.tokenizer.unit == "character" else MAX_TOKENS
        passages = choose_passages([text for [text] in records])
        return cls(
            passages, tokenizer, min(wanted, recipe.data.max_length // 2), recipe.data.max_length, recipe.train.seed
        )

    def samples(self, model: Transformer, device: torch.device) -> list[dict[str, str]]:
        """The samples of a metrics record."""
        tokenizer = self.tokenizer
        engine = TorchEngine(
            model, tokenizer.bos_id, tokenizer.eos_id, forbidden=forbidden_ids(tokenizer), device=device
        )
        writer = Writer(tokenizer, engine)
        room = self.max_length - self.max_tokens
        fitting = [(prompt, after) for prompt, after in self.passages if len(writer.prompt_ids(prompt)) <= room]
        if not fitting:
            return []
        written = writer.write(
            [prompt for prompt, _ in fitting], writing_options(max_tokens=self.max_tokens, seed=self.seed)
        )
        return [
            {"prompt": prompt, "reference": after, "continuation": one.continuations[0].text}
            for (prompt, after), one in zip(fitting, written, strict=True)
        ]


def choose_passages(documents: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Passages that are spread over the documents and begin with a line: the first words of each, and what follows."""
    ends, total = [], 0
    for text in documents:
        total += len(text)
        ends.append(total)
    found: dict[str, str] = {}
    for number in range(NUM_SAMPLES):
        place = total * (2 * number + 1) // (2 * NUM_SAMPLES)
        which = next((index for index, end in enumerate(ends) if place < end), None)
        if which is None:
            continue
        text = documents[which]
        start = place - (ends[which] - len(text))
        start = text.find("\n", start) + 1 or text.rfind("\n", 0, start) + 1
        passage = text[start : start + PROMPT + REFERENCE].lstrip()
        cut = passage.find(" ", PROMPT)
        cut = cut if 0 < cut <= PROMPT + 20 else PROMPT
        if passage[cut:].strip():
            found.setdefault(passage[:cut], passage[cut:])
    return tuple(found.items())
