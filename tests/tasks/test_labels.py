"""Models with labels through real runs: `classify` on a table, `tag` on words."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.bundle import load_bundle, load_weights
from regard.cli import main
from regard.errors import UserError
from regard.files import write_manifest
from regard.recipe import load_recipe, recipe_from_dict
from regard.tasks import TASKS
from regard.tasks.label_plan import _lr
from regard.training.auto import choose_recipe
from regard.training.fine_tuning import resolve_recipe
from regard.training.metrics import read_metrics
from tests.commands import fails, fork, together
from tests.training.runs import quiet
from tests.training.test_run import assert_same_weights, held, kill_when

TASK_NAMES = ("classify", "tag")
RECIPES = Path(__file__).parents[2] / "recipes" / "labels"
each_task = pytest.mark.parametrize("task", TASK_NAMES)
STEPS = 40
WORDS = {
    "colour": "red blue green black".split(),
    "animal": "cat dog horse cow".split(),
    "food": "bread milk rice".split(),
}
FILLING = "the a my is was very on at we saw today here".split()


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """A label and a text with one word that says it."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        label = draw.choice(list(WORDS))
        words = [*draw.choices(FILLING, k=draw.randint(2, 9)), draw.choice(WORDS[label])]
        draw.shuffle(words)
        found.append((label, " ".join(words)))
    return found


def sentences(count: int, seed: int) -> str:
    """Words with tags: animals and food are names, of which some have a colour before them."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        lines += [f"{word}\tO" for word in draw.choices(FILLING, k=draw.randint(1, 4))]
        kind = draw.choice(["animal", "food"])
        if draw.random() < 0.5:
            lines.append(f"{draw.choice(WORDS['colour'])}\tB-{kind}")
            lines.append(f"{draw.choice(WORDS[kind])}\tI-{kind}")
        else:
            lines.append(f"{draw.choice(WORDS[kind])}\tB-{kind}")
        lines += [f"{draw.choice(FILLING)}\tO", ""]
    return "\n".join(lines)


def write_data(folder: Path, task: str) -> tuple[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    if task == "tag":
        (folder / "train.conll").write_text(sentences(150, 1), encoding="utf-8")
        (folder / "test.conll").write_text(sentences(30, 2), encoding="utf-8")
        return "train.conll", "test.conll"
    for name, count, seed in (("train", 200, 1), ("test", 40, 2)):
        lines = "".join(f"{label}\t{text}\n" for label, text in texts(count, seed))
        (folder / f"{name}.tsv").write_text(lines, encoding="utf-8")
    return "train.tsv", "test.tsv"


def recipe_values(folder: Path, task: str, **train: Any) -> dict[str, Any]:
    first, second = write_data(folder, task)
    return {
        "task": task,
        "data": {"root": str(folder), "train": first, "valid": second, "test": second, "max_length": 32},
        "tokenizer": {"vocab_size": 400},
        "model": {"preset": "tiny", "d_model": 32, "d_ff": 64, "num_heads": 2, "encoder_layers": 1, "dropout": 0.0},
        "train": {
            "steps": STEPS, "batch_tokens": 300, "save_every": 10, "validate_every": 20, "log_every": 1, "lr": 1e-2,
            "optimizer": "adamw", "device": "cpu", "precision": "fp32", "average": 1, **train,
        },
    }  # fmt: skip


def write_recipe(folder: Path, task: str, **train: Any) -> Path:
    values = recipe_values(folder, task, **train)
    (folder / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    return folder / "recipe.toml"


def losses(run: Path, kind: str = "train") -> list[float]:
    return [record["loss"] for record in read_metrics(run / "metrics.jsonl") if record["kind"] == kind]


Runs = dict[str, tuple[Path, Path, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A finished run of each task, its recipe, and what it said."""
    found = {}
    for task in TASK_NAMES:
        recipe = write_recipe(tmp_path_factory.mktemp(task), task)
        found[task] = recipe, recipe.parent / "run", quiet(recipe, recipe.parent / "run")
    return found


@each_task
def test_a_length_without_room_for_a_text_is_refused(
    task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = write_recipe(tmp_path, task)
    assert main(["train", str(recipe), "--out", str(tmp_path / "run"), "--set", "data.max_length=1"]) == 2
    said = capfd.readouterr().err.splitlines()[-1]
    assert said.startswith(
        "regard: a text needs at least 2 tokens (1 special token and one of the text), but the model"
    )
    assert said.endswith(" reads 1; raise data.max_length")


@each_task
def test_the_loss_falls_and_the_model_is_a_bundle(runs: Runs, task: str) -> None:
    _, run, said = runs[task]
    assert len(losses(run)) == STEPS and np.mean(losses(run)[-5:]) < 0.3 * np.mean(losses(run)[:5])
    bundle = load_bundle(run / "model")
    labels = ("animal", "colour", "food") if task == "classify" else ("B-animal", "B-food", "I-animal", "I-food", "O")
    assert (bundle.task, bundle.config.head_settings.labels) == (task, labels)
    metrics = bundle.facts["test"]["metrics"]
    assert list(metrics) == (["accuracy", "macro f1", "loss"] if task == "classify" else ["f1", "accuracy", "loss"])
    assert next(iter(metrics.values()))["score"] > (90 if task == "classify" else 60)
    # The test set is the validation set here, and the model is the one that did best on it.
    key = "accuracy" if task == "classify" else "f1"
    assert load_recipe(run / "recipe.toml").train.monitor == key
    valid = [record[key] for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "valid"]
    assert metrics[key]["score"] == pytest.approx(max(valid))
    baseline = json.loads((run / "baseline.json").read_text())
    assert baseline["test"]["metrics"][key]["score"] > 90
    assert f"{baseline['name']}: " in said and "scores  " in said and f"regard {task} -m" in said
    page = (run / "report.html").read_text()
    for part in ("Confusion matrix", "Calibration", "Beside a simple model"):
        assert part in page
    assert f"Use: `regard {task}" in bundle.card and "for comparison" in bundle.card


@pytest.mark.slow
@each_task
def test_two_processes_make_the_run_of_one(runs: Runs, task: str, tmp_path: Path) -> None:
    recipe, one, _ = runs[task]
    codes, said = together(2, "train", str(recipe), "--out", str(tmp_path / "two"))
    assert codes == [0, 0], said
    assert losses(tmp_path / "two") == pytest.approx(losses(one), rel=1e-3, abs=1e-4)


@pytest.mark.slow
@each_task
def test_a_killed_run_ends_with_the_same_weights(runs: Runs, task: str, tmp_path: Path) -> None:
    recipe, one, _ = runs[task]
    killed = tmp_path / "killed"
    process = fork([held(tmp_path, 27), "train", str(recipe), "--out", str(killed)])
    kill_when(process, lambda: (killed / "checkpoints" / "step-000020").exists(), signal.SIGKILL)
    assert "resuming from step 20" in quiet(recipe, killed, resume=True)
    assert_same_weights(one, killed)
    assert losses(killed) == losses(one)


def test_held_out_texts_are_written_and_not_trained_on(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "classify", steps=2)
    said = quiet(recipe, tmp_path / "run", "data.valid=0.1", "data.test=0.2")
    assert re.search(r"dropped, held out: 60, first train.tsv, line \d+: '.*' / '(animal|colour|food)'\n", said)
    assert "140 texts to train on, 20 to validate on, 40 to test on\n" in said
    resolved = load_recipe(tmp_path / "run" / "recipe.toml")
    sets = {}
    for name in ("valid", "test"):
        lines = (tmp_path / "run" / "heldout" / f"{name}.jsonl").read_text().splitlines()
        sets[name] = [json.loads(line) for line in lines]
    assert [len(sets[name]) for name in ("valid", "test")] == [20, 40]
    assert set(sets["valid"][0]) == {"1", "2"} and sets["valid"][0]["1"] in resolved.model.labels
    # What was written is read again as the same records.
    data = {"root": str(tmp_path / "run" / "heldout"), "train": "valid.jsonl"}
    again = recipe_from_dict({**resolved.to_dict(), "data": {**resolved.to_dict()["data"], **data}})
    records = list(TASKS["classify"].read(TASKS["classify"].find_corpus("valid.jsonl", again)))
    assert [resolved.model.labels[int(label)] for _, label in records] == [one["1"] for one in sets["valid"]]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model of the same shape."""
    folder = tmp_path_factory.mktemp("fill")
    (folder / "text.txt").write_text("\n".join(text for _, text in texts(200, 5)), encoding="utf-8")
    values = {
        **recipe_values(folder, "classify", steps=3),
        "task": "fill",
        "data": {"root": str(folder), "train": "text.txt", "valid": 10, "documents": "line", "max_length": 32},
    }
    (folder / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    quiet(folder / "recipe.toml", folder / "run")
    return folder / "run"


@each_task
def test_a_new_head_grows_on_the_body_of_another_model(encoder: Path, task: str, tmp_path: Path) -> None:
    values = recipe_values(tmp_path, task, init=str(encoder), lr=1e-9, steps=1)
    values["model"] = {"preset": "init"}
    del values["tokenizer"]
    (tmp_path / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    quiet(tmp_path / "recipe.toml", tmp_path / "run")
    bundle, before = load_bundle(tmp_path / "run" / "model"), load_weights(load_bundle(encoder / "model"))
    after = load_weights(bundle)
    heads = {name for name in after if name.startswith("head.")}
    assert heads == {"head.output.weight", "head.output.bias"} and not heads & before.keys()
    for name in after.keys() - heads:
        assert torch.allclose(after[name], before[name], atol=1e-6), name
    assert bundle.facts["init"] == "run" and bundle.config.head_settings.dropout == 0.1
    with pytest.raises(UserError, match=r"must be an encoder, .* but is a model for the task translate"):
        quiet(tmp_path / "recipe.toml", tmp_path / "other", "train.init=en-de")


@each_task
def test_with_the_same_labels_a_run_goes_on_with_the_head(runs: Runs, task: str, tmp_path: Path) -> None:
    _, run, _ = runs[task]
    values = recipe_values(tmp_path, task, init=str(run), lr=1e-9, steps=1)
    values["model"] = {"preset": "init"}
    del values["tokenizer"]
    (tmp_path / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    quiet(tmp_path / "recipe.toml", tmp_path / "run")
    before, after = (load_weights(load_bundle(folder / "model")) for folder in (run, tmp_path / "run"))
    assert all(torch.allclose(after[name], tensor, atol=1e-6) for name, tensor in before.items())


def test_several_labels_have_a_threshold_and_numbers_a_correlation(tmp_path: Path) -> None:
    draw = random.Random(3)
    several, numbers = [], []
    for n in range(200):
        chosen = [name for name in WORDS if draw.random() < 0.4]
        words = [*draw.choices(FILLING, k=3), *(draw.choice(WORDS[name]) for name in chosen), f"x{n}"]
        several.append({"text": " ".join(words), "labels": chosen})
        count = draw.randint(0, 5)
        numbers.append(f"{count + 0.5}\t{' '.join(['cat'] * count + draw.choices(FILLING, k=3))} x{n}")
    values = recipe_values(tmp_path, "classify", steps=80)
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, several)), encoding="utf-8")
    (tmp_path / "b.tsv").write_text("\n".join(numbers), encoding="utf-8")
    for name in ("a.jsonl", "b.tsv"):
        values["data"] |= {"train": name, "valid": 0.1, "test": 0.1}
        (tmp_path / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
        quiet(tmp_path / "recipe.toml", tmp_path / name[0])
    first, second = (load_bundle(tmp_path / name / "model") for name in "ab")
    assert first.config.head_settings.answer == "several" and 0 < (first.decode.threshold or 0) < 1
    assert first.facts["test"]["metrics"]["f1"]["score"] > 80
    assert second.config.head_settings.answer == "number" and second.config.head_settings.labels == ("score",)
    assert second.facts["test"]["metrics"]["spearman"]["score"] > 80
    assert "Worst mistakes" in (tmp_path / "b" / "report.html").read_text()


def test_notes_name_what_looks_wrong(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "classify", steps=1)
    table = tmp_path / "train.tsv"
    once = "once\ta text of its own\n"
    table.write_text(table.read_text() + once + "food\tbread\ncolour\tBread!\nfood\t\n\tno label\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text((tmp_path / "test.tsv").read_text() + "food\tbread.\n", encoding="utf-8")
    said = quiet(recipe, tmp_path / "run")
    assert "1 label occurs only once, too rarely to learn or to measure: once" in said
    assert "the labels are unbalanced" in said and "train.class_weights=balanced" in said
    assert "of them with another label, first train.tsv, lines" in said
    assert "data.test: " in said and "also in data.train" in said
    assert "dropped, empty: 2, first train.tsv, line 204" in said
    words = tmp_path / "words"
    recipe = write_recipe(words, "tag", steps=1)
    (words / "train.conll").write_text("a\tO\nb\tI-animal\n\n" + (words / "train.conll").read_text(), encoding="utf-8")
    assert "1 I- tag continues no span: " in (told := quiet(recipe, words / "run"))
    assert "train.conll, line 2: I-animal after O" in told


def test_long_texts_are_trained_in_windows_and_said(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "classify", steps=1)
    table = tmp_path / "train.tsv"
    table.write_text(table.read_text() + f"food\t{'bread and milk ' * 40}\n", encoding="utf-8")
    assert "1 text (0.5%) longer than 32 tokens: trained in windows" in quiet(recipe, tmp_path / "run")
    lines = [f"{label}\t{text}\t{text[::-1]}" for label, text in texts(60, 4)]
    lines.append(f"food\t{'bread and milk ' * 40}\tsome milk")
    (tmp_path / "train.tsv").write_text("\n".join(lines), encoding="utf-8")
    said = quiet(recipe, tmp_path / "pairs", "data.valid=5", "data.test=0")
    assert "text: column 2 and column 3" in said
    assert "1 pair (1.8%) longer than 32 tokens: trained in windows, each with the label" in said


def test_class_weights_change_the_loss(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "classify", steps=3)
    plain, table = tmp_path / "plain", tmp_path / "table"
    quiet(recipe, plain)
    quiet(recipe, table, "train.class_weights={food = 5.0}")
    assert losses(plain) != losses(table)
    with pytest.raises(UserError, match=r"train.class_weights: 'fod' is not one of the labels"):
        quiet(recipe, tmp_path / "wrong", "train.class_weights={fod = 5.0}")


REFUSED = {
    "monitor": (["--set", "train.monitor=bleu"], "train.monitor must be one of loss, score, accuracy"),
    "rdrop": (["--set", "train.rdrop=1"], "train.rdrop must be 0 for the task classify"),
    "fast": (
        ["--set", "train.fast=slots"],
        "train.fast must be auto or off, since a head for classes needs the plain path",
    ),
    "threshold": (["--set", "decode.threshold=0.3"], "decode.threshold is for several labels"),
    "label": (["--label", "7"], "has no column '7'"),
    "weights": (["--set", "train.class_weights=even"], "must be 'balanced' or a table of numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_do_not_fit_are_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options, wanted = REFUSED[name]
    write_data(tmp_path, "classify")
    said = fails(capfd, "train", str(tmp_path / "train.tsv"), "--out", str(tmp_path / "run"), "--steps", "1", *options)
    assert wanted in said


def test_what_is_no_table_with_labels_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"a sentence {n}\tein Satz {n}\n" for n in range(30)), encoding="utf-8")
    assert "must be labels, which most rows share" in fails(capfd, "train", str(tmp_path / "pairs.tsv"))
    (tmp_path / "one.tsv").write_text("x\ta text\nx\tanother\n", encoding="utf-8")
    assert "must have at least two different labels, but has only one (x)" in fails(
        capfd, "train", str(tmp_path / "one.tsv")
    )
    (tmp_path / "alone.tsv").write_text("only text\nmore text\n", encoding="utf-8")
    assert "must have a label and a text with a tab between them" in fails(capfd, "train", str(tmp_path / "alone.tsv"))
    write_data(tmp_path, "classify")
    (tmp_path / "empty.tsv").write_text("\tno label\n", encoding="utf-8")
    for name in ("valid", "test"):
        options = [f"--{name}", str(tmp_path / "empty.tsv"), "--out", str(tmp_path / name), "--steps", "1"]
        assert main(["train", str(tmp_path / "train.tsv"), *options]) == 2
        said = capfd.readouterr().err
        assert f"data.{name} must have at least one text, but {tmp_path / 'empty.tsv'} has none" in said
    (tmp_path / "test.tsv").write_text("fruit\tan apple\n", encoding="utf-8")
    command = [
        "train",
        str(tmp_path / "train.tsv"),
        "--test",
        str(tmp_path / "test.tsv"),
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*command, "--steps", "1"]) == 2
    assert "test.tsv, line 1: the label 'fruit' is not one of the 3 labels" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("task", "file"), [("classify", "of texts with their labels"), ("tag", "of words with their tags")]
)
def test_evaluate_without_a_table_says_what_it_needs(
    runs: Runs, task: str, file: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = str(runs[task][1])
    said = f"evaluate needs TABLE, a file {file}, since {name} is a model for the task {task}\n"
    assert said in fails(capfd, "evaluate", "-m", name)
    assert said in fails(capfd, "evaluate", "-m", name, "--reference", __file__)


def write_pairs(folder: Path) -> Path:
    lines = "".join(f"{label}\t{text}\t{text} {label}\n" for label, text in texts(60, 1))
    (folder / "pairs.tsv").write_text("label\ttext1\ttext2\n" + lines, encoding="utf-8")
    return folder / "pairs.tsv"


def test_a_bundle_says_whether_it_takes_pairs(runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    single, pairs, table = runs["classify"][1], tmp_path / "run", write_pairs(tmp_path)
    assert main(["train", str(table), "--out", str(pairs), "--steps", "2", "--device", "cpu", "--init", ""]) == 0
    assert [load_bundle(folder / "model").takes_pairs for folder in (single, pairs)] == [False, True]
    capfd.readouterr()

    # A tab is a space for a model of single texts, as it was in training, and separates the texts of a pair for the other.
    given = ["pear\tapple", "pear apple", "pear\napple"]
    assert len({str(one.probabilities) for one in regard.load(single).classify(given)}) == 1
    assert main(["classify", "-m", str(single), "--json", *given[:2]]) == 0
    captured = capfd.readouterr()
    assert "note: tabs in 1 text are read as spaces; regard evaluate scores a table with labels" in captured.err
    one, other = json.loads(captured.out)
    assert one["probabilities"] == other["probabilities"] and one["text"] == given[0]
    assert main(["classify", "-m", str(pairs), "--json", "pear\tapple", ""]) == 0
    [one, empty] = json.loads(capfd.readouterr().out)
    found = regard.load(pairs).classify(("pear", "apple"))
    assert one["labels"] == [found.label] and empty["labels"] == []

    wrong = {"text 1 of 2 must be a pair": ["x", "a\tb"], "with one tab between them, but has 2 tabs": ["food\tx\ty"]}
    for message, texts_given in wrong.items():
        assert message in fails(capfd, "classify", "-m", str(pairs), *texts_given)
    with pytest.raises(UserError, match="the text must be a single text, since this model was trained on single texts"):
        regard.load(single).classify(("pear", "apple"))
    assert "must have two columns of text" in fails(
        capfd, "evaluate", "-m", str(pairs), str(single.parent / "test.tsv")
    )
    assert "must have one column of text" in fails(capfd, "evaluate", "-m", str(single), str(table))
    # What is made from a bundle says the same.
    for verb in (
        ["average", str(pairs), "-o"],
        ["export", "-m", str(pairs), "--to", "bundle", "--weights", "int8", "-o"],
    ):
        assert main([*verb, str(tmp_path / verb[0])]) == 0
        assert load_bundle(tmp_path / verb[0]).takes_pairs is True


def test_a_bundle_that_does_not_say_takes_both(runs: Runs, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs["classify"][1] / "model", tmp_path / "old")
    settings = json.loads((tmp_path / "old" / "config.json").read_text())
    assert settings.pop("takes_pairs") is False

    def write(settings: dict[str, Any]) -> None:
        (tmp_path / "old" / "config.json").write_text(json.dumps(settings))
        write_manifest(tmp_path / "old", format=3)

    write(settings)
    assert load_bundle(tmp_path / "old").takes_pairs is None
    assert main(["classify", "-m", str(tmp_path / "old"), "--json", "pear\tapple"]) == 0
    [found] = json.loads(capfd.readouterr().out)
    pair = regard.load(tmp_path / "old").classify(("pear", "apple"))
    assert found["probabilities"] == pytest.approx({pair.label: pair.probabilities[pair.label]})
    write(settings | {"takes_pairs": "yes"})
    assert "takes_pairs must be true or false, but is 'yes'" in fails(capfd, "info", str(tmp_path / "old"))


@each_task
def test_plain_files_are_enough(task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    name, _ = write_data(tmp_path, task)
    out = tmp_path / "run"
    assert (
        main(["train", str(tmp_path / name), "--out", str(out), "--steps", "2", "--device", "cpu", "--init", ""]) == 0
    )
    said = capfd.readouterr().err
    assert "a model from scratch" in said and "try it  regard" in said
    bundle = load_bundle(out / "model")
    assert bundle.task == task and "test" in bundle.facts
    resolved = load_recipe(out / "recipe.toml")
    assert (
        resolve_recipe(resolved).to_dict()["model"] == resolved.to_dict()["model"]
    )  # a complete recipe stays as it is


@pytest.mark.parametrize(
    ("name", "task", "count"),
    [
        ("banking77", "classify", 10_003), ("clinc150", "classify", 15_100), ("snips", "classify", 13_784),
        ("sst2", "classify", 6_920), ("snips-slots", "tag", 13_757), ("ewt-upos", "tag", 12_544), ("wnut17", "tag", 3_394),
    ],
)  # fmt: skip
def test_recipes_of_label_sets_have_the_settings_that_are_chosen_for_files_of_their_size(
    name: str, task: str, count: int, tmp_path: Path
) -> None:
    path = tmp_path / ("a.tsv" if task == "classify" else "a.conll")
    lines = (f"{number % 2}\ta text of words {number}\n" for number in range(count))
    path.write_text("".join(lines) if task == "classify" else "word\tX\nother\tY\n\n" * count, encoding="utf-8")
    chosen = choose_recipe(task, [path]).recipe
    recipe = load_recipe(RECIPES / f"{name}.toml")
    ours, theirs = dataclasses.asdict(recipe.train), dataclasses.asdict(chosen.train)
    assert {key for key in ours if ours[key] != theirs[key]} <= {"batch_tokens"}  # that goes by the length of the texts
    assert recipe.model.preset == chosen.model.preset == "init"


def test_only_narrow_encoders_take_the_larger_rate_for_tags() -> None:
    assert [_lr(task, "minilm-en-de") for task in TASK_NAMES] == [1e-4, 2e-4]
    assert [_lr(task, "no such model, so of the usual width") for task in TASK_NAMES] == [5e-5, 5e-5]
