"""Text before and after the engine: nothing is lost, nothing is truncated, lines stay lines."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.tokenizer import Tokenizer
from regard.generate.options import Hypothesis, OnFinished, SearchOptions
from regard.translation.reading import Segment, count_lines, cut_line, one_line
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator


class Echo:
    """An engine that translates every sentence into itself, and remembers what it was asked."""

    takes_phrases = True

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def translate(
        self, ids: Sequence[Sequence[int]], options: SearchOptions, on_finished: OnFinished | None = None
    ) -> list[list[Hypothesis]]:
        self.asked += [list(sentence) for sentence in ids]
        if on_finished is not None:
            for number in sorted(range(len(ids)), key=lambda number: len(ids[number])):
                on_finished([number])
        return [[Hypothesis(tuple(sentence), -1.0, -1.0)] for sentence in ids]

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[0.0] for _ in src]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    lines = ["The house is small, but the garden is large.", "We went home; it was late. Nobody spoke!"] * 20
    return Tokenizer.train(lines, 400, tmp_path_factory.mktemp("tokenizer"))


def translator(tokenizer: Tokenizer, max_length: int = 10) -> tuple[Translator, Echo]:
    engine = Echo()
    return Translator(tokenizer, engine, TranslationOptions(), max_length), engine


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(), max_size=6))
def test_a_line_in_is_a_line_out_whatever_it_holds(tokenizer: Tokenizer, lines: list[str]) -> None:
    lines = [line.replace("\r", " ").replace("\n", " ") for line in lines]
    one, _ = translator(tokenizer)
    results = one.translate(lines)
    assert [result.source for result in results] == lines
    for line, result in zip(lines, results, strict=True):
        assert "\n" not in result.text
        # The echo gives every character back, in order; only white space may have been joined anew.
        assert "".join(result.text.split()) == "".join(line.encode("utf-8", "replace").decode().split())


def test_an_over_long_line_is_cut_in_parts_that_the_model_can_read(tokenizer: Tokenizer) -> None:
    line = "The house is small, but the garden is large. We went home; it was late. " * 4
    one, engine = translator(tokenizer)
    [result] = one.translate([line])
    assert all(len(ids) <= 10 for ids in engine.asked)
    assert len(engine.asked) > 1
    assert result.text == line.strip()


def test_a_line_is_cut_after_a_sentence_before_it_is_cut_inside_one(tokenizer: Tokenizer) -> None:
    length = len(tokenizer.encode("We went home; it was late."))
    parts = cut_line("The house is small. We went home; it was late.", tokenizer, length)
    assert [part.text for part in parts] == ["The house is small.", "We went home; it was late."]
    parts = cut_line("We went home; it was late.", tokenizer, length - 1)
    assert [part.text for part in parts] == ["We went home;", "it was late."]


def test_a_word_longer_than_the_model_can_read_is_cut_too(tokenizer: Tokenizer) -> None:
    word = "x" * 500
    one, engine = translator(tokenizer)
    assert one.translate([word])[0].text == word
    assert all(len(ids) <= 10 for ids in engine.asked)


def test_empty_lines_stay_empty_and_never_reach_the_engine(tokenizer: Tokenizer) -> None:
    one, engine = translator(tokenizer)
    results = one.translate(["", "   ", "The house", "\t"])
    assert [result.text for result in results] == ["", "", "The house", ""]
    assert len(engine.asked) == 1


def test_progress_only_rises_and_ends_at_the_number_of_lines(tokenizer: Tokenizer) -> None:
    long = "The house is small, but the garden is large. We went home; it was late."
    counted: list[int] = []
    one, engine = translator(tokenizer)
    one.translate(["", long, "home", long, " "], counted.append)
    assert len(engine.asked) > 6  # more than there are lines
    assert all(count > 0 for count in counted) and sum(counted) == 5
    assert counted[0] == 2  # empty lines need not be waited for


@given(st.data(), st.lists(st.integers(0, 7), max_size=12))
def test_parts_that_are_finished_in_any_order_count_as_shares_of_their_lines(
    data: st.DataObject, sizes: list[int]
) -> None:
    told: list[int] = []
    on_finished = count_lines([[Segment("text", "")] * size for size in sizes], told.append)
    line_of = [line for line, size in enumerate(sizes) for _ in range(size)]
    left = list(sizes)  # parts of each line
    order = data.draw(st.permutations(range(len(line_of))))
    while True:
        begun = [1 - parts / size for parts, size in zip(left, sizes, strict=True) if 0 < parts < size]
        assert left.count(0) <= sum(told) <= left.count(0) + sum(begun) + 1e-9
        assert all(count > 0 for count in told)
        if not order:
            break
        size = data.draw(st.integers(1, len(order)))
        batch, order = order[:size], order[size:]
        on_finished(batch)
        for number in batch:
            left[line_of[number]] -= 1
    assert sum(told) == len(sizes)


def test_a_file_of_long_lines_shows_how_far_it_is_before_a_line_is_whole() -> None:
    told: list[int] = []
    on_finished = count_lines([[Segment("text", "")] * 4] * 10, told.append)
    on_finished([0, 4, 8, 12, 16, 20, 24, 28])  # the first quarter of eight lines
    assert sum(told) == 2


def test_a_stream_holds_no_more_than_a_chunk(tokenizer: Tokenizer) -> None:
    taken = 0

    def lines() -> object:
        nonlocal taken
        for number in range(10):
            taken = number + 1
            yield f"house {number}"

    one, _ = translator(tokenizer)
    results = one.stream(lines(), 4)
    assert next(results).text == "house 0"
    assert taken == 4
    assert [result.text for result in results] == [f"house {number}" for number in range(1, 10)]


def test_line_breaks_that_a_model_makes_do_not_become_lines() -> None:
    assert one_line("a\nb\r\nc") == "a b c"


def test_line_breaks_inside_a_text_are_spaces_to_the_model(tokenizer: Tokenizer) -> None:
    one, engine = translator(tokenizer, 100)
    assert one.translate(["We went home.\r\n\nIt was late.\n"])[0].text == "We went home. It was late."
    assert tokenizer.decode(engine.asked[0]) == "We went home. It was late."


# --- protected spans ---


class Forgetful(Echo):
    """Drops the reserved pieces, as a model does that has not learnt them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.spans = set(tokenizer.span_ids)

    def translate(
        self, ids: Sequence[Sequence[int]], options: SearchOptions, on_finished: OnFinished | None = None
    ) -> list[list[Hypothesis]]:
        found = super().translate(ids, options, on_finished)
        return [[Hypothesis(tuple(i for i in way[0].ids if i not in self.spans), -1.0, -1.0)] for way in found]


def protecting(tokenizer: Tokenizer) -> Tokenizer:
    return Tokenizer(tokenizer.models, protects=True)


def test_spans_go_around_the_model(tokenizer: Tokenizer) -> None:
    careful = protecting(tokenizer)
    one, engine = translator(careful, 100)
    line = "  See https://example.org/x?y, {name}, at home.  "
    assert one.translate([line])[0].text == line.strip()
    (asked,) = engine.asked
    assert [i for i in asked if i in careful.span_ids] == list(careful.span_ids[:2])
    assert careful.decode(asked) == "See , , at home."
    plain, engine = translator(tokenizer, 100)
    assert plain.translate([line])[0].text == line.strip()
    assert tokenizer.decode(engine.asked[0]) == line.strip()


def test_a_span_that_the_model_loses_is_kept_all_the_same(tokenizer: Tokenizer) -> None:
    careful = protecting(tokenizer)
    engine = Forgetful(careful)
    counts: list[int] = []
    lines = ["See https://a.de at home: {name}!", "The house.", "{0}", "😀😀 home {a}{b} late"]
    results = Translator(careful, engine, TranslationOptions(), 100).translate(lines, counts.append)
    assert [result.text for result in results] == lines
    assert sum(counts) == len(lines)  # what is translated once more is not counted twice
    asked = [careful.decode(ids) for ids in engine.asked]
    assert asked[4:] == ["See", "at home:", "home", "late"]


def test_a_long_line_is_not_cut_inside_a_span(tokenizer: Tokenizer) -> None:
    careful = protecting(tokenizer)
    tag = '<a href="http://x.de/page" title="one, two and three, four; five">'
    line = f"We went home {tag} and the garden</a> was large"
    for length in (8, 12, 20, 30):
        parts = cut_line(line, careful, length)
        assert "".join(part.text + part.after for part in parts) == line
        assert any(tag in part.text for part in parts), parts
    engine = Echo()
    assert Translator(careful, engine, TranslationOptions(), 12).translate([line])[0].text == line
    assert all(len(ids) <= 12 for ids in engine.asked)
    alone = "{" + "a" * 39 + "}"
    assert cut_line(alone, careful, 5)  # ends, though the span is all there is


# --- the guard ---


class Runaway(Echo):
    """Says the last word again and again where it meets "garden"; its second thought is better."""

    def __init__(self, tokenizer: Tokenizer, words: int) -> None:
        super().__init__()
        self.garden, self.words = set(tokenizer.encode("garden")), words

    def translate(
        self, ids: Sequence[Sequence[int]], options: SearchOptions, on_finished: OnFinished | None = None
    ) -> list[list[Hypothesis]]:
        results = []
        for (way,) in super().translate(ids, options, on_finished):
            hypotheses = [way]
            if self.garden & set(way.ids):
                hypotheses = [Hypothesis((*way.ids, *way.ids[-1:] * self.words), -1.0, -1.0)]
                hypotheses += [Hypothesis(way.ids[:1], -2.0, -2.0)] * (options.nbest - 1)
            results.append(hypotheses)
        return results


def test_a_translation_that_runs_away_is_not_shown(tokenizer: Tokenizer) -> None:
    lines = ["The house is large", "The garden is large"]

    def texts(guard: bool, nbest: int = 1) -> list[str]:
        options = TranslationOptions(SearchOptions(nbest=nbest), guard=guard)
        return [result.text for result in Translator(tokenizer, Runaway(tokenizer, 60), options, 100).translate(lines)]

    loose = texts(guard=False)
    assert loose[0] == lines[0] and len(loose[1]) > 5 * len(lines[1])
    assert texts(guard=True) == lines  # it stays as it is
    assert texts(guard=True, nbest=2)[1] not in (lines[1], loose[1], "")  # there was a better one
