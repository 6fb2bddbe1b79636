"""Documents and conversations as a language model is trained on them: ids and, of conversations, which of them are learnt. No torch
here, since worker processes import it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from regard.data.corpus import Record
from regard.data.documents import encode_documents
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.writing.chat import Conversation


def encode_texts(tokenizer: Tokenizer, records: Sequence[Record]) -> list[list[list[int]]]:
    """The ids of documents, one column; of conversations a second one: 1 for each token that is learnt."""
    if not records or len(records[0].texts) == 1:
        return encode_documents(tokenizer, records)
    conversation = Conversation(tokenizer)
    encoded = [encode_chat(conversation, tokenizer, json.loads(record.texts[0])) for record in records]
    return [[ids for ids, _ in encoded], [learnt for _, learnt in encoded]]


def encode_chat(
    conversation: Conversation, tokenizer: Tokenizer, messages: Sequence[dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """The ids of a conversation, without the token that every document begins with, and which of them are an answer's: from where
    the template lets it begin up to the token that ends it."""
    ids = conversation.ids(messages, opens_answer=False)
    learnt = [0] * len(ids)
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or not number:  # what nobody asked is no answer
            continue
        before = conversation.ids(messages[:number])
        after = conversation.ids(messages[: number + 1], opens_answer=False)
        if ids[: len(before)] != before or ids[: len(after)] != after:
            raise UserError(
                "the model's chat template writes an answer in another way once more messages follow it, so that its tokens cannot "
                "be told; train on conversations that end with their first answer"
            )
        end = next((i + 1 for i in range(len(before), len(after)) if ids[i] in tokenizer.stop_ids), len(after))
        learnt[len(before) : end] = [1] * (end - len(before))
    drop = 1 if ids and ids[0] == tokenizer.document_start else 0
    return ids[drop:], learnt[drop:]
