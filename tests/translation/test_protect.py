"""Which spans are protected, and that text comes out as it went in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.store import store_in_memory
from regard.data.tokenizer import NUM_SPANS, Tokenizer
from regard.errors import UserError
from regard.translation.protect import encode_pairs, encode_records, find_spans, protect


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = ["see the page for more", "mehr steht auf der Seite", "write to us", "schreiben Sie uns"] * 20
    return Tokenizer.train(lines, 400, tmp_path_factory.mktemp("tokenizer"), protects=True)


SPANS = {
    "See https://example.org/a?b=1#c.": ["https://example.org/a?b=1#c"],
    "(see www.example.org)": ["www.example.org"],
    "https://en.wikipedia.org/wiki/Pi_(letter), they say": ["https://en.wikipedia.org/wiki/Pi_(letter)"],
    "„http://a.de“ und http://b.de!": ["http://a.de", "http://b.de"],
    "Mail max.muster+x@mail.example.org today.": ["max.muster+x@mail.example.org"],
    "%s of %d files, %1$s, %(name)s, %.2f, %1": ["%s", "%d", "%1$s", "%(name)s", "%.2f", "%1"],
    "50 % der Leute, 100%ige, 5%d, 20% discount": [],
    "Hello {name}, {0} and {{ user.name }} in ${HOME} or $PATH": [
        "{name}",
        "{0}",
        "{{ user.name }}",
        "${HOME}",
        "$PATH",
    ],
    "It costs 5 $ {not this one, it has spaces}": [],
    "from $1,299.99, £5m, €50.": ["$1,299.99", "£5m", "€50"],
    "1.299,99 €, 1.250€ und 12,50 €": ["1.299,99 €", "1.250€"],
    "US$5 and $5xyz, 20€": ["US$5"],
    "am 3.10.1990, on 29/02/2024.": ["3.10.1990", "29/02/2024"],
    'from "1990-10-03" to 2024-02-29; 2024-02-29-1, 1990-10 and 12024-02-29': ["1990-10-03", "2024-02-29"],
    "US$3.2bn or HK$1,200, not X$y": ["US$3.2bn", "HK$1,200"],
    "1.2.3.2024, 1/2.2024, 192.168.1.1000, 2011/12": [],
    "<b>bold</b> and <a href='x'>link</a>": ["<b>", "</b>", "<a href='x'>", "</a>"],
    "a < b and c > d, Tom &amp; Jerry &#39;": ["&amp;", "&#39;"],
    "Great 👍🏽 news ☀️!": ["👍🏽", "☀️"],
    "Nothing here, not even at 10:30.": [],
    "Call +49 30 1234567 or +1 (555) 010-9999, not +5 or 2+3.": ["+49 30 1234567", "+1 (555) 010-9999"],
    "DE89 3704 0044 0532 0130 00, GB29NWBK60161331926819": ["DE89 3704 0044 0532 0130 00", "GB29NWBK60161331926819"],
    "FR14 2004 1010 0505 0001 3M02 606.": ["FR14 2004 1010 0505 0001 3M02 606"],
    "Our office (+49 30 1234567) and +49 (0)30 - 123 456 (24 hours)": ["+49 30 1234567", "+49 (0)30 - 123 456"],
    "NO93 8601 1117 947, MT84MALT011000012345MTLCAST001S": ["NO93 8601 1117 947", "MT84MALT011000012345MTLCAST001S"],
    "EU27 NEED 2000 MORE": [],
    "IN EU27 MORE CASH WILL FLOW IN 2027": [],
    "card 4012-8888-8888-1881, order 30044712.": ["4012-8888-8888-1881", "30044712"],
    "12,000,000 people, 12345678.50 euros, 2026-11-15, in 2021 and 2022": ["2026-11-15"],
    "id deadbeef-dead-beef-dead-beefdeadbeef": ["deadbeef-dead-beef-dead-beefdeadbeef"],
}


@pytest.mark.parametrize("text", SPANS)
def test_spans_are_found(text: str) -> None:
    assert [text[begin:end] for begin, end in find_spans(text)] == SPANS[text]


def test_a_very_long_word_takes_no_time() -> None:
    assert find_spans("x" * 300_000 + " {a}") == [(300_001, 300_004)]
    assert find_spans("a." * 100_000 + "@ <") == []
    assert find_spans("123," * 50_000 + "$") == []
    assert find_spans("1234 " * 50_000) == [(249_975, 249_999)]  # the end of it looks like the number of a card
    assert find_spans("+1 " + "AB12" * 50_000 + "x") == []


@given(st.lists(st.sampled_from([*SPANS, " ", "x", "{a}", "%s", "http://a.b", "😀", "é", "\u2581"]), max_size=8))
def test_parts_are_the_text(pieces: list[str]) -> None:
    text = "".join(pieces)
    protected = protect(text)
    if protected is None:
        assert not find_spans(text)
    else:
        assert "".join(p if isinstance(p, str) else protected.spans[p] for p in protected.parts) == text
        assert {p for p in protected.parts if isinstance(p, int)} == set(range(len(protected.spans)))


@given(st.lists(st.sampled_from(["see ", " more", "{a}", "%s ", "http://a.b ", "😀", "é"]), min_size=1, max_size=9))
def test_what_is_protected_comes_back(tokenizer: Tokenizer, pieces: list[str]) -> None:
    protected = protect("".join(pieces))
    if protected is not None:
        assert protected.restore(tokenizer, protected.ids(tokenizer)) == "".join(pieces)


def test_a_lost_or_doubled_or_invented_span_is_noticed(tokenizer: Tokenizer) -> None:
    protected = protect("see {a} and {b}")
    assert protected is not None
    a, b, c = tokenizer.span_ids[:3]
    word = tokenizer.encode("mehr")
    assert protected.restore(tokenizer, [b, *word, a]) == "{b} mehr{a}"
    for ids in ([*word], [a, *word], [a, b, b], [a, b, c], [a, c]):
        assert protected.restore(tokenizer, ids) is None


def test_more_spans_than_there_are_pieces_stay_text() -> None:
    protected = protect(" ".join(f"{{{n}}}" for n in range(NUM_SPANS + 3)) + " {0}")
    assert protected is not None
    assert len(protected.spans) == NUM_SPANS
    assert protected.parts[-1] == 0 and " {33} {34} " in "".join(p for p in protected.parts if isinstance(p, str))


def test_pairs_share_their_spans_under_the_same_numbers(tokenizer: Tokenizer) -> None:
    pairs = [
        ("see {a} and %s", "%s und {a}"),
        ("see {a} twice {a}", "einmal {a}"),  # not as often on both sides
        ("see http://x.de", "mehr unter http://x.de und {neu}"),
        ("see the page", "mehr"),
    ]
    src, tgt = encode_pairs(tokenizer, *zip(*pairs, strict=True))
    spans = [[[i for i in side if i in tokenizer.span_ids] for side in pair] for pair in zip(src, tgt, strict=True)]
    assert len(spans[0][0]) == 2 and spans[0][0] == spans[0][1][::-1]
    assert spans[1] == [[], []] and spans[3] == [[], []]
    assert len(spans[2][0]) == 1 and spans[2][0] == spans[2][1]
    assert tokenizer.decode(tgt[2]) == "mehr unter  und {neu}"
    stored = store_in_memory(pairs, tokenizer, encode_records)
    assert stored["source"].ids.tolist() == [i for ids in src for i in ids]


def test_all_reserved_pieces_are_learnt(tokenizer: Tokenizer) -> None:
    sources = [f"see {{a}} number {n}" for n in range(500)]
    src, _ = encode_pairs(tokenizer, sources, sources)
    counts = Counter(i for ids in src for i in ids if i in tokenizer.span_ids)
    assert len(counts) == NUM_SPANS and max(counts.values()) < 40


def test_a_tokenizer_remembers_that_it_protects(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.protects and again.fingerprint == tokenizer.fingerprint
    plain = Tokenizer(tokenizer.models)
    assert not plain.protects and plain.fingerprint != tokenizer.fingerprint
    assert encode_pairs(plain, ["{a}"], ["{a}"])[0] == [plain.encode("{a}")]
    description = tmp_path / "tokenizer.json"
    description.write_text(description.read_text().replace('"format": 3', '"format": 99'))
    with pytest.raises(UserError, match="update Regard"):
        Tokenizer.load(tmp_path)
