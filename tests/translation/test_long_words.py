"""Words too long to translate are copied; what is around them is translated."""

from __future__ import annotations

from regard.translation.constraints import TextConstraints
from regard.translation.markup.marked_text import MarkedText
from regard.translation.reading import Segment, count_lines
from regard.translation.sentences import split_text
from tests.translation.test_growth import translator

KEY = 200_000 * "x"


def test_a_long_word_costs_no_search_and_comes_out_as_it_went_in() -> None:
    side = translator(False).text_side
    for line in (KEY, f"  {KEY}\t"):
        segmented = side.segment([line])
        assert segmented.texts == []
        assert translator(False).translate([line])[0].text == KEY


def test_what_is_around_long_words_is_translated() -> None:
    line = f"{KEY} see the key {KEY}, or {KEY} "
    [segments] = translator(False).text_side.reader.cut([line])
    assert segments == [
        Segment("see the key", f" {KEY}, ", f"{KEY} "),
        Segment("or", f" {KEY}"),
    ]
    assert translator(False).translate([line])[0].text == line.strip()
    assert list(translator(False).follow(line, TextConstraints()))[-1] == line.strip()
    assert list(translator(False).follow(KEY, TextConstraints())) == [KEY]


def test_scripts_without_spaces_have_no_long_words() -> None:
    line = 3_000 * "家"
    assert "".join(translator(False).text_side.segment([line]).texts) == line


def test_long_words_are_no_sentences() -> None:
    text = f"One. {KEY} Two.\n{KEY}"
    split = split_text(text, "en")
    assert split.sentences == ["One.", "Two."] and split.join(split.sentences) == text


def test_a_tag_may_have_any_number_of_attributes() -> None:
    attributes = 10_000 * ' x=1 y="2"'
    page = f"<p {attributes}>Hello, <b>you</b>.</p>"
    marked = MarkedText(page, "en")
    assert marked.sentences[0] == "Hello, you."
    assert marked.join(marked.sentences) == page


def test_the_parts_of_a_line_are_counted() -> None:
    told: list[int] = []
    on_finished = count_lines([[Segment("a", "")] * 3, []], told.append, steps=100)
    for number in range(3):
        on_finished([number])
    assert told == [100, 33, 33, 34]  # the empty line first
