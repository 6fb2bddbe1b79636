"""OpenAI's API for the language models that are served: /v1/models, /v1/completions and /v1/chat/completions; the vectors are in
`openai_embeddings.py`. What is not offered is refused by name, never ignored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from regard.bounds import MAX_EXTRA
from regard.errors import InputError, UserError
from regard.generate.engines.decoder_jobs import Token
from regard.serve.batched_sentences import INLINE_CHARACTERS
from regard.serve.refusal import Forbidden, refusing
from regard.serve.served_encoder import ServedEncoder
from regard.serve.served_writer import ServedWriter, WrittenPiece
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
    read_openai,
    writing_body,
)
from regard.serve.web.openai_replies import Reply
from regard.serve.web.schemas import OpenAIError, OpenAIModel, OpenAIModels
from regard.serve.web.status import REFUSALS, HttpRefused, as_http
from regard.serve.writing_batch import Piece
from regard.writing.options import WritingOptions
from regard.writing.stops import without_tail
from regard.writing.writer import GrowingText

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": OpenAIError} for status in (400, 401, 404, 408, 413, 415, 422, 429, 500, 501, 503)
}
_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "as OpenAI's API has it", "content": {"application/json": {"schema": {"type": "object"}}}}
}
_MESSAGE_CHARACTERS = (
    16  # that a message counts for besides its content: its role, and what the template writes around it
)
_ID_CHARACTERS = 4  # that a token id counts for
_ENDING_SECONDS = 5.0  # before its time is over, a stream ends by itself and says so
router = APIRouter(prefix="/v1", tags=["OpenAI"], responses=ERRORS)


@dataclass(frozen=True)
class _Prompt:
    """A prompt as token ids, and what is sent back before its texts."""

    ids: list[int]
    echo: str = ""
    tokens: Sequence[Token | None] = ()  # of the echo
    places: Sequence[int] = ()  # where these begin in it


def as_openai_object() -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of an answer that OpenAI describes."""
    return _ANSWER


@router.get("/models")
async def models(request: Request) -> OpenAIModels:
    """The models that are served with OpenAI's API: language models, and those that embed texts."""
    check_key(request)
    return OpenAIModels(object="list", data=[_model(one) for one in _named_models(request).values()])


@router.get("/models/{model}")
async def one_model(request: Request, model: str) -> OpenAIModel:
    """One of these models."""
    check_key(request)
    found = _named_models(request).get(model)
    return _model(find_writer(request, model) if found is None else found)


def _named_models(request: Request) -> dict[str, ServedWriter | ServedEncoder]:
    service = context_of(request).service
    encoders = {name: one for name, one in service.encoders.items() if one.bundle.task == "embed"}
    return {**service.writers, **encoders}


def _model(served: ServedWriter | ServedEncoder) -> OpenAIModel:
    has_chat = isinstance(served, ServedWriter) and served.has_chat
    return OpenAIModel(
        id=served.name, object="model", created=0, owned_by="regard", context=served.bundle.max_length, chat=has_chat,
        task=served.bundle.task,
    )  # fmt: skip


@router.post("/completions", response_class=Response, responses=_ANSWER, openapi_extra=writing_body(CompletionFields))
async def completions(request: Request) -> Response:
    """Continue a prompt, or several."""
    check_key(request)
    fields = await read_openai(request, CompletionFields)
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
    if fields.truncation == "auto" and sum(map(_characters, raw)) > limits.characters:
        share = limits.characters // len(raw)
        raw = [one[-share:] if isinstance(one, str) else one[-(share // _ID_CHARACTERS) :] for one in raw]
    _admit(request, sum(map(_characters, raw)), "prompt")
    prompts = []
    for one in raw:
        ids = await _ids(writer, one)
        fitting = _fitting(writer, fields, ids, most)
        prompts.append(_Prompt(fitting))
        if fields.echo:
            is_whole = isinstance(one, str) and len(fitting) == len(ids)
            prompts[-1] = await _echoed(writer, fields, fitting, str(one) if is_whole else None)
    reply = _reply(writer, False, fields.logprobs, prompts)
    return await _answer(request, writer, fields, prompts, options if most else None, reply)


def _characters(prompt: str | list[int]) -> int:
    """What a prompt counts for."""
    return len(prompt) if isinstance(prompt, str) else _ID_CHARACTERS * len(prompt)


@router.post("/chat/completions", response_class=Response, responses=_ANSWER, openapi_extra=writing_body(ChatFields))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, by the model's own chat template."""
    check_key(request)
    fields = await read_openai(request, ChatFields)
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
    options_of(fields, asked or 1, limits)  # refuses what is wrong before any work
    turns = _turns(messages) if fields.truncation == "auto" else [messages]
    while len(turns) > 1 and _chat_characters(turns[0]) > limits.characters:
        del turns[0]
    _admit(request, _chat_characters(turns[0]), "messages")
    reserved = (asked or max(1, writer.context // 4)) if fields.truncation == "auto" else 1
    ids = await _chat_ids(writer, turns, writer.context - reserved)
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


def check_key(request: Request) -> None:
    """Refuse whoever has no key where one is needed, before anything else is said."""
    with openai_keys():
        find_key(request, None)


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


def _admit(request: Request, characters: int, param: str) -> None:
    most = context_of(request).service.limits.characters
    if characters > most:
        raise HttpRefused(
            400,
            f"a request may have at most {most} characters, but {param} has {characters}; send less, or send truncation: auto "
            "to have its beginning cut",
            param=param,
            code="context_length_exceeded",
        )
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
    if len(ids) + min(1, max_tokens) > writer.context:
        raise _too_long(writer, len(ids), "prompt")
    return ids


def _chat_characters(messages: Sequence[dict[str, str]]) -> int:
    return sum(len(str(one.get("content", ""))) + _MESSAGE_CHARACTERS for one in messages)


def _turns(messages: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """A conversation, and the same with more and more of its oldest turns left out. A turn begins with a user's message, which many
    templates ask for; what the system says stays."""
    system = [one for one in messages if one["role"] == "system"]
    rest = [one for one in messages if one["role"] != "system"]
    later = [n for n, one in enumerate(rest) if n and one["role"] == "user"]
    return [messages, *([*system, *rest[n:]] for n in later)]


async def _chat_ids(writer: ServedWriter, turns: Sequence[list[dict[str, str]]], room: int) -> list[int]:
    """The ids of the first of these conversations, each shorter than the one before, that has room."""

    async def read(messages: list[dict[str, str]]) -> list[int]:
        try:
            with refusing("a conversation"):
                return await writer.texts.run(writer.writer.chat_ids, messages)
        except InputError as error:
            raise as_refusal(error, "messages") from None

    whole = await read(turns[0])
    if len(whole) <= room:
        return whole
    found, low, high = None, 1, len(turns)
    while low < high:
        middle = (low + high) // 2
        ids = await read(turns[middle])
        if len(ids) <= room:
            found, high = ids, middle
        else:
            low = middle + 1
    if found is None:
        raise _too_long(writer, len(whole), "messages")
    return found


async def _echoed(writer: ServedWriter, fields: CompletionFields, ids: list[int], text: str | None) -> _Prompt:
    """A prompt with what is sent back of it: the client's own text, or that of the ids."""
    opening = writer.bundle.tokenizer.prompt_opening
    shown = ids[len(opening) :] if tuple(ids[: len(opening)]) == opening else ids
    echo = await writer.texts.run(writer.bundle.tokenizer.decode, shown) if text is None else text
    if fields.logprobs is None or not ids:
        return _Prompt(ids, echo)
    with refusing("reading the prompt"):
        found: list[Token | None] = list(await writer.reader.run(writer.score, ids, fields.logprobs))
    tokens = [None, *found][len(ids) - len(shown) :]  # nothing predicts the first of all
    return _Prompt(ids, echo, tokens, await writer.texts.run(_places, writer, shown, len(echo)))


def _places(writer: ServedWriter, ids: Sequence[int], length: int) -> list[int]:
    """Where the tokens of a text of this length begin."""
    growing, ends = GrowingText(writer.bundle.tokenizer, []), [0]
    for count in range(1, len(ids)):
        ends.append(min(length, max(ends[-1], len(without_tail(growing.of(ids[:count]), ())))))
    return ends[: len(ids)]


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
    options: WritingOptions | None,
    reply: Reply,
) -> Response:
    """The texts that follow the prompts; without options, none but the echo."""
    top = 0 if reply.top is None else max(1, reply.top)
    streams = bool(fields.stream)
    if fields.stream_options is not None and not streams:
        raise HttpRefused(
            400, "stream_options is for streams; send stream: true, or leave it out", param="stream_options"
        )
    ids = [one.ids for one in prompts]
    found = _nothing(len(ids)) if options is None else writer.write(ids, options, top, streams)
    if options is None or not options.search.sample:
        found = _repeated(found, fields.n)
    if streams:
        usage = fields.stream_options is not None and fields.stream_options.include_usage
        events = _events(request, found, prompts, fields.n, reply, usage)
        first = await anext(events)  # an error before it is an ordinary one
        return _Stream(_resumed(first, events), media_type=MEDIA_TYPE, headers={"x-accel-buffering": "no"})
    texts: dict[int, WrittenPiece] = {}
    try:
        async with aclosing(found):
            async for one in found:
                index = one.prompt * fields.n + one.piece.number
                texts[index], reply.written[index] = one, one.piece.count
    finally:
        _count(request, reply, sum(len(one.piece.text) for one in texts.values()))
    choices = []
    for index, (number, piece) in sorted(texts.items()):
        prompt = prompts[number]
        places = [*prompt.places, *(len(prompt.echo) + place for place in piece.places)]
        tokens = [*prompt.tokens, *piece.tokens]
        choices.append(reply.choice(index, prompt.echo + piece.text, tokens, piece.reason, places))
    return JSONResponse({**reply.frame(choices, part=False), "usage": reply.usage})


async def _nothing(prompts: int) -> AsyncGenerator[WrittenPiece]:
    """An empty text for each prompt."""
    for number in range(prompts):
        yield WrittenPiece(number, Piece(0, "", (), "length"))


async def _repeated(found: AsyncGenerator[WrittenPiece], n: int) -> AsyncGenerator[WrittenPiece]:
    """One text for each prompt, n times."""
    async with aclosing(found):
        async for prompt, piece in found:
            for number in range(n):
                yield WrittenPiece(prompt, replace(piece, number=number))


def _count(request: Request, reply: Reply, characters: int) -> None:
    """Charge the key for what was written, and count it."""
    key = find_key(request, None)
    if key is not None:
        key.owe(characters)
    request.scope["facts"]["tokens"] = reply.usage["completion_tokens"]


class _Stream(StreamingResponse):
    """A stream that ends its work when its client leaves, also while a part is being sent."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().__call__(scope, receive, send)


def _event(content: Any) -> str:
    return f"data: {content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)}\n\n"


async def _resumed(first: str, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    async with aclosing(events):
        yield first
        async for event in events:
            yield event


async def _in_time(found: AsyncGenerator[WrittenPiece], seconds: float) -> AsyncGenerator[WrittenPiece]:
    """What is found until the time of a request is nearly over, when the stream can still say so."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds - min(_ENDING_SECONDS, seconds / 10)
    async with aclosing(found):
        while True:
            try:
                one = await asyncio.wait_for(anext(found), end - loop.time())
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise HttpRefused(503, f"the request took longer than {seconds:g} s; ask for fewer tokens", 5) from None
            yield one


async def _events(
    request: Request,
    found: AsyncGenerator[WrittenPiece],
    prompts: Sequence[_Prompt],
    n: int,
    reply: Reply,
    with_usage: bool,
) -> AsyncGenerator[str]:
    """The parts of a stream."""
    sent: dict[int, int] = {}  # characters that were written, by choice
    nothing = {"usage": None} if with_usage else {}
    try:
        async with aclosing(_in_time(found, context_of(request).service.limits.writing_seconds)) as pieces:
            async for number, piece in pieces:
                index, prompt = number * n + piece.number, prompts[number]
                is_first = index not in sent
                sent[index] = sent.get(index, 0) + len(piece.text)
                reply.written[index] = piece.count
                if is_first and prompt.echo:
                    echo = reply.choice(index, prompt.echo, prompt.tokens, None, prompt.places)
                    yield _event({**reply.frame([echo], part=True), **nothing})
                part = reply.part(index, piece, len(prompt.echo), is_first)
                yield _event({**reply.frame([part], part=True), **nothing})
    except REFUSALS as error:
        if not sent:
            raise
        yield _event(openai_error(as_http(error)))
        return
    except UserError:
        raise
    except Exception:
        if sent:  # the status has been sent already
            yield _event(openai_error(HttpRefused(500, "internal error; look into the server's log")))
        raise
    finally:
        _count(request, reply, sum(sent.values()))
    if with_usage:
        yield _event({**reply.frame([], part=True), "usage": reply.usage})
    yield _event("[DONE]")
