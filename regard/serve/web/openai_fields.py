"""The fields of OpenAI's API: those that are offered, with their rules, and those that are refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, Field

from regard.errors import InputError, UserError
from regard.serve.limits import Limits
from regard.serve.web.fields import JSON, check_fields, parse_body
from regard.serve.web.schemas import not_bool
from regard.serve.web.status import HttpRefused
from regard.writing.chat import ROLES
from regard.writing.options import WritingOptions, writing_options

DEFAULT_TOKENS = 16  # of a completion, as OpenAI has it; a chat's answer may take all that is left of the context
MAX_TOP = 20  # likeliest tokens in each place

# Fields of OpenAI's that are not offered, the values of each that ask for nothing, and what to do instead.
_NOT_OFFERED: dict[str, tuple[tuple[Any, ...], str]] = {
    "tools": (([],), ""),
    "tool_choice": (("none",), ""),
    "parallel_tool_calls": ((), ""),
    "functions": (([],), ""),
    "function_call": (("none",), ""),
    "response_format": (({"type": "text"},), "; answers are plain text"),
    "presence_penalty": ((0,), "; repetition_penalty is"),
    "frequency_penalty": ((0,), "; repetition_penalty is"),
    "logit_bias": (({},), ""),
    "best_of": ((1,), "; ask for n texts with logprobs and choose one"),
    "suffix": (("",), ""),
    "modalities": ((["text"],), "; answers are text"),
    "audio": ((), ""),
    "prediction": ((), ""),
    "reasoning_effort": (("none",), ""),
    "verbosity": ((), ""),
    "web_search_options": ((), ""),
    "store": ((False,), "; nothing is stored here"),
    "service_tier": (("auto", "default"), ""),
}
_Integer = Annotated[int | None, BeforeValidator(not_bool)]
_Number = Annotated[float | None, BeforeValidator(not_bool)]


class StreamOptions(BaseModel, extra="forbid", strict=True):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class WritingFields(BaseModel, strict=True):
    """What both kinds of requests have. JSON has types: the string \"5\" is no number."""

    model: str = Field(description="a string: the name of a language model; see /v1/models")
    max_tokens: _Integer = Field(None, ge=0, description="an integer, 0 or more: the most tokens to write")
    temperature: _Number = Field(
        None, ge=0, le=2, description="a number between 0 and 2; 0 takes the likeliest token each time"
    )
    top_p: _Number = Field(
        None,
        gt=0,
        le=1,
        description="a number above 0 and at most 1: draw from the likeliest tokens of this probability",
    )
    n: Annotated[int, BeforeValidator(not_bool)] = Field(1, ge=1, description="an integer, 1 or more: how many texts")
    stop: str | list[str] | None = Field(
        None,
        description="a string or a list of at most 16 strings of 1 to 256 characters: a text ends before the first of these",
    )
    seed: _Integer = Field(None, description="an integer: the same seed and request give the same text")
    stream: bool | None = Field(None, description="true or false: whether to send the text as it is written")
    stream_options: StreamOptions | None = Field(
        None, description="an object with include_usage (true or false), for streams"
    )
    top_k: _Integer = Field(
        None, ge=0, description="an integer, 0 or more: draw from this many of the likeliest tokens"
    )
    min_p: _Number = Field(
        None,
        ge=0,
        le=1,
        description="a number between 0 and 1: draw from tokens at least this likely, relative to the likeliest",
    )
    repetition_penalty: _Number = Field(
        None,
        gt=0,
        le=100,
        description="a number above 0 and at most 100: divides the logits of tokens that the text has; 1 disables",
    )
    truncation: Literal["auto", "disabled"] | None = Field(
        None,
        description="auto, to cut a prompt that is too long at its beginning, or disabled (the default), to refuse it",
    )
    user: str | None = Field(None, description="a string; it is ignored")
    safety_identifier: str | None = Field(None, description="a string; it is ignored")
    prompt_cache_key: str | None = Field(None, description="a string; it is ignored")
    metadata: dict[str, str] | None = Field(None, description="an object of strings; it is ignored")


class CompletionFields(WritingFields):
    """A prompt, or several, to continue."""

    prompt: str | list[str] | list[int] | list[list[int]] = Field(
        description="a string, a list of strings, or the same as lists of token ids: the text to continue"
    )
    echo: bool | None = Field(None, description="true or false: whether to send the prompt back before the text")
    logprobs: _Integer = Field(
        None,
        ge=0,
        le=MAX_TOP,
        description=f"an integer between 0 and {MAX_TOP}: add the log-probability of each token and of this many of the likeliest",
    )


class ChatFields(WritingFields):
    """A conversation to answer."""

    messages: list[dict[str, Any]] = Field(
        description="a list of messages, each an object with role (system, user or assistant) and content (a string)"
    )
    max_completion_tokens: _Integer = Field(
        None, ge=1, description="an integer, 1 or more: the most tokens to write; a newer name of max_tokens"
    )
    logprobs: bool | None = Field(None, description="true or false: whether to add the log-probability of each token")
    top_logprobs: _Integer = Field(
        None,
        ge=0,
        le=MAX_TOP,
        description=f"an integer between 0 and {MAX_TOP}: with logprobs, how many of the likeliest tokens to list for each place",
    )


Fields = TypeVar("Fields", bound=BaseModel)


def writing_body(schema: type[WritingFields]) -> dict[str, Any]:
    """The OpenAPI description of a body in JSON."""
    content = schema.model_json_schema(ref_template="#/components/schemas/{model}")
    content["additionalProperties"] = False
    nested = content.pop("$defs", {})
    content["properties"]["stream_options"] = {"anyOf": [*nested.values(), {"type": "null"}]}
    return {"requestBody": {"required": True, "content": {JSON: {"schema": content}}}}


async def read_openai(request: Request, schema: type[Fields]) -> Fields:
    """The fields of a request. One that is not offered is refused by name unless it asks for nothing."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in (JSON, "", "text/json"):
        raise HttpRefused(415, f"content-type must be {JSON}")
    given = {name: value for name, value in parse_body(JSON, await request.body()).items() if value is not None}
    for name, (neutral, instead) in _NOT_OFFERED.items():
        if name in given and name not in schema.model_fields:
            if not any((given[name] == one and type(given[name]) is not bool) or given[name] is one for one in neutral):
                raise HttpRefused(
                    400,
                    f"{name} is not offered by this server{instead}; leave it out",
                    param=name,
                    code="unsupported_parameter",
                )
            del given[name]
    try:
        return check_fields(given, schema)
    except HttpRefused as refused:
        raise HttpRefused(400, str(refused), param=refused.param) from None


def options_of(fields: WritingFields, max_tokens: int, limits: Limits) -> WritingOptions:
    """How to write, with OpenAI's defaults: samples at temperature 1 among all tokens. At temperature 0 one text is written,
    which `openai.py` sends n times."""
    if fields.n > limits.beam:
        raise HttpRefused(400, f"n must be between 1 and {limits.beam}", param="n")
    is_greedy = fields.temperature == 0
    names = (
        ("repetition_penalty",)
        if is_greedy
        else ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")
    )
    given = {name: value for name in names if (value := getattr(fields, name)) is not None}
    defaults = {"temperature": 0} if is_greedy else {"temperature": 1.0, "top_p": 1.0}
    try:
        return writing_options(
            max_tokens=max_tokens, n=1 if is_greedy else fields.n, stop=fields.stop or (), **{**defaults, **given}
        )
    except UserError as error:
        field = next((name for name in type(fields).model_fields if str(error).startswith(f"{name} ")), None)
        raise HttpRefused(400, str(error), param=field) from None


def messages_of(fields: ChatFields) -> list[dict[str, str]]:
    """The messages as a chat template takes them: a developer is the system, and the texts of a message are one."""
    found = []
    for number, message in enumerate(fields.messages):
        where = f"messages[{number}]"
        given = {name: value for name, value in message.items() if value is not None}
        if given.get("role") == "developer":
            given["role"] = "system"
        if given.get("role") not in ROLES:
            raise HttpRefused(
                400, f"{where}.role must be one of {', '.join(ROLES)}; others are not offered", param=f"{where}.role"
            )
        if isinstance(parts := given.get("content"), list):
            given["content"] = "\n".join(_text_of(part, f"{where}.content[{n}]") for n, part in enumerate(parts))
        found.append(given)
    return found


def _text_of(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise HttpRefused(400, f"{where} must have type text and a text; other kinds are not offered", param=where)
    return str(part["text"])


def as_refusal(error: InputError, param: str) -> HttpRefused:
    """An error of the conversation or the prompt, with its field."""
    return HttpRefused(400, str(error), param=param)
