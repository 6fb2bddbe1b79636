"""Claims: several systems are tested as sacreBLEU tests them, and the page shows the sentences that differ most, and how."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest

from regard.cli import main
from regard.comparison.page import render_comparison
from regard.comparison.systems import compare_systems
from regard.evaluate import compare_all
from tests.commands import fails
from tests.test_evaluate import WORDS, noisy
from tests.tiny import make_bundle


@pytest.mark.parametrize("kind", ["bs", "ar"])
def test_p_values_of_several_systems_equal_sacrebleus(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(1)
    # Not a multiple of 32, the number of bits that numpy draws at once; neither is the number of trials.
    references = [" ".join(draw.choices(WORDS, k=draw.randint(3, 18))) for _ in range(61)]
    texts = [noisy(references, 0.25, 2), noisy(references, 0.27, 9), noisy(references, 0.29, 4)]
    systems: list[tuple[str, Sequence[str]]] = list(zip("ABC", texts, strict=True))
    size = 133
    ours = compare_all(systems, references, bootstrap=size, trials=size if kind == "ar" else 0)
    monkeypatch.setenv("SACREBLEU_SEED", "12345")
    counters = {"BLEU": BLEU(), "chrF2": CHRF(), "TER": TER()}
    theirs: Any = PairedTest(systems, counters, [references], test_type=kind, n_samples=size)()[1]
    p_values = []
    for index, comparison in enumerate(ours, start=1):
        for difference in comparison.differences:
            assert difference.p_value == pytest.approx(theirs[difference.name][index].p_value)
            p_values.append(difference.p_value)
        assert f"|{kind}:{size}|" in comparison.a.metrics[0].signature
    assert len({p for p in p_values if p > 2 / size}) > 2  # p-values at their floor would agree with anything


def test_sentences_are_counted_and_ordered_by_their_difference() -> None:
    references = ["the cat sat", "big house", "a dog runs", "so it is"]
    baseline = ["the cat sat", "small house", "a dog", "so"]
    other = ["the cat sat", "small hut", "a dog runs", "so"]
    result = compare_systems([("A", baseline), ("B", other)], references, bootstrap=10)
    assert [sentence.number for sentence in result.sentences] == [3, 2]
    [counts] = result.counts
    assert vars(counts) == {"better": 1, "worse": 1, "same_score": 0, "identical": 2}
    assert len(compare_systems([("A", baseline), ("B", other)], references, bootstrap=10, most=1).sentences) == 1
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["against_baseline"][0]["sentences"]["identical"] == 2
    assert document["sentences"][0]["translations"][1]["text"] == "a dog runs"


def test_the_page_marks_what_differs_and_needs_nothing_else() -> None:
    systems = [("A <1>", ["ein kleines Haus & Hof"]), ("B", ["ein grosses Haus & Hof"])]
    page = render_comparison(compare_systems(systems, ["ein grosses Haus"], sources=["a <big> house"], bootstrap=10))
    assert "ein <mark class=other>kleines</mark> Haus &amp; Hof" in page
    assert "ein <mark class=right>grosses</mark> Haus &amp; Hof" in page
    assert "a &lt;big&gt; house" in page and "A &lt;1&gt;" in page and "<1>" not in page
    assert "<script" not in page and "default-src 'none'" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)


def test_the_page_says_when_nothing_differs() -> None:
    page = render_comparison(compare_systems([("A", ["x y"]), ("B", ["x y"])], ["x y"], bootstrap=10))
    assert "All translations are the same." in page


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "s").write_text("a b\nc d e\n")
    (tmp_path / "r").write_text("b a\ne d c\n")
    (tmp_path / "h").write_text("b a\ne d\n")
    return ["--reference", str(tmp_path / "r"), "--bootstrap", "10"]


def test_compare_prints_a_table_and_writes_a_page(
    files: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = str(make_bundle(tmp_path / "bundle").folder)
    other = str(make_bundle(tmp_path / "other", decoder_layers=2).folder)
    page = tmp_path / "page.html"
    command = ["compare", "-m", model, "--hypothesis", str(tmp_path / "h"), "-m", other, *files, "--device", "cpu"]
    command += ["--source", str(tmp_path / "s")]
    assert main([*command, "-o", str(page)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == [model, str(tmp_path / "h"), other]  # in the order given
    assert "Sentences that differ most" in page.read_text("utf-8")
    assert "already exists" in fails(capfd, *command, "-o", str(page))
    assert main([*command, "-o", str(page), "--force", "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["baseline"] == model and len(document["systems"]) == 3


def test_models_of_other_languages_are_noted(
    files: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.cli import compare

    labels = {"x": ("en", "de"), "y": ("de", "en")}
    hypotheses = [("x", ["b a", "e"]), ("y", ["b", "e d"])]
    monkeypatch.setattr(compare, "_translations", lambda *_: (hypotheses, labels))
    monkeypatch.setattr(compare, "find_models", lambda _: [])
    assert main(["compare", "-m", "x", "-m", "y", "--source", str(tmp_path / "s"), *files]) == 0
    assert "note: these models are for different languages: x en → de, y de → en" in capfd.readouterr().out


def test_what_cannot_be_compared_is_refused(
    files: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    good, short = str(tmp_path / "h"), tmp_path / "short"
    short.write_text("b a\n")
    for arguments, message in (
        (["-m", "en-de"], "at least two systems, but got 1; repeat -m MODEL"),
        (["-m", "en-de", "-m", "en-de"], "en-de is named twice"),
        (["-m", "en-de", "-m", "de-en"], "compare needs --source FILE"),
        (["-m", "en-de", "-m", "nothing", "--source", good], "nothing: there is no such model"),
        (["--hypothesis", good, "--hypothesis", str(short)], f"{short} must have as many lines as"),
        (["--hypothesis", good, "--hypothesis", str(short), "--beam", "2"], "--beam: for -m only"),
        (["--hypothesis", good, "-m", "en-de", "--source", good, "--trials", "9"], "--trials is for --test"),
        (["--hypothesis", good, "-m", "en-de", "--source", good, "-o", "x.txt"], "-o x.txt: must end in .html"),
    ):
        assert message in fails(capfd, "compare", *files, *arguments)


def test_evaluate_says_that_two_models_are_an_ensemble(
    files: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = str(make_bundle(tmp_path / "a bundle").folder)
    source = str(tmp_path / "s")
    command = ["evaluate", "-m", model, "-m", model, "--source", source, *files, "--device", "cpu", "--json"]
    assert main(command) == 0
    captured = capfd.readouterr()
    json.loads(captured.out)
    assert "note: 2 models form an ensemble" in captured.err
    assert f"regard compare -m '{model}' -m '{model}' --source {source} --reference" in captured.err
    assert main(["evaluate", "-m", model, "--source", source, *files, "--device", "cpu"]) == 0
    assert "ensemble" not in capfd.readouterr().err
