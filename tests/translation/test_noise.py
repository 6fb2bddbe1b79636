"""Claims about noise: what each kind changes, what it never touches, and that a number and a seed decide everything."""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.corpus import Pair
from regard.translation.noise import (
    _NEIGHBOURS,
    KINDS,
    NoiseAccount,
    bare,
    copy,
    fixed_spans,
    join,
    lower,
    make_kinds,
    noise,
    quoted,
    spacing,
    title,
    typos,
    unpunctuated,
    upper,
)

URL = "https://Example.org/a?B=Cdef"
KEPT = [
    URL, "www.Example.com/Seite", "Ann.Weber@Example.org", "example.com", "notes.txt", "{Name}", "{{ Name }}", "%s",
    "%(Name)s", "${Home}", "<br/>", "&nbsp;", "@Somebody", "#Something", "some_Name", "\\n",
]  # fmt: skip
SEEDS = st.integers(0, 1_000)
# Text of every sort; line feeds end lines and are in none of them.
TEXTS = st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]), max_size=60)
WORDS = st.lists(
    st.sampled_from(["Schöne", "neue", "Welt,", "das", "ist", "ein", "Привет", "κόσμε", "house", "3.50", "12a", "世界", *KEPT]),
    min_size=1,
    max_size=12,
).map(" ".join)  # fmt: skip
LINES = TEXTS | WORDS


def outcomes(kind, pair: Pair, count: int = 200) -> list[Pair | None]:
    return [kind(pair, Random(seed)) for seed in range(count)]


# --- capitals ---


@pytest.mark.parametrize(
    ("text", "lowered"),
    [
        ("Ann lives in Bonn", "ann lives in bonn"),
        ("ÄRGER in ΑΘΗΝΑ, МОСКВА", "ärger in αθηνα, москва"),
        ("ΟΔΟΣ", "οδος"),  # the sigma at the end of a word has a form of its own
        (f"See {URL} Now", f"see {URL} now"),
        ("Dear {Name}: %(Count)d Files", "dear {Name}: %(Count)d files"),
        ("all is low", None),
        ("世界 123", None),
        ("{Name}", None),
    ],
)
def test_lower_takes_the_capitals_of_the_source(text: str, lowered: str | None) -> None:
    assert lower((text, "Das Ziel"), Random(1)) == (None if lowered is None else (lowered, "Das Ziel"))


@pytest.mark.parametrize(
    ("pair", "raised"),
    [
        (("the street", "die Straße"), ("THE STREET", "DIE STRASSE")),
        (("street", "STRAẞE"), ("STREET", "STRAẞE")),
        ((f"see {URL}!", f"siehe {URL}!"), (f"SEE {URL}!", f"SIEHE {URL}!")),
        (("<b>hi</b> {name}", "<b>hallo</b> {name}"), ("<b>HI</b> {name}", "<b>HALLO</b> {name}")),
        (("ask @ann_w", "frag ann@x.de"), ("ASK @ann_w", "FRAG ann@x.de")),
        (("hello", "世界"), ("HELLO", "世界")),
        (("USA", "Vereinigte Staaten"), None),  # one who writes USA does not shout
        (("世界", "world"), None),
        (("{name}", "{name} bitte"), None),
    ],
)
def test_upper_raises_both_sides(pair: Pair, raised: Pair | None) -> None:
    assert upper(pair, Random(1)) == raised


def test_turkish_has_two_letters_i() -> None:
    pair = ("Isparta ile İzmir", "Isparta and Izmir")
    assert lower(pair, Random(1), "tr") == ("ısparta ile izmir", pair[1])
    assert upper(pair, Random(1), ("tr-TR", "en")) == ("ISPARTA İLE İZMİR", "ISPARTA AND IZMIR")
    kinds = make_kinds(("upper",), "en", "az")
    assert kinds["upper"]([("ink", "Bir")], Random(1)) == ("INK", "BİR")


# --- punctuation and spaces ---


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        (("Come in.", "Herein!"), ("Come in", "Herein")),
        (("Really?!", "Wirklich ?"), ("Really", "Wirklich")),
        (("Well... ", "Nun…"), ("Well", "Nun")),
        (("¿Vienes? ¿O no?", "Are you coming? Or not?"), ("¿Vienes? O no", "Are you coming? Or not")),
        (("¡Ven!", "来吧！"), ("Ven", "来吧")),
        (("मैं आया।", "I came."), ("मैं आया", "I came")),
        (("In the U.S.", "In den USA."), None),
        (("See example.com.", "Siehe dort."), None),
        (('"Go."', "Geh."), None),
        (("Go", "Geh."), None),
        (("Go.", "Geh"), None),
        (("?", "!"), None),
        (("¿?", "Eh?"), None),
        (("Go ", "Geh "), None),
    ],
)
def test_unpunctuated_takes_the_end_off_both_sides(pair: Pair, expected: Pair | None) -> None:
    assert unpunctuated(pair, Random(1)) == expected


def test_spacing_doubles_or_drops_spaces_in_the_source_or_makes_an_item_of_both_sides() -> None:
    pair = ("Well, go: {{ a, b }} 1, 2", "Nun, geh: {{ a, b }} 1, 2")
    made = [found for found in outcomes(spacing, pair) if found is not None]
    assert len(made) == 200
    sources = {src for src, tgt in made if tgt == pair[1]}
    closed = {"Well,go: {{ a, b }} 1, 2"}
    assert closed < sources
    for src in sources - closed:
        assert re.sub(" +", " ", src) == pair[0]
        assert "{{ a, b }}" in src
        assert 1 <= len(src) - len(pair[0]) <= 3
    marks = {src.removesuffix(pair[0]) for src, tgt in made if tgt != pair[1]}
    assert {"- ", "• ", "* ", "– "} < marks
    assert all(re.fullmatch(r"[-–•*] |([1-9]|1\d|20)[.)] ", mark) for mark in marks)
    assert all(src.removesuffix(pair[0]) == tgt.removesuffix(pair[1]) for src, tgt in made if tgt != pair[1])


@pytest.mark.parametrize("item", ["- one", "• one", "1. one", "2) one", "— one"])
def test_an_item_of_a_list_becomes_no_item_of_another(item: str) -> None:
    for src, tgt in filter(None, outcomes(spacing, (item, "eins"))):
        assert (" ".join(src.split()), tgt) == (item, "eins")
    assert outcomes(spacing, ("-\u2003one", "eins"), 20) == [None] * 20


# --- typing errors ---


def test_every_sort_of_typing_error_happens() -> None:
    made = {found[0] for found in outcomes(typos, ("house", "Haus")) if found is not None}
    assert {"huose", "hosue", "houes"} < made  # swapped
    assert {"huse", "hose", "houe", "hous"} < made  # dropped
    assert {"hoouse", "houuse", "housse", "housee"} < made  # doubled
    assert {"hpuse", "hoyse", "houae", "housw"} < made  # the key beside
    assert all(word[0] == "h" and 4 <= len(word) <= 6 for word in made)
    assert {found[0][1] for found in outcomes(typos, ("HOUSE", "Haus")) if found} <= set("OPIKLUHS")


@pytest.mark.parametrize(
    "text", ["a the ask", "123 4567", "abcd1 x-12-word", URL, "世界世界世界", "שלום1", "{Name}", "cafe\u0301s", "abc²"]
)
def test_where_there_is_no_word_there_is_no_typing_error(text: str) -> None:
    assert outcomes(typos, (text, "Ziel"), 20) == [None] * 20


@pytest.mark.parametrize("text", ["schöne", "Привет", "κόσμε", "שלום", "Việtđường", "ÉCOLE"])
def test_words_of_every_alphabet_are_mistyped(text: str) -> None:
    for made in outcomes(typos, (text, "Ziel"), 50):
        assert made is not None
        assert made[0] != text
        assert made[1] == "Ziel"
        assert made[0].isupper() == text.isupper()


def test_longer_sentences_get_up_to_three_errors_each_in_a_word_of_its_own() -> None:
    words = "these words have many letters which people might mistype every time".split()
    counts: Counter[int] = Counter()
    for made in filter(None, outcomes(typos, (" ".join(words), "Ziel"))):
        counts[sum(new != old for new, old in zip(made[0].split(), words, strict=True))] += 1
    assert set(counts) == {1, 2, 3}
    for made in filter(None, outcomes(typos, ("only house", "Ziel"))):
        assert sum(new != old for new, old in zip(made[0].split(), ["only", "house"], strict=True)) == 1


def test_neighbours_are_near_on_the_keyboard() -> None:
    assert set(_NEIGHBOURS["s"]) == set("adwezx")
    assert set(_NEIGHBOURS["q"]) == set("wa")
    assert set(_NEIGHBOURS["ф"]) == set("йцыя")
    assert all(key in _NEIGHBOURS[other] for key, others in _NEIGHBOURS.items() for other in others)


# --- whole sides ---


def test_join_takes_two_to_four_neighbours() -> None:
    pairs = [(f" Line {number}.", f"Zeile {number}. ") for number in range(4)]
    made = {join(pairs, Random(seed)) for seed in range(50)}
    assert made == {
        tuple(" ".join(f"{word} {number}." for number in range(count)) for word in ("Line", "Zeile"))
        for count in (2, 3, 4)
    }
    assert join(pairs[:1], Random(1)) is None
    assert join([pairs[0], ("x", " "), pairs[1]], Random(1)) is None
    assert {join([*pairs[:2], ("", "x"), pairs[3]], Random(seed)) for seed in range(50)} == {
        ("Line 0. Line 1.", "Zeile 0. Zeile 1.")
    }


def test_join_makes_no_line_that_training_would_drop() -> None:
    long = ("word " * 50, "Wort " * 50)
    assert {len(made[0]) for made in (join([long] * 4, Random(seed)) for seed in range(50)) if made} == {499}
    assert join([("a" * 400, "b"), ("a" * 400, "b")], Random(1)) is None


def test_copy_has_the_target_on_both_sides() -> None:
    assert copy(("one", "eins"), Random(1)) == ("eins", "eins")
    assert copy(("Tom", "Tom"), Random(1)) is None


# --- what is never touched ---


@pytest.mark.parametrize("text", KEPT)
def test_addresses_and_placeholders_are_seen(text: str) -> None:
    covered = {place for begin, end in fixed_spans(f"see {text} now") for place in range(begin, end)}
    assert covered == set(range(4, 4 + len(text)))


@given(WORDS, st.sampled_from(KEPT), WORDS, SEEDS)
def test_what_is_kept_is_kept_by_every_kind(before: str, kept: str, after: str, seed: int) -> None:
    src = f"{before} {kept} {after}"
    for kind in (lower, upper, typos, spacing):
        made = kind((src, src), Random(seed))
        assert made is None or all(side.count(kept) >= src.count(kept) for side in made)


@given(LINES, SEEDS)
def test_typing_errors_leave_numbers_and_addresses_alone(src: str, seed: int) -> None:
    made = typos((src, "Ziel"), Random(seed))
    if made is None:
        return
    assert [word for word in made[0].split() if re.search(r"\d", word)] == [
        word for word in src.split() if re.search(r"\d", word)
    ]
    assert [made[0].count(part) for part in (URL, "Ann.Weber@Example.org")] == [
        src.count(part) for part in (URL, "Ann.Weber@Example.org")
    ]
    assert len(made[0].split()) == len(src.split())
    assert abs(len(made[0]) - len(src)) <= 3


def test_a_headline_has_a_capital_for_every_word() -> None:
    assert title(("no news", "nichts Neues"), Random(1)) == ("No News", "nichts Neues")
    assert title(("ilk iş", "x"), Random(1), "tr") == ("İlk İş", "x")
    assert title(("No News", "x"), Random(1)) is None
    assert title(("word", "Wort"), Random(1)) is None


@given(LINES, LINES, SEEDS)
def test_the_target_stays_where_that_is_promised_and_something_changes(src: str, tgt: str, seed: int) -> None:
    pair = (src, tgt)
    for kind in (lower, title, typos):
        made = kind(pair, Random(seed))
        assert made is None or (made[1] == tgt and made[0] != src)
    for kind in (upper, unpunctuated, bare, quoted, copy, spacing):
        assert kind(pair, Random(seed)) != pair


def test_bare_keeps_numbers_and_addresses_and_drops_the_rest() -> None:
    pair = ("Pay 3.50 euros, please (or 1,200 to Ann@Example.org)!", "Zahlen Sie bitte 3,50 Euro!")
    made = {bare(pair, Random(seed)) for seed in range(50)}
    assert ("pay 3.50 euros please or 1,200 to Ann@Example.org", "Zahlen Sie bitte 3,50 Euro") in made
    assert len(made) == 2  # with and without capitals
    assert bare(("Stop!", "Halt!"), Random(1)) is None
    assert bare(("nothing to drop", "Nichts!"), Random(1)) is None


def test_quoted_has_the_marks_of_each_language_and_adds_none_to_others() -> None:
    made = {quoted(("Komm rein.", "Come in."), Random(seed), ("de", "en")) for seed in range(50)}
    assert made == {(src, '"Come in."') for src in ("„Komm rein.“", '"Komm rein."', "»Komm rein.«")}
    assert quoted(("x", "y"), Random(1), ("en", "fr")) is not None
    assert quoted(('Say "x"', "Sag „x“"), Random(1), ("en", "de")) is None


@given(st.lists(st.tuples(LINES, LINES), min_size=1, max_size=4), st.integers(1, 10**9), SEEDS)
def test_number_and_seed_decide_and_a_side_is_never_empty(pairs: list[Pair], number: int, seed: int) -> None:
    kinds = make_kinds(KINDS, "en", "de")
    made = noise(pairs, number, seed, kinds)
    assert made == noise(list(pairs), number, seed, make_kinds(KINDS[::-1], "en", "de"))
    if made is None:
        return
    kind, (src, tgt) = made
    assert kind in KINDS
    assert (src, tgt) != pairs[0]
    assert src.strip()
    assert tgt.strip()
    assert "\n" not in src + tgt


# --- drawing ---


def test_all_kinds_are_drawn_alike_and_one_that_changes_nothing_gives_way() -> None:
    kinds = make_kinds(KINDS, "en", "de")
    pairs = [("Where is the house?", "Wo ist das Haus?"), ("Here.", "Hier.")]

    def drawn(*given: Pair) -> Counter:
        return Counter((noise(given, number, 1, kinds) or ("none",))[0] for number in range(10_000))

    assert set(drawn(*pairs)) == set(KINDS)
    assert all(850 < count < 1_150 for count in drawn(*pairs).values())
    alone = drawn(("where is the house", "Wo ist das Haus"))
    assert set(alone) == {"upper", "title", "typos", "quoted", "copy", "spacing"}
    assert all(1_400 < count < 1_800 for count in alone.values())  # and not one of them for the missing four
    assert drawn(("", "x"), pairs[0]) == {"none": 10_000}
    assert noise([("Long " * 2_001, "x")], 1, 1, kinds) is None
    assert noise([("Long " * 2_000, "x")], 1, 1, kinds) is not None
    assert noise([("5", "5")], 1, 1, make_kinds(("lower", "typos"), "en", "de")) is None


def test_noise_is_the_same_in_years_to_come() -> None:
    """A resumed run may be finished by a later Python or Regard; this breaks when the draws change."""
    kinds = make_kinds(("lower", "upper", "unpunctuated", "typos", "join", "copy", "spacing"), "en", "de")
    pairs = [("Where is the old house, Ann?", "Wo ist das alte Haus, Ann?"), ("Here.", "Hier.")]
    assert [noise(pairs, number, 7, kinds) for number in (1, 5, 7, 9, 19, 26)] == [
        ("spacing", ("Where  is  the old house,  Ann?", "Wo ist das alte Haus, Ann?")),
        ("unpunctuated", ("Where is the old house, Ann", "Wo ist das alte Haus, Ann")),
        ("typos", ("Where is the old hosue, Ann?", "Wo ist das alte Haus, Ann?")),
        ("join", ("Where is the old house, Ann? Here.", "Wo ist das alte Haus, Ann? Hier.")),
        ("typos", ("Where is the old houes, Ann?", "Wo ist das alte Haus, Ann?")),
        ("typos", ("Where is the old houxe, Ann?", "Wo ist das alte Haus, Ann?")),
    ]


def test_an_account_survives_its_way_through_a_file() -> None:
    account = NoiseAccount({"lower": 0, "join": 0})
    account.keep("join")
    account.skip("x.tsv", 3, "", "a")
    account.skip("x.tsv", 4, "", "b")
    assert NoiseAccount.from_json(account.to_json()) == account
    assert account.lines() == [
        "3 pairs read, 1 noised (33.3%)",
        "  lower: 0, join: 1",
        "  skipped, empty, too long or nothing to change: 2, first x.tsv, line 3: '' / 'a'",
    ]
