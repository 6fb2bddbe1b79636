"""From prompts to continuations: tokenizes, generates and detokenizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

from regard.data.tokenizer import Tokenizer
from regard.generate.options import Constraints, Hypothesis, OnFinished, TextEngine
from regard.generate.word_tokens import phrase_of
from regard.writing.chat import Conversation, Message, check_messages
from regard.writing.options import WritingOptions
from regard.writing.stops import INCOMPLETE, cut_at_stop, without_tail

# Tokens of the prompt that are decoded with the continuation: they decide whether it starts with a space or inside a character.
_CONTEXT = 8
_WINDOW = 32  # tokens whose text is settled at a time

Reason = Literal["end", "length", "stop"]
Chat = str | Sequence[Message]  # a conversation, or a single message of the user


@dataclass(frozen=True)
class TokenText:
    """A token of a continuation, as text, with its log-probability given everything before it."""

    text: str
    log_prob: float


@dataclass(frozen=True)
class Continuation:
    """A continuation of a prompt."""

    text: str
    reason: Reason  # why it ended: an end token, the length limit or a stop string
    num_tokens: int  # generated, without the end token
    log_prob: float  # of all generated tokens, including any cut off by a stop string; repetition penalties count
    tokens: tuple[TokenText, ...] = ()  # of the text, if requested; a stop string may have cut the last one


@dataclass(frozen=True)
class Written:
    """A prompt and its continuations, best or likeliest first."""

    prompt: str
    num_prompt_tokens: int
    continuations: tuple[Continuation, ...]


class Writer:
    """Continues texts with a language model."""

    def __init__(self, tokenizer: Tokenizer, engine: TextEngine) -> None:
        self.tokenizer, self.engine = tokenizer, engine

    def prompt_ids(self, prompt: str) -> list[int]:
        """The ids of a prompt, with the tokens that open one."""
        return [*self.tokenizer.prompt_opening, *self.tokenizer.encode(prompt, "target")]

    def write(
        self, prompts: Sequence[str], options: WritingOptions, on_finished: OnFinished | None = None
    ) -> list[Written]:
        """Continue each prompt. `on_finished` is called with the indices of finished prompts."""
        ids = [self.prompt_ids(prompt + options.prefix) for prompt in prompts]
        return self.write_ids(prompts, ids, options, on_finished)

    def answer(
        self, chats: Sequence[Chat], options: WritingOptions, on_finished: OnFinished | None = None
    ) -> list[Written]:
        """Answer each conversation, rendered with the model's own chat template. The `prompt` of each is its last message."""
        ids = [self.chat_ids(chat, options.prefix) for chat in chats]
        prompts = [str(check_messages(chat)[-1]["content"]) for chat in chats]
        return self.write_ids(prompts, ids, options, on_finished)

    def chat_ids(self, chat: Chat, prefix: str = "") -> list[int]:
        """The ids of a conversation up to the answer, and of the prefix of the answer."""
        return [*self._conversation.ids(chat), *self.tokenizer.encode(prefix, "target", at_start=False)]

    @cached_property
    def _conversation(self) -> Conversation:
        return Conversation(self.tokenizer)

    def write_ids(
        self,
        prompts: Sequence[str],
        ids: Sequence[Sequence[int]],
        options: WritingOptions,
        on_finished: OnFinished | None = None,
    ) -> list[Written]:
        """Continue these ids; `prompts` are their text for people."""
        constraints = [self._constraint(options, before) for before in ids] if options.phrases or options.stop else []
        found = self.engine.generate(ids, options.search, on_finished, constraints)
        log_probs: list[list[Sequence[float]]] = [[()] * len(some) for some in found]
        if options.token_log_probs:
            log_probs = self._token_log_probs(ids, found)
        return [
            Written(
                prompt,
                len(before),
                tuple(
                    self._continuation(before, one, scores, options) for one, scores in zip(some, scored, strict=True)
                ),
            )
            for prompt, before, some, scored in zip(prompts, ids, found, log_probs, strict=True)
        ]

    def follow(self, prompt: str, options: WritingOptions) -> Iterator[str]:
        """Yield the continuation of one prompt as it grows: each string extends the previous one, and the last is complete."""
        return self._follow(self.prompt_ids(prompt + options.prefix), options)

    def follow_answer(self, chat: Chat, options: WritingOptions) -> Iterator[str]:
        """Yield the answer to a conversation as it grows."""
        return self._follow(self.chat_ids(chat, options.prefix), options)

    def _follow(self, before: Sequence[int], options: WritingOptions) -> Iterator[str]:
        prefix = options.prefix
        shown, text, growing = "", "", GrowingText(self.tokenizer, before)
        for ids in self.engine.stream(before, options.search, self._constraint(options, before)):
            text, is_stopped = cut_at_stop(growing.of(ids), options.stop)
            if is_stopped:
                break
            safe = without_tail(text, options.stop)
            if len(safe) > len(shown) and safe.startswith(shown):
                shown = safe
                yield prefix + shown
        if text != shown or not text:
            yield prefix + text

    def _constraint(self, options: WritingOptions, before: Sequence[int]) -> Constraints:
        """The constraints on the text after these ids."""
        return Constraints(
            phrases=tuple(phrase_of(self.tokenizer, (phrase,)) for phrase in options.phrases),
            ends=partial(self._has_stop, before, options.stop) if options.stop else None,
        )

    def _has_stop(self, before: Sequence[int], stops: Sequence[str], ids: Sequence[int]) -> bool:
        """Whether the newest tokens complete a stop string. Called for each token, so it decodes only the last few."""
        newest = max(len(stop.encode()) for stop in stops) + 1  # a token has at least one byte
        settled = max(0, len(ids) - newest)
        growing = GrowingText(self.tokenizer, [*before, *ids[:settled]])
        return cut_at_stop(growing.of(ids[settled:]), stops)[1]

    def _continuation(
        self, before: Sequence[int], found: Hypothesis, log_probs: Sequence[float], options: WritingOptions
    ) -> Continuation:
        whole = GrowingText(self.tokenizer, before).of(found.ids)
        text, is_stopped = cut_at_stop(whole, options.stop)
        reason: Reason = "stop" if is_stopped else "end" if found.ended else "length"
        tokens = self._tokens(GrowingText(self.tokenizer, before), found.ids, log_probs, text)
        return Continuation(options.prefix + text, reason, len(found.ids), found.log_prob, tokens)

    @staticmethod
    def _tokens(
        growing: GrowingText, ids: Sequence[int], log_probs: Sequence[float], text: str
    ) -> tuple[TokenText, ...]:
        """The tokens of a text. A character that takes several tokens belongs to the last of them."""
        tokens: list[TokenText] = []
        place = 0
        for number, log_prob in enumerate(log_probs[: len(ids)], 1):
            if place >= len(text):
                break
            end = len(text) if number == len(ids) else len(without_tail(growing.of(ids[:number]), ()))
            end = max(place, min(len(text), end))
            tokens.append(TokenText(text[place:end], log_prob))
            place = end
        return tuple(tokens)

    def _token_log_probs(
        self, before: Sequence[Sequence[int]], found: Sequence[Sequence[Hypothesis]]
    ) -> list[list[Sequence[float]]]:
        """The log-probabilities of each hypothesis's tokens."""
        pairs = [(ids, one.ids) for ids, some in zip(before, found, strict=True) for one in some]
        scored = iter(self.engine.score([ids for ids, _ in pairs], [ids for _, ids in pairs]))
        return [[next(scored) for _ in some] for some in found]


class GrowingText:
    """The text that a growing list of ids adds to a prompt; each call decodes only the newest."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._context = list(before[-_CONTEXT:])
        self._text, self._count = "", 0  # settled text, and the number of its ids

    def of(self, ids: Sequence[int]) -> str:
        """The text of these ids, which extend those of the previous call."""
        new = list(ids[self._count :])
        while len(new) >= 2 * _WINDOW:
            settled = self._added(new[:_WINDOW])
            if settled.endswith(INCOMPLETE):
                break
            self._text, self._count = self._text + settled, self._count + _WINDOW
            self._context, new = (self._context + new[:_WINDOW])[-_CONTEXT:], new[_WINDOW:]
        return self._text + self._added(new)

    def _added(self, ids: list[int]) -> str:
        """The text that these ids add to the context."""
        known, whole = self._tokenizer.decode(self._context), self._tokenizer.decode([*self._context, *ids])
        return whole[len(known) :] if whole.startswith(known) else self._tokenizer.decode(ids)
