"""Language models through real runs: `generate` on rows of text, `fill` on masked pieces."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.bundle import load_bundle
from regard.cli import main
from regard.data.corpus import CorpusRange
from regard.data.documents import PIECE, whole_documents
from regard.data.rows import TextRows, make_text_batch
from regard.data.split import sentence_key
from regard.data.store import Store
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError
from regard.generate.engines.torch_engine import load_model
from regard.layout import SequenceLayout
from regard.models.token_loss import TokenLoss
from regard.recipe import load_recipe, recipe_from_dict
from regard.serve.watch import Watch, seconds_left
from regard.tasks import TASKS, generate
from regard.training.checkpoint import list_checkpoints
from regard.training.folder import RunFolder
from regard.training.metrics import read_metrics
from regard.training.prepare import choose_evaluation_sets, find_corpora
from regard.training.update import PlainUpdate
from tests.commands import fails, fork, together
from tests.data.test_rows import column_of
from tests.training.runs import damage, quiet
from tests.training.test_run import assert_same_weights, held, kill_when

TASK_NAMES = ("generate", "fill")
each_task = pytest.mark.parametrize("task", TASK_NAMES)
STEPS = 40


def paragraphs(count: int, seed: int) -> list[str]:
    """Sentences in which each word says what the next one is, and may be guessed from its neighbours."""
    draw = random.Random(seed)
    words = "one two three four five six seven eight nine ten eleven twelve".split()
    found = []
    for _ in range(count):
        place, length = draw.randrange(len(words)), draw.randint(3, 40)
        text = [words[(place + n) % len(words)] for n in range(length)]
        found.append("\n".join(" ".join(text[n : n + 9]) for n in range(0, length, 9)))
    return found


def write_text_recipe(folder: Path, task: str, **train: Any) -> Path:
    """A recipe for a very small language model, with its text beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("\n\n".join(paragraphs(150, 1)), encoding="utf-8")
    (folder / "valid.txt").write_text("\n\n".join(paragraphs(12, 2)), encoding="utf-8")
    layers = {"generate": "decoder_layers", "fill": "encoder_layers"}[task]
    fields = {
        "steps": STEPS, "batch_tokens": 400, "save_every": 10, "validate_every": 20, "log_every": 1, "lr": 5e-3,
        "optimizer": "adamw", "device": "cpu", "precision": "fp32", "average": 3, **train,
    }  # fmt: skip
    lines = [
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {str(value).lower()}"
        for key, value in fields.items()
    ]
    path = folder / "recipe.toml"
    path.write_text(
        f'task = "{task}"\n[data]\ntrain = "train.txt"\nvalid = "valid.txt"\ntest = "valid.txt"\n'
        'documents = "paragraph"\nmax_length = 32\n[tokenizer]\nvocab_size = 380\n'
        '[model]\npreset = "tiny"\nd_model = 32\nd_ff = 64\nnum_heads = 2\nnorm_position = "pre"\ndropout = 0.0\n'
        f"{layers} = 1\n[train]\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )
    return path


def losses(run: Path, kind: str = "train") -> list[float]:
    return [record["loss"] for record in read_metrics(run / "metrics.jsonl") if record["kind"] == kind]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A finished run of each task, and its recipe."""
    found = {}
    for task in TASK_NAMES:
        recipe = write_text_recipe(tmp_path_factory.mktemp(task), task)
        quiet(recipe, recipe.parent / "run")
        found[task] = recipe, recipe.parent / "run"
    return found


Runs = dict[str, tuple[Path, Path]]


@each_task
def test_the_loss_falls_and_the_model_is_a_bundle(runs: Runs, task: str) -> None:
    _, run = runs[task]
    assert len(losses(run)) == STEPS
    assert np.mean(losses(run)[-5:]) < 0.75 * np.mean(losses(run)[:5])
    bundle = load_bundle(run / "model")
    assert (bundle.task, bundle.source, bundle.target, bundle.max_length) == (task, "", "", 32)
    assert bundle.facts["documents"] == 150 and "pairs" not in bundle.facts
    metrics = bundle.facts["test"]["metrics"]
    assert list(metrics) == (["bits per byte", "loss", "perplexity"] if task == "generate" else ["loss", "perplexity"])
    # The test set is the validation set here, and the model is the one that did best on it.
    assert metrics["loss"]["score"] == pytest.approx(min(losses(run, "valid")), rel=1e-5)
    assert metrics["perplexity"]["score"] == pytest.approx(math.exp(metrics["loss"]["score"]))
    page = (run / "report.html").read_text()
    assert ("Bits per byte" in page) == (task == "generate") and "BLEU" not in page
    assert "Documents</th>" in page and "Sentences" not in page
    _, view = Watch(run).view()
    assert (view["source"], view["target"], view["name"]) == (None, None, "run")
    assert view["done"] == 1.0 and view["remaining"] is None
    assert ("bits_per_byte" in view["best"]) == (task == "generate")
    assert seconds_left(0.25, [{"elapsed": 30.0}, {}]) == 90.0 and seconds_left(None, []) is None


@each_task
def test_memory_that_does_not_suffice_is_said_in_the_tasks_words(
    runs: Runs, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError

    recipe, _ = runs[task]
    monkeypatch.setattr(PlainUpdate, "__call__", fail)
    with pytest.raises(RegardError, match=r"out of memory at step 1 with 3\d\d tokens in 1 micro-batch; set train.acc"):
        quiet(recipe, tmp_path / "run")


def test_a_run_goes_on_with_the_task_and_shape_of_its_model(runs: Runs, tmp_path: Path) -> None:
    recipe, run = runs["generate"]
    content = recipe.read_text(encoding="utf-8").replace("[tokenizer]\nvocab_size = 380\n", "")
    begin, end = content.index("[model]"), content.index("[train]")
    shaped = content.replace("d_ff = 64", "d_ff = 48").replace('norm_position = "pre"', 'norm = "rms"')
    other = content[:begin] + '[model]\npreset = "init"\n' + content[end:]
    wrong_task = "train.init must be a model for the task fill, but .* is one for the task generate"
    wrong_shape = r"model.d_ff must be 64, as in .* train.init, but is 48 \(also different: norm_position, norm\); set"
    filling = other.replace('task = "generate"', 'task = "fill"')
    for name, text, message in (("task", filling, wrong_task), ("shape", shaped, wrong_shape)):
        path = recipe.with_name(f"{name}.toml")
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            quiet(path, tmp_path / "run", f"train.init={run / 'model'}")
    assert not (tmp_path / "run").exists()


def test_bits_per_byte_are_what_the_documents_cost_one_by_one(runs: Runs) -> None:
    """Computed in another way: each document alone, in windows as long as a row, from the logits of the model."""
    recipe, run = runs["generate"]
    bundle = load_bundle(run / "model")
    model, tokenizer = load_model(bundle), bundle.tokenizer
    documents = (recipe.parent / "valid.txt").read_text().split("\n\n")
    nats, place = 0.0, 0
    for document in documents:
        tokens = [tokenizer.bos_id, *tokenizer.encode(document), tokenizer.eos_id]
        start = 0
        while start < len(tokens) - 1:
            stop = min(
                len(tokens) - 1, start + 32 - (place + start) % 32
            )  # the rows are full, whatever documents are in them
            ids = torch.tensor(tokens[start:stop])
            logits = model(ids, SequenceLayout.from_lengths([len(ids)]))
            nats -= float(logits.log_softmax(-1).gather(1, torch.tensor(tokens[start + 1 : stop + 1])[:, None]).sum())
            start = stop
        place += len(tokens) - 1
    metrics = bundle.facts["test"]["metrics"]
    num_bytes = sum(len(document.encode()) for document in documents)
    assert metrics["loss"]["signature"] == f"tokens:{place}|bytes:{num_bytes}"
    assert metrics["loss"]["score"] == pytest.approx(nats / place, rel=1e-4)
    assert metrics["bits per byte"]["score"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-4)


def test_a_documents_loss_does_not_depend_on_its_neighbours_unless_asked_for(runs: Runs) -> None:
    _, run = runs["generate"]
    bundle = load_bundle(run / "model")
    model, tokenizer = load_model(bundle), bundle.tokenizer
    texts = paragraphs(9, 5)
    ids = [tokenizer.encode(text)[:12] for text in texts]

    def nll(documents: list[list[int]], across: bool) -> torch.Tensor:
        """Of each token, in one row."""
        column = column_of(documents)
        rows = TextRows(
            column, [CorpusRange("x", 1.0, 0, len(documents))], 1000, tokenizer.bos_id, tokenizer.eos_id, across
        )
        batch = make_text_batch(rows.gather(np.array([0])))
        logits: torch.Tensor = model(batch.ids, batch.layout).log_softmax(-1)
        assert float(generate.loss(model, batch, TokenLoss()).nll) == pytest.approx(
            -float(logits.gather(1, batch.labels[:, None]).sum()), rel=1e-5
        )
        return -logits.gather(1, batch.labels[:, None])[:, 0]

    alone = torch.cat([nll([document], across=False) for document in ids])
    torch.testing.assert_close(nll(ids, across=False), alone, rtol=1e-4, atol=1e-5)
    assert (nll(ids, across=True) - alone).abs().max() > 0.01


@each_task
def test_batches_of_one_shape_learn_the_same(runs: Runs, task: str, tmp_path: Path) -> None:
    recipe, _ = runs[task]
    sets = ("train.fast=slots", "train.steps=12", "train.lr=5e-3", "train.schedule=cosine")
    quiet(recipe, tmp_path / "slots", *sets)
    quiet(recipe, tmp_path / "plain", *sets[1:])
    one, other = losses(tmp_path / "slots"), losses(tmp_path / "plain")
    # The same rows in the same order, but for the end of an epoch, which is cut otherwise.
    assert one[:3] == pytest.approx(other[:3], rel=1e-4)
    assert one[-1] == pytest.approx(other[-1], rel=0.1) and one[-1] < 0.9 * one[0]


@pytest.mark.slow
@each_task
@pytest.mark.parametrize("sets", [(), ("train.fast=slots", "train.accumulate=2")], ids=["batches", "slots"])
def test_two_processes_make_the_run_of_one(runs: Runs, task: str, sets: tuple[str, ...], tmp_path: Path) -> None:
    recipe, one = runs[task]
    if sets:
        one = tmp_path / "one"
        quiet(recipe, one, *sets)
    options = [word for each in sets for word in ("--set", each)]
    codes, said = together(2, "train", str(recipe), "--out", str(tmp_path / "two"), *options)
    assert codes == [0, 0], said
    assert losses(tmp_path / "two") == pytest.approx(losses(one), rel=1e-4)
    assert losses(tmp_path / "two", "valid") == pytest.approx(losses(one, "valid"), rel=1e-4)


@pytest.mark.slow
@each_task
def test_a_sharded_run_is_the_run_of_one(runs: Runs, task: str, tmp_path: Path) -> None:
    recipe, one = runs[task]
    codes, said = together(2, "train", str(recipe), "--out", str(tmp_path / "two"), "--set", "train.shard=true")
    assert codes == [0, 0], said
    assert losses(tmp_path / "two") == pytest.approx(losses(one), rel=1e-4)


@pytest.mark.slow
@each_task
def test_a_killed_run_ends_with_the_same_weights(runs: Runs, task: str, tmp_path: Path) -> None:
    recipe, one = runs[task]
    killed = tmp_path / "killed"
    process = fork([held(tmp_path, 27), "train", str(recipe), "--out", str(killed)])
    kill_when(process, lambda: (killed / "checkpoints" / "step-000020").exists(), signal.SIGKILL)
    assert "resuming from step 20" in quiet(recipe, killed, resume=True)
    assert_same_weights(one, killed)
    assert losses(killed) == losses(one)


@each_task
def test_masks_and_rows_of_a_run_that_goes_on_are_those_of_one_that_never_stopped(
    runs: Runs, task: str, tmp_path: Path
) -> None:
    """In the middle of an epoch, and in slots whose micro-batches are of two epochs."""
    recipe, _ = runs[task]
    sets = ("train.fast=slots", "train.accumulate=3", "train.steps=20", "train.batch_tokens=2500")
    quiet(recipe, tmp_path / "whole", *sets)
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "whole", stopped)
    shutil.rmtree(stopped / "model")
    (stopped / "report.html").unlink()
    shutil.rmtree(list_checkpoints(stopped / "checkpoints")[-1])
    assert "resuming from step 10" in quiet(recipe, stopped, *sets, resume=True)
    assert_same_weights(tmp_path / "whole", stopped)


def test_other_text_or_another_task_does_not_go_on(runs: Runs, tmp_path: Path) -> None:
    recipe, run = runs["generate"]
    stopped = tmp_path / "run"
    shutil.copytree(recipe.parent, tmp_path / "recipe", ignore=shutil.ignore_patterns("run"))
    shutil.copytree(run, stopped)
    (stopped / "report.html").unlink()
    own = tmp_path / "recipe" / "recipe.toml"
    with pytest.raises(
        UserError, match=r"--resume: task must stay 'generate', as the run was started .* but is 'fill'"
    ):
        quiet(own, stopped, "task=fill", "model.encoder_layers=1", "model.decoder_layers=0", resume=True)
    text = tmp_path / "recipe" / "train.txt"
    text.write_text(text.read_text().replace("seven", "eleven", 1))
    with pytest.raises(UserError, match=r"train\.txt: does not hold the text that the run was started with"):
        quiet(own, stopped, resume=True)
    damage(stopped / "store" / "text.ids")
    with pytest.raises(UserError, match=r"text\.ids: bytes .* do not match their checksum"):
        Store.open(stopped / "store")


# --- the text ---


def text_recipe(folder: Path, **data: Any) -> Any:
    values = {"train": "*.txt", "valid": 3, "root": str(folder), **data}
    return recipe_from_dict({"task": "generate", "data": values, "train": {"steps": 1}})


def test_whole_files_are_held_out_where_a_file_is_a_document(tmp_path: Path) -> None:
    for number, text in enumerate(paragraphs(50, 3)):
        (tmp_path / f"{number:02}.txt").write_text(text + f"\nnumber {number}")
    recipe = text_recipe(tmp_path, test=2)
    corpora = find_corpora(recipe)
    said: list[str] = []
    sets = choose_evaluation_sets(recipe, corpora, said.append)
    assert (len(sets.valid), len(sets.test), said) == (3, 2, [])
    [left], [all_files] = sets.corpora, corpora
    assert len(left.files) == 45 and set(left.files) < set(all_files.files)
    trained = {record.texts[0] for record in left.records()}
    assert not trained & {text for [text] in (*sets.valid, *sets.test)}
    again = choose_evaluation_sets(recipe, corpora, said.append)
    assert (again.valid, again.test) == (sets.valid, sets.test)
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "one.txt").write_text("\n".join(paragraphs(3, 1)))
    lonely = text_recipe(tmp_path / "alone")
    with pytest.raises(
        UserError, match=r"more than 1 different documents to hold out .*, but has 1; .* data\.valid .* paragraph"
    ):
        choose_evaluation_sets(lonely, find_corpora(lonely), said.append)


def test_copies_of_held_out_files_are_left_out(tmp_path: Path) -> None:
    """Also of files that are read in several pieces, with other white space; a file with the same beginning stays."""
    texts = ["\n".join(paragraphs(700, seed)) for seed in range(1, 6)]
    texts += [text + " unlike the others" for text in texts]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
        (tmp_path / f"{number}-copy.txt").write_text("\n\n" + text.replace("\n", " \n") + "\n")
    assert min(map(len, texts)) > PIECE
    recipe, said = text_recipe(tmp_path, valid=1, test=1), list[str]()
    sets = choose_evaluation_sets(recipe, find_corpora(recipe), said.append)
    trained = {sentence_key(text) for corpus in sets.corpora for text in whole_documents(corpus)}
    held_out = {sentence_key(text) for [text] in (*sets.valid, *sets.test)}
    assert (len(held_out), len(trained), trained & held_out) == (2, 8, set())
    assert said == ["data.train: left out 2 files with the text of a held-out one"]


@each_task
def test_held_out_documents_are_written_and_never_trained_on(task: str, tmp_path: Path) -> None:
    recipe = write_text_recipe(tmp_path / "recipe", task)
    text = recipe.read_text().replace('"valid.txt"', "8", 1).replace('"valid.txt"', "4", 1)
    recipe.write_text(text)
    said = quiet(recipe, tmp_path / "run", "train.steps=2")
    names = ("valid", "test")
    files = [(tmp_path / "run" / "heldout" / f"{name}.jsonl").read_text() for name in names]
    held_out = [[json.loads(line)["text"] for line in file.splitlines()] for file in files]
    assert [len(each) for each in held_out] == [8, 4]
    store, tokenizer = Store.open(tmp_path / "run" / "store"), Tokenizer.load(tmp_path / "run" / "tokenizer")
    ids, offsets = store["text"].ids.tolist(), store["text"].offsets.tolist()
    trained = {tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise(offsets)}
    assert trained and not trained & {text for each in held_out for text in each}
    assert "150 documents read" in said and "dropped, held out: " in said


def test_the_vocabulary_knows_the_ends_of_lines(tmp_path: Path) -> None:
    recipe = write_text_recipe(tmp_path / "recipe", "generate")
    quiet(recipe, tmp_path / "run", "train.steps=1", "data.documents=file")
    tokenizer = Tokenizer.load(tmp_path / "run" / "tokenizer")
    text = "one two\nthree four\n\nfive"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert any("\n" in piece for piece in tokenizer.pieces(tokenizer.encode(text)))


# --- recipes and commands ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "sing"}, "task must be one of translate, generate, fill, classify, tag, embed, but is 'sing'"),
        ({"data": {"source": "en"}}, "data.source must not be set with task = 'generate', which has no such field"),
        ({"decode": {"beam": 2}}, "decode.beam must not be set with task = 'generate'"),
        ({"train": {"bpe_dropout": 0.1}}, "train.bpe_dropout must not be set with task = 'generate'"),
        ({"train": {"mask": 0.2}}, "train.mask must not be set with task = 'generate'"),
        ({"train": {"monitor": "loss"}}, "train.monitor must not be set with task = 'generate'"),
        ({"tokenizer": {"protect": True}}, "tokenizer.protect must not be set with task = 'generate'"),
        ({"model": {"encoder_layers": 2}}, "model.encoder_layers must be 0 for the task generate, but is 2"),
        ({"model": {"decoder_layers": 0}}, "decoder_layers"),
        (
            {"model": {"positions": "learned", "max_positions": 512}},
            r"data.max_length \(1024\) must be at most model.max_positions \(512\)",
        ),
        ({"data": {"documents": "chapter"}}, "data.documents must be one of file, paragraph, line, but is 'chapter'"),
        ({"data": {"valid": 0}}, "a positive number of documents to hold out, but is 0"),
        (
            {"task": "fill", "data": {"across_documents": True}},
            "data.across_documents must not be set with task = 'fill'",
        ),
        ({"task": "fill", "train": {"mask": 1.5}}, "train.mask must be above 0 and below 1, but is 1.5"),
        (
            {"task": "fill", "model": {"decoder_layers": 1}},
            "model.decoder_layers must be 0 for the task fill, but is 1",
        ),
        (
            {"task": "translate", "data": {"documents": "line"}},
            "data.documents must not be set with task = 'translate'",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_a_task_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"task": "generate", "data": {"train": "a.txt", "valid": "b.txt"}, "train": {"steps": 1}}
    for section, fields in change.items():
        values[section] = {**values.get(section, {}), **fields} if isinstance(fields, dict) else fields
    with pytest.raises(UserError, match=message):
        recipe_from_dict(values)


@each_task
def test_a_recipe_survives_being_written(task: str, tmp_path: Path) -> None:
    recipe = load_recipe(write_text_recipe(tmp_path, task), ["train.rdrop=0", "data.max_length=20"])
    (tmp_path / "again.toml").write_text(recipe.to_toml())
    again = load_recipe(tmp_path / "again.toml")
    assert again == recipe and again.task == task and again.name == task
    assert recipe.to_toml().startswith(f'task = "{task}"\n')
    for name in ("source", "[decode]", "beam", "bpe_dropout", "validate_sentences"):
        assert name not in recipe.to_toml()
    config = recipe.model.config(100)
    assert (config.encoder_layers, config.decoder_layers) == ((0, 1) if task == "generate" else (1, 0))
    assert recipe.train.label_smoothing == 0.0
    plain = recipe_from_dict({"task": task, "data": {"train": "a", "valid": "b"}, "train": {"steps": 1}})
    assert plain.data.max_length == {"generate": 1024, "fill": 512}[task]


@each_task
def test_commands_take_a_run_of_text(runs: Runs, task: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe, run = runs[task]
    assert main(["train", str(recipe), "--dry-run"]) == 0
    assert f"{TASKS[task].describe(load_recipe(recipe))}: 150 documents per epoch" in capfd.readouterr().err
    assert main(["average", str(run), "-o", str(tmp_path / "model"), "--last", "2"]) == 0
    assert load_bundle(tmp_path / "model").task == task
    assert main(["info", str(run)]) == 0
    card = capfd.readouterr().out
    assert "| training documents | 150 |" in card
    assert f"| training tokens | {len(Store.open(RunFolder(run).store)['text'].ids):,} |" in card
    valid = min(
        (one for one in read_metrics(run / "metrics.jsonl") if one["kind"] == "valid"),
        key=lambda one: float(one["loss"]),
    )
    assert f"On its validation set: {'bits per byte' if task == 'generate' else 'loss'}" in card
    assert f"loss {valid['loss']:.3f}, perplexity {valid['perplexity']:.2f}" in card
    assert main(["models", str(run.parent)]) == 0
    [listed] = [line for line in capfd.readouterr().out.splitlines() if str(run) in line]
    assert re.search(rf"{'bits per byte' if task == 'generate' else 'loss'} [\d.]+ \(test set\)", listed)
    refused = fails(capfd, "translate", "-m", str(run), "hello")
    assert f"must be a model for the task translate, but is one for the task {task}" in refused


def test_every_task_has_what_training_calls() -> None:
    from regard.tasks.task import Task

    wanted = {name for name in [*vars(Task), *Task.__annotations__] if not name.startswith("_")}
    for name, task in TASKS.items():
        assert not {each for each in wanted if not hasattr(task, each)}, name
    assert wanted >= {"loss", "make_batches", "NOUN"}
