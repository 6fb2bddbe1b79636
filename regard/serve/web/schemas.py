"""What requests and answers hold, as OpenAPI shows it. Each description is also what an error says, so it states the rule."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from regard.serve.search import RANGES


class TermFields(BaseModel):
    glossary: dict[str, str | list[str]] | str | None = Field(
        None,
        description="an object of terms of the text and what each must be called, or a list of ways to call it; or a text with a "
        "term, a tab and what it must be called on each line",
    )
    keep: str | list[str] | None = Field(
        None, description="a list of words that are not translated, or a text with one on each line"
    )


def _not_a_truth(value: Any) -> Any:
    if isinstance(value, bool):  # else true would be 1
        raise ValueError("not a number")
    return value


_Whole = Annotated[int | None, BeforeValidator(_not_a_truth)]
_Real = Annotated[float | None, BeforeValidator(_not_a_truth)]


def _number(name: str, what: str, kind: str = "a number") -> Any:
    least, most = RANGES[name]
    return Field(
        None,
        description=f"{kind} between {least:g} and {most:.15g}: {what}",
        json_schema_extra={"minimum": least, "maximum": most},
    )


_WHOLE = "a whole number"


class SearchFields(TermFields):
    """What is not given is as the model has it."""

    prefix: str | None = Field(
        None,
        description="a text that the translation begins with; the model may go on with its last word, unless a space follows it",
    )
    phrases: str | list[str] | None = Field(
        None,
        description="a list of what must appear in the translation, as whole words, or a text with one on each line",
    )
    beam: _Whole = _number("beam", "the width of the beam, or how many samples are drawn", _WHOLE)
    alpha: _Real = _number("alpha", "the length penalty")
    coverage: _Real = _number("coverage", "what source words that were left out cost")
    no_repeat: _Whole = _number("no_repeat", "no so many tokens in a row come twice; 0: they may", _WHOLE)
    max_repeat: _Whole = _number("max_repeat", "the same tokens follow each other at most so often; 0: ever", _WHOLE)
    groups: _Whole = _number("groups", "groups of the beam that shun each other's tokens", _WHOLE)
    diversity: _Real = _number("diversity", "how much they do")
    sample: bool | None = Field(None, description="true or false: whether to draw at random")
    temperature: _Real = _number("temperature", "with sample: below 1 the likely is drawn more often")
    top_k: _Whole = _number("top_k", "with sample: draw among so many tokens; 0: among all", _WHOLE)
    top_p: _Real = _number("top_p", "with sample: draw among the likeliest that have this probability together")
    seed: _Whole = _number("seed", "with sample: another one gives other translations", _WHOLE)
    mbr: Literal["bleu", "chrf"] | None = Field(
        None, description="bleu or chrf: of the whole beam, or of all samples, take what is most like all of them"
    )


class TranslateFields(SearchFields):
    q: str | list[str] = Field(description="a text, or a list of texts")
    source: str = Field("auto", description="the code of the language that the texts are in, or auto")
    target: str = Field(description="the code of the language to translate into")
    format: Literal["text", "html"] = Field("text", description="text or html")
    alternatives: int = Field(0, ge=0, description="a whole number: how many other translations to give")
    alignments: bool = Field(
        False, description="true or false: whether to say which words go together; with format text only"
    )
    api_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class DetectFields(BaseModel):
    q: str = Field(description="a text")
    api_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class DetectedLanguage(BaseModel):
    confidence: float = Field(description="how sure it is, in per cent")
    language: str


class AlignmentReply(BaseModel):
    source: list[tuple[int, int]] = Field(description="words of the text, each the characters from, to (Unicode's)")
    target: list[tuple[int, int]] = Field(description="words of the best translation, likewise")
    pairs: list[tuple[int, int]] = Field(description="words that go together: numbers in source and in target, from 0")


class TranslateReply(BaseModel):
    translatedText: str | list[str]  # noqa: N815 - LibreTranslate's names
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815
    alternatives: list[str] | list[list[str]] | None = None
    alignments: AlignmentReply | list[AlignmentReply] | None = None


class FileFields(TermFields):
    source: str = Field("auto", description="the code of the language that the document is in, or auto")
    target: str = Field(description="the code of the language to translate into")
    column: str | None = Field(
        None, description="of .csv and .tsv: the column to translate, by name or by number from 1 on"
    )
    api_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class TranslateFileReply(BaseModel):
    translatedFileUrl: str  # noqa: N815 - LibreTranslate's name


class Language(BaseModel):
    code: str
    name: str
    targets: list[str]


class Error(BaseModel):
    error: str


class Health(BaseModel):
    status: str


class Ready(BaseModel):
    status: str
    models: list[str]


Tags = str | list[str] | None  # as a list, or with commas between them


class DeepLUnsupported(BaseModel):
    """What DeepL knows and no model here can do: it must be left out."""

    glossary_id: str | None = Field(None, description="not known to this server: send the entries as glossary")
    glossary_ids: str | list[str] | None = Field(
        None, description="not known to this server: send the entries as glossary"
    )
    style_id: str | None = Field(None, description="not known to this server: leave it out")
    translation_memory_id: str | None = Field(None, description="not known to this server: leave it out")
    custom_instructions: str | list[str] | None = Field(None, description="not known to this server: leave it out")
    context: str | None = Field(None, description="not known to this server: leave it out")
    formality: str | None = Field(None, description="default, prefer_more or prefer_less: there is one form only")


class DeepLFields(SearchFields, DeepLUnsupported):
    text: str | list[str] = Field(description="a text, or a list of texts")
    target_lang: str = Field(description="the code of the language to translate into")
    source_lang: str | None = Field(None, description="the code of the language that the texts are in")
    split_sentences: str | int | bool | None = Field(None, description="0, 1 or nonewlines")
    tag_handling: str | None = Field(None, description="html, xml, or left out")
    splitting_tags: Tags = Field(None, description="with tag_handling=xml: names of tags that separate sentences")
    non_splitting_tags: Tags = Field(None, description="with tag_handling=xml: names of tags inside sentences")
    ignore_tags: Tags = Field(None, description="with tag_handling=xml: names of tags whose content stays as it is")
    outline_detection: str | int | bool | None = Field(
        None, description="0 or 1; with tag_handling=xml: whether tags that are not named may separate sentences"
    )
    auth_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class DeepLDocumentFields(TermFields, DeepLUnsupported):
    target_lang: str = Field(description="the code of the language to translate into")
    source_lang: str | None = Field(None, description="the code of the language that the document is in")
    filename: str | None = Field(None, description="a text: the name of the file, where the form does not say it")
    output_format: str | None = Field(None, description="the ending of the file's name, or left out")
    auth_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class DeepLDocumentKey(BaseModel):
    document_key: str = Field(description="a text: what came with the document's id")
    auth_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class DeepLDocument(BaseModel):
    document_id: str
    document_key: str


class DeepLDocumentStatus(BaseModel):
    document_id: str
    status: Literal["translating", "done", "error"]
    seconds_remaining: int | None = Field(None, description="at most")
    billed_characters: int | None = None
    error_message: str | None = None


class DeepLTranslation(BaseModel):
    detected_source_language: str
    text: str
    billed_characters: int


class DeepLTranslations(BaseModel):
    translations: list[DeepLTranslation]


class DeepLLanguage(BaseModel):
    language: str
    name: str
    supports_formality: bool | None = None


class DeepLUsage(BaseModel):
    character_count: int
    character_limit: int


class DeepLError(BaseModel):
    message: str


class SentencesFields(SearchFields):
    q: str = Field(description="a text; one sentence, where prefix or phrases are given")
    source: str = Field("auto", description="the code of the language that the text is in, or auto")
    target: str = Field(description="the code of the language to translate into")
    alternatives: int = Field(
        0, ge=0, description="a whole number: how many other translations of each sentence to give"
    )
    api_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class WordReply(BaseModel):
    before: str = Field(description="what stands between it and the word before")
    text: str
    probability: float | None = Field(description="how likely the model found it, after all that comes before it")
    held: bool = Field(False, description="whether it stands there by the glossary, or was to be kept")


class TranslationReply(BaseModel):
    text: str
    words: list[WordReply]


class SentenceReply(BaseModel):
    before: str = Field(description="what stands between it and the sentence before")
    text: str
    ways: list[TranslationReply] = Field(description="its translations, best first")


class SentencesReply(BaseModel):
    sentences: list[SentenceReply]
    after: str = Field(description="what follows the last sentence")
    source: str
    target: str
    detectedLanguage: DetectedLanguage | None = None  # noqa: N815


class AlternativesFields(BaseModel):
    q: str = Field(description="one sentence")
    source: str = Field(description="the code of the language that it is in")
    target: str = Field(description="the code of the language to translate into")
    prefix: str = Field("", description="a text: the beginning of a translation, up to the place in question")
    keep: str | list[str] | None = Field(
        None, description="a list of words that are not translated, or a text with one on each line"
    )
    count: int = Field(8, ge=1, le=32, description="a whole number between 1 and 32: how many words at most")
    api_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class AlternativeWord(BaseModel):
    word: str
    probability: float


class AlternativesReply(BaseModel):
    words: list[AlternativeWord] = Field(description="likeliest first")


class ExplainFields(BaseModel):
    q: str = Field(min_length=1, description="one sentence")
    source: str = Field(description="the code of the language that it is in")
    target: str = Field(description="the code of the language to translate into")
    translation: str = Field("", description="a text: a translation to look at instead of the model's own")
    prefix: str = Field(
        "",
        description="a text that the translation begins with; the model may go on with its last word, unless a space follows it",
    )
    api_key: str | None = Field(None, description="a text: the API key, where the server asks for one")


class PageLanguage(BaseModel):
    code: str
    name: str


class PageLanguages(BaseModel):
    source: PageLanguage
    target: PageLanguage


class PageSettings(BaseModel):
    """LibreTranslate's names; `alternatives`, `fileBytes`, `glossary`, `terms`, `termCharacters` and `training` are ours."""

    apiKeys: bool  # noqa: N815
    keyRequired: bool  # noqa: N815
    charLimit: int  # noqa: N815
    alternatives: int
    fileBytes: int  # noqa: N815
    glossary: bool = Field(description="whether a glossary can be heeded")
    terms: int = Field(description="how many entries a glossary and kept words may have together")
    termCharacters: int = Field(description="how many characters each side of an entry may have")  # noqa: N815
    filesTranslation: bool  # noqa: N815
    supportedFilesFormat: list[str]  # noqa: N815
    suggestions: bool
    frontendTimeout: int  # noqa: N815
    language: PageLanguages
    training: bool


class TrainingSample(BaseModel):
    source: str
    reference: str
    changes: list[dict[str, int | str]] = Field(description="each with step and translation")


class TrainingTest(BaseModel):
    name: str
    metrics: list[dict[str, float | str | None]] = Field(description="each with name, score, confidence and signature")


class TrainingView(BaseModel):
    name: str = Field(description="of the run folder")
    source: str | None
    target: str | None
    problem: str | None = Field(description="why the run cannot be read")
    records: int
    curves: dict[str, list[tuple[float, float]]] = Field(description="by name: [step, value]")
    latest: dict[str, float] | None
    latest_train: dict[str, float] | None
    best: dict[str, float] | None = Field(description="the best validation")
    tests: list[TrainingTest]
    samples: list[TrainingSample]
    notes: list[str]
    done: float | None = Field(description="how much of the run is behind it, between 0 and 1")
    finished: bool
    updated: float | None = Field(description="when something was last written, in seconds since 1970")
    now: float
