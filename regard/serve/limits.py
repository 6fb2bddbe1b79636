"""Limits on what one client may request and on how much may wait; `--limit NAME=NUMBER` changes one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from regard.errors import UserError


@dataclass(frozen=True)
class Limits:
    """The limits of a server; the defaults suit a machine with a few cores."""

    body_bytes: int = 1_048_576  # of a request
    file_bytes: int = 10_485_760  # of an uploaded document, as it comes
    unpacked_bytes: int = 67_108_864  # of an uploaded document, unpacked
    characters: int = 50_000  # of all texts of a request
    tokens: int = (
        50_000  # of all texts of a request, as the model reads them; they count more with a wider beam and with terms
    )
    file_characters: int = 1_000_000  # of the text in an uploaded document
    file_tokens: int = 1_000_000  # the same as tokens, for a document
    texts: int = 256  # of a request
    alternatives: int = 4  # besides the best translation
    beam: int = 16  # the widest beam, and the most samples; n of OpenAI's API
    terms: int = 200  # of a glossary and kept words together
    term_characters: int = 100  # of each side of a term, of a kept word, of a phrase
    glossaries: int = 100  # stored under one key, each with as many entries as terms
    sentence_terms: int = 16  # constraints on one sentence: glossary terms and phrases
    seconds: float = 60  # from the last byte of a request to the answer
    file_seconds: float = 600  # the same for a document
    writing_seconds: float = 600  # the same for a text that a language model writes
    body_seconds: float = 20  # to send a request in
    header_seconds: float = 10  # to send the headers of a request in
    send_seconds: float = 30  # a client that reads nothing of its answer for so long is disconnected
    connections: int = 2_048  # open at a time; fewer if the limit of open files is lower
    address_connections: int = 1_000  # of one address (IPv6: one /64 network) among them, and at most half of them
    places: int = 64  # requests that run or wait; one more is answered with 429
    file_places: int = 4  # documents among them
    explain_places: int = 4  # explanations among them; they run one at a time
    word_places: int = (
        32  # per model: alternative words, word scores, alignments, mbr reranking; two run at a time, or one
    )
    held_bytes: int = 134_217_728  # of all requests in memory
    queue_tokens: int = 200_000  # of all sentences that wait for the model
    window_ms: float = 4  # under load: how long a batch waits for the next sentence
    batch_tokens: int = 4_096  # of one batch, counted as sentences times the longest
    rows: int = 128  # texts that a language model writes at a time
    cache_bytes: int = (
        0  # of the keys and values of these texts, for each model; 0: 2 GiB, on a GPU a quarter of what is free
    )
    drain_seconds: float = 30  # after SIGTERM: to finish accepted requests

    def __post_init__(self) -> None:
        may_be_zero = ("window_ms", "alternatives", "cache_bytes", "drain_seconds")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in may_be_zero):
                rule = "must not be negative" if field.name in may_be_zero else "must be more than 0"
                raise UserError(f"limit {field.name} {rule}, but is {value}")

    def changed(self, settings: Sequence[str]) -> Limits:
        """These limits with some changed, each written NAME=NUMBER.

        >>> Limits().changed(["texts=5", "seconds=1.5"]).seconds
        1.5
        """
        kinds = {field.name: type(field.default) for field in dataclasses.fields(self)}
        changes: dict[str, float] = {}
        for setting in settings:
            name, _, number = setting.partition("=")
            if name not in kinds:
                near = get_close_matches(name, kinds, 1)
                raise UserError(
                    f"--limit {name} is not known; "
                    + (f"did you mean {near[0]}?" if near else f"known limits: {', '.join(kinds)}")
                )
            is_float = name.endswith("seconds") or name == "window_ms"
            try:
                changes[name] = float(number) if is_float else int(number.replace("_", ""))
            except ValueError:
                kind = "a number" if is_float else "a whole number"
                raise UserError(f"--limit {name} must be {kind}, but is {number!r}; write --limit {name}=100") from None
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]
