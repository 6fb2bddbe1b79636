"""Claims: the numbers are those of the `sacrebleu` command, and a comparison says no more than its test shows."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from regard.errors import UserError
from regard.evaluate import Scores, compare, score, sentence_scorer

WORDS = "the a cat dog sat on mat house is big small and runs quickly today, isn't it? Über 3.5 % “quoted” .".split()


def noisy(lines: list[str], rate: float, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) if draw.random() < rate else w for w in line.split()) for line in lines]


@pytest.fixture(scope="module")
def texts() -> dict[str, list[str]]:
    draw = random.Random(1)
    references = [" ".join(draw.choices(WORDS, k=draw.randint(3, 18))).capitalize() for _ in range(120)]
    good, bad = noisy(references, 0.25, 2), noisy(references, 0.45, 3)
    bad[7] = ""  # an empty translation is a translation
    return {"references": references, "good": good, "bad": bad}


def sacrebleu(folder: Path, references: list[str], *systems: list[str], options: list[str]) -> Any:
    (folder / "ref").write_text("\n".join(references) + "\n", encoding="utf-8")
    for number, lines in enumerate(systems):
        (folder / f"hyp{number}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    inputs = [str(folder / f"hyp{number}") for number in range(len(systems))]
    command = [sys.executable, "-m", "sacrebleu", str(folder / "ref"), "-i", *inputs, "--width", "6", *options]
    environment = {**os.environ, "SACREBLEU_SEED": "12345", "PYTHONIOENCODING": "utf-8"}
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


def test_scores_signatures_and_intervals_equal_the_sacrebleu_command(
    tmp_path: Path, texts: dict[str, list[str]]
) -> None:
    ours = score(texts["bad"], texts["references"], bootstrap=200)
    options = ["-m", "bleu", "chrf", "ter", "--confidence", "--confidence-n", "200"]
    theirs = sacrebleu(tmp_path, texts["references"], texts["bad"], options=options)
    assert [metric.name for metric in ours.metrics] == [entry["name"] for entry in theirs] == ["BLEU", "chrF2", "TER"]
    for metric, entry in zip(ours.metrics, theirs, strict=True):
        assert metric.signature == entry["signature"]
        assert metric.score == pytest.approx(entry["score"], abs=1e-6)
        assert metric.mean == pytest.approx(entry["confidence_mean"], abs=1e-5)
        assert metric.confidence == pytest.approx(entry["confidence_var"], abs=1e-5)


def test_scores_without_intervals_equal_the_sacrebleu_command(tmp_path: Path, texts: dict[str, list[str]]) -> None:
    ours = score(texts["good"], texts["references"], bootstrap=0)
    theirs = sacrebleu(tmp_path, texts["references"], texts["good"], options=["-m", "bleu", "chrf", "ter"])
    assert [metric.signature for metric in ours.metrics] == [entry["signature"] for entry in theirs]
    assert [ours.bleu, ours.chrf, ours.ter] == pytest.approx([entry["score"] for entry in theirs], abs=1e-6)
    assert all(metric.mean is None and metric.confidence is None for metric in ours.metrics)


def test_comparison_equals_sacrebleus_paired_bootstrap(
    texts: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    close = noisy(texts["references"], 0.27, 9)
    ours = compare(texts["good"], close, texts["references"], bootstrap=300)
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    counters = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    systems: list[tuple[str, Sequence[str]]] = [("A", texts["good"]), ("B", close)]
    theirs: Any = PairedTest(systems, counters, [texts["references"]], test_type="bs", n_samples=300)()[1]
    for difference in ours.differences:
        baseline, system = theirs[difference.name]
        assert 0.01 < difference.p_value < 1  # a p-value at its floor would agree with any other
        assert difference.p_value == pytest.approx(system.p_value)
        assert [difference.a, difference.b] == pytest.approx([baseline.score, system.score])
        for scores, result in ((ours.a, baseline), (ours.b, system)):
            assert scores[difference.name].mean == pytest.approx(result.mean, abs=1e-5)
            assert scores[difference.name].confidence == pytest.approx(result.ci, abs=1e-5)


def test_clearly_better_system_is_called_significantly_better(texts: dict[str, list[str]]) -> None:
    result = compare(texts["bad"], texts["good"], texts["references"], bootstrap=200, names=("old", "new", "ref.de"))
    assert {d.name: (d.better, d.significant) for d in result.differences} == {
        "BLEU": ("b", True),
        "chrF2": ("b", True),
        "TER": ("b", True),  # a lower TER is the better one
    }
    assert result.summary() == "new is significantly better than old by BLEU, chrF2 and TER."
    assert any("new is better by" in line and "significant (p = 0.0" in line for line in result.lines())


def test_system_against_itself_is_equal_and_not_significant(texts: dict[str, list[str]]) -> None:
    result = compare(texts["good"], texts["good"], texts["references"], bootstrap=100)
    assert all(d.better is None and not d.significant and d.p_value == 1.0 for d in result.differences)
    assert result.summary() == "No significant difference between A and B by BLEU, chrF2 and TER."


def test_metrics_that_disagree_are_told_apart(texts: dict[str, list[str]]) -> None:
    shuffled = [" ".join(sorted(line.split())) for line in texts["references"]]
    result = compare(shuffled, texts["bad"], texts["references"], bootstrap=200)
    by_metric = {d.name: d.better for d in result.differences}
    assert by_metric["BLEU"] == "b" and by_metric["chrF2"] == "a"
    assert "A is significantly better than B by chrF2; B is significantly better than A by BLEU" in result.summary()


def test_results_are_json(texts: dict[str, list[str]]) -> None:
    scores = score(texts["good"], texts["references"], bootstrap=50)
    document = json.loads(json.dumps(scores.to_json(), allow_nan=False))
    assert document["sentences"] == 120
    assert document["metrics"]["bleu"]["score"] == scores.bleu
    assert document["metrics"]["chrf"]["signature"].startswith("nrefs:1|bs:50|seed:12345|")
    comparison = compare(texts["good"], texts["bad"], texts["references"], bootstrap=50)
    document = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert document["differences"]["ter"]["better"] == "a"
    assert document["test"]["resamples"] == 50


def test_seed_decides_the_interval_and_not_the_score(texts: dict[str, list[str]]) -> None:
    def run(seed: int) -> Scores:
        return score(texts["good"], texts["references"], bootstrap=50, metrics=("chrf",), seed=seed)

    assert run(1) == run(1)
    assert run(1).chrf == run(2).chrf
    assert run(1)["chrf"].mean != run(2)["chrf"].mean
    assert "seed:2|" in run(2)["chrf"].signature


@pytest.mark.parametrize("label", ["zh", "zh-CN", "zho_Hans"])
def test_chinese_is_counted_by_character(label: str, tmp_path: Path) -> None:
    references, hypotheses = ["今天天气很好。", "我喜欢猫。"], ["今天天气不好。", "我喜欢狗。"]
    ours = score(hypotheses, references, target_language=label, bootstrap=0)
    options = ["-m", "bleu", "ter", "--tokenize", "zh", "--ter-normalized", "--ter-asian-support"]
    bleu, ter = sacrebleu(tmp_path, references, hypotheses, options=options)
    assert (ours["bleu"].signature, ours["ter"].signature) == (bleu["signature"], ter["signature"])
    assert [ours.bleu, ours.ter] == pytest.approx([bleu["score"], ter["score"]], abs=1e-6)


def test_missing_word_tokenizer_shows_in_signature_and_note(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    scores = score(["猫が好きです。"], ["犬が好きです。"], target_language="ja", bootstrap=0)
    assert "|tok:char|" in scores["bleu"].signature
    assert "pip install 'sacrebleu[ja]'" in scores.lines()[-1]


def test_tokenized_text_is_noted() -> None:
    lines = ["ein Haus ."] * 100
    assert "100 lines of out.de end in ' .'" in score(lines, lines, bootstrap=0, names=("out.de", "ref.de")).notes[0]
    assert score(lines[:99], lines[:99], bootstrap=0).notes == ()


def test_only_the_wanted_metrics_are_computed() -> None:
    scores = score(["a b c d"], ["a b c d"], bootstrap=0, metrics=("bleu",))
    assert scores.bleu == pytest.approx(100)
    with pytest.raises(KeyError, match="ter was not computed, only bleu"):
        _ = scores.ter


def test_unequal_numbers_of_lines_are_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"out\.de must have as many lines as ref\.de, but has 1 against 2"):
        score(["a"], ["a", "b"], names=("out.de", "ref.de"))
    with pytest.raises(UserError, match="B must have as many lines as references, but has 3 against 2"):
        compare(["a", "b"], ["a", "b", "c"], ["a", "b"])


def test_empty_input_and_unknown_settings_are_refused() -> None:
    with pytest.raises(UserError, match="references must have at least one line"):
        score([], [])
    with pytest.raises(UserError, match="metrics must be among bleu, chrf, ter, but one is 'meteor'"):
        score(["a"], ["a"], metrics=("meteor",))
    with pytest.raises(UserError, match="bootstrap must be at least 2, but is 0"):
        compare(["a"], ["a"], ["a"], bootstrap=0)


def test_empty_translations_score_zero_without_an_error() -> None:
    scores = score(["", ""], ["ein Haus", "ein Hund"], bootstrap=20)
    assert (scores.bleu, scores.chrf, scores.ter) == (0.0, 0.0, 100.0)


def test_sentences_are_scored_as_sacrebleu_scores_them(caplog: pytest.LogCaptureFixture) -> None:
    translation, reference = "Ein Haus am See!", "Ein Haus am See, ein Boot."
    bleu = BLEU(effective_order=True).sentence_score(translation, [reference]).score
    assert sentence_scorer("bleu")(translation, reference) == bleu
    assert sentence_scorer("chrf")(translation, reference) == CHRF().sentence_score(translation, [reference]).score
    assert sentence_scorer("bleu")("Ja.", "Ja.") == pytest.approx(100)  # two tokens have no 4-grams
    assert sentence_scorer("bleu", "zh")("我爱你们", "我爱他们") > 0  # words are characters there
    assert sentence_scorer("bleu")("我爱你们", "我爱他们") == 0
    assert not caplog.records
    with pytest.raises(UserError, match="must be bleu or chrf to score single sentences, but is 'ter'"):
        sentence_scorer("ter")
