"""Texts in the form that OpenAI's clients read, whole and as the parts of a stream."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from regard.data.tokenizer import Tokenizer
from regard.generate.engines.decoder_jobs import Token
from regard.serve.writing_batch import Piece

_BYTE = re.compile("<0x([0-9A-F]{2})>")
_REASONS = {"end": "stop", "stop": "stop", "length": "length"}


def token_text(tokenizer: Tokenizer, number: int) -> str:
    """A token as text; <0xE2> for a part of a character."""
    return tokenizer.pieces([number])[0].replace("\u2581", " ")


def _bytes_of(text: str) -> list[int]:
    match = _BYTE.fullmatch(text)
    return [int(match[1], 16)] if match else list(text.encode())


@dataclass
class Reply:
    """The frame of one answer."""

    model: str
    fingerprint: str  # of the model's files
    is_chat: bool
    tokenizer: Tokenizer
    top: int | None = None  # likeliest tokens in each place; None: no log-probabilities
    id: str = ""
    created: int = 0
    prompt_tokens: int = 0
    written: dict[int, int] = field(default_factory=dict)  # tokens by choice

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{secrets.token_hex(12)}"
        self.created = int(time.time())

    @property
    def usage(self) -> dict[str, int]:
        """Tokens that were read and written."""
        count = sum(self.written.values())
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": count,
            "total_tokens": self.prompt_tokens + count,
        }

    def frame(self, choices: list[dict[str, Any]], *, part: bool) -> dict[str, Any]:
        """An answer, or a part of a stream, around its choices."""
        kind = "text_completion" if not self.is_chat else "chat.completion.chunk" if part else "chat.completion"
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def choice(
        self,
        index: int,
        text: str,
        tokens: Sequence[Token | None],
        reason: str | None,
        places: Sequence[int] = (),
    ) -> dict[str, Any]:
        """One text, whole. None among the tokens stands for the first of a prompt, which nothing predicts; `places` are where the
        tokens begin in the text."""
        finish = None if reason is None else _REASONS[reason]
        if self.is_chat:
            logprobs = None if self.top is None else self._chat_logprobs(tokens)
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}
        logprobs = None if self.top is None else self._completion_logprobs(tokens, places)
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def part(self, index: int, piece: Piece, offset: int, is_first: bool) -> dict[str, Any]:
        """A part of a text in a stream, which stands after `offset` characters of an echo."""
        choice = self.choice(index, piece.text, piece.tokens, piece.reason, [offset + place for place in piece.places])
        if self.is_chat:
            del choice["message"]
            role = {"role": "assistant"} if is_first else {}
            choice["delta"] = {**role, "content": piece.text} if piece.text or is_first else {}
        return choice

    def _chat_logprobs(self, tokens: Sequence[Token | None]) -> dict[str, Any]:
        def entry(number: int, value: float) -> dict[str, Any]:
            text = token_text(self.tokenizer, number)
            return {"token": text, "logprob": value, "bytes": _bytes_of(text)}

        return {
            "content": [
                {**entry(one.id, one.log_prob), "top_logprobs": [entry(*other) for other in one.top[: self.top]]}
                for one in tokens
                if one is not None
            ],
            "refusal": None,
        }

    def _completion_logprobs(self, tokens: Sequence[Token | None], places: Sequence[int]) -> dict[str, Any]:
        return {
            "tokens": ["" if one is None else token_text(self.tokenizer, one.id) for one in tokens],
            "token_logprobs": [None if one is None else one.log_prob for one in tokens],
            "top_logprobs": [None if one is None or not self.top else self._likeliest(one) for one in tokens],
            "text_offset": list(places),
        }

    def _likeliest(self, token: Token) -> dict[str, float]:
        """The likeliest tokens in a place, and the token itself. Of two with the same text the likelier counts."""
        found: dict[str, float] = {}
        for number, value in (*token.top[: self.top], (token.id, token.log_prob)):
            found.setdefault(token_text(self.tokenizer, number), value)
        return found
