"""Quotation marks: which there are, that a translation has them, and that they are of the kind of the source."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import regard
from regard.data.tokenizer import NUM_SPANS, Tokenizer
from regard.generate.options import Hypothesis, SearchOptions
from regard.translation.constraints import TextConstraints
from regard.translation.glossary import Glossary
from regard.translation.quotes import distinct, find_quotations, straightened
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from regard.translation.words import find_words
from tests.translation.test_numbers import Careless


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("„Wir gehen“, sagte sie.", ["„Wir gehen“"]),
        ("»Wir gehen«, sagte sie.", ["»Wir gehen«"]),
        ("« Nous partons », dit-elle.", ["« Nous partons »"]),
        ('in " argument ".', ['" argument "']),
        ('in "argument "here', []),
        ("“Yes,” he said, “I know.”", ["“Yes,”", "“I know.”"]),
        ('"Yes," he said, "I know."', ['"Yes,"', '"I know."']),
        ('Er sagte: „Komm."', ['„Komm."']),
        ("„Er rief: ‚Komm!‘“, sagte sie.", ["„Er rief: ‚Komm!‘“", "‚Komm!‘"]),
        ("»Er rief: ›Komm!‹«", ["»Er rief: ›Komm!‹«", "›Komm!‹"]),
        ("“He said, ‘Come!’ ” she told us.", ["“He said, ‘Come!’ ”", "‘Come!’"]),
        ("\"He said, 'Come!'\" she told us.", ["\"He said, 'Come!'\"", "'Come!'"]),
        ("It's the students' book; Tom’s isn’t here.", []),
        ("rock 'n' roll of the '60s, the boss' car", []),
        ("a 'disaster', it's 'over'", ["'disaster'", "'over'"]),
        ('6\' 2" long, an 8" pipe', []),
        ('The 8" "pipe"', ['"pipe"']),
        ("(„so“)-„so“", ["„so“", "„so“"]),
        ("“It went on.", ["“It went on."]),
        ("And ended.”", ["And ended.”"]),
        ("And ended”.", ["And ended”"]),
        ("“", []),
        ("a ” b", []),
        ('""', []),
    ],
)
def test_what_is_quoted(text: str, found: list[str]) -> None:
    def cut(begin: int | None, end: int | None) -> str:
        return text[begin or 0 : len(text) if end is None else end + 1]

    assert [cut(one.begin, one.end) for one in find_quotations(text)] == found


def test_marks_in_kept_text_are_none() -> None:
    assert find_quotations('<a href="x">"Yes"</a>', [(0, 12), (17, 21)])[0].places == (12, 16)


def test_marks_are_rewritten_in_place() -> None:
    text = "»Er rief: ›Komm!‹«, sagte ‚sie‘. Wie geht’s?"
    quotations = find_quotations(text)
    assert straightened(text, quotations) == '"Er rief: \'Komm!\'", sagte "sie". Wie geht\'s?'
    assert distinct(text, quotations) == "„Er rief: ‚Komm!‘“, sagte „sie“. Wie geht’s?"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = ["The house is small, but the garden is large.", "\"We\" 'went' home; it was late. 0 1 2 3 4"] * 20
    lines += ["„the“ ‚house‘ “is” ‘small’ »but« the ’s"] * 20
    return Tokenizer.train(lines, 400, tmp_path_factory.mktemp("tokenizer"), protects=True)


class Forgetful(Careless):
    """Translates every sentence into itself, without the characters `forgets`."""

    def __init__(self, tokenizer: Tokenizer, forgets: str = "") -> None:
        super().__init__(tokenizer)
        self.tokenizer, self.forgets = tokenizer, forgets
        self.shown: list[str] = []

    def careless(self, ids: Sequence[int]) -> list[int]:
        parts = self.tokenizer.decode_parts(ids)
        self.shown.append("".join(part if isinstance(part, str) else "#" for part in parts))
        table = str.maketrans(dict.fromkeys(self.forgets))
        return self.tokenizer.encode_parts([part.translate(table) if isinstance(part, str) else part for part in parts])


def translated(
    tokenizer: Tokenizer, engine: Careless, line: str, languages: tuple[str, str] = ("en", "de"), **options: object
) -> str:
    own = TranslationOptions(guard=True, languages=languages, **options)
    return Translator(tokenizer, engine, own, 100).translate([line])[0].text


@pytest.mark.parametrize(
    ("line", "languages", "expected"),
    [
        ("“The house”, ‘small’", ("en", "de"), "„The house“, ‚small‘"),
        ("\"The house\", 'small'", ("en", "de"), "\"The house\", 'small'"),
        ("„The house“, »small«", ("de", "en"), '"The house", "small"'),
        ("„the ‚house‘“ it’s", ("de", "en"), "\"the 'house'\" it's"),
        ("“the house” it’s", ("en", "de"), "„the house“ it’s"),
        ("“the house”", ("en", "da"), "»the house«"),
        ("“the house”", ("en", "xx"), '"the house"'),  # marks that are not known stay the model's
        ("“The house is small.", ("en", "de"), "„The house is small."),  # goes on in the next sentence
        ("It was late.”", ("en", "de"), "It was late.“"),
    ],
)
def test_marks_are_of_the_sources_kind(
    line: str, languages: tuple[str, str], expected: str, tokenizer: Tokenizer
) -> None:
    engine = Forgetful(tokenizer)
    assert translated(tokenizer, engine, line, languages) == expected
    assert not set(engine.shown[0]) & set("“”„‘’‚»«")  # a model is shown the marks that it has met most


class Says(Forgetful):
    """Says the same, whatever it is shown."""

    def __init__(self, tokenizer: Tokenizer, said: str) -> None:
        super().__init__(tokenizer)
        self.said = tokenizer.encode(said)

    def careless(self, ids: Sequence[int]) -> list[int]:
        super().careless(ids)
        return self.said


@pytest.mark.parametrize(
    ("line", "said", "expected"),
    [
        ("„it was late“", "‘it was late’", '"it was late"'),  # as in Europarl's English
        ("it was late", "it’s the houses’ garden", "it's the houses' garden"),
        ("‚it‘ was late", "“it” was late", "'it' was late"),
        ("„it“ was late", "“it” was “late”", '"it" was "late"'),
        ("„it“ ‚was‘ late", "“it” was ‘late’ „the“", "“it” was ‘late’ „the“"),  # which is which is not known
        ("it was late", "“it” was late", "“it” was late"),
    ],
)
def test_a_model_that_writes_other_marks_is_corrected(
    line: str, said: str, expected: str, tokenizer: Tokenizer
) -> None:
    assert translated(tokenizer, Says(tokenizer, said), line, ("de", "en")) == expected


@pytest.mark.parametrize(
    ("line", "said", "languages", "expected"),
    [
        ("“It was late”, he said.", "“it was late”, he said", ("en", "fr"), "«\u00a0it was late\u00a0», he said"),
        ("“It was late”", "« it was late »", ("en", "fr"), "«\u00a0it was late\u00a0»"),
        ('"It was late"', "«it was late»", ("en", "fr"), "«\u00a0it was late\u00a0»"),
        ('"It was late"', '"it was late"', ("en", "fr"), '"it was late"'),  # the model's choice
        ("« It was late », he said", "« it was late », he said", ("fr", "en"), '"it was late", he said'),
        ("«\u202fIt was late\u202f»", '" it was late "', ("fr", "en"), '"it was late"'),
        ("« It was late.", "“it was late.", ("fr", "en"), '"it was late.'),
    ],
)
def test_french_has_blanks_inside_its_marks(
    line: str, said: str, languages: tuple[str, str], expected: str, tokenizer: Tokenizer
) -> None:
    assert translated(tokenizer, Says(tokenizer, said), line, languages) == expected


def test_a_model_of_french_is_shown_its_own_marks(tokenizer: Tokenizer) -> None:
    engine = Forgetful(tokenizer)
    translated(tokenizer, engine, "« The house » is small", ("fr", "en"))
    assert engine.shown[0] == "« The house » is small"


@pytest.mark.parametrize(
    ("line", "said", "words"),
    [
        ("“the house” it", "“the house” it", ["«", "the", "house", "»", "it"]),
        (
            "“the ‘house’” it",
            "«the “house”» it",
            ["«", "the", "“", "house", "”\u00a0»", "it"],
        ),  # both marks were one word
        ("“‘it’ was”, late", "«“it” was», late", ["«\u00a0“", "it", "”", "was", "»,", "late"]),
    ],
)
def test_words_of_french_are_those_of_the_text(line: str, said: str, words: list[str], tokenizer: Tokenizer) -> None:
    options = TranslationOptions(guard=True, languages=("en", "fr"), words=True)
    [result] = Translator(tokenizer, Says(tokenizer, said), options, 100).translate([line])
    [best] = result.translations
    assert [word.text for word in best.words] == words
    assert [number for number, _ in find_words(words, best.text)] == [*range(len(words))]


def test_marks_that_are_lost_are_kept_as_reserved_pieces(tokenizer: Tokenizer) -> None:
    engine = Forgetful(tokenizer, forgets="\"'")
    assert translated(tokenizer, engine, "“We”, he said, “went ‘home’.”") == "„We“, he said, „went ‚home‘.“"
    assert engine.shown[1] == "#We#, he said, #went #home#.#"
    engine = Forgetful(tokenizer, forgets="\"'")
    assert translated(tokenizer, engine, "We went home.") == "We went home." and len(engine.shown) == 1


def test_half_of_a_quotation_does_not_stand_for_a_whole_one(tokenizer: Tokenizer) -> None:
    class Ending(Forgetful):
        def careless(self, ids: Sequence[int]) -> list[int]:
            said = super().careless(ids)
            is_plain = "#" not in self.shown[-1]
            return self.tokenizer.encode('"the house is small.') if is_plain else said

    engine = Ending(tokenizer)
    assert translated(tokenizer, engine, '"the house" is small.') == "„the house“ is small.".replace("„", '"').replace(
        "“", '"'
    )
    assert len(engine.shown) == 2


@pytest.mark.parametrize("line", ["“We” went 1234 home.", " ".join(f"{{a{n}}}" for n in range(NUM_SPANS)) + " “We”"])
def test_a_repair_must_keep_the_numbers_and_have_room(line: str, tokenizer: Tokenizer) -> None:
    class Numberless(Forgetful):
        def careless(self, ids: Sequence[int]) -> list[int]:
            said = super().careless(ids)
            text = "".join(part for part in self.tokenizer.decode_parts(said) if isinstance(part, str))
            return self.tokenizer.encode(text.replace("1234", "")) if "#" in self.shown[-1] and "1234" in text else said

    said = translated(tokenizer, Numberless(tokenizer, forgets='"'), line)
    assert said == line.replace("“", "").replace("”", "")


def test_what_a_person_asked_for_keeps_its_marks(tokenizer: Tokenizer) -> None:
    line, said = "The “house” is ‘small’.", "The “house” is ‘small’."
    glossary = Glossary.of({"house": "“house”"})
    assert translated(tokenizer, Says(tokenizer, said), line, glossary=glossary) == "The “house” is ‘small’."
    assert translated(tokenizer, Forgetful(tokenizer), line, keep=("“house”",)) == "The “house” is ‚small‘."
    options = TranslationOptions(guard=True, languages=("en", "de"))
    translator = Translator(tokenizer, Says(tokenizer, said), options, 100)
    [result] = translator.translate([line], constraints=[TextConstraints(prefix="The “hou")])
    assert result.text.startswith("The “hou")


def test_without_a_guard_marks_are_the_models(tokenizer: Tokenizer) -> None:
    engine = Forgetful(tokenizer)
    options = TranslationOptions(languages=("en", "de"))
    assert Translator(tokenizer, engine, options, 100).translate(["“the house” it’s"])[0].text == "“the house” it’s"
    assert engine.shown == ["“the house” it’s"]


def test_words_and_alignment_are_those_of_the_texts(tokenizer: Tokenizer) -> None:
    options = TranslationOptions(guard=True, languages=("en", "de"), words=True, alignment=True)
    [result] = Translator(tokenizer, Forgetful(tokenizer), options, 100).translate(["“the house” it’s"])
    assert "".join(result.source_words) == "“thehouse”it’s"
    assert "".join(word.text for word in result.translations[0].words) == "„thehouse“it’s"


def test_candidates_that_differ_in_their_marks_alone_are_one(tokenizer: Tokenizer) -> None:
    class Two(Forgetful):
        def translate(self, ids, options: SearchOptions, on_finished=None, constraints=()) -> list[list[Hypothesis]]:
            ways = ['"the house"', "„the house“"]
            return [[Hypothesis(tuple(self.tokenizer.encode(way)), -1.0, -1.0) for way in ways] for _ in ids]

    options = TranslationOptions(SearchOptions(nbest=2), guard=True, languages=("en", "de"))
    [result] = Translator(tokenizer, Two(tokenizer), options, 100).translate(["“the house”"])
    assert [one.text for one in result.translations] == ["„the house“"]


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("de-en", "»Wir müssen jetzt gehen«, sagte sie.", '"We have to leave now," she said.'),
        ("de-en", "Er nannte es eine »Katastrophe«.", 'He called it a "disaster".'),
        ("en-de", "“Yes,” he said, “I know.”", "„Ja“, sagte er: „Ich weiß.“"),
        ("en-de", '"We have to go now," she said.', '"Wir müssen jetzt gehen", sagte sie.'),
    ],
)
def test_the_built_in_models_quote(name: str, line: str, expected: str) -> None:
    assert regard.load(name, device="cpu").translate(line) == expected


def test_a_kept_prefix_may_be_longer_than_the_translation() -> None:
    assert find_quotations('He said "yes".', [(0, 3), (10, 40)]) == find_quotations(
        'He said "yes".', [(0, 3), (10, 14)]
    )
    assert len(find_quotations('He said "yes".', [(14, 40)])) == 1
