"""Samples that show a language model's progress: it continues held-out passages or answers held-out conversations, the same ones
throughout a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from regard.data.corpus import Texts
from regard.data.tokenizer import Tokenizer
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import forbidden_ids
from regard.models.transformer import Transformer
from regard.recipe import Recipe
from regard.writing.chat import Conversation
from regard.writing.options import writing_options
from regard.writing.writer import Writer

NUM_SAMPLES = 3
PROMPT, REFERENCE = 40, 160  # approximate, in characters
MAX_TOKENS, MAX_CHARACTERS = 48, 120  # of a continuation, in subword pieces or single characters


class Passage(NamedTuple):
    """A prompt as text, its original continuation, and its ids for the model."""

    prompt: str
    after: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class ContinuationSampler:
    """Continues prompts with a model, using the same random numbers each time."""

    passages: tuple[Passage, ...]
    tokenizer: Tokenizer
    max_tokens: int
    max_length: int
    seed: int

    @classmethod
    def of(cls, records: Sequence[Texts], tokenizer: Tokenizer, recipe: Recipe) -> ContinuationSampler:
        """A sampler of passages from these documents. A prompt and its continuation fit into a row."""
        wanted = MAX_CHARACTERS if recipe.tokenizer.unit == "character" else MAX_TOKENS
        if records and len(records[0]) > 1:
            passages = chat_passages([texts[0] for texts in records], tokenizer)
        else:
            opening = tokenizer.prompt_opening
            passages = tuple(
                Passage(prompt, after, (*opening, *tokenizer.encode(prompt, "target")))
                for prompt, after in choose_passages([text for [text] in records])
            )
        return cls(
            passages, tokenizer, min(wanted, recipe.data.max_length // 2), recipe.data.max_length, recipe.train.seed
        )

    def samples(self, model: Transformer, device: torch.device) -> list[dict[str, str]]:
        """The samples of a metrics record."""
        tokenizer = self.tokenizer
        room = self.max_length - self.max_tokens
        fitting = [passage for passage in self.passages if len(passage.ids) <= room]
        if not fitting:
            return []
        engine = TorchEngine(
            model,
            tokenizer.bos_id,
            tokenizer.eos_id,
            forbidden=forbidden_ids(tokenizer),
            device=device,
            stop_ids=tokenizer.stop_ids,
        )
        options = writing_options(max_tokens=self.max_tokens, seed=self.seed)
        written = Writer(tokenizer, engine).write_ids(
            [one.prompt for one in fitting], [one.ids for one in fitting], options
        )
        return [
            {"prompt": passage.prompt, "reference": passage.after, "continuation": one.continuations[0].text}
            for passage, one in zip(fitting, written, strict=True)
        ]


def chat_passages(conversations: Sequence[str], tokenizer: Tokenizer) -> tuple[Passage, ...]:
    """The last answers of some conversations, each with what preceded it."""
    conversation, passages = Conversation(tokenizer), []
    for content in conversations[:: max(1, len(conversations) // NUM_SAMPLES)][:NUM_SAMPLES]:
        messages = json.loads(content)
        last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
        ids = tuple(conversation.ids(messages[:last]))
        passages.append(Passage(messages[last - 1]["content"], messages[last]["content"], ids))
    return tuple(passages)


def choose_passages(documents: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Passages spread over the documents, each from the start of a line: its first words, and their continuation."""
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
