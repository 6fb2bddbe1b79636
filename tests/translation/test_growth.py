"""Whatever the text, the text side takes time in proportion to its length. CPU time is only compared between sizes of the same
text, with a margin that a busy machine does not use up: four times the text may take ten times as long, and quadratic work takes
sixteen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.bundle import find_bundle, load_bundle
from regard.data.tokenizer import Tokenizer
from regard.errors import InputError
from regard.generate.options import Constraints, Engine, Hypothesis, Matrix, OnFinished, SearchOptions
from regard.serve.word_by_word import place_words
from regard.translation.alignment import align_texts
from regard.translation.constraints import TextConstraints
from regard.translation.detection import detect
from regard.translation.glossary import Glossary, find_variants, insert_terms
from regard.translation.guard import is_foreign, runs_away
from regard.translation.markup.inline_markdown import parse_inline_markdown
from regard.translation.markup.marked_text import MarkedText
from regard.translation.markup.tags import Xml
from regard.translation.notation import other_marks, other_sums, put_marks, put_sums
from regard.translation.numbers import has_numbers, numbers_of
from regard.translation.protect import find_spans, protect
from regard.translation.quotes import close_up, distinct, find_quotations, straightened
from regard.translation.results import Translation
from regard.translation.sentences import split_text
from regard.translation.terms import find_terms
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from regard.translation.words import Word

SHORT, LONG = 1_500, 6_000
MOST_GROWTH = 10.0
NOTICEABLE = 0.03  # seconds; what takes less for the long text grows harmlessly
TERMS = ("a", "b b", "a a", "x", "1", "<b>")


class Echo:
    """An engine that finds each source to be its own translation."""

    batch, parallel, takes_phrases = 64, 1, True

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        return [[Hypothesis(tuple(one), -1.0, -1.0)] for one in ids]

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-0.5] * (len(one) + 1) for one in tgt]

    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        return [[[1.0] * len(one)] * len(other) for one, other in zip(src, tgt, strict=True)]

    def stream(self, src: Sequence[int], *_: object) -> Iterator[tuple[int, ...]]:
        yield tuple(src)

    next_log_probs = None  # not used here


@cache
def tokenizer() -> Tokenizer:
    return load_bundle(find_bundle("en-de")).tokenizer


@cache
def translator(has_terms: bool) -> Translator:
    bundle = load_bundle(find_bundle("en-de"))
    options = TranslationOptions.of(bundle).changed(words=True)
    if has_terms:
        glossary = Glossary.of({term: f"{term}s" for term in TERMS if term != "x"})
        options = options.changed(words=True, glossary=glossary, keep=("x",))
    engine: Engine = Echo()  # type: ignore[assignment]
    return Translator(bundle.tokenizer, engine, options, bundle.max_length)


def mark_up(text: str, **options: Any) -> str:
    marked = MarkedText(text, "en", **options)
    return marked.join([sentence[::-1] for sentence in marked.sentences])


def check_numbers(text: str) -> None:
    places = numbers_of(text, "en")
    numbers = [text[slice(*place)] for place in places]
    has_numbers(text[::-1], numbers[:50], text, "en", "de")
    marks = other_marks(text, places, ("en", "de"), with_decimals=True)
    sums = other_sums([text[slice(*place)] for place in find_spans(text)], ("en", "de"))
    put_sums(put_marks(text, dict(list(marks.items())[:20]), places), dict(list(sums.items())[:20]), places)


def check_guard(text: str) -> None:
    ids = list(range(len(text)))
    is_foreign(text, tokenizer())
    runs_away(text, text[::-1], ids, ids[::-1], tokenizer())


def check_quotes(text: str) -> None:
    found = find_quotations(text, find_spans(text))
    close_up(distinct(text, found))
    straightened(text, found)
    translator(True).text_side._quotes.restyle(text, [Translation(text, 0.0)], TextConstraints("a", ("b",)))


def align(text: str) -> None:
    engine: Engine = Echo()  # type: ignore[assignment]
    align_texts(engine, tokenizer(), [(text, text[::-1])], 160)


def edit_words(text: str) -> None:
    held = find_terms(text, TERMS)
    place_words(text, [Word(word, -0.1) for word in text.split()], held)


def use_glossary(text: str) -> None:
    glossary = Glossary.of({term: f"{term}s" for term in TERMS})
    insert_terms(text, glossary.find(text, find_spans(text, TERMS)))
    find_variants(text, ["geräte", "a"])


STAGES: dict[str, Callable[[str], object]] = {
    "detection": detect,
    "sentences": lambda text: split_text(text, "en"),
    "spans": lambda text: protect(text, terms=TERMS),
    "html": mark_up,
    "attributes": lambda text: mark_up(f"<p {text}>Hello, <b>you</b>.</p>"),
    "xml": lambda text: mark_up(text, xml=Xml()),
    "lines joined": lambda text: mark_up(text, joins_lines=True),
    "markdown": lambda text: mark_up(text, parse_markup=parse_inline_markdown),
    "glossary": use_glossary,
    "numbers": check_numbers,
    "guard": check_guard,
    "quotes": check_quotes,
    "alignment": align,
    "words": edit_words,
    "tokenizer": lambda text: tokenizer().decode(tokenizer().encode(text)),
    "segments": lambda text: translator(True).text_side.segment([text]),
    "translation": lambda text: translator(False).translate([text]),
    "translation with terms": lambda text: translator(True).translate([text]),
}

UNITS = (
    *("a", "b", "x", "é", "ß", "中", "。", "😀", "▁", "word", "Dr.", "e.g.", " ", "  ", "\t", "\n", "\u00a0", "\u2028"),
    *(
        ".",
        ",",
        ";",
        ":",
        "!",
        "?",
        "…",
        "-",
        "–",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "{{",
        "}}",
        '"',
        "'",
        "“",
        "„",
        "«",
        "»",
        "‘",
        "`",
        "|",
        "\\",
    ),
    *(
        "1",
        "12",
        "123",
        "1,234",
        "1.5",
        "1 234",
        "$",
        "€",
        "%",
        "%s",
        "+1",
        "DE12",
        "1234 ",
        "@",
        "a@b.",
        "&",
        "&amp;",
        "&#",
    ),
    *(
        "http://",
        "www.",
        "<",
        ">",
        "</",
        "/>",
        "<b>",
        "</b>",
        "<p>",
        "<a ",
        "<!--",
        "<![CDATA[",
        "<script>",
        "=",
        "x=",
        "<code>",
    ),
    *(
        " translate=",
        " class=",
        "notranslate",
        "no",
        "*",
        "**",
        "_",
        "__",
        "![",
        "](",
        "][",
        "a b b ",
        "a a ",
        "\ud800",
        "\x00",
    ),
)
# Texts that once took long.
KNOWN = (
    "x",
    "a ",
    "*a",
    "<a ",
    "<b>",
    "<b>x</b>",
    "$1,",
    "DE12 ",
    "US$1 ",
    "a@",
    "[a](",
    'x="y" ',
    "a.",
    "a. ",
    "'\"<a ",
)


def seconds(stage: Callable[[str], object], text: str) -> float:
    """CPU time of this thread."""
    begin = time.thread_time()
    with suppress(InputError):  # XML that is not well-formed
        stage(text)
    return time.thread_time() - begin


def check_growth(name: str, before: str, unit: str, after: str) -> None:
    def text(size: int) -> str:
        return before + unit * max(1, size // len(unit)) + after  # whole ones: half a tag is refused at once

    stage = STAGES[name]
    long = seconds(stage, text(LONG))
    if long < NOTICEABLE:
        return
    for _ in range(3):  # a page fault or a collection may have come in between
        short = seconds(stage, text(SHORT))
        long = min(long, seconds(stage, text(LONG)))
        if long < max(NOTICEABLE, MOST_GROWTH * short):
            return
    pytest.fail(f"{name}: {before!r} + {unit!r} + {after!r}: {SHORT} characters {short:.3f} s, {LONG} {long:.3f} s")


@pytest.mark.parametrize("name", STAGES)
def test_texts_that_once_took_long_take_linear_time(name: str) -> None:
    seconds(STAGES[name], "What is imported at the first call does not count.")
    for unit in KNOWN:
        check_growth(name, "", unit, "")


@pytest.mark.parametrize("name", STAGES)
@settings(max_examples=6)
@given(
    st.lists(st.sampled_from(UNITS), max_size=2).map("".join),
    st.lists(st.sampled_from(UNITS), min_size=1, max_size=4).map("".join),
    st.lists(st.sampled_from(UNITS), max_size=2).map("".join),
)
def test_any_text_takes_linear_time(name: str, before: str, unit: str, after: str) -> None:
    seconds(STAGES[name], "What is imported at the first call does not count.")
    check_growth(name, before, unit, after)
