"""Numbers: those that a translation has lost are noticed, and the text is searched again with them kept."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from regard.data.tokenizer import NUM_SPANS, Tokenizer
from regard.generate.options import Constraints, Hypothesis, Matrix, OnFinished, SearchOptions
from regard.translation.constraints import TextConstraints
from regard.translation.glossary import Glossary
from regard.translation.notation import other_marks, put_marks, put_sums
from regard.translation.numbers import has_numbers, numbers_of
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator


@pytest.mark.parametrize(
    ("source", "translation", "is_there"),
    [
        ("in 2022", "im Jahr 202", False),
        ("in 2022", "im Jahr 20222", False),
        ("in 2022", "im Jahr 2022.", True),
        ("in 2022 and 2022", "2022 und 202", False),
        ("1984 pages", "1.984 Seiten", True),
        ("1984 pages", "1 984 Seiten", True),
        ("1984 pages", "11.984 Seiten", False),
        ("147 people", "147.000 Leute", True),  # a decimal, for all that can be known
        ("after 2005 1 billion", "2005 1 Milliarde", True),
        ("2011 and 147", "147 2011", True),
        ("147 million", "Millionen", False),
        ("post-2015", "nach2015", True),
        ("number ٢٠٢٢ and １９８４", "Nummer", True),  # not looked for
        ("176,000 customers", "176.000 Kunden", True),
        ("176,000 customers", "176 000 Kunden", True),
        ("176,000 customers", "176 Tausend Kunden", False),  # as if it could be anything
        ("176,000 customers", "17 000 Kunden", False),
        ("1,299.99 of it", "1.299,99 davon", True),
        ("1,299.99 of it", "1.299,9 davon", False),
        ("835.582 hectares", "8355,582 Hektar", False),
        ("83,237,124 people", "83 237 124 Menschen", True),
        ("83,237,124 people", "203,237,124 Menschen", False),
        ("in 2005 100,000 people", "2005 100.000 Menschen", True),
        # Round ones may become words, but not other numbers, and not nothing unless one word would do.
        ("1.300 Euro", "EUR 1 500", False),
        ("2.500.000 Dollar", "$2.5 million", True),
        ("2.500.000 Dollar", "$500,000", False),
        ("25.000 Pfund, 50 %", "the bonus, 50%", False),
        ("20.000 Menschen", "Twenty thousand people", True),
        ("1,000 for 100 guests", "tausend für 100 Gäste", True),
        ("1,000 for 100 guests", "1,00 für 100 Gäste", True),  # 1.00, for all that can be known
        ("2,000 in the 1970s", "zweitausend in den 1970er Jahren", True),
        ("2,000 for $1,500", "zweitausend für $1,500", True),
        ("1000 on 3.10.1990", "tausend am 3.10.1990", True),
        ("1.800 Pfund (2.000 Euro)", "GBP 1,800 (EUR 10 000)", False),
        ("5 of 57,000", "5 von 5 000", False),
        # Its first digits alone are another number, if no word for the zeros follows and the source has not got that, too.
        ("57,000 came", "57 kamen", False),
        ("57,000 came", "57 Tausend kamen", True),
        ("1,500 cards", "15 Karten", False),
        ("1,500 cards", "15 Hundert Karten", True),
        ("2.500.000 Menschen", "25 people", False),
        ("700,000 came", "7 kamen", False),
        ("700,000 of the 7 came", "Siebenhunderttausend der 7 kamen", True),
        ("300 coins", "3 Münzen", False),
        ("300 coins", "dreihundert Münzen", True),
        ("10,000 and 1 way", "zehntausend und 1 Weg", True),
        ("Two of 2,000 people", "2 von zweitausend Leuten", True),
        ("5,000,000 francs", "5 Mia. Franken", True),
        ("2.500.000 Menschen", "2.5m people", True),
        ("2,000 in 1984, 365 of them here", "zweitausend, 1984 365 davon hier", True),
        ("500 people", "500.000 Menschen", True),  # a decimal, for all that can be known
        ("2002 119 000 people", "2002 119 000 Menschen", True),
        ("September 11 343 men", "343 Männer am 11. September", True),  # two numbers
        ("3 000 000 Pesos", "3 000 Pesos", False),
        ("100 000 000 people", "100 000 000 000 Menschen", False),
        ("1,000,000 times", "tausendmal", False),
        ("1,000,000 times", "1 Million Mal", True),
        ("5,100,000 people", "5100,000 Menschen", False),  # marks where none belong
        # Decimals.
        ("91.50 euros", "91,50 Euro", True),
        ("91.50 euros", "91,5 Euro", True),
        ("91.50 euros", "9,50 Euro", False),
        ("22.2 percent", "222 Prozent", False),
        ("29.0 percent", "290 Prozent", False),
        ("29.0 percent", "29 Prozent", True),
        ("0.333 of it", "0,333 davon", True),
        ("0.333 of it", "0,3333 davon", False),
        ("at 9.30", "um 9:30 Uhr", True),
        ("1.5 kg", "anderthalb Kilo", True),
        ("1.5 kg", "15 Kilo", False),
        ("1.5 kg of 7", "7 von anderthalb Kilo", True),
    ],
)
def test_what_is_lost(source: str, translation: str, is_there: bool) -> None:
    language = "de" if re.search(r"Euro\b|Pfund|Dollar|Menschen", source) else "en"
    target = "en" if language == "de" else "de"
    assert has_numbers(translation, found(source), source, language, target) == is_there


@pytest.mark.parametrize("said", ["57 тысяч человек", "57 ezer", "57 mil pessoas", "57千人"])
def test_words_for_zeros_may_be_any_where_they_are_not_known(said: str) -> None:
    assert has_numbers(said, ["57,000"], "57,000 people", "en", "xx")


@pytest.mark.parametrize(
    ("said", "is_there"),
    [
        ("57 k€", True), ("57k€.", True), ("57 M€ au total", True), ("57 mds d'euros", True), ("57Mio", True), ("57 €", False),
        ("57 link€", False), ("57 commds", False),
    ],
)  # fmt: skip
def test_zeros_of_amounts_in_french(said: str, is_there: bool) -> None:
    assert has_numbers(said, ["57,000"], "57,000 euros", "en", "fr") == is_there


def found(text: str) -> list[str]:
    return [text[begin:end] for begin, end in numbers_of(text)]


def test_a_language_says_what_a_mark_means() -> None:
    """1.300 Euro are not 1.30 in German, but may be in a language of which that is not known."""
    for language, is_there in (("de", False), ("", True), ("en", True)):
        assert has_numbers("EUR 1.30", ["1.300"], "1.300 Euro", language) == is_there
        assert has_numbers("1 300 euros", ["1.300"], "1.300 Euro", language)


def test_which_numbers_are_looked_for() -> None:
    """Not those that are parts of something else, or spans."""
    assert found("1984, 777-300 in post-2015 houses; 365!") == ["1984", "777", "300", "2015", "365"]
    assert found("$147, €10000, 42, 12345678, 1970s, the 1970's, 1970’s, A380, 777X, 1.234.txt, 192.168.*.*") == []
    assert found("77,000, 12.345, 5.277.000,50; 1,234.5.") == ["77,000", "12.345", "5.277.000,50", "1,234.5"]
    assert found("In 2012 118,800 came, 1.234 142") == ["118,800", "1.234"]
    assert found("615 000 and 1\u202f234\u00a0567 or 12 345,6") == ["615 000", "1\u202f234\u00a0567", "12 345,6"]
    assert found("12,34,567 12,345,67 17:30 9/11 2011/12 31.10.2013 2005 100 2022年 ?n=1,234 $1,234 1,234€") == []
    assert found("Es sind 0,125 oder 91,50; am 24.12. und 3.10. nicht. It was 31.12.") == ["0,125", "91,50"]


def test_a_day_is_no_decimal_where_decimals_have_a_comma() -> None:
    assert not numbers_of("am 3.12.", "de") and not numbers_of("am 3.12.")
    assert numbers_of("It fell to 3.12.", "en") == [(11, 15)]


def test_numbers_without_end_take_no_time() -> None:
    """Every number of these is looked for one by one: a text that a model reads at once has few."""
    for part in ("123,", "123 ", "1234 ", "1,234 a ", "1.5 b ", "1,234,567.89; ", "9"):
        text = part * (1000 // len(part))
        assert has_numbers(text, found(text), text)
        put_marks(text, {"1,234": "1.234", "1,234,567.89": "1.234.567,89"})
    for text in ("1" * 200_000, "123," * 50_000, "123 " * 50_000, "1234 " * 40_000, "٢" * 200_000, "1,234 a " * 30_000):
        found(text)


@pytest.mark.parametrize(
    ("source", "target", "text", "there"),
    [
        ("en", "de", "a 5,277.", "5.277"),
        ("en", "de", "1,234,567.89", "1.234.567,89"),
        ("en", "de", "12.345", None),  # three decimals, if the writer knows English
        ("en", "de", "Python 3.12", None),
        ("en", "de", "98.05 euros", "98,05"),
        ("en", "de", "3.0% of it", "3,0"),
        ("en", "de", "by 2.5 million", "2,5"),
        ("en", "de", "5.5 kg", "5,5"),
        ("en", "de", "in chapter 2.3 men", None),
        ("en", "de", "in 1984", None),
        ("en", "de", "5 277", None),  # is right in both
        ("en", "de", "rgb(255,128,100)", None),
        ("en", "de", "A[1,100]", None),
        ("en", "de", "at (320,200)", None),
        ("en", "de", "the points (320,200) and (1,100)", None),
        ("en", "de", "f(39,625) = (39,625)", None),
        ("en", "de", "The stadium (39,625) was sold out.", "39.625"),
        ("en", "de", "The district is the largest (1,234).", "1.234"),
        ("en", "de", "a range of (0,125)", None),
        ("en", "de", "(5,277 people)", "5.277"),
        ("de", "en", "5.277 Leute", "5,277"),
        ("de", "en", "5,277 Cent", "5.277"),
        ("de", "en", "91,50 Euro", "91.50"),
        ("de_AT", "EN-gb", "5.277,5", "5,277.5"),
        ("de", "en", "192.168.100.200", None),  # a computer
        ("de", "en", "192.168.100", None),
        ("de", "en", "192.250.300.200", "192,250,300,200"),
        ("de", "en", "Version 5.100", None),
        ("de", "en", "Perl 5.005", None),
        ("de", "en", "Bestellnummer 100.200", None),
        ("de", "en", "23.976 fps", None),
        ("de", "en", "145.500 MHz", None),
        ("de", "en", "2,4 GHz", "2.4"),
        ("en", "de", "a net 1,500 euros", "1.500"),
        ("en", "de", "He said no. 1,234 people laughed.", "1.234"),
        ("de", "en", "von 0.001 bis 9.999", None),  # who writes so means decimals
        ("en", "ru", "5,277", None),  # its way is not known here
        ("en", "fr", "5,277", "5\u202f277"),
        ("en", "fr", "1,234.5", "1\u202f234,5"),
        ("de", "fr", "1.234.567,5", "1\u202f234\u202f567,5"),
        ("fr", "en", "5 277 personnes", "5,277"),
        ("fr", "en", "1\u202f234,5 km", "1,234.5"),
        ("fr", "de", "12\u00a0600", "12.600"),
        ("fr", "en", "4,5 %", "4.5"),
        ("fr", "en", "la version 5.100", None),
        ("fr", "it", "3,5", None),
        ("en", "es-MX", "5,277", None),
        ("de", "nl", "5.277", None),
        ("", "", "5,277", None),
    ],
)
def test_marks_are_those_of_the_target(source: str, target: str, text: str, there: str | None) -> None:
    assert list(other_marks(text, numbers_of(text), (source, target)).values()) == ([] if there is None else [there])


def test_a_time_of_day_is_no_decimal() -> None:
    for text, there in (
        ("at 9.30", []),
        ("by 9.30 am", []),
        ("a 9.30 p.m. show", []),
        ("at 9.30 percent", ["9,30"]),
        ("at 9.75", ["9,75"]),
    ):
        assert list(other_marks(text, numbers_of(text), ("en", "de"), with_decimals=True).values()) == there


def test_marks_are_put_where_the_number_stands_alone() -> None:
    text = "5,277 or 5.277, and 1,984"  # two numbers, for all that can be known
    assert other_marks(text, numbers_of(text), ("en", "de")) == {"1,984": "1.984"}
    text = "A[1,984] or 1,984"
    assert other_marks(text, numbers_of(text), ("en", "de")) == {}
    marks = {"5,277": "5.277"}
    for text in ("5,277,000", "15,277", "$5,277", "x=5,277", "5,277€", "5,277.5", "5277", "5 277"):
        assert put_marks(text, marks) == text
    assert put_marks("12.345.67 und 12,345,67, 12,34,567 1.23.4567", {"12,345.67": "12.345,67"}) == (
        "12.345,67 und 12.345,67, 12,34,567 1.23.4567"
    )
    assert put_marks("5,277 und (5,277), 5,277.", marks) == "5.277 und (5.277), 5.277."
    assert put_marks("5,277 und 5,277", marks, [(0, 3)]) == "5,277 und 5.277"
    sums = {"299.000 €": "299,000 €", "1.299.000 €": "1,299,000 €"}
    assert put_sums("von 299.000 € auf 1.299.000 €", sums) == "von 299,000 € auf 1,299,000 €"
    assert put_sums("$1,299 und $1,299.99", {"$1,299": "$1.299"}) == "$1.299 und $1,299.99"
    assert put_sums("$5,277 und $5,277", {"$5,277": "$5.277"}, [(0, 3)]) == "$5,277 und $5.277"


class Careless:
    """Translates every sentence into itself, but for the last digit of those that are written out."""

    batch, takes_phrases = 64, True

    def __init__(self, tokenizer: Tokenizer, keeps_spans: bool = True, others: Sequence[str] = ()) -> None:
        """`others` are translations that it has for all sentences, after its own."""
        self.others = [Hypothesis(tuple(tokenizer.encode(other)), -2.0, -2.0) for other in others]
        self.digits = {piece for digit in "0123456789" for piece in tokenizer.encode(f"0{digit}")[-1:]}
        self.dropped = set() if keeps_spans else set(tokenizer.span_ids)
        self.asked: list[list[int]] = []
        self.constraints: list[Constraints] = []

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        self.asked += map(list, ids)
        self.constraints += constraints
        return [
            [Hypothesis(tuple(self.careless(sentence)), -1.0, -1.0), *self.others][: options.beam] for sentence in ids
        ]

    def careless(self, ids: Sequence[int]) -> list[int]:
        last = max((place for place, token in enumerate(ids) if token in self.digits), default=-1)
        return [token for place, token in enumerate(ids) if place != last and token not in self.dropped]

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[0.0] * (len(sentence) + 1) for sentence in tgt]

    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        return [
            [[float(i == j) for j in range(len(one) + 1)] for i in range(len(other) + 1)]
            for one, other in zip(src, tgt, strict=True)
        ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = ["The house is small, but the garden is large.", "We went home; it was late. 0 1 2 3 4 5 6 7 8 9"] * 20
    return Tokenizer.train(lines, 400, tmp_path_factory.mktemp("tokenizer"), protects=True)


LINES = [
    "The house of 1984 is small.",
    "We went home.",
    "It was 365, and late.",
    "The 7 gardens",
    "The house of 1984 is small.",
]


def texts(
    tokenizer: Tokenizer, engine: Careless, options: TranslationOptions, lines: Sequence[str] = LINES
) -> list[str]:
    return [result.text for result in Translator(tokenizer, engine, options, 100).translate(lines)]


def test_a_number_that_is_lost_is_kept_as_it_is_written(tokenizer: Tokenizer) -> None:
    engine = Careless(tokenizer)
    assert texts(tokenizer, engine, TranslationOptions(guard=True)) == LINES
    assert len(engine.asked) == len(LINES) + 3  # only those that had lost one, once more
    assert [sum(token in tokenizer.span_ids for token in ids) for ids in engine.asked] == [0] * 5 + [1] * 3


def test_each_text_has_its_own_numbers(tokenizer: Tokenizer) -> None:
    """What a line becomes does not depend on the lines beside it."""
    lines = ["In 1984 and in 2022.", "In 2022 and in 1984.", "In 1984.", "In 1984 and in 2022."]
    together = texts(tokenizer, Careless(tokenizer), TranslationOptions(guard=True), lines)
    alone = [texts(tokenizer, Careless(tokenizer), TranslationOptions(guard=True), [line])[0] for line in lines]
    assert together == alone == lines


class Careful(Careless):
    """Translates every sentence into itself."""

    def careless(self, ids: Sequence[int]) -> list[int]:
        return list(ids)


@pytest.mark.parametrize("engine", [Careless, Careful])
@pytest.mark.parametrize("is_told", [False, True])
def test_thousands_have_the_marks_of_the_target(engine: type[Careless], is_told: bool, tokenizer: Tokenizer) -> None:
    """Whether the model says the number or has to be made to; in the text and in the words that are told of it."""
    lines = [
        "The house of 5,277 is small, the garden of $1,984 and {n:5,277} is large.",
        "It was 12 345, and (1,299.5).",
    ]
    expected = [
        "The house of 5.277 is small, the garden of $1.984 and {n:5,277} is large.",
        "It was 12 345, and (1.299,5).",
    ]

    def results(languages: tuple[str, str], keep: tuple[str, ...] = ()) -> list[str]:
        options = TranslationOptions(guard=True, languages=languages, keep=keep, words=is_told, alignment=is_told)
        found = Translator(tokenizer, engine(tokenizer), options, 100).translate(lines)
        for result in found:
            [way] = result.translations
            spoken = "".join(word.text for word in way.words).replace(" ", "")
            assert spoken == (way.text.replace(" ", "") if is_told else "")
        return [result.text for result in found]

    assert results(("en", "de")) == expected
    assert results(("en", "ru")) == lines
    assert results(("en", "de"), keep=("5,277",)) == [expected[0].replace("5.277", "5,277"), expected[1]]
    assert results(("en", "de"), keep=("of $1,984",)) == [expected[0].replace("1.984", "1,984"), expected[1]]


def test_what_a_person_asked_for_has_the_marks_of_the_person(tokenizer: Tokenizer) -> None:
    line = "The house of 5,277 is small, the garden of 5,277 is large."
    options = TranslationOptions(guard=True, languages=("en", "de"))
    for ask, expected in (
        (TextConstraints(prefix="The house of 5,277"), "The house of 5,277 is small, the garden of 5.277 is large."),
        (TextConstraints(phrases=("garden of 5,277",)), "The house of 5.277 is small, the garden of 5,277 is large."),
    ):
        [result] = Translator(tokenizer, Careful(tokenizer), options, 100).translate([line], constraints=[ask])
        assert result.text == expected


def test_a_line_that_is_refused_stays_as_it_is(tokenizer: Tokenizer) -> None:
    line = "Население города 5,277"
    options = TranslationOptions(guard=True, languages=("en", "de"))
    assert texts(tokenizer, Careful(tokenizer), options, [line]) == [line]


def test_translations_that_differ_in_their_marks_alone_are_one(tokenizer: Tokenizer) -> None:
    others = ["The house of 5.277 is small.", "The house of 5 277 is late."]
    options = TranslationOptions(guard=True, languages=("en", "de"), search=SearchOptions(beam=3, nbest=3))
    [result] = Translator(tokenizer, Careful(tokenizer, others=others), options, 100).translate(
        ["The house of 5,277 is small."]
    )
    assert [way.text for way in result.translations] == others
    assert result.translations[0].score == -1.0


def test_decimals_that_had_to_be_put_back_are_written_as_the_language_writes_them(tokenizer: Tokenizer) -> None:
    lines = ["The house of 5.277 is small.", "We went home at 12.75."]
    options = TranslationOptions(guard=True, languages=("en", "de"))
    put_back = texts(tokenizer, Careless(tokenizer), options, lines)
    assert put_back == ["The house of 5,277 is small.", "We went home at 12,75."]
    assert texts(tokenizer, Careful(tokenizer), options, lines) == lines  # those may be versions


def test_a_number_in_a_span_does_not_hide_another(tokenizer: Tokenizer) -> None:
    engine = Careless(tokenizer)
    assert texts(tokenizer, engine, TranslationOptions(guard=True), ["The {a:1984} of 1984"]) == [
        "The {a:1984} of 1984"
    ]
    assert len(engine.asked) == 2


def test_a_glossary_may_want_other_marks(tokenizer: Tokenizer) -> None:
    options = TranslationOptions(guard=True, languages=("en", "de"), glossary=Glossary.of({"5,277": "5,277"}))
    assert texts(tokenizer, Careful(tokenizer), options, ["The house of 5,277 and 1,984."]) == [
        "The house of 5,277 and 1.984."
    ]


def test_without_a_guard_or_reserved_pieces_numbers_are_the_models(tokenizer: Tokenizer) -> None:
    for options, used in (
        (TranslationOptions(), tokenizer),
        (TranslationOptions(SearchOptions(sample=True), guard=True), tokenizer),
        (TranslationOptions(guard=True), Tokenizer(tokenizer.models)),
    ):
        engine = Careless(used)
        assert texts(used, engine, options)[0] == "The house of 198 is small."
        assert len(engine.asked) == len(LINES)


def test_where_the_reserved_piece_is_lost_too_the_first_translation_stays(tokenizer: Tokenizer) -> None:
    engine = Careless(tokenizer, keeps_spans=False)
    assert texts(tokenizer, engine, TranslationOptions(guard=True), LINES[:1]) == ["The house of 198 is small."]
    assert len(engine.asked) == 2


class Worse(Careless):
    """Says something else where there are reserved pieces: `said`, in which None is the reserved piece."""

    def __init__(self, tokenizer: Tokenizer, said: Sequence[str | None]) -> None:
        super().__init__(tokenizer)
        self.spans = set(tokenizer.span_ids)
        self.said = [None if one is None else tokenizer.encode(one) for one in said]

    def careless(self, ids: Sequence[int]) -> list[int]:
        spans = [token for token in ids if token in self.spans]
        if not spans:
            return super().careless(ids)
        return [token for one in self.said for token in (spans if one is None else one)]


@pytest.mark.parametrize("said", [[None], [None, *["late late late late"] * 5]])
def test_nonsense_does_not_take_the_place_of_a_translation(said: Sequence[str | None], tokenizer: Tokenizer) -> None:
    """Neither the number alone nor, where the guard refuses the second one, the text itself."""
    engine = Worse(tokenizer, said)
    assert texts(tokenizer, engine, TranslationOptions(guard=True), LINES[:1]) == ["The house of 198 is small."]
    assert len(engine.asked) == 2


def test_a_translation_that_has_its_numbers_is_better_than_one_that_has_not(tokenizer: Tokenizer) -> None:
    others = ["The house of 1984 is small", "The house of 198 is small and late"]
    for options in (
        TranslationOptions(SearchOptions(beam=3, nbest=3), guard=True),
        TranslationOptions(SearchOptions(beam=3), guard=True, mbr="chrf"),
    ):
        engine = Careless(tokenizer, others=others)
        translator = Translator(tokenizer, engine, options, 100, lambda one, other: len(set(one) & set(other)))
        [result] = translator.translate(LINES[:1])
        assert [way.text for way in result.translations] == others[:1]
        assert len(engine.asked) == 1


def test_a_glossary_may_call_a_number_something_else(tokenizer: Tokenizer) -> None:
    for term, searches in (("1984", 1), ("of 1984", 1), ("small", 2)):
        engine = Careless(tokenizer)
        texts(tokenizer, engine, TranslationOptions(guard=True, glossary=Glossary.of({term: "garden"})), LINES[:1])
        assert len(engine.asked) == searches


def test_what_is_told_of_a_translation_does_not_change_it(tokenizer: Tokenizer) -> None:
    lines = [LINES[0], "The house-777-house is 365-late."]
    plain = texts(tokenizer, Careless(tokenizer), TranslationOptions(guard=True), lines)
    results = Translator(
        tokenizer, Careless(tokenizer), TranslationOptions(guard=True, words=True, alignment=True), 100
    ).translate(lines)
    assert [result.text for result in results] == plain == lines
    for result in results:
        [way] = result.translations
        assert all(target < len(way.words) and source < len(result.source_words) for target, source in way.alignment)
    assert results[0].translations[0].alignment


def test_no_span_loses_its_reserved_piece_to_a_number(tokenizer: Tokenizer) -> None:
    for spans, searches in ((NUM_SPANS - 1, 2), (NUM_SPANS, 1)):
        engine = Careless(tokenizer)
        line = "In 1984 " + " ".join(f"{{x{chr(97 + n % 26)}{chr(97 + n // 26)}}}" for n in range(spans))
        [text] = texts(tokenizer, engine, TranslationOptions(guard=True), [line])
        assert len(engine.asked) == searches
        assert text == (line if searches == 2 else line.replace("1984", "198"))


def test_what_was_asked_of_a_line_is_asked_again(tokenizer: Tokenizer) -> None:
    engine = Careless(tokenizer)
    options = TranslationOptions(guard=True, words=True)
    [result] = Translator(tokenizer, engine, options, 100).translate(
        LINES[:1], constraints=[TextConstraints(prefix="The house of 1984", phrases=("is",))]
    )
    first, again = engine.constraints
    assert again.phrases == first.phrases != ()
    has_span = [
        any(token in tokenizer.span_ids for token in constraint.prefix if isinstance(token, int))
        for constraint in (first, again)
    ]
    assert has_span == [False, True]
    assert result.text == LINES[0]
    assert "1984" in [word.text for word in result.translations[0].words]
