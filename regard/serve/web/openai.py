"""OpenAI's API for the language models that are served: /v1/models, /v1/completions and /v1/chat/completions. What is not offered
is refused by name, never ignored."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from regard.bounds import MAX_EXTRA
from regard.errors import InputError, UserError
from regard.generate.engines.decoder_jobs import Token
from regard.serve.batched_sentences import INLINE_CHARACTERS
from regard.serve.refusal import Forbidden, refusing
from regard.serve.served_writer import ServedWriter, Written
from regard.serve.web.context import admit, context_of, find_key
from regard.serve.web.events import MEDIA_TYPE
from regard.serve.web.gate import openai_error
from regard.serve.web.openai_fields import (
    DEFAULT_TOKENS,
    ChatFields,
    CompletionFields,
    WritingFields,
    as_refusal,
    messages_of,
    options_of,
    read_writing,
    writing_body,
)
from regard.serve.web.openai_replies import Reply
from regard.serve.web.schemas import OpenAIError, OpenAIModel, OpenAIModels
from regard.serve.web.status import REFUSALS, HttpRefused, as_http
from regard.writing.options import WritingOptions

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OpenAIError} for status in (400, 401, 404, 408, 413, 415, 422, 429, 500, 501, 503)
}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "as OpenAI's API has it", "content": {"application/json": {"schema": {"type": "object"}}}}
}
router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=ERRORS)


@dataclass(frozen=True)
class _Prompt:
    """A prompt as token ids, and what is sent back before its texts."""

    ids: list[int]
    echo: str = ""
    tokens: Sequence[Token | None] = ()  # of the echo


@router.get("/models")
async def models(request: Request) -> OpenAIModels:
    """The language models that are served."""
    with openai_keys():
        find_key(request, None)
    writers = context_of(request).service.writers
    return OpenAIModels(object="list", data=[_model(writer) for writer in writers.values()])


@router.get("/models/{model}")
async def one_model(request: Request, model: str) -> OpenAIModel:
    """One language model."""
    with openai_keys():
        find_key(request, None)
    return _model(find_writer(request, model))


def _model(writer: ServedWriter) -> OpenAIModel:
    return OpenAIModel(
        id=writer.name, object="model", created=0, owned_by="regard", context=writer.context, chat=writer.has_chat
    )


@router.post("/completions", response_class=Response, responses=_ANSWER, openapi_extra=writing_body(CompletionFields))
async def completions(request: Request) -> Response:
    """Continue a prompt, or several."""
    fields = await read_writing(request, CompletionFields)
    writer = find_writer(request, fields.model)
    limits = context_of(request).service.limits
    most = DEFAULT_TOKENS if fields.max_tokens is None else fields.max_tokens
    if most == 0 and not fields.echo:
        raise HttpRefused(400, "max_tokens may be 0 with echo only; send 1 or more", param="max_tokens")
    options = options_of(fields, max(1, most), limits)
    raw = _prompts(fields)
    if len(raw) * fields.n > limits.texts:
        raise HttpRefused(
            400, f"there may be at most {limits.texts} texts in a request; send fewer prompts", param="prompt"
        )
    characters = sum(len(one) for one in raw)
    _admit(request, characters)
    read = [await _ids(writer, one) for one in raw]
    prompts = [_Prompt(_fitting(writer, fields, ids, max(1, most))) for ids in read]
    if fields.echo:
        prompts = [await _echoed(writer, fields, one) for one in prompts]
    reply = _reply(writer, False, fields.logprobs, prompts)
    if most == 0:
        whole = [reply.choice(n, one.echo, one.tokens, "length") for n, one in enumerate(prompts)]
        return JSONResponse({**reply.frame(whole, part=False), "usage": reply.usage})
    return await _answer(request, writer, fields, prompts, options, reply)


@router.post("/chat/completions", response_class=Response, responses=_ANSWER, openapi_extra=writing_body(ChatFields))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, by the model's own chat template."""
    fields = await read_writing(request, ChatFields)
    writer = find_writer(request, fields.model)
    limits = context_of(request).service.limits
    if fields.top_logprobs is not None and not fields.logprobs:
        raise HttpRefused(
            400, "top_logprobs needs logprobs; send logprobs: true, or leave it out", param="top_logprobs"
        )
    if fields.max_tokens is not None and fields.max_completion_tokens is not None:
        raise HttpRefused(400, "max_tokens and max_completion_tokens are the same; send one", param="max_tokens")
    asked = fields.max_completion_tokens if fields.max_tokens is None else fields.max_tokens
    if asked == 0:
        raise HttpRefused(400, "max_tokens must be 1 or more", param="max_tokens")
    messages = messages_of(fields)
    characters = sum(len(str(one.get("content", ""))) for one in messages)
    options_of(fields, asked or 1, limits)  # refuses what is wrong before any work
    _admit(request, characters)
    ids = await _chat_ids(writer, fields, messages, asked or 1)
    room = writer.context - len(ids)
    options = options_of(fields, asked or max(1, min(room, MAX_EXTRA, limits.tokens // fields.n - len(ids))), limits)
    top = (fields.top_logprobs or 0) if fields.logprobs else None
    prompts = [_Prompt(ids)]
    return await _answer(request, writer, fields, prompts, options, _reply(writer, True, top, prompts))


# --- what is asked for ---


def find_writer(request: Request, name: str) -> ServedWriter:
    """The language model of this name."""
    writers = context_of(request).service.writers
    if name in writers:
        return writers[name]
    if not writers:
        why = "no language model is served here; start the server with one: regard serve -m MODEL"
    else:
        why = f"model must be a language model that is served here: {', '.join(sorted(writers))}"
    raise HttpRefused(404, why, param="model", code="model_not_found")


@contextmanager
def openai_keys() -> Any:
    """Answer a missing or wrong key as OpenAI does."""
    try:
        yield
    except Forbidden:
        raise HttpRefused(
            401,
            "the API key is missing or unknown; send Authorization: Bearer KEY, and ask the operator of this server for one",
        ) from None


def _admit(request: Request, characters: int) -> None:
    most = context_of(request).service.limits.characters
    if characters > most:
        raise HttpRefused(413, f"a request may have at most {most} characters; send less")
    with openai_keys():
        admit(request, None, characters)


def _prompts(fields: CompletionFields) -> list[str | list[int]]:
    """The prompts, one after the other."""
    prompt = fields.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise HttpRefused(400, "prompt must not be an empty list; send a string to begin a text", param="prompt")
    if all(isinstance(one, int) for one in prompt):
        return [[one for one in prompt if isinstance(one, int)]]
    return [one for one in prompt if not isinstance(one, int)]


async def _ids(writer: ServedWriter, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, str):
        try:
            with refusing("reading the prompt"):
                if len(prompt) <= INLINE_CHARACTERS:
                    return writer.writer.prompt_ids(prompt)
                return await writer.texts.run(writer.writer.prompt_ids, prompt)
        except InputError as error:
            raise as_refusal(error, "prompt") from None
    size = writer.bundle.tokenizer.vocab_size
    if not all(0 <= one < size for one in prompt):
        raise HttpRefused(400, f"prompt must have token ids between 0 and {size - 1}", param="prompt")
    return prompt


def _too_long(writer: ServedWriter, count: int, param: str) -> HttpRefused:
    return HttpRefused(
        400,
        f"this model's context is {writer.context} tokens, but {param} has {count} and leaves no room for a text; shorten it, or "
        "send truncation: auto to have its beginning cut",
        param=param,
        code="context_length_exceeded",
    )


def _fitting(writer: ServedWriter, fields: WritingFields, ids: list[int], max_tokens: int) -> list[int]:
    """A prompt that leaves room for a text: as it is, or cut if the client says so."""
    if fields.truncation == "auto":
        room = writer.context - max_tokens
        opening = list(writer.bundle.tokenizer.prompt_opening)
        if len(ids) <= room:
            return ids
        if room <= len(opening):
            raise _too_long(writer, len(ids), "prompt")
        return [*opening, *ids[len(ids) - room + len(opening) :]]
    if len(ids) >= writer.context:
        raise _too_long(writer, len(ids), "prompt")
    return ids


async def _chat_ids(
    writer: ServedWriter, fields: ChatFields, messages: list[dict[str, str]], max_tokens: int
) -> list[int]:
    """The ids of a conversation; the oldest messages are left out if it is too long and the client says so."""
    while True:
        try:
            with refusing("a conversation"):
                ids = await writer.texts.run(writer.writer.chat_ids, messages)
        except InputError as error:
            raise as_refusal(error, "messages") from None
        room = writer.context - (max_tokens if fields.truncation == "auto" else 1)
        if len(ids) <= room:
            return ids
        oldest = next((n for n, one in enumerate(messages[:-1]) if one["role"] != "system"), None)
        if fields.truncation != "auto" or oldest is None:
            raise _too_long(writer, len(ids), "messages")
        messages = [*messages[:oldest], *messages[oldest + 1 :]]


async def _echoed(writer: ServedWriter, fields: CompletionFields, prompt: _Prompt) -> _Prompt:
    """A prompt with what is sent back of it."""
    opening = writer.bundle.tokenizer.prompt_opening
    ids = prompt.ids[len(opening) :] if tuple(prompt.ids[: len(opening)]) == opening else prompt.ids
    echo = writer.bundle.tokenizer.decode(ids)
    if fields.logprobs is None or not prompt.ids:
        return _Prompt(prompt.ids, echo)
    with refusing("reading the prompt"):
        found: list[Token | None] = list(await writer.reader.run(writer.score, prompt.ids, fields.logprobs))
    whole = [None, *found][len(prompt.ids) - len(ids) :]  # nothing predicts the first of all
    return _Prompt(prompt.ids, echo, whole)


# --- what is answered ---


def _reply(writer: ServedWriter, is_chat: bool, top: int | None, prompts: Sequence[_Prompt]) -> Reply:
    reply = Reply(writer.name, f"fp_{writer.bundle.manifest[:12]}", is_chat, writer.bundle.tokenizer, top)
    reply.prompt_tokens = sum(len(one.ids) for one in prompts)
    return reply


async def _answer(
    request: Request,
    writer: ServedWriter,
    fields: WritingFields,
    prompts: Sequence[_Prompt],
    options: WritingOptions,
    reply: Reply,
) -> Response:
    top = 0 if reply.top is None else max(1, reply.top)
    streams = bool(fields.stream)
    if fields.stream_options is not None and not streams:
        raise HttpRefused(
            400, "stream_options is for streams; send stream: true, or leave it out", param="stream_options"
        )
    found = writer.write([one.ids for one in prompts], options, top, streams)
    if streams:
        usage = fields.stream_options is not None and fields.stream_options.include_usage
        events = _events(request, found, prompts, fields.n, reply, usage)
        first = await anext(events)  # an error before it is an ordinary one
        return StreamingResponse(_resumed(first, events), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})
    texts: dict[int, Written] = {}
    async with aclosing(found):
        async for one in found:
            texts[one.prompt * fields.n + one.piece.number] = one
    choices = []
    for index, (number, piece) in sorted(texts.items()):
        reply.written[index] = piece.count
        prompt = prompts[number]
        choices.append(reply.choice(index, prompt.echo + piece.text, [*prompt.tokens, *piece.tokens], piece.reason))
    _count(request, reply, sum(len(one.piece.text) for one in texts.values()))
    return JSONResponse({**reply.frame(choices, part=False), "usage": reply.usage})


def _count(request: Request, reply: Reply, characters: int) -> None:
    """Charge the key for what was written, and count it."""
    key = find_key(request, None)
    if key is not None:
        key.owe(characters)
    request.scope["facts"]["tokens"] = reply.usage["completion_tokens"]


def _event(content: Any) -> str:
    return f"data: {content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)}\n\n"


async def _resumed(first: str, events: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for event in events:
        yield event


async def _events(
    request: Request,
    found: AsyncGenerator[Written],
    prompts: Sequence[_Prompt],
    n: int,
    reply: Reply,
    with_usage: bool,
) -> AsyncIterator[str]:
    """The parts of a stream."""
    offsets: dict[int, int] = {}  # characters sent, by choice
    nothing = {"usage": None} if with_usage else {}
    try:
        async with aclosing(found):
            async for number, piece in found:
                index = number * n + piece.number
                is_first = index not in offsets
                if is_first and prompts[number].echo:
                    echo = reply.choice(index, prompts[number].echo, prompts[number].tokens, None)
                    yield _event({**reply.frame([echo], part=True), **nothing})
                offset = offsets.setdefault(index, len(prompts[number].echo))
                part = reply.part(index, piece, offset, is_first)
                offsets[index] += len(piece.text)
                reply.written[index] = piece.count
                yield _event({**reply.frame([part], part=True), **nothing})
    except REFUSALS as error:
        if not offsets:
            raise
        yield _event(openai_error(as_http(error)))
        return
    except UserError:
        raise
    except Exception:
        if offsets:  # the status has been sent already
            yield _event(openai_error(HttpRefused(500, "internal error; look into the server's log")))
        raise
    _count(request, reply, sum(offsets.values()) - sum(len(one.echo) * n for one in prompts))
    if with_usage:
        yield _event({**reply.frame([], part=True), "usage": reply.usage})
    yield _event("[DONE]")
