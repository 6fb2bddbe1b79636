"""Models of text vectors through real runs of the task `embed`."""

from __future__ import annotations

import json
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.bundle import load_bundle, load_weights
from regard.cli import main
from regard.data.corpus import Corpus
from regard.data.feed import Part
from regard.data.store import Store
from regard.data.text_pairs import TextPairBatch, one_side
from regard.errors import UserError
from regard.layout import SequenceLayout
from regard.models.token_loss import TokenLoss
from regard.models.transformer import Transformer
from regard.recipe import load_recipe, recipe_from_dict
from regard.tasks import embed
from regard.tasks.embed_plan import POOR
from regard.tasks.retrieval import LOSS_PAIRS, RetrievalSet, RetrievalValidator
from regard.training.metrics import read_metrics
from tests.commands import fails, fork, together
from tests.encoders import their_vectors, vector_model
from tests.tasks.test_labels import losses
from tests.training.runs import quiet
from tests.training.test_run import assert_same_weights, held, kill_when

STEPS = 60
ENGLISH = "one two three four five six seven eight nine ten red blue green black white".split()
GERMAN = "eins zwei drei vier fünf sechs sieben acht neun zehn rot blau grün schwarz weiß".split()


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Words and their translations in another order; some English texts have two."""
    draw = random.Random(seed)
    found: list[tuple[str, str]] = []
    while len(found) < count:
        words = draw.sample(range(len(ENGLISH)), draw.randint(2, 4))
        first = " ".join(ENGLISH[n] for n in words)
        found.append((first, " ".join(GERMAN[n] for n in reversed(words))))
        if draw.random() < 0.2:
            found.append((first, " ".join(GERMAN[n] for n in words)))
    return found[:count]


def write_data(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", 400, 1), ("test", 60, 2)):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs(count, seed))
            (folder / f"{name}.{language}").write_text(lines, encoding="utf-8")


def recipe_values(folder: Path, **train: Any) -> dict[str, Any]:
    write_data(folder)
    return {
        "task": "embed",
        "data": {
            "source": "en", "target": "de", "root": str(folder), "train": "train.{en,de}", "valid": "test.{en,de}",
            "test": "test.{en,de}", "max_length": 16,
        },
        "tokenizer": {"vocab_size": 400},
        "model": {
            "preset": "tiny", "d_model": 32, "d_ff": 64, "num_heads": 2, "encoder_layers": 1, "dropout": 0.0, "activation": "gelu",
            "positions": "learned", "max_positions": 32, "embedding_scale": False, "embedding_norm": True,
            "front": {"token_types": 2},
        },  # BERT's layers, which other programs run
        "train": {
            "steps": STEPS, "batch_tokens": 500, "save_every": 10, "validate_every": 20, "log_every": 1, "lr": 1e-2,
            "optimizer": "adamw", "device": "cpu", "precision": "fp32", "average": 1, **train,
        },
    }  # fmt: skip


def write_recipe(folder: Path, **train: Any) -> Path:
    values = recipe_values(folder, **train)
    (folder / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    return folder / "recipe.toml"


Run = tuple[Path, Path, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A recipe, its finished run, and what that printed."""
    recipe = write_recipe(tmp_path_factory.mktemp("embed"))
    return recipe, recipe.parent / "run", quiet(recipe, recipe.parent / "run")


@pytest.fixture(scope="module")
def texts(run: Run) -> tuple[Path, Path]:
    return run[0].parent / "test.en", run[0].parent / "test.de"


def test_the_loss_falls_and_the_model_is_a_bundle(run: Run) -> None:
    _, folder, printed = run
    assert np.mean(losses(folder)[-5:]) < 0.5 * np.mean(losses(folder)[:5])
    bundle = load_bundle(folder / "model")
    assert bundle.task == "embed" and bundle.config.head_settings.normalize
    metrics = bundle.facts["test"]["metrics"]
    assert list(metrics) == ["retrieval accuracy", "en to de", "de to en", "loss"]
    assert metrics["retrieval accuracy"]["score"] > 80
    # The test set is the validation set here, and the model is the one that did best on it.
    valid = [record["retrieval"] for record in read_metrics(folder / "metrics.jsonl") if record["kind"] == "valid"]
    assert metrics["retrieval accuracy"]["score"] == pytest.approx(max(valid))
    assert f"try it  regard embed -m {folder}" in printed
    page = (folder / "report.html").read_text()
    assert "en ↔ de" in page and "Test retrieval accuracy" in page and "en to de" in page
    assert "Use: `regard embed" in bundle.card


def brute_force(first: dict[str, Any], second: dict[str, Any], given: list[tuple[str, str]]) -> float:
    """The share of the texts in `first` one of whose partners in `given` is nearest among all of `second`."""
    right = 0
    for text, vector in first.items():
        cosines = {
            other: float(np.dot(vector, found) / np.linalg.norm(vector) / np.linalg.norm(found))
            for other, found in second.items()
        }
        right += (text, max(cosines, key=lambda other: cosines[other])) in given
    return 100 * right / len(first)


def test_retrieval_accuracy_counts_each_text_once_and_any_of_its_partners() -> None:
    given = [("a", "A"), ("b", "B"), ("a", "A2"), ("c", "C"), ("d", "B"), ("b", "B")]
    draw = np.random.default_rng(0)
    for _ in range(50):
        vectors = {text: draw.normal(size=3).astype(np.float32) for pair in given for text in pair}
        texts = RetrievalSet(given, ("en", "de"))
        assert [len(side) for side in texts.sides] == [4, 4]
        first, second = ({text: vectors[text] for text in side} for side in texts.sides)
        found = texts.accuracy(np.stack(list(first.values())), np.stack(list(second.values())))
        turned = [(target, source) for source, target in given]
        assert found == pytest.approx((brute_force(first, second, given), brute_force(second, first, turned)))


def test_evaluate_is_the_brute_force_over_the_vectors_of_the_model(
    run: Run, texts: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "-m", str(run[1]), "--source", str(texts[0]), "--reference", str(texts[1])]
    assert main([*command, "--engine", "torch", "--device", "cpu", "--json"]) == 0
    found = {name: one["score"] for name, one in json.loads(capsys.readouterr().out)["metrics"].items()}
    model = regard.load(run[1], engine="torch", device="cpu")
    given = pairs(60, 2)
    first, second = ({text: model.embed(text) for text in dict.fromkeys(side)} for side in zip(*given, strict=True))
    there = brute_force(first, second, given)
    back = brute_force(second, first, [(target, source) for source, target in given])
    assert found == pytest.approx(
        {"retrieval accuracy": (there + back) / 2, "test.en to test.de": there, "test.de to test.en": back}
    )
    assert len(first) < 60 and there > 80
    # What training measured with its own batches is what the finished model gives.
    metrics = load_bundle(run[1] / "model").facts["test"]["metrics"]
    assert metrics["en to de"]["score"] == pytest.approx(there) and metrics["de to en"]["score"] == pytest.approx(back)


def test_a_length_without_room_for_a_text_is_refused(run: Run) -> None:
    tokenizer = load_bundle(run[1] / "model").tokenizer
    with pytest.raises(UserError, match=r"but the model reads 1; raise data.max_length$"):
        RetrievalValidator([("blue", "blau")], tokenizer, 1, 0.05, ("en", "de"))


def test_the_validation_loss_is_the_formula(run: Run) -> None:
    recipe = load_recipe(run[1] / "recipe.toml")
    bundle, given = load_bundle(run[1] / "model"), pairs(60, 2)
    scores = embed.score_test_set(recipe, bundle, given)
    model = regard.load(run[1], engine="torch", device="cpu")
    first, second = (model.embed([pair[side] for pair in given]).astype(np.float64) for side in (0, 1))
    logits, total = first @ second.T / 0.05, 0.0
    for n, (source, target) in enumerate(given):
        kept = [m for m, (a, b) in enumerate(given) if m == n or (a != source and b != target)]
        total += np.log(np.exp(logits[n, kept]).sum()) + np.log(np.exp(logits[kept, n]).sum()) - 2 * logits[n, n]
    assert len(given) < LOSS_PAIRS
    assert scores["loss"].score == pytest.approx(total / 120, rel=1e-4)


def test_evaluate_names_what_does_not_fit(
    run: Run, texts: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "-m", str(run[1]), "--source", str(texts[0]), "--reference", str(texts[1])]
    assert "makes vectors, and does not translate; leave out --beam and --sample" in fails(
        capfd, *command, "--beam", "3", "--sample"
    )
    assert "makes vectors, and does not translate; leave out --to" in fails(capfd, *command, "--to", "de")
    for given in (["--bootstrap", "9"], ["--phrase", "x"], ["--adapter", "x"], ["--force"]):
        assert f"does not translate; leave out {given[0]}" in fails(capfd, *command, *given)
    assert "one model of text vectors at a time" in fails(capfd, *command, "-m", str(run[1]))
    for name, lines in (("a", "one\n\ntwo\n"), ("b", "eins\nzwei\n\n"), ("c", "\n\n\n")):
        (tmp_path / name).write_text(lines, encoding="utf-8")
    ends = ["--engine", "torch", "--device", "cpu"]
    assert main([*command[:3], "--source", str(tmp_path / "a"), "--reference", str(tmp_path / "b"), *ends]) == 0
    assert "note: 2 of 3 pairs left out, since a side is empty" in (said := capfd.readouterr()).err
    assert "queries:1|candidates:1" in said.out
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a").write_text("eins\nzwei\ndrei\n", encoding="utf-8")
    of_one_name = ["--source", str(tmp_path / "a"), "--reference", str(tmp_path / "other" / "a"), "--json"]
    assert main([*command[:3], *of_one_name, *ends]) == 0
    assert list(json.loads(capfd.readouterr().out)["metrics"])[1:] == ["first to second", "second to first"]
    blank = ["evaluate", "-m", str(run[1]), "--source", str(tmp_path / "a"), "--reference", str(tmp_path / "c")]
    assert "must have at least one line with text beside text" in fails(capfd, *blank)


def test_a_batch_in_slots_has_the_loss_and_the_gradients_of_one_of_any_shape(run: Run) -> None:
    recipe, bundle, store = (
        load_recipe(run[1] / "recipe.toml"),
        load_bundle(run[1] / "model"),
        Store.open(run[1] / "store"),
    )
    part = Part(np.array([5, 0, 17, 200, 201, 3, 90]), 0)
    found = []
    for with_slots in (False, True):
        sampler, packing = embed.make_batches(recipe, store, bundle.tokenizer, with_slots)
        torch.manual_seed(3)
        model = Transformer(bundle.config)
        [packed] = packing.pack([part], slice(0, 1), sampler).parts
        batch = packing.slots.unpack(packed) if packing.slots is not None else packed
        loss = embed.loss(model, batch, TokenLoss(0.0))
        torch.autograd.backward(loss.total)
        found.append((float(loss.total.detach()), {n: p.grad for n, p in model.named_parameters()}))
    (one, gradients), (other, others) = found
    assert one == pytest.approx(other, rel=1e-5) and one > 10
    for name, gradient in gradients.items():
        assert gradient is not None and torch.allclose(gradient, others[name], rtol=1e-3, atol=1e-4), name


def test_a_run_in_slots_learns_what_a_run_without_them_learns(run: Run, tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    quiet(run[0], slots, "train.fast=slots")
    found = load_bundle(slots / "model").facts["test"]["metrics"]
    assert found["retrieval accuracy"]["score"] > 80
    assert losses(slots)[-1] == pytest.approx(losses(run[1])[-1], abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "anchored"])
def test_two_processes_make_the_run_of_one_with_two_micro_batches(
    run: Run, anchored: Path, tmp_path: Path, kind: str
) -> None:
    # A text's negatives are those of its micro-batch: as many micro-batches, the same run.
    recipe = anchored if kind == "anchored" else run[0]
    quiet(recipe, tmp_path / "one", "train.accumulate=2", "train.steps=20")
    sets = ["--set", "train.steps=20"]
    codes, said = together(2, "train", str(recipe), "--out", str(tmp_path / "two"), *sets)
    assert codes == [0, 0], said
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3, abs=1e-4)


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_weights(run: Run, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = fork([held(tmp_path, 27), "train", str(run[0]), "--out", str(killed)])
    kill_when(process, lambda: (killed / "checkpoints" / "step-000020").exists(), signal.SIGKILL)
    assert "resuming from step 20" in quiet(run[0], killed, resume=True)
    assert_same_weights(run[1], killed)
    assert losses(killed) == losses(run[1])


def test_transformers_reads_an_export_with_its_tokenizer(run: Run, tmp_path: Path) -> None:
    assert main(["export", "-m", str(run[1]), "--to", "transformers", "-o", str(tmp_path / "out")]) == 0
    given = ["one two three", "grün weiß", "Äpfel, 3,5 %!", " two  spaces"]
    ours = regard.load(run[1], engine="torch", device="cpu").embed(given)
    assert their_vectors(tmp_path / "out", given) == pytest.approx(ours, abs=1e-5)
    tokenizer, own = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "out"),
        load_bundle(run[1] / "model").tokenizer,
    )
    ids, types = own.frame(own.encode("one two"), own.encode("eins"))
    pair = tokenizer("one two", "eins")
    assert (pair["input_ids"], pair["token_type_ids"]) == (ids, types) and 1 in types


def test_ctranslate2_computes_the_same_vectors(run: Run) -> None:
    pytest.importorskip("ctranslate2")
    given = [source for source, _ in pairs(40, 3)]
    found = [regard.load(run[1], engine=engine, device="cpu").embed(given) for engine in ("torch", "ctranslate2-fp32")]
    assert found[0] == pytest.approx(found[1], abs=1e-5)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model of the same shape."""
    folder = tmp_path_factory.mktemp("fill")
    write_data(folder)
    values = {
        **recipe_values(folder, steps=3),
        "task": "fill",
        "data": {"root": str(folder), "train": "train.[de][en]", "valid": 10, "documents": "line", "max_length": 16},
    }
    values["train"]["whole_words"] = True
    (folder / "fill.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    quiet(folder / "fill.toml", folder / "run")
    return folder / "run"


def test_a_run_starts_from_a_masked_language_model(encoder: Path, tmp_path: Path) -> None:
    values = recipe_values(tmp_path, init=str(encoder), lr=1e-9, steps=1)
    values["model"] = {"preset": "init"}
    del values["tokenizer"]
    (tmp_path / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    quiet(tmp_path / "recipe.toml", tmp_path / "run")
    bundle, before = load_bundle(tmp_path / "run" / "model"), load_weights(load_bundle(encoder / "model"))
    after = load_weights(bundle)
    assert not any(name.startswith("head.") for name in after)
    assert all(torch.allclose(tensor, before[name], atol=1e-6) for name, tensor in after.items())
    assert bundle.config.head_settings.pooling == "mean" and bundle.config.head_settings.normalize
    with pytest.raises(UserError, match=r"must be an encoder, .* but is a model for the task translate"):
        quiet(tmp_path / "recipe.toml", tmp_path / "other", "train.init=en-de")


FRENCH = "un deux trois quatre cinq six sept huit neuf dix rouge bleu vert noir blanc".split()


@pytest.fixture(scope="module")
def anchored(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that teaches the model French."""
    folder = tmp_path_factory.mktemp("anchored")
    values = recipe_values(folder, init=str(run[1]), anchor="en", lr=3e-3, steps=80)
    words = dict(zip(GERMAN, FRENCH, strict=True))
    for name in ("train", "test"):
        german = (folder / f"{name}.de").read_text(encoding="utf-8")
        french = " ".join(words.get(word, word) for word in german.replace("\n", " \n ").split(" "))
        (folder / f"{name}.fr").write_text(french.replace(" \n ", "\n"), encoding="utf-8")
    values["data"] |= {"target": "fr", "train": "train.{en,fr}", "valid": "test.{en,fr}", "test": "test.{en,fr}"}
    values["model"] = {"preset": "init"}
    del values["tokenizer"]
    (folder / "recipe.toml").write_text(recipe_from_dict(values).to_toml(), encoding="utf-8")
    return folder / "recipe.toml"


@pytest.fixture(scope="module")
def taught(anchored: Path) -> Path:
    quiet(anchored, anchored.parent / "run")
    return anchored.parent / "run"


def cosines_with(before: Path, after: Path, texts: list[str]) -> float:
    """The mean cosine between the vectors of both models."""
    one, other = (regard.load(model, engine="torch", device="cpu").embed(texts) for model in (before, after))
    return float((one * other).sum(axis=1).mean())


def test_an_anchored_language_stays_while_another_is_learnt(
    run: Run, anchored: Path, taught: Path, tmp_path: Path
) -> None:
    quiet(anchored, tmp_path / "free", 'train.anchor=""')
    found = {name: load_bundle(folder / "model").facts["test"]["metrics"] for name, folder in
             {"anchored": taught, "free": tmp_path / "free"}.items()}  # fmt: skip
    assert found["anchored"]["retrieval accuracy"]["score"] > 80 and found["free"]["retrieval accuracy"]["score"] > 80
    english = list(dict.fromkeys(source for source, _ in pairs(100, 5)))
    stayed, moved = (cosines_with(run[1], folder, english) for folder in (taught, tmp_path / "free"))
    assert stayed > 0.95 and 1 - stayed < 0.5 * (1 - moved)
    # So French lies beside the German that it was never shown with.
    german, french = (
        regard.load(taught, engine="torch", device="cpu").embed([" ".join(words[n : n + 3]) for n in range(13)])
        for words in (GERMAN, FRENCH)
    )
    assert np.mean((french @ german.T).argmax(axis=1) == np.arange(13)) > 0.6


def test_the_anchored_side_may_be_the_second(anchored: Path, run: Run, tmp_path: Path) -> None:
    sides = ("data.source=fr", "data.target=en", "data.train=train.{fr,en}", "data.valid=test.{fr,en}", "data.test=0")
    quiet(anchored, tmp_path / "run", *sides)
    english = list(dict.fromkeys(source for source, _ in pairs(100, 5)))
    assert cosines_with(run[1], tmp_path / "run", english) > 0.95


@pytest.mark.slow
def test_a_killed_anchored_run_ends_with_the_same_weights(anchored: Path, taught: Path, tmp_path: Path) -> None:
    killed = tmp_path / "killed"
    process = fork([held(tmp_path, 27), "train", str(anchored), "--out", str(killed)])
    kill_when(process, lambda: (killed / "checkpoints" / "step-000020").exists(), signal.SIGKILL)
    assert "resuming from step 20" in quiet(anchored, killed, resume=True)
    assert_same_weights(taught, killed)


def test_an_anchor_that_does_not_fit_is_refused(
    run: Run, anchored: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def said(recipe: Path, *sets: str) -> str:
        options = [part for each in sets for part in ("--set", each)]
        return fails(capfd, "train", str(recipe), "--out", str(tmp_path / "run"), *options)

    assert "train.anchor needs train.init, the model whose vectors stay as they are" in said(run[0], "train.anchor=en")
    wanted = (
        "train.anchor must be the source of all corpora or the target of all, but is 'de'; they are en and fr. Name "
    )
    assert wanted in said(anchored, "train.anchor=de")
    assert "but is 'en'; they are en and en" in said(anchored, "data.target=en", "data.train=train.{en,fr}")
    mixed = 'data.train=[{path = "a.{en,fr}"}, {path = "a.{fr,en}", source = "fr", target = "en"}]'
    assert "but is 'en'; they are en and fr, fr and en" in said(anchored, mixed)
    assert "model.head.pooling must be 'mean' with train.anchor, as in the model in train.init, but is 'first'" in said(
        anchored, "model.head.pooling=first"
    )
    assert "tokenizer.extend must be 0 with train.anchor" in said(anchored, "tokenizer.extend=10")
    assert "train.fast must be auto or off, since train.anchor needs the plain path" in said(
        anchored, "train.fast=slots"
    )


def test_an_anchor_needs_a_model_that_has_vectors_of_texts(
    encoder: Path, anchored: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--set", f"train.init={encoder}", "--out", str(tmp_path / "run")]
    said = fails(capfd, "train", str(anchored), *options)
    assert "train.init must be a model for the task embed with train.anchor, but" in said and "task fill" in said


def test_an_anchored_run_that_lost_its_start_says_so(
    anchored: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    quiet(anchored, folder, "train.steps=10")
    (folder / "start" / "model.safetensors").unlink()
    capfd.readouterr()
    assert main(["train", str(anchored), "--out", str(folder), "--resume", "--set", "train.steps=20"]) == 2
    said = capfd.readouterr().err
    assert "train.anchor compares with the model before the first step" in said and "a new run with --out" in said


def test_one_side_of_a_batch_is_what_lies_there() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 9, (6, 2))
    ids = np.arange(lengths.sum())
    layout = SequenceLayout.from_lengths(lengths.reshape(-1).tolist(), tile_sizes=(4, 2, 6))
    batch = TextPairBatch(torch.from_numpy(ids), layout, torch.arange(12).view(6, 2), torch.tensor(20.0))
    every = torch.from_numpy(ids).split(lengths.reshape(-1).tolist())
    for side in (0, 1):
        found, alone = one_side(batch, side)
        assert found.tolist() == torch.cat(every[side::2]).tolist()
        assert alone.lengths == tuple(lengths[:, side]) and alone.tile_sizes == (2, 1, 3)


def test_a_run_starts_from_a_model_of_sentence_transformers_with_its_tokenizer(tmp_path: Path) -> None:
    _, given = vector_model(tmp_path / "theirs", pooling="cls_token", normalize=False)
    write_data(tmp_path / "data")
    files = [str(tmp_path / "data" / f"train.{language}") for language in ("en", "de")]
    command = ["train", *files, "--task", "embed", "--init", str(given.folder), "--device", "cpu", "--steps", "2"]
    assert main([*command, "--out", str(tmp_path / "run"), "--set", "train.batch_tokens=300"]) == 0
    bundle = load_bundle(tmp_path / "run" / "model")
    assert bundle.tokenizer.models == given.tokenizer.models
    assert bundle.config.head_settings == given.config.head_settings  # its pooling, and vectors of any length
    assert bundle.max_length == 24  # what the model reads


@pytest.mark.parametrize("kind", ["two files", "a table"])
def test_plain_files_are_enough(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_data(tmp_path)
    files = [str(tmp_path / "train.en"), str(tmp_path / "train.de")]
    if kind == "a table":
        lines = "".join(f"{source}\t{target}\n" for source, target in pairs(400, 1))
        (tmp_path / "pairs.tsv").write_text(lines, encoding="utf-8")
        files = [str(tmp_path / "pairs.tsv")]
    command = ["train", *files, "--task", "embed", "--device", "cpu", "--source", "en", "--target", "de"]
    assert main([*command, "--dry-run"]) == 0
    printed = capfd.readouterr().err
    assert "400 pairs, vectors of en and de" in printed and "400 pairs will not suffice to learn a language" in printed
    assert "held out: 8 pairs for validation and 8 pairs for testing" in printed
    out = tmp_path / "run"
    assert main([*command, "--out", str(out), "--steps", "2", "--set", "tokenizer.vocab_size=400"]) == 0
    printed = capfd.readouterr().err
    best = max(record.get("retrieval", 0) for record in read_metrics(out / "metrics.jsonl"))
    assert ("verdict the right text is the nearest" if best < POOR else "try it  regard embed") in printed
    assert load_bundle(out / "model").facts["test"]["sentences"] == 8
    assert len((out / "heldout" / "test.en").read_text(encoding="utf-8").splitlines()) == 8


def test_a_held_out_text_is_not_trained_on_from_the_other_side(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"text {n}\tother text {n}\n" for n in range(200)), encoding="utf-8")
    held_out, _ = embed.hold_out([Corpus("pairs.tsv", tmp_path / "pairs.tsv", None)], 10, 10, seed=1)
    assert len(held_out.valid) == 10
    for source, target in held_out.valid:
        assert held_out.is_held_out("another", source) and held_out.is_held_out(target, "another")


def test_texts_that_do_not_fit_are_cut_or_dropped_and_counted(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, steps=1)
    words = "blue green black white".split()
    longer = "".join(" ".join(words[n % 4] for n in range(length)) + "\n" for length in (30, 40))
    for language in ("en", "de"):
        path = tmp_path / f"train.{language}"
        path.write_text(path.read_text(encoding="utf-8") + longer, encoding="utf-8")
    printed = quiet(recipe, tmp_path / "run", "data.max_length=30")
    assert "dropped, too long: 1, first train.{en,de}, line 402" in printed
    assert "1 pair with a text cut at its end: data.max_length = 30 includes the marks around a text" in printed


REFUSED = {
    "temperature": (["--set", "train.temperature=0"], "train.temperature must be a number above 0, but is 0"),
    "smoothing": (["--set", "train.label_smoothing=0.1"], "train.label_smoothing must be 0 for the task embed"),
    "monitor": (["--set", "train.monitor=bleu"], "train.monitor must be one of loss, retrieval for the task embed"),
    "rdrop": (["--set", "train.rdrop=1", "--set", "model.dropout=0.1"], "train.rdrop must be 0 for the task embed"),
    "shard": (["--set", "train.shard=true"], "train.shard must be false for the task embed"),
    "share": (["--set", "data.valid=0.1"], "data.valid must be a corpus or a number of pairs, but is 0.1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_do_not_fit_are_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options, wanted = REFUSED[name]
    recipe = write_recipe(tmp_path, steps=1)
    assert wanted in fails(capfd, "train", str(recipe), "--out", str(tmp_path / "run"), *options)
