"""Sentences out of a text and back into it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regard.translation.sentences import split_text


def test_sentences_are_found_and_what_is_between_them_stays() -> None:
    split = split_text("Dr. Smith left.  He was late!\n\n  - Why?\r\n***\n", "en")
    assert split.sentences == ["Dr. Smith left.", "He was late!", "- Why?"]
    assert split.join(["A.", "B!", "C?"]) == "A.  B!\n\n  C?\r\n***\n"


def test_sentences_of_a_line_can_stay_together() -> None:
    assert split_text("One. Two.\nThree.", "en", by_sentence=False).sentences == ["One. Two.", "Three."]


def test_what_has_no_letter_or_digit_is_not_translated() -> None:
    assert split_text("... !?\n🙂\n \n--", "en").sentences == []


@given(st.text(), st.sampled_from(["en", "de", "zh", "pt-BR", "src", ""]), st.booleans())
def test_unchanged_sentences_give_the_same_text(text: str, language: str, by_sentence: bool) -> None:
    split = split_text(text, language, by_sentence=by_sentence)
    assert split.join(split.sentences) == text
    assert all(sentence == sentence.strip() and sentence for sentence in split.sentences)
    assert not [sentence for sentence in split.sentences if "\n" in sentence or "\r" in sentence]


def test_lone_surrogates_are_split_like_other_characters() -> None:
    text = "One \ud800. Two \udfff!"
    split = split_text(text, "en")
    assert split.sentences == ["One \ud800.", "Two \udfff!"] and split.join(split.sentences) == text
