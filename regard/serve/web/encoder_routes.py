"""The routes of models without a decoder: /classify, /tag and /fill. `openai_embeddings.py` has their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Request
from pydantic import BaseModel, BeforeValidator, Field

from regard.errors import InputError, InputTooLarge
from regard.serve.served_encoder import ServedEncoder
from regard.serve.web.context import admit, context_of
from regard.serve.web.fields import body_of, read_fields
from regard.serve.web.libretranslate import ERRORS
from regard.serve.web.status import HttpRefused

MAX_CANDIDATES = 100
MAX_LABELS = 10_000  # of a text, in an answer
_ID_CHARACTERS = 4  # that a token id counts for
_WHAT = {"embed": "embeds texts", "fill": "fills blanks", "classify": "classifies texts", "tag": "tags words"}
router = APIRouter(tags=["Encoders"], responses=ERRORS)


def _whole(value: object) -> object:
    """Forms have no types: "5" is a number there."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value


class ModelFields(BaseModel):
    """Which model, and who asks."""

    model: str | None = Field(None, description="a string: the name of a model; not needed where there is only one")
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class EncoderFields(ModelFields):
    """Texts for a model without a decoder."""

    q: str | list[str] = Field(description="a string or a list of strings: the texts")

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class FillFields(EncoderFields):
    """Texts with blanks."""

    k: Annotated[int, BeforeValidator(_whole)] = Field(
        5, ge=1, le=MAX_CANDIDATES, description=f"an integer between 1 and {MAX_CANDIDATES}: tokens for each blank"
    )


class ClassifyFields(ModelFields):
    """Texts, or pairs of texts, whose labels are wanted."""

    q: str | list[str | Annotated[list[str], Field(min_length=2, max_length=2)]] = Field(
        description="a string, or a list of strings and of pairs of strings: the texts"
    )
    k: Annotated[int, BeforeValidator(_whole)] = Field(
        5, ge=1, le=MAX_LABELS, description=f"an integer between 1 and {MAX_LABELS}: labels with their probabilities"
    )
    threshold: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="a number above 0 and below 1: with several labels, the lowest probability of a label that is given",
    )

    @property
    def texts(self) -> list[str | tuple[str, str]]:
        """The texts as a classifier takes them."""
        given = [self.q] if isinstance(self.q, str) else self.q
        return [one if isinstance(one, str) else (one[0], one[1]) for one in given]


class ClassifiedReply(BaseModel):
    """The labels of a text, or its number."""

    labels: list[str] = Field(description="one label, or several with at least the threshold; none for an empty text")
    probabilities: dict[str, float] = Field(description="of the k most likely labels, best first")
    number: float | None = Field(description="instead of labels, if the model gives a number")
    windows: int = Field(description="in how many parts the text was read")


class ClassifyReply(BaseModel):
    """The texts in the order of the request."""

    model: str
    results: list[ClassifiedReply]


class WordReply(BaseModel):
    """A word with its tag."""

    word: str
    tag: str
    probability: float


class SpanReply(BaseModel):
    """Words that belong together, by their B- and I- tags."""

    name: str
    start: int = Field(description="the first word, counting from 0")
    stop: int = Field(description="after the last word")
    text: str


class TaggedReply(BaseModel):
    """The words of a text and, if the tags mark them, its spans."""

    words: list[WordReply]
    spans: list[SpanReply]
    windows: int = Field(description="in how many parts the text was read")


class TagReply(BaseModel):
    """The texts in the order of the request."""

    model: str
    results: list[TaggedReply]


class CandidateReply(BaseModel):
    """A token for a blank."""

    text: str
    probability: float
    joins: bool = Field(description="whether it continues the word before the blank")


class FilledReply(BaseModel):
    """A text with the likeliest token in each blank, and the candidates for each."""

    filled: str
    blanks: list[list[CandidateReply]]


class FillReply(BaseModel):
    """The texts in the order of the request."""

    model: str
    results: list[FilledReply]


@router.post("/fill", openapi_extra=body_of(FillFields))
async def fill(request: Request) -> FillReply:
    """The likeliest tokens for the blanks of texts, written as the model's own mask token or as ___."""
    fields = await read_fields(request, FillFields)
    encoder = find_encoder(request, "fill", fields.model)
    admit_texts(request, fields.texts, fields.api_key, "q")
    found = await encoder.fill(fields.texts, fields.k)
    context_of(request).metrics.characters.inc(sum(map(len, fields.texts)))
    results = [
        FilledReply(
            filled=one.filled,
            blanks=[
                [CandidateReply(text=c.text, probability=c.probability, joins=c.joins) for c in blank]
                for blank in one.blanks
            ],
        )
        for one in found
    ]
    return FillReply(model=encoder.name, results=results)


@router.post("/classify", openapi_extra=body_of(ClassifyFields))
async def classify(request: Request) -> ClassifyReply:
    """The labels of texts, with their probabilities. A long text is read in windows, whose log-probabilities are averaged."""
    fields = await read_fields(request, ClassifyFields)
    encoder = find_encoder(request, "classify", fields.model)
    admit_texts(request, ["".join(one) for one in fields.texts], fields.api_key, "q")
    found = await encoder.classify(fields.texts, fields.threshold)
    context_of(request).metrics.characters.inc(request.scope["facts"]["characters"])
    results = [
        ClassifiedReply(
            labels=list(one.labels),
            probabilities=dict(list(one.probabilities.items())[: max(fields.k, len(one.labels))]),
            number=one.number,
            windows=one.windows,
        )
        for one in found
    ]
    return ClassifyReply(model=encoder.name, results=results)


@router.post("/tag", openapi_extra=body_of(EncoderFields))
async def tag(request: Request) -> TagReply:
    """The words of texts with their tags, and the spans that B- and I- tags mark."""
    fields = await read_fields(request, EncoderFields)
    encoder = find_encoder(request, "tag", fields.model)
    admit_texts(request, fields.texts, fields.api_key, "q")
    found = await encoder.tag(fields.texts)
    context_of(request).metrics.characters.inc(request.scope["facts"]["characters"])
    results = [
        TaggedReply(
            words=[
                WordReply(word=word, tag=name, probability=probability)
                for word, name, probability in zip(one.words, one.tags, one.probabilities, strict=True)
            ],
            spans=[SpanReply(name=s.name, start=s.start, stop=s.stop, text=s.text) for s in one.spans],
            windows=one.windows,
        )
        for one in found
    ]
    return TagReply(model=encoder.name, results=results)


def find_encoder(request: Request, task: str, name: str | None) -> ServedEncoder:
    """The model for a task of this name; without a name, the only one."""
    encoders = {one.name: one for one in context_of(request).service.encoders.values() if one.bundle.task == task}
    if name in encoders:
        return encoders[name]
    if not encoders:
        why = f"no model that {_WHAT[task]} is served here; start the server with one: regard serve -m MODEL"
    elif name is None and len(encoders) == 1:
        return next(iter(encoders.values()))
    else:
        why = f"model must be one that {_WHAT[task]} and is served here: {', '.join(sorted(encoders))}"
    raise HttpRefused(404, why, param="model", code="model_not_found")


def admit_texts(request: Request, texts: Sequence[str | Sequence[int]], key: str | None, param: str) -> None:
    """Check the limits of a request and its key, and charge it."""
    limits = context_of(request).service.limits
    if not texts:
        raise InputError(f"{param} must not be empty; send at least one text")
    if len(texts) > limits.texts:
        raise HttpRefused(
            400, f"there may be at most {limits.texts} texts in a request; send the rest in another", param=param
        )
    characters = sum(len(one) if isinstance(one, str) else _ID_CHARACTERS * len(one) for one in texts)
    if characters > limits.characters:
        raise InputTooLarge(f"the texts of a request may have at most {limits.characters} characters; send parts")
    admit(request, key, characters)
