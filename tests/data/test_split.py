from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.split import HeldOut, hold_out, sentence_key
from regard.errors import UserError

MANY = [(f"sentence number {i}", f"Satz Nummer {i}") for i in range(1000)]


def test_the_wished_numbers_of_distinct_pairs_are_held_out() -> None:
    held = hold_out(MANY * 3, 40, 30, seed=1)
    assert len(held.valid) == 40 and len(held.test) == 30
    assert len({*held.valid, *held.test}) == 70
    assert held.valid == sorted(held.valid, key=MANY.index)


def test_the_choice_is_reproducible_and_hangs_on_the_seed_but_not_on_the_order_of_lines() -> None:
    shuffled = random.Random(0).sample(MANY, len(MANY))
    first, again = hold_out(MANY, 20, 20, seed=1), hold_out(shuffled, 20, 20, seed=1)
    assert set(first.valid) == set(again.valid) and set(first.test) == set(again.test)
    assert set(hold_out(MANY, 20, 20, seed=2).test).isdisjoint(first.test)


def test_held_out_pairs_are_spread_over_the_corpus() -> None:
    places = [MANY.index(pair) for pair in hold_out(MANY, 50, 50, seed=3).test]
    assert min(places) < 150 and max(places) > 850


def test_training_pairs_that_share_a_side_are_held_out_whatever_their_case_and_punctuation() -> None:
    held = HeldOut(valid=[("Good morning!", "Guten Morgen!")], test=[("Thank you.", "Danke.")])
    assert held.is_held_out("good   MORNING", "Moin")
    assert held.is_held_out("Thanks a lot", "»danke«")
    assert not held.is_held_out("Good evening!", "Guten Abend!")
    # The sides are not mixed up, and sentences without a word are no match for each other.
    assert not held.is_held_out("Danke.", "Thank you.")
    assert not HeldOut(valid=[("...", "a")]).is_held_out("!?", "b")


def test_scripts_with_vowel_signs_keep_them() -> None:
    assert sentence_key("कि") != sentence_key("का")
    assert sentence_key("Straße!") == sentence_key("STRASSE")


def test_empty_doubtful_and_repeated_pairs_are_not_chosen_while_there_are_better_ones() -> None:
    poor = [("", "x"), ("...", "!!"), ("copy", "copy"), ("short", "very long " * 30)] * 50
    held = hold_out(poor + MANY, 30, 30, seed=0)
    assert {*held.valid, *held.test} <= set(MANY)
    repeated = [(f"question {i}", "yes") for i in range(200)] + MANY
    targets = [tgt for _, tgt in hold_out(repeated, 40, 40, seed=0).test]
    assert len(targets) == len(set(targets))


def test_copies_are_taken_where_there_is_nothing_else() -> None:
    held = hold_out([(str(i), str(i)) for i in range(100)], 4, 4, seed=0)
    assert len(held.valid) == 4 and len(held.test) == 4


def test_a_small_corpus_gives_at_most_a_tenth() -> None:
    held = hold_out(MANY[:60], 1000, 1000, seed=0)
    assert len(held.valid) == 3 and len(held.test) == 3
    held = hold_out(MANY[:5], 1000, 1000, seed=0)
    assert len(held.valid) == 1 and len(held.test) == 1
    assert hold_out(MANY[:60], 1000, 0, seed=0).test == []


def test_a_corpus_with_nothing_to_spare_is_refused() -> None:
    with pytest.raises(UserError, match="more than 2 different pairs"):
        hold_out([("a", "b"), ("c", "d"), ("", "")], 10, 10)
    with pytest.raises(UserError, match="more than 1 different pairs"):
        hold_out([], 10, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=40), st.integers(1, 5), st.integers(0, 5))
def test_whatever_the_corpus_no_side_is_held_out_twice(
    corpus: list[tuple[str, str]], num_valid: int, num_test: int
) -> None:
    try:
        held = hold_out(corpus, num_valid, num_test, seed=0)
    except UserError:
        return
    chosen = held.valid + held.test
    assert 1 <= len(held.valid) <= num_valid and len(held.test) <= num_test
    for side in (0, 1):
        keys = [sentence_key(pair[side]) for pair in chosen]
        assert len(keys) == len(set(keys)) and "" not in keys
    assert all(held.is_held_out(*pair) for pair in chosen)
