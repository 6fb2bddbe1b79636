"""What a run says about its chances before it begins, and about its model at the end."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from regard.bundle import load_bundle
from regard.data.corpus import CorpusRange
from regard.data.store import Column, Store
from regard.errors import UserError
from regard.progress import duration, epochs
from regard.recipe import load_recipe
from regard.tasks.translation_verdict import Amount, builtin_score, other_start, too_little, too_short_warning
from regard.training.display import Display
from regard.training.finish import UNCHANGED
from regard.training.folder import RunFolder
from regard.training.run import train
from regard.training.verdict import verdict
from tests.tiny import write_recipe
from tests.training.runs import quiet

PAIRS = [("Where is the station?", "Wo ist der Bahnhof?"), ("I am tired.", "Ich bin müde.")] * 15


def recipe(folder: Path, *sets: str) -> Any:
    return load_recipe(write_recipe(folder), sets)


EN_DE = ["data.source=en", "data.target=de", "data.train=x.{en,de}", "data.valid=x.{en,de}"]


@pytest.mark.parametrize(
    ("pairs", "tokens", "known_bleu_epochs", "suffices"),
    [
        (191_451, 1_960_000, 0.25, False),  # Tatoeba, 10.7 BLEU
        (191_451, 1_960_000, 2.1, True),  # 32.5
        (29_000, 440_000, 8.9, True),  # Multi30k, 37.6
        (29_000, 440_000, 1.0, False),
        (1_700_000, 48_000_000, 0.06, False),  # Europarl, 20 minutes on two cores
    ],
)
def test_the_length_of_a_run_is_held_against_known_runs(
    tmp_path: Path, pairs: int, tokens: int, known_bleu_epochs: float, suffices: bool
) -> None:
    amount = Amount(pairs, tokens, known_bleu_epochs)
    warning = too_short_warning(recipe(tmp_path), amount, 3900.0)
    assert (warning is None) == suffices
    assert amount.least_epochs < amount.enough_epochs


def test_a_short_run_is_told_how_long_would_do(tmp_path: Path) -> None:
    amount = Amount(29_000, 435_000, 1.2)
    assert too_short_warning(recipe(tmp_path), amount, 1875.0) == "1.2 epochs will not suffice: give it 40 minutes"
    plain = recipe(tmp_path)
    fine_tuned = dataclasses.replace(plain, train=dataclasses.replace(plain.train, init="en-de"))
    assert too_short_warning(fine_tuned, amount, 1000.0) is None and too_little(fine_tuned, 5) is None


def test_few_pairs_are_warned_of(tmp_path: Path) -> None:
    assert too_little(recipe(tmp_path), 10_000) is None
    assert str(too_little(recipe(tmp_path), 1)).startswith("1 pair will not suffice to learn a language")
    said = quiet(write_recipe(tmp_path / "recipe", steps=2), tmp_path / "run")
    assert "400 pairs will not suffice to learn a language: get at least 10,000" in said


def test_a_built_in_model_is_offered_with_its_score_on_the_held_out_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert other_start(recipe(tmp_path), PAIRS) == ", or start from a trained model (train.init)"
    monkeypatch.setattr("regard.tasks.translation_verdict.builtin_score", lambda *_: 51.64)
    start = ", or start from en-de (train.init)"
    assert other_start(recipe(tmp_path, *EN_DE), [], "--init") == ", or start from en-de (--init en-de)"
    assert other_start(recipe(tmp_path, *EN_DE), PAIRS[:3]) == start  # too few to judge by
    assert (
        other_start(recipe(tmp_path, *EN_DE), PAIRS) == f"{start}, which already scores 51.6 BLEU on your held-out text"
    )


def test_a_built_in_model_is_scored_on_the_pairs() -> None:
    assert builtin_score("en-de", PAIRS, "cpu") > 80
    assert builtin_score("en-de", [(target, source) for source, target in PAIRS], "cpu") < 50


def test_epochs_read_well() -> None:
    assert [epochs(number) for number in (0.004, 0.5, 0.96, 1, 1.04, 1.2, 40)] == [
        "0.004 epochs", "0.5 epochs", "1 epoch", "1 epoch", "1 epoch", "1.2 epochs", "40 epochs",
    ]  # fmt: skip


def test_durations_read_well() -> None:
    assert [duration(seconds) for seconds in (0.2, 10, 59.4, 59.6, 100, 2400, 9000, 300_000)] == [
        "1 second",
        "10 seconds",
        "59 seconds",
        "1 minute",
        "2 minutes",
        "40 minutes",
        "2.5 hours",
        "3.5 days",
    ]


def judged(folder: Path, bleu: float, sets: tuple[str, ...] = (), pairs: int = 30_000, weights: str = "x") -> str:
    """The last line of a run of one epoch whose test set, of 50 sentences, scored so."""
    offsets = np.arange(pairs + 1) * 14
    column = Column(np.zeros(offsets[-1], np.uint16), offsets)
    store = Store({"source": column, "target": column}, [CorpusRange("x", 1.0, 0, pairs)], {})
    data = SimpleNamespace(tokenizer=None, store=store, valid=PAIRS[:1], test=PAIRS[:1], baseline={})
    test = {"sentences": 50, "metrics": {"bleu": {"score": bleu}}}
    bundle = SimpleNamespace(facts={"weights": weights, "test": test})
    step = {"kind": "train", "step": 9, "epoch": 1.0, "tokens_per_second": 1875.0}
    return verdict(recipe(folder, *sets), RunFolder(Path("runs/x")), cast(Any, bundle), cast(Any, data), [step])


def test_a_model_that_does_not_translate_is_not_to_be_tried(tmp_path: Path) -> None:
    said = judged(tmp_path, 0.4, ("train.minutes=3", "train.steps=0"))
    assert said.startswith("verdict test set: BLEU 0.4: this model does not translate yet. 1 epoch did not suffice: ")
    assert "give it 40 minutes in all (regard train runs/x/recipe.toml --out runs/x --resume --minutes 40)" in said
    assert "--epochs 10)" in judged(tmp_path, 0.4, ("train.epochs=1", "train.steps=0"))
    assert "--steps 22500)" in judged(tmp_path, 0.4)  # of 200 tokens
    assert "400 pairs will not suffice" in judged(tmp_path, 0.4, pairs=400)
    assert "the two sides may not match" in judged(tmp_path, 0.4, pairs=1_000_000)
    assert "nothing was gained" in judged(tmp_path, 40.0, weights=UNCHANGED)
    for bleu in (0.4, 9.9):
        assert "try it" not in judged(tmp_path, bleu)


def test_without_translations_the_perplexity_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.tasks.translation_verdict.FEW_PAIRS", 1)
    path = write_recipe(tmp_path / "recipe", steps=2, validate_sentences=0)
    said = quiet(path, tmp_path / "run")
    assert "verdict validation set: perplexity " in said and "try it" not in said
    assert "try it" in quiet(path, tmp_path / "learnt", "train.steps=60", "train.lr=5e-3")


def test_a_model_that_translates_is_to_be_tried(tmp_path: Path) -> None:
    tried = 'try it  regard translate -m runs/x "..."'
    assert judged(tmp_path, 20.0) == tried
    assert judged(tmp_path, 10.0) == f"expect  test set: BLEU 10.0: the gist is often lost\n{tried}"


def test_a_run_ends_with_the_verdict_of_its_validation(tmp_path: Path) -> None:
    """Twenty validation sentences, and no test set."""
    path = write_recipe(tmp_path / "recipe", steps=2)
    said = quiet(path, tmp_path / "run")
    assert "verdict validation set: BLEU 0." in said and "try it" not in said
    assert load_bundle(tmp_path / "run" / "model").facts["steps"] == 2


def test_the_time_before_a_run_counts_towards_its_budget(tmp_path: Path) -> None:
    path = write_recipe(tmp_path / "recipe", steps=0, minutes=1)
    with pytest.raises(UserError, match=r"train\.minutes = 1 was used up"):
        train(load_recipe(path), tmp_path / "run", display=Display(), started=time.perf_counter() - 60)
