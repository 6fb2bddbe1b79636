"""`regard reproduce` from data check to page, on results of a few seconds; and the results that ship with Regard."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from regard.cli import main
from regard.data.store import Store
from regard.errors import UserError
from regard.recipe import load_recipe
from regard.reproduce import results
from regard.reproduce.data_check import check_data, named_files, result_recipe, text_hash
from regard.reproduce.page import write_page
from regard.reproduce.records import append_record, read_records
from regard.reproduce.results import Variation, load_result, read_result, result_names
from regard.reproduce.sweep import Row, Running, Sweep
from regard.reproduce.table3 import compare_rows
from regard.training.fine_tuning import resolve_recipe
from regard.training.folder import LOCK, RunFolder, locked
from regard.training.prepare import adopt_prepared
from scripts import variations_page
from tests.commands import PATIENCE, fails, fork, wait_until
from tests.tiny import reversal_pairs, write_pairs, write_recipe

RESULT = """title = "Reversal"
recipe = "../recipe.toml"
root = "text"
device = "a CPU"
minutes = 0.1
where = "example.org"
{more}
[published]
score = 12.5
metric = "tokenised BLEU"
what = "a paper"

[sha256]
"test.tgt" = "{sha256}"
"""
SWEEP = """title = "Sweep"
recipe = "../recipe.toml"
root = "text"
device = "a CPU"
minutes = 0.1
where = "example.org"
[published]
what = "a paper"
[[rows]]
name = "base"
bleu = 25.8
perplexity = 4.92
[[rows]]
name = "base, seed 2"
set = ["train.seed=2"]
[[rows]]
name = "C: half the width"
set = ["model.d_model=16"]
bleu = 24.5
perplexity = 5.75
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipes of a checkout with one result and one sweep; returns the folder of all data."""
    text, folder = tmp_path / "data" / "text", tmp_path / "recipes"
    (folder / "reproduce").mkdir(parents=True)
    recipe = write_recipe(text, steps=6, save_every=2, validate_every=6, average=2, validate_sentences=0).read_text()
    write_pairs(text, "test", reversal_pairs(12, 5))
    (folder / "recipe.toml").write_text(recipe.replace("[tokenizer]", 'test = "test.{src,tgt}"\n[tokenizer]'))
    sha256 = text_hash(text / "test.tgt")
    (folder / "reproduce" / "reversal.toml").write_text(RESULT.format(sha256=sha256, more="average = 2"))
    (folder / "reproduce" / "variations.toml").write_text(SWEEP)
    monkeypatch.setattr(results, "recipes_folder", lambda: folder)
    return tmp_path / "data"


@pytest.mark.slow
def test_a_result_is_trained_evaluated_compared_and_written_down(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "reversal", "--data", str(data), "--out", str(out)]
    assert main(command) == 0
    text = capsys.readouterr().out
    for part in (
        "12.5 tokenised BLEU (a paper); here",
        "tok:13a",
        "tok:moses-like-tgt",
        "the scores are for the same text (1 compared)",
    ):
        assert part in text, part
    [record] = read_records(out / "results.jsonl")
    assert (
        record["weights"] == "average of step-000004, step-000006"
    )  # as the paper, not the best on the validation set
    assert record["beam"] == 4 and record["changed"] == [] and record["other text"] == []
    assert len((out / "reversal" / "translations.tgt").read_text().splitlines()) == 12
    page = (out / "results.html").read_text()
    assert "Reversal" in page and "12.5 tokenised BLEU" in page
    # Again: the run is finished, so it is evaluated only, and a second record has the same score.
    assert main([*command, "--set", "decode.beam=1"]) == 0
    again = read_records(out / "results.jsonl")[1]
    assert again["changed"] == ["decode.beam=1"] and again["beam"] == 1 and again["steps"] == record["steps"]
    assert "changed: decode.beam=1" in (out / "results.html").read_text()
    # Other settings of training are another run.
    assert main([*command, "--set", "train.steps=4", "--set", "train.lr=1e-3"]) == 0
    assert read_records(out / "results.jsonl")[2]["steps"] == 4
    assert (out / "reversal+train.steps=4+train.lr=1e-3" / "run").is_dir()
    assert RunFolder(out / "reversal" / "run").checkpoints.is_dir()


def test_a_folder_of_many_changes_has_a_short_name() -> None:
    result = load_result("multi30k")
    changed = [
        f"model.{name}=1" for name in ("d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers", "dropout")
    ]
    assert result.folder(changed[:1]) == "multi30k+model.d_model=1"
    assert result.folder(['data.train=["a/b"]']) == "multi30k+data.train=--a-b--"
    name = result.folder(changed)
    assert re.fullmatch("multi30k[+][0-9a-f]{12}", name) and name != result.folder(changed[::-1])


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_was_stopped(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "variations", "--data", str(data), "--out", str(out)]
    assert main([*command, "--rows", "base", "--parallel", "2"]) == 0
    assert "rows       2: base; base, seed 2" in capfd.readouterr().out
    rows = out / "variations" / "rows.jsonl"
    assert sorted(record["row"] for record in read_records(rows)) == ["base", "base, seed 2"]
    first = rows.read_text()
    capfd.readouterr()
    assert main(command) == 0
    captured = capfd.readouterr()
    assert rows.read_text().startswith(first) and len(read_records(rows)) == 3
    assert "base: started" not in captured.err and "C: half the width: started" in captured.err
    assert "base, 2 seeds" in captured.out and "24.5" in captured.out and "-1.30" in captured.out
    shared, own = (out / "variations" / name for name in ("prepared", "rows/c-half-the-width"))
    assert (shared / "tokenizer/tokenizer.json").read_bytes() == (own / "tokenizer/tokenizer.json").read_bytes()
    log = (out / "variations/rows/c-half-the-width.log").read_text()
    assert "parameters" in log and "vocabulary of" not in log and "pairs read" not in log  # prepared once, for all rows
    assert "C: half the width" in (out / "results.html").read_text()
    refused = fails(capfd, *command, "--set", "train.steps=7", "--json")
    assert "other settings" in refused and "--out" in refused


@pytest.mark.slow
def test_a_failed_row_does_not_take_the_others_with_it(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = results.recipes_folder() / "reproduce" / "variations.toml"
    path.write_text(SWEEP.replace('"base, seed 2"\nset = ["train.seed=2"]', '"bad"\nset = ["data.max_length=200"]'))
    out = tmp_path / "out"
    command = ["reproduce", "variations", "--data", str(data), "--out", str(out), "--parallel", "2"]
    assert main([*command, "--rows", "base,bad"]) == 1
    said = capfd.readouterr().err
    assert "1 of the rows failed: bad" in said and "must be a run of the same [data] and [tokenizer]" in said
    assert {record["row"] for record in read_records(out / "variations" / "rows.jsonl")} == {"base"}


@pytest.mark.slow
def test_a_sweep_that_runs_out_of_time_ends_its_rows(data: Path, tmp_path: Path) -> None:
    """Wherever a row was, it has ended when the sweep returns, and nothing is written down for it."""
    result = load_result("variations")
    recipe = result_recipe(result, data, ["train.steps=100000", "train.save_every=100"])
    said: list[str] = []
    sweep = Sweep(tmp_path / "out", [Row(result.rows[0], recipe)], said.append)
    sweep.prepare()  # else a busy machine may spend the time on this
    assert not sweep.run(1, seconds=3)
    assert said[-1] == "base: stopped; it resumes with the next start of the sweep"
    assert sweep.finished() == {}
    # The time of a row is that of all its starts.
    spent = float((tmp_path / "out" / "rows" / "base.seconds").read_text())
    assert spent > 0
    assert not sweep.run(1, seconds=3)
    assert float((tmp_path / "out" / "rows" / "base.seconds").read_text()) > spent + 1


@pytest.mark.slow
def test_the_rows_of_a_sweep_that_is_killed_save_and_end(data: Path, tmp_path: Path) -> None:
    result, out = load_result("variations"), tmp_path / "out"
    recipe = result_recipe(result, data, ["train.steps=1000000", "train.save_every=1"])
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    (tmp_path / "sweep.py").write_text(
        "from pathlib import Path\n"
        "from regard.recipe import load_recipe\n"
        "from regard.reproduce.results import Variation\n"
        "from regard.reproduce.sweep import Row, Sweep\n"
        f"row = Row(Variation('base'), load_recipe(Path({str(tmp_path / 'recipe.toml')!r})))\n"
        f"Sweep(Path({str(out)!r}), [row], print).run(1)\n"
    )
    row = RunFolder(out / "rows" / "base")
    sweep = fork([str(tmp_path / "sweep.py")])
    wait_until(sweep, lambda: row.is_started)
    sweep.kill()
    sweep.wait()
    try:
        end = time.monotonic() + PATIENCE
        while not is_free(row):
            assert time.monotonic() < end, (out / "rows" / "base.log").read_text()
            time.sleep(0.01)
    finally:
        if not is_free(row):
            os.kill(int((row.path / LOCK).read_text().split()[1]), signal.SIGKILL)
    assert "saved; resume with" in (out / "rows" / "base.log").read_text()


def is_free(run: RunFolder) -> bool:
    """Whether nobody trains in it."""
    try:
        with locked(run):
            return True
    except UserError:
        return False


def test_a_killed_adoption_leaves_nothing_that_looks_complete(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = load_result("variations")
    recipe = result_recipe(result, data)
    sweep = Sweep(tmp_path / "out", [Row(result.rows[0], recipe)], print)
    sweep.prepare()
    recipe, mine, other = resolve_recipe(recipe), RunFolder(tmp_path / "row"), RunFolder(sweep.prepared)
    linked: list[str] = []

    class Killed(BaseException):
        pass

    def link(source: str, target: str) -> None:
        if linked and Path(source).parent == other.store:
            raise Killed
        linked.append(source)
        os.link(source, target, follow_symlinks=False)

    with monkeypatch.context() as patch:
        patch.setattr("regard.training.prepare._link", link)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # a killed process removes nothing
        with pytest.raises(Killed):
            adopt_prepared(recipe, mine, other)
    assert mine.tokenizer.is_dir() and not mine.store.exists()
    adopt_prepared(recipe, mine, other)
    assert Store.open(mine.store).content == Store.open(other.store).content


def test_a_row_that_ctrl_c_ends_before_the_sweep_asks_it_to_has_not_failed(data: Path, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the rows, too."""
    result = load_result("variations")
    row, said = Row(result.rows[0], result_recipe(result, data)), list[str]()
    sweep = Sweep(tmp_path, [row], said.append)
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(130)"])
    process.wait()
    (tmp_path / "row.log").write_text("stopped\n")
    running = Running(row, process, time.monotonic() - 5, tmp_path / "row.log", before=7.0)
    assert sweep.end(running) == [f"base ({tmp_path / 'row.log'}: stopped)"]
    sweep._request_stop()
    assert sweep.end(running) == []
    assert said[-1] == "base: stopped; it resumes with the next start of the sweep"
    # Counted when the row goes on: the 7 seconds of earlier starts, and the 5 of this one.
    assert 12 <= float((tmp_path / "row.seconds").read_text()) < 7 + 5 + PATIENCE


@pytest.mark.slow
def test_a_run_that_goes_on_is_averaged_anew(data: Path, tmp_path: Path) -> None:
    command = ["reproduce", "reversal", "--data", str(data), "--out", str(tmp_path / "out")]
    assert main(command) == 0
    assert main([*command, "--set", "train.steps=10"]) == 0
    found = [record["weights"] for record in read_records(tmp_path / "out" / "results.jsonl")]
    assert found == ["average of step-000004, step-000006", "average of step-000008, step-000010"]


def test_a_test_set_that_is_held_out_is_refused_before_training(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "reversal", "--data", str(data), "--set", "data.test=5", "--set", "data.valid=5"]
    assert "data.test must name the files that the score is of, but is 5" in fails(capfd, *command)


def test_missing_text_is_one_line_that_says_where_to_get_it(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (data / "text" / "train.src").unlink()
    for more in ([], ["--dry-run"]):
        assert main(["reproduce", "reversal", "--data", str(data), *more]) == 2
        captured = capfd.readouterr()
        assert "lacks train.src" in captured.err and "example.org" in captured.err and captured.err.count("\n") == 1
    assert main(["reproduce", "--list", "--data", str(data)]) == 0
    assert "\nreversal    no " in capfd.readouterr().out


def test_the_list_fits_a_narrow_window(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100 and "  WMT14 English to German, base" in lines


def test_another_text_is_said(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(data / "text", "test", reversal_pairs(12, 6))
    assert main(["reproduce", "reversal", "--data", str(data), "--dry-run"]) == 0
    assert "another text than the scores are for: test.tgt" in capsys.readouterr().out
    assert main(["reproduce", "reversal", "--data", str(data), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["other text"] == ["test.tgt"]


def test_mistakes_are_refused(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        ((), "--list"),
        (("reversl",), "did you mean reversal?"),
        (("reversal", "--list"), "not both"),
        (("reversal", "--data", str(data), "--parallel", "2"), "--parallel belong"),
        (("variations", "--parallel", "0"), "--parallel must be above 0"),
    ):
        assert word in fails(capfd, "reproduce", *arguments)
    path = data / "result.toml"
    path.write_text('title = "x"\n')
    with pytest.raises(UserError, match="`recipe` is missing"):
        read_result(path)
    path.write_text('titel = "x"\n')
    with pytest.raises(UserError, match="no field 'titel'"):
        read_result(path)


def test_every_result_has_a_recipe_that_loads_and_averages_what_it_keeps(tmp_path: Path) -> None:
    names = result_names()
    for name in ("multi30k", "shakespeare", "variations", "wmt-8min", "wmt14-en-de", "wmt14-en-de-big", "wmt14-en-fr",
                 "wmt14-en-fr-big"):  # fmt: skip
        assert name in names
    for name in names:
        result = load_result(name)
        recipe = result_recipe(result, tmp_path)
        assert result.average in (0, recipe.train.average)
        assert not (result.average and recipe.train.ema)
        assert check_data(result, recipe).missing == tuple(named_files(recipe))
        for path in result.sha256:
            assert path in named_files(recipe), path
        for row in result.rows:
            load_recipe(result.recipe, row.set)
    assert len({row.folder for row in load_result("variations").rows}) == len(load_result("variations").rows)


def test_a_row_agrees_if_it_has_the_papers_sign_beyond_the_noise() -> None:
    variations = [
        Variation("base", (), 4.92, 25.8), Variation("base, seed 2"), Variation("worse", (), 6.0, 24.0),
        Variation("close", (), 5.0, 25.5), Variation("opposite", (), 5.0, 25.0),
    ]  # fmt: skip
    figures = {"base": (20.0, 10.0), "base, seed 2": (20.1, 10.1), "worse": (10.0, 30.0), "close": (19.8, 10.2),
               "opposite": (30.0, 1.0)}  # fmt: skip
    records = {
        name: {"bleu": bleu, "perplexity": perplexity, "parameters": 10**6}
        for name, (bleu, perplexity) in figures.items()
    }
    lines = {line["row"]: line for line in compare_rows(variations, records)}
    assert list(lines) == ["base, 2 seeds", "worse", "close", "opposite"]
    assert lines["base, 2 seeds"]["bleu"] == pytest.approx(20.05)
    assert [lines[name]["bleu, verdict"] for name in ("worse", "close", "opposite")] == [
        "agrees", "within noise", "differs",
    ]  # fmt: skip
    assert lines["worse"]["perplexity, verdict"] == "agrees"
    assert lines["worse"]["bleu, paper's difference"] == -1.8


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_record(path, {"row": 1})
    with path.open("a") as file:
        file.write('{"row": 2')
    assert read_records(path) == [{"row": 1}]
    append_record(path, {"row": 3})  # the next run goes on
    assert read_records(path) == [{"row": 1}, {"row": 3}]
    with path.open("ab") as file:
        file.write('{"row": "ü'.encode()[:-1])
    assert len(read_records(path)) == 2
    append_record(path, {"row": 4})
    path.write_bytes(path.read_bytes()[:-1])  # only its end is lost
    append_record(path, {"row": 5})
    assert [record["row"] for record in read_records(path)] == [1, 3, 4, 5]
    for line in ('{"row"', "3", "[1]"):
        path.write_text(f'{{"row": 1}}\n{line}\n{{"row": 3}}\n')
        with pytest.raises(UserError, match="line 2: must be a JSON object"):
            read_records(path)


def test_the_document_of_variations_has_every_row_and_where_it_comes_from(tmp_path: Path) -> None:
    rows, document = tmp_path / "rows.jsonl", tmp_path / "variations.md"
    common = {"parameters": 15_155_200, "steps": 4000, "pairs": 480_000, "date": "2026-11-18", "device": "a GPU", "torch": "2.11",
              "signature": "nrefs:1", "seconds": 60.0}  # fmt: skip
    variations = load_result("variations").rows
    for number, row in enumerate(variations):
        figures = {"bleu": 20.0 - number / 10, "perplexity": 8.0 + number / 10, "seed": number + 1}
        append_record(rows, {"row": row.name, **figures, **common})
    variations_page.main([str(rows), "--out", str(document)])
    text = document.read_text()
    assert all(f"| {row.name} |" in text for row in variations if not row.name.startswith("base"))
    for part in ("base, 4 seeds", "seeds 1, 2, 3, 4", "2026-11-18, a GPU", "23 minutes", "Against the paper:"):
        assert part in text, part
    assert "Not run" not in text
    # A sweep that was cut short says which rows are missing.
    rows.write_text("".join(line + "\n" for line in rows.read_text().splitlines()[:-2]))
    variations_page.main([str(rows), "--out", str(document)])
    page = write_page(tmp_path, variations, tmp_path)
    for written in (document, page):
        assert f"Not run: {variations[-2].name}; {variations[-1].name}." in written.read_text()


LABELS = """task = "classify"
[data]
train = "train.tsv*"
valid = 0.2
test = "test.tsv*"
text = "2"
label = "1"
header = false
[tokenizer]
vocab_size = 300
[model]
preset = "tiny"
encoder_layers = 1
[train]
steps = 3
batch_tokens = 200
device = "cpu"
"""
LABELS_RESULT = """title = "Colours"
recipe = "../colours.toml"
root = "text"
device = "a CPU"
minutes = 0.1
where = "example.org"
[published]
score = 50
metric = "accuracy"
what = "a paper"
[sha256]
"test.tsv*" = "{sha256}"
"""


def test_a_classifier_is_reproduced_with_the_score_of_its_test_set(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, count in (("train", 60), ("test", 20)):
        lines = (f"{('red', 'blue')[n % 2]}\ta {('rose', 'sky')[n % 2]} of number {n}\n" for n in range(count))
        (data / "text" / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "recipes" / "colours.toml").write_text(LABELS)
    sha256 = text_hash(data / "text" / "test.tsv")
    (tmp_path / "recipes" / "reproduce" / "colours.toml").write_text(LABELS_RESULT.format(sha256=sha256))
    out = tmp_path / "out"
    assert main(["reproduce", "colours", "--data", str(data), "--out", str(out)]) == 0
    printed = capfd.readouterr().out
    assert "1 compared" in printed
    [record] = read_records(out / "results.jsonl")
    facts = json.loads((out / "colours" / "run" / "model" / "config.json").read_text(encoding="utf-8"))["facts"]
    accuracy = facts["test"]["metrics"]["accuracy"]["score"]
    assert (record["metric"], record["score"]) == ("accuracy", accuracy) and "macro F1" in record["scores"]
    assert f"published: 50 accuracy (a paper); here {accuracy - 50:+.2f}" in printed
    assert "bag of words: 100.00 accuracy, trained in" in printed
    assert "50 accuracy" in (out / "results.html").read_text(encoding="utf-8")
    refused = fails(capfd, "reproduce", "colours", "--data", str(data), "--set", "data.test=0.1")
    assert "data.test must name the files" in refused
