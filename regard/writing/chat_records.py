"""Documents and conversations as training data: their token ids and, for conversations, which tokens the loss counts. Does not
import torch, since worker processes import it."""

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
    """The ids of documents, as one column; for conversations a second column has 1 for each token that the loss counts."""
    if not records or len(records[0].texts) == 1:
        return encode_documents(tokenizer, records)
    conversation = Conversation(tokenizer)
    encoded = [encode_chat(conversation, tokenizer, json.loads(record.texts[0])) for record in records]
    return [[ids for ids, _ in encoded], [learnt for _, learnt in encoded]]


def encode_chat(
    conversation: Conversation, tokenizer: Tokenizer, messages: Sequence[dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """The ids of a conversation, without the token that begins every document, and a mask of the answers: from where the template
    begins one up to the token that ends it."""
    ids = conversation.ids(messages, opens_answer=False)
    learnt = [0] * len(ids)
    for number, message in enumerate(messages):
        if message["role"] != "assistant" or not number:  # a first message answers nothing
            continue
        before = conversation.ids(messages[:number])
        after = conversation.ids(messages[: number + 1], opens_answer=False)
        if ids[: len(before)] != before or ids[: len(after)] != after:
            raise UserError(
                "the model's chat template changes an answer once more messages follow it, so its tokens cannot be found; train on "
                "conversations that end with their first answer"
            )
        end = next((i + 1 for i in range(len(before), len(after)) if ids[i] in tokenizer.stop_ids), len(after))
        learnt[len(before) : end] = [1] * (end - len(before))
    drop = 1 if ids and ids[0] == tokenizer.document_start else 0
    return ids[drop:], learnt[drop:]
