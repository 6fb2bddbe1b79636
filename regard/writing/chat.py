"""Conversations as token ids: rendered with the model's own chat template (`template_sandbox.py`), then encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from regard.data.tokenizer import Tokenizer
from regard.errors import InputError, UserError
from regard.escaping import shorten
from regard.writing.template_sandbox import SafeTemplate

ROLES = ("system", "user", "assistant")

Message = Mapping[str, Any]


class Conversation:
    """Renders conversations for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def ids(self, messages: str | Sequence[Message], opens_answer: bool = True) -> list[int]:
        """The ids of a conversation up to where the answer begins or, without `opens_answer`, to the end of the last message. A
        string is a single message of the user."""
        return self._tokenizer.encode_controls(self._template.parts(check_messages(messages), opens_answer))

    @cached_property
    def _template(self) -> SafeTemplate:
        template = self._tokenizer.chat
        if template is None:
            raise UserError(
                "this model has no chat template, so it cannot hold a conversation; continue text without a chat, or import a "
                "model that was trained to answer"
            )
        return SafeTemplate(template, self._tokenizer.control_names)


def check_messages(messages: str | Sequence[Message]) -> list[dict[str, str]]:
    """The messages of a conversation, each with a role and a text.

    >>> check_messages("Hello!")
    [{'role': 'user', 'content': 'Hello!'}]
    """
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if not isinstance(messages, Sequence) or not messages:
        raise InputError("messages must be a list of at least one message; give {role: user, content: ...}")
    checked = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping):
            raise InputError(f"{where} must be an object with role and content")
        if message.get("role") not in ROLES:
            raise InputError(f"{where}.role must be one of {', '.join(ROLES)}")
        if not isinstance(message.get("content"), str):
            raise InputError(f"{where}.content must be a string")
        if unknown := sorted(map(str, set(message) - {"role", "content"})):
            raise InputError(f"{where}.{shorten(unknown[0])[1:-1]} is not offered; leave it out")
        checked.append({"role": str(message["role"]), "content": message["content"]})
    return checked
