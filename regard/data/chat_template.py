"""The chat template of an imported model, as its files have it. It is text here; `writing/chat.py` renders it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from regard.errors import UserError
from regard.escaping import shorten

CHAT_FILE = "chat.json"  # in a bundle's tokenizer folder
MAX_CHARACTERS = 200_000  # of a template; the longest in use have about 20,000


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the names of control tokens that it may use."""

    source: str
    tokens: tuple[tuple[str, str], ...] = ()  # ("eos_token", "<|im_end|>"), as templates call them

    def __post_init__(self) -> None:
        if len(self.source) > MAX_CHARACTERS:
            raise UserError(
                f"a chat template must have at most {MAX_CHARACTERS:,} characters, but has {len(self.source):,}"
            )

    def to_json(self) -> dict[str, Any]:
        """As the file in a bundle has it."""
        return {"template": self.source, "tokens": dict(self.tokens)}

    @classmethod
    def from_json(cls, content: Any) -> ChatTemplate:
        """The inverse of `to_json`."""
        given: dict[str, Any] = content if isinstance(content, dict) else {}
        template, tokens = given.get("template"), given.get("tokens")
        if not isinstance(template, str) or not isinstance(tokens, dict) or not _are_texts(tokens):
            raise UserError("must have a template and the names of its tokens, but has not")
        return cls(template, tuple(tokens.items()))

    @classmethod
    def of(cls, template: Any, tokens: Mapping[str, str]) -> ChatTemplate | None:
        """A template as tokenizer_config.json has it: a text, or a list of several by name, of which the default is taken; None
        where there is none."""
        if isinstance(template, list):
            named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
            template = named.get("default")
        if template is None:
            return None
        if not isinstance(template, str):
            raise UserError(f"chat_template must be a text, but is {shorten(template)}")
        return cls(template, tuple(tokens.items()))


def _are_texts(tokens: Mapping[Any, Any]) -> bool:
    return all(isinstance(part, str) for pair in tokens.items() for part in pair)
