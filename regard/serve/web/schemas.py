"""The bodies of requests (`*Fields`) and of replies, as OpenAPI shows them. The description of a field also completes the error
message "NAME must be ...", so it begins with the rule."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from regard.serve.search import RANGES
from regard.translation.detection import Detected

OTHER_LANGUAGE = (
    "the language that the text seems to be in, if that clearly is not the source language, with the code under which it is "
    "served, if it is; left out otherwise"
)


class TermFields(BaseModel):
    """Terms that a translation must respect."""

    glossary: dict[str, str | list[str]] | str | None = Field(
        None,
        description="an object that maps each source term to its translation, or to a list of allowed translations; or a string "
        "with a term, a tab and its translation on each line",
    )
    keep: str | list[str] | None = Field(
        None, description="a list of words to leave untranslated, or a string with one on each line"
    )


def not_bool(value: Any) -> Any:
    """A value that is no truth value: otherwise true would be 1."""
    if isinstance(value, bool):
        raise ValueError("not a number")
    return value


_Integer = Annotated[int | None, BeforeValidator(not_bool)]
_Number = Annotated[float | None, BeforeValidator(not_bool)]


def _number(name: str, what: str, kind: str = "a number") -> Any:
    least, most = RANGES[name]
    return Field(
        None,
        description=f"{kind} between {least:g} and {most:.15g}: {what}",
        json_schema_extra={"minimum": least, "maximum": most},
    )


_INTEGER = "an integer"


class SearchFields(TermFields):
    """Search options. An option that is left out keeps the model's own value."""

    prefix: str | None = Field(
        None,
        description="a string that the translation begins with; unless it ends in a space, the model may complete its last word",
    )
    phrases: str | list[str] | None = Field(
        None,
        description="a list of phrases that must appear in the translation as whole words, or a string with one on each line",
    )
    beam: _Integer = _number("beam", "the beam size, or the number of samples", _INTEGER)
    alpha: _Number = _number("alpha", "the length penalty")
    coverage: _Number = _number("coverage", "the coverage penalty, for source words left untranslated")
    no_repeat: _Integer = _number("no_repeat", "the n-gram size that may not repeat; 0 disables", _INTEGER)
    max_repeat: _Integer = _number(
        "max_repeat", "how often the same tokens may follow each other; 0 disables", _INTEGER
    )
    groups: _Integer = _number("groups", "the number of groups of a diverse beam search", _INTEGER)
    diversity: _Number = _number("diversity", "the penalty for a token that another group has chosen")
    sample: bool | None = Field(None, description="true or false: whether to sample instead of searching")
    temperature: _Number = _number(
        "temperature", "with sample, the temperature; below 1, likely tokens are drawn more often"
    )
    top_k: _Integer = _number(
        "top_k", "with sample, draw from this many of the likeliest tokens; 0 draws from all", _INTEGER
    )
    top_p: _Number = _number("top_p", "with sample, draw from the likeliest tokens that together have this probability")
    seed: _Integer = _number("seed", "with sample, the random seed", _INTEGER)
    mbr: Literal["bleu", "chrf"] | None = Field(
        None, description="bleu or chrf: the metric for minimum Bayes risk reranking of the beam or the samples"
    )


class TranslateFields(SearchFields):
    """A text or a list of texts to translate."""

    q: str | list[str] = Field(description="a string or a list of strings: the text to translate")
    source: str = Field("auto", description="the language code of the text, or auto")
    target: str = Field(description="the language code to translate into")
    format: Literal["text", "html"] = Field("text", description="text or html")
    alternatives: int = Field(0, ge=0, description="an integer, 0 or more: the number of alternative translations")
    alignments: bool = Field(
        False, description="true or false: whether to return word alignments; for format text only"
    )
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")
    secret: str | None = Field(None, description="a string, which LibreTranslate's own page sends; it has no effect")


class DetectFields(BaseModel):
    """A text whose language is to be detected."""

    q: str = Field(description="a string")
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class DetectedLanguage(BaseModel):
    """The likeliest language of a text."""

    confidence: float = Field(description="in percent")
    language: str


def language_reply(found: Detected | None) -> DetectedLanguage | None:
    """A detected language as replies have it."""
    return None if found is None else DetectedLanguage(confidence=found.confidence, language=found.language)


class AlignmentReply(BaseModel):
    """The word alignment between a text and its translation."""

    source: list[tuple[int, int]] = Field(
        description="the words of the text, each as [start, end) in Unicode characters"
    )
    target: list[tuple[int, int]] = Field(description="the words of the best translation, as in source")
    pairs: list[tuple[int, int]] = Field(description="aligned words: their indices in source and target")


class UnmetReply(BaseModel):
    """Something that was asked for and is not in the translation."""

    option: str = Field(description="prefix, phrases or glossary")
    text: str = Field(description="the prefix, the phrase, or what the term must be called")


class TranslateReply(BaseModel):
    """The translations. If `q` is a list, each field is a list with one item per text."""

    translatedText: str | list[str]  # noqa: N815 - LibreTranslate's names
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    alignments: AlignmentReply | list[AlignmentReply] | None = None
    unmet: list[UnmetReply] | list[list[UnmetReply]] | None = Field(
        None, description="what was asked for and is not in the translation; left out if there is no such thing"
    )
    otherLanguage: DetectedLanguage | list[DetectedLanguage | None] | None = Field(  # noqa: N815
        None, description=OTHER_LANGUAGE
    )


class FileFields(TermFields):
    """How to translate a document."""

    source: str = Field("auto", description="the language code of the document, or auto")
    target: str = Field(description="the language code to translate into")
    column: str | None = Field(
        None, description="the column of a .csv or .tsv file to translate, by name or by number from 1"
    )
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class TranslateFileReply(BaseModel):
    """Where to download the translated document."""

    translatedFileUrl: str  # noqa: N815 - LibreTranslate's name
    unmet: list[UnmetReply] | None = Field(None, description="terms that were asked for and are not in the translation")


class Language(BaseModel):
    """A source or target language, with the languages it can be translated into."""

    code: str
    name: str
    targets: list[str]


class Error(BaseModel):
    """Why a request failed."""

    error: str


class Health(BaseModel):
    status: str


class Ready(BaseModel):
    """Whether the server accepts requests, and the models that it serves."""

    status: str
    models: list[str]


ModelType = Literal["latency_optimized", "quality_optimized"]
Tags = str | list[str] | None  # a list, or separated by commas


class DeepLStoredTerms(BaseModel):
    """Stored glossaries to translate with."""

    glossary_id: str | None = Field(None, description="a string: the id of a stored glossary; needs source_lang")
    glossary_ids: str | list[str] | None = Field(
        None,
        description="a list of at most 5 ids of stored glossaries, or a string with commas between them; needs source_lang",
    )


class DeepLUnsupported(BaseModel):
    """DeepL's options that no model here supports. They must be left out."""

    style_id: str | None = Field(None, description="left out: not supported")
    translation_memory_id: str | None = Field(None, description="left out: not supported")
    custom_instructions: str | list[str] | None = Field(None, description="left out: not supported")
    translation_memory_threshold: int | None = Field(None, description="left out: not supported")
    formality: str | None = Field(None, description="default, prefer_more or prefer_less, which have no effect")


class DeepLFields(SearchFields, DeepLStoredTerms, DeepLUnsupported):
    """A text or a list of texts to translate."""

    text: str | list[str] = Field(description="a string or a list of strings: the text to translate")
    target_lang: str = Field(description="the language code to translate into")
    source_lang: str | None = Field(None, description="the language code of the text")
    split_sentences: str | int | bool | None = Field(None, description="0, 1 or nonewlines")
    tag_handling: str | None = Field(None, description="html or xml, or left out")
    splitting_tags: Tags = Field(None, description="names of tags that separate sentences; only with tag_handling=xml")
    non_splitting_tags: Tags = Field(None, description="names of tags inside sentences; only with tag_handling=xml")
    ignore_tags: Tags = Field(
        None, description="names of tags whose content is not translated; only with tag_handling=xml"
    )
    outline_detection: str | int | bool | None = Field(
        None, description="0 or 1: whether other tags may separate sentences; only with tag_handling=xml"
    )
    tag_handling_version: str | None = Field(None, description="v1 or v2, which are the same here")
    preserve_formatting: str | int | bool | None = Field(
        None, description="0 or 1, which are the same here: spaces and line breaks are always kept"
    )
    show_billed_characters: str | int | bool | None = Field(
        None, description="0 or 1, which are the same here: billed_characters is always shown"
    )
    enable_beta_languages: str | int | bool | None = Field(None, description="0 or 1, which are the same here")
    model_type: Literal["latency_optimized", "quality_optimized", "prefer_quality_optimized"] | None = Field(
        None,
        description="latency_optimized, quality_optimized or prefer_quality_optimized; there is one model for a language pair",
    )
    context: str | None = Field(
        None,
        description="a string: text around this one. Each sentence is translated by itself; the context helps only to detect the "
        "language of a text that is too short for it",
    )
    auth_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class DeepLDocumentFields(TermFields, DeepLStoredTerms, DeepLUnsupported):
    """How to translate a document."""

    target_lang: str = Field(description="the language code to translate into")
    source_lang: str | None = Field(None, description="the language code of the document")
    filename: str | None = Field(None, description="a string: the file name, if that of the form has no known ending")
    output_format: str | None = Field(None, description="the extension of the file name, or left out")
    auth_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class DeepLDocumentKey(BaseModel):
    """The key of an uploaded document."""

    document_key: str = Field(description="a string: the key that came with the document's id")
    auth_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class DeepLDocument(BaseModel):
    """The id and the key of an uploaded document, for status requests and the download."""

    document_id: str
    document_key: str


class DeepLDocumentStatus(BaseModel):
    """The progress of a document's translation."""

    document_id: str
    status: Literal["translating", "done", "error"]
    seconds_remaining: int | None = Field(None, description="an upper bound")
    billed_characters: int | None = None
    error_message: str | None = None
    unmet: list[UnmetReply] | None = Field(None, description="terms that were asked for and are not in the translation")


class DeepLTranslation(BaseModel):
    detected_source_language: str
    text: str
    billed_characters: int
    model_type_used: ModelType | None = Field(None, description="as model_type asked; left out if it was not sent")
    unmet: list[UnmetReply] | None = Field(
        None, description="what was asked for and is not in the translation; left out if there is no such thing"
    )
    other_language: DetectedLanguage | None = Field(None, description=OTHER_LANGUAGE)


class DeepLTranslations(BaseModel):
    translations: list[DeepLTranslation]


class DeepLGlossaryFields(BaseModel):
    """A glossary to store."""

    name: str = Field(description="a string: a name for people")
    source_lang: str = Field(description="the language code of the terms")
    target_lang: str = Field(description="the language code of their translations")
    entries: str = Field(description="a string with a term and its translation on each line")
    entries_format: Literal["tsv", "csv"] = Field("tsv", description="tsv or csv")
    auth_key: str | None = Field(None, description="a string: the API key")


class DeepLGlossary(BaseModel):
    """A stored glossary, without its entries."""

    glossary_id: str
    name: str
    ready: bool
    source_lang: str
    target_lang: str
    creation_time: str
    entry_count: int


class DeepLGlossaries(BaseModel):
    glossaries: list[DeepLGlossary]


class DeepLGlossaryPair(BaseModel):
    source_lang: str
    target_lang: str


class DeepLGlossaryPairs(BaseModel):
    """The language pairs for which a glossary can be stored."""

    supported_languages: list[DeepLGlossaryPair]


class DeepLLanguage(BaseModel):
    language: str
    name: str
    supports_formality: bool | None = None


class DeepLUsage(BaseModel):
    """The characters translated since the server started; the limit is only there for DeepL's clients."""

    character_count: int
    character_limit: int


class DeepLError(BaseModel):
    """Why a request failed."""

    message: str


_LEAST = "a number between 0 and 1: how likely a translation must be to be offered, relative to the best one (default: 0.075)"


class SentencesFields(SearchFields):
    """A text to translate sentence by sentence."""

    q: str = Field(description="a string; with prefix or phrases, a single sentence")
    source: str = Field("auto", description="the language code of the text, or auto")
    target: str = Field(description="the language code to translate into")
    alternatives: int = Field(
        0, ge=0, description="an integer, 0 or more: the number of alternative translations of each sentence, at most"
    )
    least: float | None = Field(None, ge=0, le=1, description=_LEAST)
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class WordReply(BaseModel):
    """A word of a translation."""

    before: str = Field(description="the characters between the previous word and this one")
    text: str
    probability: float | None = Field(description="the model's probability of this word after the words before it")
    held: bool = Field(False, description="whether the word comes from the glossary or from keep")


class TranslationReply(BaseModel):
    """One translation of a sentence, as text and as words."""

    text: str
    words: list[WordReply]


class SentenceReply(BaseModel):
    """A sentence of the text with its translations."""

    before: str = Field(description="the characters between the previous sentence and this one")
    text: str
    ways: list[TranslationReply] = Field(description="its translations, best first")
    unmet: list[UnmetReply] = Field(
        default_factory=list, description="what was asked for and is not in the first translation"
    )


class SentencesReply(BaseModel):
    """The text as sentences. Every `before` and `text` in order, then `after`, give the text unchanged."""

    sentences: list[SentenceReply]
    after: str = Field(description="the characters after the last sentence")
    source: str
    target: str
    detectedLanguage: DetectedLanguage | None = None  # noqa: N815
    otherLanguage: DetectedLanguage | None = Field(None, description=OTHER_LANGUAGE)  # noqa: N815


class AlternativesFields(BaseModel):
    """A sentence and the beginning of its translation."""

    q: str = Field(description="one sentence")
    source: str = Field(description="the language code of the sentence")
    target: str = Field(description="the language code to translate into")
    prefix: str = Field("", description="a string: the translation up to the word in question")
    keep: str | list[str] | None = Field(
        None, description="a list of words to leave untranslated, or a string with one on each line"
    )
    count: int = Field(8, ge=1, le=32, description="an integer between 1 and 32: the number of words at most")
    least: float | None = Field(None, ge=0, le=1, description=_LEAST)
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class AlternativeWord(BaseModel):
    """A word that may follow the prefix."""

    word: str
    probability: float
    relative: float = Field(
        description="the probability of the best translation with this word, relative to the best one"
    )


class AlternativesReply(BaseModel):
    words: list[AlternativeWord] = Field(description="likeliest first")


class ExplainFields(BaseModel):
    """A sentence whose translation is to be explained, or a text for a model without a decoder."""

    q: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=2, max_length=2)] = Field(
        description="one sentence, or a text for a model without a decoder, or a list of two texts for one that reads two"
    )
    source: str | None = Field(None, description="the language code of the sentence")
    target: str | None = Field(None, description="the language code to translate into")
    translation: str = Field("", description="a string: a translation to explain instead of the model's own")
    prefix: str = Field(
        "",
        description="a string that the translation begins with; unless it ends in a space, the model may complete its last word",
    )
    model: str | None = Field(
        None, description="a string: the name of a model without a decoder, in place of source and target"
    )
    label: str | None = Field(None, description="a string: the label or tag to explain instead of the likeliest")
    token: str | None = Field(None, description="a string: the token to explain instead of the likeliest in a blank")
    at: _Integer = Field(None, description="an integer, 1 or more: the word or the blank to explain", ge=1)
    window: _Integer = Field(None, description="an integer, 1 or more: the part of a long text", ge=1)
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class PageLanguage(BaseModel):
    code: str
    name: str


class PageLanguages(BaseModel):
    """The language pair that is selected at first."""

    source: PageLanguage
    target: PageLanguage


class PageEncoder(BaseModel):
    """A model without a decoder."""

    task: str
    texts: list[int] = Field(description="how many texts it reads at once: one, two or either")


class PageSettings(BaseModel):
    """LibreTranslate's fields, and our own: `alternatives`, `fileBytes`, `glossary`, `terms`, `termCharacters`, `training`,
    `writers`, `chatting`, `encoders`."""

    apiKeys: bool  # noqa: N815
    keyRequired: bool  # noqa: N815
    charLimit: int  # noqa: N815
    alternatives: int
    fileBytes: int  # noqa: N815
    glossary: bool = Field(description="whether the models support a glossary")
    terms: int = Field(description="the maximum number of glossary entries and kept words together")
    termCharacters: int = Field(description="the maximum length of each side of an entry")  # noqa: N815
    filesTranslation: bool  # noqa: N815
    supportedFilesFormat: list[str]  # noqa: N815
    suggestions: bool
    frontendTimeout: int  # noqa: N815
    language: PageLanguages
    training: bool
    writers: list[str] = Field(description="the language models, by name")
    chatting: list[str] = Field(description="those of them with a chat template")
    encoders: dict[str, PageEncoder] = Field(description="the models without a decoder, by name")


class TrainingSample(BaseModel):
    """A validation sentence, and how its translation changed during training."""

    source: str
    reference: str
    changes: list[dict[str, int | str]] = Field(description="each with step and translation")


class TrainingTest(BaseModel):
    """The scores of one test set."""

    name: str
    metrics: list[dict[str, float | str | None]] = Field(description="each with name, score, confidence and signature")


class TrainingScore(BaseModel):
    """What the validations measure, apart from the loss."""

    name: str
    digits: int = Field(description="after the point")
    points: list[tuple[float, float]] = Field(description="a list of [step, value]")
    best: float | None = Field(description="that of the best validation")


class TrainingView(BaseModel):
    """A training run: its progress, learning curves, sample translations and scores."""

    name: str = Field(description="the name of the run folder")
    source: str | None
    target: str | None
    arrow: str = Field(description="what stands between source and target")
    problem: str | None = Field(description="why the run cannot be read")
    records: int
    curves: dict[str, list[tuple[float, float]]] = Field(description="by name: a list of [step, value]")
    loss_title: str = Field(description="the heading of the curves of the loss")
    scores: list[TrainingScore]
    latest: dict[str, float] | None
    latest_train: dict[str, float] | None
    best: dict[str, float] | None = Field(description="the best validation")
    tests: list[TrainingTest]
    samples: list[TrainingSample]
    notes: list[str]
    done: float | None = Field(description="the finished share of the run, between 0 and 1")
    remaining: float | None = Field(description="about how many seconds the rest takes")
    finished: bool
    updated: float | None = Field(description="the time of the last record, in seconds since 1970")
    now: float


class AttentionFields(BaseModel):
    """A text for a language model to read."""

    model: str = Field(description="a string: the name of a language model; see /v1/models")
    text: str = Field(description="a string: the text")
    api_key: str | None = Field(None, description="a string: the API key, if the server requires one")


class NextWordsFields(AttentionFields):
    """A text whose next word is wanted."""

    count: int = Field(8, ge=1, le=20, description="an integer between 1 and 20: how many words")


class NextWordReply(BaseModel):
    """A word that may come next."""

    word: str
    probability: float


class NextWordsReply(BaseModel):
    """The likeliest next words, best first."""

    words: list[NextWordReply]


class OpenAIProblem(BaseModel):
    """Why a request was refused."""

    message: str
    type: str
    param: str | None = Field(description="the field")
    code: str | None = Field(description="a name of the reason")


class OpenAIError(BaseModel):
    """An error as OpenAI's clients read it."""

    error: OpenAIProblem


class OpenAIModel(BaseModel):
    """A language model, or one that embeds texts."""

    id: str
    object: str
    created: int
    owned_by: str
    task: str = Field(description="generate, for /v1/completions, or embed, for /v1/embeddings")
    context: int = Field(
        description="tokens of a prompt and what follows it, or of a text that is embedded in one piece"
    )
    chat: bool = Field(description="whether it has a chat template, for /v1/chat/completions")


class OpenAIModels(BaseModel):
    """The models that are served with OpenAI's API."""

    object: str
    data: list[OpenAIModel]
