"""What every format makes of a file: texts to translate, and a function that puts their translations back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from regard.errors import InputError
from regard.translation.alignment import TextAlignment
from regard.translation.markup.elements import MarkupParser
from regard.translation.markup.marked_text import MarkedText
from regard.translation.markup.tags import Xml
from regard.translation.sentences import split_text


class Plan(Protocol):
    """A text whose sentences are translated and joined again."""

    @property
    def sentences(self) -> list[str]:
        """The sentences to translate."""
        ...

    def join(self, translations: Sequence[str]) -> str:
        """The text with each sentence replaced by its translation."""
        ...


@dataclass(frozen=True)
class Document:
    """The texts of a file in reading order. `save` takes one translation per text and returns the bytes of the translated file."""

    texts: Sequence[str]
    save: Callable[[Sequence[str]], bytes]
    is_html: bool = False
    parse_markup: MarkupParser | None = None  # for texts with markup other than HTML and XML
    by_sentence: bool = True
    joins_lines: bool = False  # with `parse_markup`: a line break counts as a space
    xml: Xml | None = None  # the texts are XML
    parts: Sequence[Document] = ()  # what the document consists of; then they say how their texts are marked up
    note: str = ""  # what the reader of the translation must know, such as that the layout is lost

    def plan(self, text: str, language: str) -> Plan:
        """The sentences of one of the texts, which is in this language."""
        if self.is_html or self.xml is not None:
            return MarkedText(text, language, by_sentence=self.by_sentence, joins_lines=True, xml=self.xml)
        if self.parse_markup is not None:
            return MarkedText(
                text,
                language,
                by_sentence=self.by_sentence,
                joins_lines=self.joins_lines,
                parse_markup=self.parse_markup,
            )
        return split_text(text, language, by_sentence=self.by_sentence)

    def plans(self, language: str) -> list[Plan]:
        """The sentences of all texts."""
        if self.parts:
            return [plan for part in self.parts for plan in part.plans(language)]
        return [self.plan(text, language) for text in self.texts]

    def sample(self) -> Iterator[str]:
        """What is to be translated, without markup, to tell its language by."""
        for part in self.parts:
            yield from part.sample()
        for text in () if self.parts else self.texts:
            yield from self.plan(text, "").sentences


AlignPairs = Callable[[list[tuple[str, str]]], list[TextAlignment]]  # of sentences and their translations


def join_plans(plans: Sequence[Plan], translations: Sequence[Sequence[str]], align: AlignPairs | None) -> list[str]:
    """The text of every plan with the translations of its sentences. `align` is called once, with all sentences that have inline
    elements to place."""
    marked = [
        plan.to_align(own) if isinstance(plan, MarkedText) else []
        for plan, own in zip(plans, translations, strict=True)
    ]
    found = iter(align([pair for pairs in marked for pair in pairs]) if align is not None and any(marked) else [])
    texts = []
    for plan, own, pairs in zip(plans, translations, marked, strict=True):
        own_alignments = list(islice(found, len(pairs)))
        texts.append(plan.join(own, own_alignments) if isinstance(plan, MarkedText) else plan.join(own))
    return texts


def read_text(data: bytes) -> tuple[str, bytes]:
    """The text of a UTF-8 file, and its byte order mark if it has one."""
    bom = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    try:
        return data[len(bom) :].decode("utf-8"), bom
    except UnicodeDecodeError:
        raise InputError("file must be text in UTF-8; convert it and try again") from None


def combine(parts: Sequence[Document], save: Callable[[Sequence[bytes]], bytes]) -> Document:
    """One document of several; `save` gets the bytes of each translated part."""

    def save_all(translations: Sequence[str]) -> bytes:
        rest = iter(translations)
        return save([part.save(list(islice(rest, len(part.texts)))) for part in parts])

    return Document([text for part in parts for text in part.texts], save_all, parts=parts)


def from_pieces(
    pieces: list[str], to_translate: Sequence[int], bom: bytes = b"", *, parse_markup: MarkupParser | None = None
) -> Document:
    """A document that consists of `pieces`, of which those with the indices `to_translate` are texts."""

    def save(translations: Sequence[str]) -> bytes:
        filled = list(pieces)
        for index, translation in zip(to_translate, translations, strict=True):
            filled[index] = translation
        return bom + "".join(filled).encode()

    return Document([pieces[index] for index in to_translate], save, parse_markup=parse_markup)
