"""The search options and constraints of a client: checked against the limits, then applied to a model's text side. Messages name
fields and numbers but never quote the client's text."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from regard.data.tokenizer import Tokenizer
from regard.errors import InputError, UserError
from regard.evaluate import sentence_scorer
from regard.generate.word_tokens import phrase_of
from regard.serve.limits import Limits
from regard.translation.constraints import TextConstraints
from regard.translation.glossary import Glossary, with_capital
from regard.translation.queries import SearchQuery
from regard.translation.text_side import SegmentedLines, TextSide
from regard.translation.translation_options import TranslationOptions

# Numeric options with their ranges; beam and groups are also limited by `Limits.beam`.
RANGES: dict[str, tuple[float, float]] = {
    "beam": (1, Limits().beam),
    "alpha": (0, 5),
    "coverage": (0, 5),
    "no_repeat": (0, 100),
    "max_repeat": (0, 100),
    "groups": (1, Limits().beam),
    "diversity": (0, 10),
    "temperature": (0.01, 10),
    "top_k": (0, 100_000),
    "top_p": (0.001, 1),
    "seed": (0, 2**32 - 1),
}
_CHARACTERS = 16  # of a token; few are longer
_REMEDY = "leave it out, or start the server without --engine ctranslate2"


@dataclass(frozen=True)
class SearchRequest:
    """What a request asks of the search; every field is optional."""

    changes: Mapping[str, Any] = field(default_factory=dict)  # options by name: fields of SearchOptions, and `mbr`
    glossary: tuple[tuple[str, str], ...] = ()  # (source term, target term)
    keep: tuple[str, ...] = ()  # text that is not translated
    prefix: str = ""  # what the translation of a sentence begins with
    phrases: tuple[str, ...] = ()  # what must appear in it

    @property
    def is_plain(self) -> bool:
        """Whether nothing is requested."""
        return not (self.changes or self.has_terms or self.is_of_one_sentence)

    @property
    def has_terms(self) -> bool:
        """Whether there is a glossary or text to keep."""
        return bool(self.glossary or self.keep)

    @property
    def is_of_one_sentence(self) -> bool:
        """Whether there are constraints that only make sense for a single sentence."""
        return bool(self.prefix or self.phrases)

    @property
    def characters(self) -> int:
        """Characters that cost time for every text."""
        return len(self.prefix) + sum(map(len, self.phrases))

    @property
    def widest(self) -> int:
        """The requested beam; if not given, it is at least as wide as there are groups."""
        return max(1, self.changes.get("beam") or self.changes.get("groups") or 1)

    @property
    def text_constraints(self) -> TextConstraints | None:
        """The constraints on each sentence."""
        return TextConstraints(self.prefix, self.phrases) if self.is_of_one_sentence else None

    # --- checking ---

    def check(self, limits: Limits, alternatives: int = 0) -> None:
        """Raise InputError for what exceeds the limits."""
        for name, (least, most) in RANGES.items():
            highest = limits.beam if name in ("beam", "groups") else most
            value = self.changes.get(name)
            if value is not None and not least <= value <= highest:  # also rejects NaN
                raise InputError(f"{name} must be between {least:g} and {highest:g}")
        beam = self.changes.get("beam")
        if beam is not None and beam <= alternatives:
            raise InputError(f"beam must be more than alternatives ({alternatives}); use a wider beam")
        if len(self.glossary) + len(self.keep) > limits.terms:
            raise InputError(f"glossary and keep may have at most {limits.terms} entries together; send fewer")
        if len(self.phrases) > limits.sentence_terms:
            raise InputError(f"phrases may be at most {limits.sentence_terms}; send fewer")
        for number, pair in enumerate(self.glossary, 1):
            for term in pair:
                _check_term(term, f"glossary, entry {number}", limits)
        for name in ("keep", "phrases"):
            for number, term in enumerate(getattr(self, name), 1):
                _check_term(term, f"{name}, entry {number}", limits)

    # --- applying ---

    def text_side(self, own: TextSide, does_all: bool, alternatives: int = 0) -> TextSide:
        """A model's text side with these options instead of its own; `does_all`: whether its engine supports every option. Slow
        for many terms."""
        options = self._options(own.options, alternatives)
        if not does_all:
            asked = ["glossary"] * bool(self.glossary) + ["phrases"] * bool(self.phrases) + options.search.beyond_beam
            if asked:
                raise InputError(f"{' and '.join(asked)}: this server's engine, CTranslate2, cannot do it; {_REMEDY}")
        for number, pair in enumerate(self.glossary, 1):
            _check_spelling(own.tokenizer, pair[1], f"glossary, entry {number}")
        for number, phrase in enumerate(self.phrases, 1):
            _check_spelling(own.tokenizer, phrase, f"phrases, entry {number}")
        check_prefix(own, self.prefix)
        utility = sentence_scorer(options.mbr, options.languages[1]) if options.mbr else None
        return own.with_options(options, utility)

    def _options(self, own: TranslationOptions, alternatives: int) -> TranslationOptions:
        try:
            options = own.changed(nbest=alternatives + 1, **self.changes)
        except UserError as error:  # its message only mentions numbers
            raise InputError(str(error)) from None
        terms: dict[str, list[str]] = {}
        for term, translation in self.glossary:
            terms.setdefault(term.strip(), []).append(translation)
        glossary = Glossary.of(terms) if terms else options.glossary
        return replace(options, glossary=glossary, keep=(*options.keep, *self.keep))


PLAIN = SearchRequest()


def first_search(side: TextSide, search: SearchRequest, segmented: SegmentedLines, limits: Limits) -> SearchQuery:
    """The first search for sentences. Raises InputError if its constraints exceed the limits."""
    if search.is_of_one_sentence and any(len(segments) > 1 for segments in segmented.segments):
        raise InputError(
            f"with prefix or phrases a text must be one sentence of at most {side.max_length} tokens; send a part of it"
        )
    query, most = side.first_search(segmented), limits.sentence_terms
    for constraint in query.constraints:
        if len(constraint.phrases) > most:
            raise InputError(f"a sentence has more than {most} terms of glossary, keep and phrases; send fewer of them")
        tokens = len(constraint.prefix) + sum(phrase.min_length for phrase in constraint.phrases)
        if tokens > side.max_length:
            raise InputError(
                f"the prefix, terms and phrases of a sentence may have at most {side.max_length} tokens; send fewer"
            )
    return query


def check_prefix(side: TextSide, prefix: str) -> None:
    """Raise InputError for a prefix longer than a sentence: a prefix is computed in one go, whatever its length."""
    most = side.max_length
    # The first test spares the tokenizer text that is far too long.
    if len(prefix) > _CHARACTERS * most or len(side.tokenizer.encode(prefix.strip(), "target")) > most:
        raise InputError(f"prefix may have at most {most} tokens; give a shorter beginning")


def _check_term(term: str, place: str, limits: Limits) -> None:
    if not term.strip() or len(term.strip().splitlines()) > 1:
        raise InputError(f"{place} must be words on one line, but is empty or has line breaks")
    if any(unicodedata.category(character) in ("Cc", "Cs") and character != "\t" for character in term):
        raise InputError(f"{place} has a control character; leave it out")
    if len(term) > limits.term_characters:
        raise InputError(f"{place} may have at most {limits.term_characters} characters; give a shorter one")


def _check_spelling(tokenizer: Tokenizer, text: str, place: str) -> None:
    try:
        phrase_of(tokenizer, (text.strip(),), (with_capital(text.strip()),))
    except UserError:  # its message quotes the text
        raise InputError(
            f"{place} cannot be made to appear: the model's vocabulary lacks one of its characters; leave it out"
        ) from None
