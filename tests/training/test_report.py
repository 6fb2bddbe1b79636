"""Claims: the report is one page that needs nothing else, shows what was measured and shows foreign text as text."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from regard.accuracy import LabelScore
from regard.evaluate import score
from regard.training.chart import Series, averaged, chart, ticks
from regard.training.metrics import best_validation
from regard.training.report import write_report
from tests.browser import new_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RECIPE: dict[str, Any] = {
    "data": {"source": "en", "target": "de", "train": ["a.{en,de}", {"path": "b.tsv", "weight": 2.0}]},
    "train": {"steps": 400, "warmup": 40, "compile": False, "minutes": None},
    "seed": 7,
}
FACTS = {"parameters": "3,912,448", "device": "cpu", "data cleaning": "read: 29,000\nduplicates: 457\nkept: 28,543"}


def train(step: int, **more: Any) -> dict[str, Any]:
    record = {"kind": "train", "step": step, "epoch": step / 100, "loss": 9 / step + 2, "nll": 9 / step + 1}
    return {**record, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 3500.0, "elapsed": step * 0.5, **more}


def valid(step: int, translation: str, *, best: bool, bleu: float | None = 20.0) -> dict[str, Any]:
    record = {"kind": "valid", "step": step, "epoch": step / 100, "loss": 1.234, "perplexity": 3.43, "bleu": bleu}
    sample = {"source": "a blue house", "reference": "ein blaues Haus", "translation": translation}
    return {**record, "chrf": 44.4, "elapsed": step * 0.5, "best": best, "samples": [sample]}


def whole_run() -> list[dict[str, Any]]:
    test = score(["ein Haus"] * 20, ["ein Haus am See"] * 20, bootstrap=20).to_json()
    return [
        *(train(step) for step in range(10, 410, 10)),
        valid(200, "ein Haus", best=True),
        valid(300, "ein Haus", best=False, bleu=19.5),
        valid(400, "ein blaues Haus", best=True, bleu=27.3),
        {"kind": "test", "name": "flickr", "scores": test},
        {"kind": "note", "text": "Vocabulary fitted to 7,412 pieces."},
    ]


class Checker(HTMLParser):
    """Notes what the page would load and whether every tag is closed."""

    VOID = ("meta", "wbr", "br", "line", "rect", "circle", "polyline")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [str(value) for name, value in attrs if name in ("src", "href", "data", "onload", "onclick")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(folder: Path, records: list[dict[str, Any]], facts: dict[str, str] | None = None) -> str:
    path = write_report(folder, RECIPE, records, FACTS if facts is None else facts)
    assert path == folder / "report.html"
    assert [file.name for file in folder.iterdir()] == ["report.html"]  # the temporary name is gone
    page = path.read_text("utf-8")
    checker = Checker(page)
    assert checker.open == [] and checker.loads == [] and "script" not in checker.tags
    assert not re.search(r"url\(|@import|https?://", page)
    return page


def test_report_shows_scores_curves_samples_settings_and_facts(tmp_path: Path) -> None:
    page = page_of(tmp_path, whole_run())
    for expected in ("en → de", "27.3", "44.4", "1.234", "3,500", "3 min 20 s", "flickr", "Vocabulary fitted"):
        assert expected in page, expected
    assert page.count("<svg") == 4
    assert "objective" in page
    plain = [one | {"nll": one["loss"]} if one["kind"] == "train" else one for one in whole_run()]
    assert "objective" not in page_of(tmp_path, plain)  # the same curve is not drawn twice
    assert "nrefs:1|<wbr>bs:20|<wbr>seed:12345|<wbr>case:mixed" in page
    assert "a.{en,de}, { path = b.tsv, weight = 2.0 }" in page
    assert "<dt>duplicates</dt><dd>457</dd>" in page
    assert "<dt>compile</dt><dd>false</dd>" in page
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page


def test_the_report_of_a_classifier_names_its_labels_and_lets_them_wrap(tmp_path: Path) -> None:
    labels = ["card_arrival", "age_limit"]
    mistake = {"text": "where is it?", "label": labels[0], "answer": labels[1], "probability": 0.9}
    examined = {"kind": "examined", "set": "test", "labels": labels, "matrix": [[7, 1], [0, 8]], "mistakes": [mistake]}
    counts = [LabelScore(labels[0], 8, 7, 7), LabelScore(labels[1], 8, 9, 8), LabelScore("worst", 1, 0, 0)]
    examined["by_label"] = [one.to_json() for one in counts]
    recipe = {"task": "classify", "model": {"head": {"kind": "classes", "labels": labels}}}
    page = write_report(tmp_path, recipe, [examined], {}).read_text("utf-8")
    assert "<p>classify, 2 labels · " in page and "card_<wbr>arrival" in page
    assert (
        'style="--share:52%">7</td>' in page and 'style="--share:60%">8</td>' in page
    )  # of the row's total, still readable
    assert '<div class="matrix">' in page
    cells = re.search(r"<h2>Each label \(test set\)</h2>.*?</table>", page, re.DOTALL)
    assert cells is not None
    assert re.findall(r'<td class="(?:label|number)">(.*?)</td>', cells[0]) == [
        *("worst", "1", "0.0", "0.0", "0.0"),
        *("card_<wbr>arrival", "8", "100.0", "87.5", "93.3"),
        *("age_<wbr>limit", "8", "88.9", "100.0", "94.1"),
    ]
    assert "<p>How often each label got each answer. The" in page  # of tags, too, where the answers are about words


def test_settings_that_others_overrule_are_left_out(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {
        "task": "classify",
        "model": {"preset": "base", "d_model": 384},
        "tokenizer": dict.fromkeys(
            ("vocab_size", "unit", "character_coverage", "split_digits", "protect", "tag_targets", "extend", "folder"),
            0,
        ),
        "train": {"steps": 0, "epochs": 2.0, "minutes": 0.0, "init": "builtin:minilm-en-de"},
    }

    def shown() -> list[str]:
        return re.findall("<dt>(.*?)</dt>", write_report(tmp_path, recipe, [], {}).read_text("utf-8"))

    assert shown() == ["task", "d_model", "protect", "tag_targets", "extend", "epochs", "init"]
    recipe["tokenizer"]["extend"] = 500  # the new pieces cover so many characters
    added = ["character_coverage", "protect", "tag_targets", "extend"]
    assert shown() == ["task", "d_model", *added, "epochs", "init"]
    recipe["train"] = {"steps": 10, "epochs": 0.0, "minutes": 0.0, "init": ""}
    assert shown() == ["task", "preset", "d_model", *recipe["tokenizer"], "steps", "init"]


@pytest.mark.parametrize("width", [1200, 390])
def test_the_report_of_a_classifier_can_be_read_at_any_width(browser: Browser, tmp_path: Path, width: int) -> None:
    labels = [f"{name}_of_my_card" for name in "arrival loss activation cancellation delivery withdrawal".split()]
    labels += [f"label_{number}" for number in range(14)]
    matrix = [[int(one == other) for other in labels] for one in labels]
    mistake = {
        "text": "how long does it take to come here?",
        "label": labels[3],
        "answer": labels[5],
        "probability": 0.9,
    }
    bins = [{"confidence": 0.9, "accuracy": 0.8, "count": 20}]
    examined = {
        "kind": "examined", "set": "test", "labels": labels, "matrix": matrix, "mistakes": [mistake],
        "calibration": {"error": 0.1, "bins": bins}, "by_label": [LabelScore(one, 1, 1, 1).to_json() for one in labels],
    }  # fmt: skip
    recipe = {"task": "classify", "model": {"head": {"kind": "classes", "labels": labels}}}
    path = write_report(tmp_path, recipe, [examined], {})
    with new_page(browser, viewport={"width": width, "height": 900}) as page:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") == width
        box = page.locator(".matrix .table")
        hidden = box.evaluate("one => [one.scrollWidth - one.clientWidth, one.scrollHeight - one.clientHeight]")
        assert hidden[1] <= 0 and (hidden[0] <= 0 or width < 1200)
        # A label breaks only after an underscore.
        lines = page.locator("td.label").first.evaluate("one => one.getBoundingClientRect().height") // 20
        assert lines <= len(labels[3].split("_")) + 1
        seen, grid = (
            page.locator(one).first.evaluate("one => getComputedStyle(one).stroke") for one in (".diagonal", ".axis")
        )
        assert seen == grid


def test_translation_stands_once_for_each_change_with_its_right_words_marked(tmp_path: Path) -> None:
    page = page_of(tmp_path, whole_run())
    assert "<mark>ein</mark> <mark>Haus</mark>" in page
    assert "<mark>ein blaues Haus</mark>" in page
    assert "<dt>step 200</dt>" in page and "<dt>step 400</dt>" in page and "<dt>step 300</dt>" not in page


def test_chinese_is_marked_by_character(tmp_path: Path) -> None:
    sample = {"source": "x", "reference": "我喜欢猫。", "translation": "我喜欢狗。"}
    page = page_of(tmp_path, [{**valid(1, "", best=True), "samples": [sample]}])
    assert "<mark>我喜欢</mark>狗<mark>。</mark>" in page


def test_many_translations_are_thinned_and_all_can_be_opened(tmp_path: Path) -> None:
    page = page_of(tmp_path, [valid(step, f"Versuch {step}", best=True) for step in range(1, 21)])
    shown, opened = page.split("<details>", 1)
    assert [int(step) for step in re.findall(r"<dt>step (\d+)</dt>", shown)] == [1, 5, 9, 12, 16, 20]
    assert "All 20 translations" in opened
    assert len(re.findall(r"<dt>step (\d+)</dt>", opened)) == 20


def test_foreign_text_is_shown_and_never_run(tmp_path: Path) -> None:
    attack = "<script>alert(1)</script>\"'&"
    records = [valid(100, attack, best=True), {"kind": "note", "text": attack}, train(10)]
    records.append({"kind": "test", "name": attack, "scores": score([attack], [attack], bootstrap=0).to_json()})
    page = page_of(tmp_path, records, {attack: attack, "long " + attack: f"{attack}\n{attack}"})
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 7


def test_lone_surrogate_in_a_translation_does_not_stop_the_report(tmp_path: Path) -> None:
    assert "bad ?" in page_of(tmp_path, [valid(100, "bad \udce9", best=True)])


def test_report_of_a_run_without_measurements_says_so(tmp_path: Path) -> None:
    assert "No measurements yet." in page_of(tmp_path, [])


def test_report_after_a_single_record_can_be_drawn(tmp_path: Path) -> None:
    assert page_of(tmp_path, [train(1)]).count("<svg") == 3


def test_loss_that_is_no_number_is_named_and_not_drawn(tmp_path: Path) -> None:
    page = page_of(tmp_path, [train(10), train(20, loss=None, nll=None), train(30, loss=math.nan, nll=math.inf)])
    assert "The loss is not finite from step 20 on." in page
    assert ">nan<" not in page and "inf" not in page.replace("not finite", "")


def test_validation_without_scores_has_dashes(tmp_path: Path) -> None:
    records = [valid(100, "ein Haus", best=True), valid(200, "ein Haus", best=False, bleu=None)]
    assert '<td class="number">-</td>' not in page_of(tmp_path, records[:1])
    assert '<td class="number">-</td>' in page_of(tmp_path, records)


def test_old_report_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page_of(tmp_path, whole_run())

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(tmp_path, RECIPE, [], {})
    assert (tmp_path / "report.html").read_text("utf-8") == before


def test_long_run_makes_a_small_page(tmp_path: Path) -> None:
    page = page_of(tmp_path, [train(step) for step in range(1, 20_001)])
    assert len(page) < 300_000


def test_averaged_curve_keeps_its_mean_and_its_end() -> None:
    points = [(float(x), float(x % 2)) for x in range(1000)]
    thinned = averaged(points, 100)
    assert len(thinned) == 100
    assert thinned[-1][0] == 999.0
    assert {y for _, y in thinned} == {0.5}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (1.3, 8.2, [1, 2, 3, 4, 5, 6, 7, 8, 9]), (0, 0.002, [0, 5e-4, 1e-3, 1.5e-3, 2e-3])],
)
def test_ticks_are_round_and_hold_the_values(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize("value", [0.0, 3.7, -2.0, 1e-9])
def test_ticks_of_a_constant_curve_have_room(value: float) -> None:
    found = ticks(value, value)
    assert found[0] < value < found[-1] and len(found) >= 2


def test_curve_runs_inside_the_picture_and_shows_values_where_pointed_at() -> None:
    points = [(float(x), math.sin(x)) for x in range(0, 1000, 10)]
    picture = chart("Sine", [Series("sine", points, "one")], lambda value: f"{value:.3f}")
    coordinates = re.findall(r"([\d.-]+),([\d.-]+)", re.search(r'points="([^"]*)"', picture)[1])  # type: ignore[index]
    assert len(coordinates) == 100
    assert all(48 <= float(x) <= 428 and 10 <= float(y) <= 202 for x, y in coordinates)
    assert "step 990" in picture and f"sine {math.sin(990):.3f}" in picture


@pytest.mark.parametrize("scores", [[-28.7], [-28.7, -3.0], [-5.0, 12.0]])
def test_negative_scores_are_drawn_with_zero(scores: list[float]) -> None:
    points = [(float(step), score) for step, score in enumerate(scores, 1)]
    picture = chart("Scores", [Series("Spearman", points, "one", dots=True)], str, from_zero=True)
    heights = [float(y) for y in re.findall(r'cy="([-\d.]+)"', picture)]
    assert heights and all(0 <= y <= 300 for y in heights)


def test_best_validation_is_the_newest_that_was_marked() -> None:
    marked = [valid(1, "", best=True), valid(2, "", best=True), valid(3, "", best=False)]
    assert best_validation(marked) is marked[1]
    assert best_validation(marked[2:]) is marked[2]
    assert best_validation([]) is None
