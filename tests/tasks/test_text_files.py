"""`regard train` with text files: what they are taken for, what is chosen for them, what is held out, and whole runs."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import shutil
import tomllib
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import main
from regard.cli.train_inputs import find_task, run_name
from regard.config import ModelConfig
from regard.data.corpus import Record
from regard.data.documents import TextCorpus, cut_documents, whole_documents
from regard.data.tokenizer import NUM_FIXED, Tokenizer
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.recipe import CHARACTER_VOCABULARY, load_recipe, recipe_from_dict
from regard.tasks.samples import ContinuationSampler, Passage, choose_passages
from regard.tasks.task import Prospect
from regard.tasks.text import hold_out
from regard.tasks.text_plan import CPU_TIERS, GPU_TIERS, TextAmount, held_out, pick_tier, text_specs, unit_tiers
from regard.tasks.text_verdict import outlook, unigram_entropy
from regard.training.auto import choose_recipe
from regard.training.checkpoint import list_checkpoints
from regard.training.display import Display
from regard.training.metrics import read_metrics
from regard.training.run import train
from regard.training.speed import Rate
from tests.commands import fails
from tests.tiny import reversal_pairs, write_pairs
from tests.training.test_run import assert_same_weights

ENGLISH = "The house stands at the end of the street.\nWe talked about what had happened in the morning.\n"
GERMAN = "Das Haus steht am Ende der Straße.\nWir sprachen über das, was am Morgen geschehen war.\n"
TINY = ["model.d_model=32", "model.d_ff=64", "model.num_heads=2", "model.decoder_layers=1", "data.max_length=32"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.speed.measure_rate", lambda *_: Rate(1000.0, 1000.0))


def verse(lines: int, seed: int = 1) -> str:
    draw = random.Random(seed)
    words = "one two three four five six seven eight nine ten".split()
    return "".join(f"{' '.join(draw.choices(words, k=6))}.\n" for _ in range(lines))


def options(*sets: str) -> list[str]:
    return [part for each in sets for part in ("--set", each)]


# --- what the files are ---


@pytest.mark.parametrize(
    ("names", "task"),
    [
        (["novel.txt"], "generate"),
        (["novel.en.txt", "roman.de.txt"], "translate"),
        (["corpus.en"], "generate"),
        (["news.en", "news.de"], "translate"),
        (["news.en.gz", "news.de.gz"], "translate"),
        (["train.src", "train.tgt"], "translate"),
        (["a.txt", "b.txt", "c.txt"], "generate"),
        (["a.jsonl", "b.jsonl"], "generate"),
    ],
)
def test_names_say_what_files_are(names: list[str], task: str) -> None:
    assert find_task(names) == (task, "")


def test_two_texts_in_two_languages_line_by_line_are_parallel(tmp_path: Path) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text(ENGLISH * 30)
    other.write_text(GERMAN * 30)
    task, reason = find_task([str(one), str(other)])
    assert task == "translate" and "--task generate" in reason
    other.write_text(ENGLISH * 30)
    assert find_task([str(one), str(other)])[0] == "generate"  # one language
    other.write_text(GERMAN * 31)
    task, reason = find_task([str(one), str(other)])
    assert task == "generate" and "--task translate" in reason  # not line by line
    assert find_task([str(one), str(tmp_path)])[0] == "generate"


@pytest.mark.parametrize(
    "names", [("a.log", "b.txt"), ("b.txt", "a.log"), ("ch.1", "ch.2"), ("a.log", "b.log"), ("a.md", "b.text.gz")]
)
def test_suffixes_of_two_sides_are_two_words(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(gzip.compress(ENGLISH.encode()) if name.endswith(".gz") else ENGLISH.encode())
    task, reason = find_task([str(tmp_path / name) for name in names])
    assert task == "generate" and "--task translate" in reason


def test_the_task_can_be_said(tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]) -> None:
    one, other = write_pairs(tmp_path, "corpus", reversal_pairs(50, 1))
    one, other = one.rename(tmp_path / "corpus.en"), other.rename(tmp_path / "corpus.de")
    assert main(["train", str(one), str(other), "--task", "generate", "--dump-recipe"]) == 0
    recipe = capfd.readouterr().out
    assert 'task = "generate"' in recipe and 'train = ["corpus.en", "corpus.de"]' in recipe
    assert main(["train", str(one), str(other), "--dump-recipe"]) == 0
    assert "task =" not in capfd.readouterr().out
    assert "parallel text is two files" in fails(capfd, "train", str(one), "--task", "translate")


def test_a_run_is_named_after_its_text() -> None:
    assert [run_name([name]) for name in ("x/novels.train.txt.xz", "book.md", "chat.jsonl", "corpus.en", ".txt")] == [
        "novels.train", "book", "chat", "corpus.en", ".txt",
    ]  # fmt: skip


# --- files, folders and packed text ---


def test_a_folder_means_all_text_in_it(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "one.txt").write_text("one")
    (tmp_path / "a" / "b" / "two.txt.gz").write_bytes(gzip.compress(b"two"))
    (tmp_path / "a" / "three.txt.xz").write_bytes(lzma.compress(b"three"))
    (tmp_path / "a" / "b" / "four.jsonl").write_text(json.dumps({"text": "four"}) + "\n")
    (tmp_path / "a" / "six.md").write_text("six")
    (tmp_path / "a" / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "five.txt").write_text("five")
    choice = choose_recipe("generate", [tmp_path / "a", tmp_path / "five.txt"])
    assert choice.records == 6 and choice.found.startswith(f"{tmp_path / 'a'}, ")
    root, specs, _ = text_specs([tmp_path / "a"])
    assert root == tmp_path / "a" and "**/*.txt" in specs and "**/*.txt.xz" in specs
    (tmp_path / "nothing").mkdir()
    with pytest.raises(UserError, match=r"must have text files \(\.txt, .*\), but has none"):
        text_specs([tmp_path / "nothing"])


def test_text_that_is_named_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books" / "old").mkdir(parents=True)
    for name in ("books/one.txt", "books/old/two.txt", "books/three.log", "books/.four.txt"):
        Path(name).write_text("text")
    books, one = Path("books"), Path("books/one.txt")
    for twice in ([one, one], [books, books], [one, tmp_path / one]):
        with pytest.raises(UserError, match=rf"{twice[1]}: must be named once, but is named twice"):
            text_specs(twice)
    for inside in (one, Path("books/old"), Path("books/old/two.txt")):
        for both in ([books, inside], [inside, books]):
            with pytest.raises(UserError, match=rf"{inside}: must be named once, but is also in books; leave it out"):
                text_specs(both)
    assert text_specs([books, Path("books/three.log"), Path("books/.four.txt")])[1] == (
        "**/*.txt", "three.log", ".four.txt",
    )  # fmt: skip


# --- what is held out ---


@pytest.mark.parametrize("share", [0.1, 0.25])
def test_the_end_of_each_document_is_held_out(tmp_path: Path, share: float) -> None:
    texts = [verse(4000, 1).strip(), verse(10, 2).strip()]  # the first is read in several pieces
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text(text)
    corpus = TextCorpus("x", tuple(paths))
    chosen, [left] = hold_out([corpus], share, 0.0, seed=1)
    kept = list(whole_documents(left))
    for text, part, [end] in zip(texts, kept, chosen.valid, strict=True):
        assert part + end == text and len(part) == int(len(text) * (1 - share))
    assert not chosen.test
    chosen, [left] = hold_out([corpus], share, 0.05, seed=1)
    for text, part, [end], [last] in zip(texts, whole_documents(left), chosen.valid, chosen.test, strict=True):
        assert part + end + last == text and len(last) == pytest.approx(0.05 * len(text), abs=1)


def test_documents_are_cut_where_their_pieces_meet() -> None:
    records = [Record(1, ("abc",), True, False), Record(1, ("def",), False, True), Record(2, ("xy",))]

    def cut(*kept: int) -> list[tuple[str, bool, bool]]:
        return [(one.texts[0], one.begins, one.ends) for one in cut_documents(iter(records), kept, "x")]

    assert cut(3, 2) == [("abc", True, True), ("xy", True, True)]
    assert cut(4, 0) == [("abc", True, False), ("d", False, True)]
    assert cut(6, 1) == [("abc", True, False), ("def", False, True), ("x", True, True)]


@pytest.mark.parametrize(
    "kept", [(3,), (3, 1, 1), (7, 1), (3, 3)], ids=["more", "fewer", "shorter", "shorter at the end"]
)
def test_text_that_changes_between_two_readings_is_refused(kept: tuple[int, ...]) -> None:
    records = [Record(1, ("abc",), True, False), Record(1, ("def",), False, True), Record(2, ("xy",))]
    with pytest.raises(UserError, match=r"books/\*\.txt: must not change while it is read"):
        list(cut_documents(iter(records), kept, "books/*.txt"))


def test_a_document_is_not_read_as_a_whole_to_hold_out_its_end(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_text(verse(150_000))
    tracemalloc.start()
    chosen, _ = hold_out([TextCorpus("x", (path,))], 0.01, 0.0, seed=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(chosen.valid[0][0]) == pytest.approx(path.stat().st_size / 100, rel=0.01)
    assert peak < path.stat().st_size / 2


def test_few_documents_lose_their_ends_and_of_many_some_are_held_out() -> None:
    assert held_out(TextAmount(1, 1_000_000, 1_000_000)) == {"valid": 0.1}
    assert held_out(TextAmount(3, 10**9, 10**9)) == {"valid": 0.002}  # two megabytes
    assert held_out(TextAmount(100, 10**6, 10**6)) == {"valid": 5, "test": 5}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"valid": 0.5},
            "data.valid must be a corpus, a number of documents, or a share of the text up to 0.4, but is 0.5",
        ),
        ({"valid": 0.1, "test": 3}, "data.valid and data.test must both be shares or both be numbers of documents"),
        ({"valid": float("nan")}, "data.valid must be a corpus, a number of documents, or a share"),
    ],
)
def test_shares_that_make_no_sense_are_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe_from_dict({"task": "generate", "data": {"train": "x", **data}, "train": {"steps": 1}})


def test_pairs_have_no_share() -> None:
    data = {"source": "a", "target": "b", "train": "x", "valid": 0.1}
    with pytest.raises(UserError, match=r"data\.valid must be a corpus or a number of pairs, but is 0\.1"):
        recipe_from_dict({"data": data, "train": {"steps": 1}})


# --- what is chosen ---


@pytest.mark.parametrize("tiers", [CPU_TIERS, GPU_TIERS], ids=["cpu", "gpu"])
def test_every_tier_is_a_valid_recipe_and_more_text_gets_a_larger_model(tiers: Any) -> None:
    sizes = []
    for tier in tiers:
        values = {
            "task": "generate",
            "data": {"train": "x", "valid": 0.1, "max_length": tier.length},
            "model": {"preset": "small", **tier.model},
            "train": {"epochs": tier.epochs, "batch_tokens": tier.batch_tokens, **tier.train},
        }
        config = recipe_from_dict(values).model.config(tier.vocab_size or 400)
        sizes.append((tier.max_bytes, config.decoder_layers * config.d_model**2))
    assert sizes == sorted(sizes)


def test_small_text_is_read_by_characters_unless_they_are_many() -> None:
    small = TextAmount(1, 10**6, 10**6, set("abc"))
    assert pick_tier(CPU_TIERS, small).vocab_size == 0
    chinese = TextAmount(1, 10**6, 10**6, {chr(0x4E00 + n) for n in range(3000)})
    assert pick_tier(CPU_TIERS, chinese).vocab_size > 0
    assert pick_tier(CPU_TIERS, TextAmount(1, 10**8, 10**8, set("abc"))).vocab_size > 0


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ("vocab_size=1000", ("subword", 1000, False)),
        ("split_digits=true", ("subword", 2000, True)),
        ("unit=subword", ("subword", 2000, False)),
        ("unit=character", ("character", CHARACTER_VOCABULARY, False)),
    ],
)
def test_settings_of_the_tokenizer_decide_its_unit(tmp_path: Path, given: str, chosen: tuple[str, int, bool]) -> None:
    path = tmp_path / "poem.txt"
    path.write_text(verse(100))
    tokenizer = choose_recipe("generate", [path], ["train.device=cpu", f"tokenizer.{given}"]).recipe.tokenizer
    assert (tokenizer.unit, tokenizer.vocab_size, tokenizer.split_digits) == chosen


def test_characters_can_be_asked_for_however_much_text_and_however_many_they_are() -> None:
    tiers = unit_tiers(CPU_TIERS, {"unit": "character"})
    assert not pick_tier(tiers, TextAmount(1, 10**8, 10**8, {chr(0x4E00 + n) for n in range(3000)})).vocab_size


@pytest.mark.parametrize(("name", "value"), [("vocab_size", 1000), ("split_digits", True)])
def test_settings_of_subwords_are_refused_beside_characters(name: str, value: Any) -> None:
    values = {"task": "generate", "data": {"train": "x", "valid": 1}, "train": {"steps": 1}}
    recipe = recipe_from_dict({**values, "tokenizer": {"unit": "character"}})
    assert name not in recipe.to_dict()["tokenizer"] and recipe_from_dict(recipe.to_dict()) == recipe
    with pytest.raises(UserError, match=rf"tokenizer\.{name} must not be set with tokenizer\.unit = 'character'"):
        recipe_from_dict({**values, "tokenizer": {"unit": "character", name: value}})


def test_a_vocabulary_of_characters_loses_nothing(tmp_path: Path) -> None:
    text = "Ein Rätsel:\n\n  wer ist’s?\t— 你好"
    tokenizer = Tokenizer.train([text], 8000, tmp_path, characters=True, character_coverage=1.0)
    assert tokenizer.vocab_size <= NUM_FIXED + len(set(text)) + 1
    assert all(len(piece) == 1 for piece in tokenizer.pieces(range(NUM_FIXED, tokenizer.vocab_size)))
    for other in (text, "Ωmega 😀 <s>", " a  b "):
        assert tokenizer.decode(tokenizer.encode(other)) == other


def test_the_choice_is_said(tmp_path: Path, quick: None) -> None:
    path = tmp_path / "poem.txt"
    path.write_text(verse(800))
    choice = choose_recipe("generate", [path], ["train.device=cpu"])
    lines = choice.describe(is_dry_run=True)
    assert lines[0].startswith(f"{path}: 1 document, 24.") and lines[0].endswith(" kB, a language model")
    assert lines[1:3] == [
        "held out: the last 10% of 1 document for validation",
        "vocabulary: the characters of the text",
    ]
    assert "4 layers of 192, about 1.8 million parameters" in lines[3]
    assert "will not suffice to write words: get more text" in lines[-1]
    assert not any("small" in line or "target" in line for line in lines)


def test_files_of_a_folder_that_are_left_out_are_counted(tmp_path: Path, quick: None) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("one.txt", "two.md", "cover.png", "story.docx", ".hidden.png", ".git/config"):
        (tmp_path / name).write_text(verse(400))
    choice = choose_recipe("generate", [tmp_path], ["train.device=cpu"])
    first = choice.describe(is_dry_run=True)[0]
    assert "2 documents" in first and first.endswith(" kB (2 other files left out), a language model")


def test_too_many_epochs_of_little_text_are_said() -> None:
    recipe = recipe_from_dict({"task": "generate", "data": {"train": "x", "valid": 0.1}, "train": {"minutes": 2}})
    prospect = Prospect(recipe, 1, 40, 9_000.0, 27_000.0, (), False, "--init")
    [line] = outlook(prospect)
    assert line == (
        "27,000 epochs of this text will teach it by heart and little else: get more text, or stop sooner (--epochs 10)"
    )
    assert not outlook(replace(prospect, tokens=1e6, epochs=99.0))
    tuned = replace(recipe, train=replace(recipe.train, init="x"))
    assert outlook(replace(prospect, recipe=tuned)) == [line]
    assert not outlook(replace(prospect, recipe=tuned, epochs=0.1))


def test_passages_begin_with_a_line_and_are_spread(tmp_path: Path) -> None:
    text = verse(300)
    passages = choose_passages([text])
    assert len(passages) == 3
    for prompt, after in passages:
        assert f"\n{prompt}{after}" in text and 40 <= len(prompt) <= 60
    assert choose_passages(["short"]) == () and choose_passages([]) == ()


def test_samples_end_at_every_end_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([verse(50)], 400, tmp_path, characters=True)
    config = ModelConfig(tokenizer.vocab_size, d_model=16, d_ff=32, num_heads=2, encoder_layers=0, decoder_layers=1)
    model = Transformer(config)
    sampler = ContinuationSampler((Passage("one", "two", tuple(tokenizer.encode("one"))),), tokenizer, 20, 64, seed=1)
    [sample] = sampler.samples(model, torch.device("cpu"))
    assert sample["continuation"]
    tokenizer.stop_ids = tuple(range(tokenizer.vocab_size))  # as of an imported model, which may have several
    [sample] = sampler.samples(model, torch.device("cpu"))
    assert sample["continuation"] == ""


# --- whole runs ---


def test_a_text_file_becomes_a_model_that_writes(
    tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "poem.txt.xz", tmp_path / "run"
    path.write_bytes(lzma.compress(verse(400).encode()))
    sets = options(
        *TINY,
        "data.max_length=128",
        "train.validate_every=20",
        "train.device=cpu",
        "train.batch_tokens=640",
        "train.ema=0.9",
    )
    assert main(["train", str(path), "-o", str(out), "--steps", "120", *sets]) == 0
    said = capfd.readouterr().err
    assert "1 document" in said and "bits/byte" in said and "continuation" in said
    assert f"try it  regard generate -m {out}" in said
    valid = [record for record in read_metrics(out / "metrics.jsonl") if record["kind"] == "valid"]
    assert valid[-1]["loss"] < valid[0]["loss"] and {"perplexity", "bits_per_byte"} <= valid[0].keys()
    assert len(valid[0]["samples"]) == 3 and valid[0]["samples"][0]["prompt"] == valid[-1]["samples"][0]["prompt"]
    page = (out / "report.html").read_text()
    assert "Continuations over time" in page and "Bits per byte" in page and "BLEU" not in page
    recipe = load_recipe(out / "recipe.toml")
    assert recipe.data.valid == 0.1 and recipe.tokenizer.unit == "character"
    assert main(["generate", "-m", str(out), "one two", "--max-tokens", "20", "--seed", "1"]) == 0
    assert main(["train", str(path), "-o", str(out), "--steps", "120", *sets]) == 2
    assert "already holds a run" in capfd.readouterr().err
    assert main(["train", str(path), "-o", str(out), "--steps", "120", "--resume", *sets]) == 0
    assert "is finished" in capfd.readouterr().err


def test_a_model_that_learnt_nothing_is_not_to_be_tried(
    tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "poem.txt"
    sets = options(*TINY, "train.device=cpu", "train.batch_tokens=320", "train.lr=1e-6")
    for lines in (200, 2_500):
        path.write_text(verse(lines))
        assert main(["train", str(path), "-o", str(tmp_path / str(lines)), "--steps", "10", *sets]) == 0
        said = capfd.readouterr().err
        assert "no better than guessing by how often each token occurs" in said and "try it" not in said
        # More time for little text would only teach it by heart.
        assert ("get more text, or start from a trained model" in said) == (lines == 200)
        assert ("--resume --steps" in said) == (lines == 2_500)
    again = ["--init", str(tmp_path / "200"), "-o", str(tmp_path / "again"), "--steps", "2", "--device", "cpu"]
    assert main(["train", str(path), *again]) == 0  # the model that a run starts from could write before it
    said = capfd.readouterr().err
    assert "no better than guessing" not in said and "try it  regard generate" in said


def test_the_bound_of_guessing_is_the_entropy_of_the_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(["ab"], 8000, tmp_path, characters=True, character_coverage=1.0)
    # " a" and "</s>", each a third.
    assert unigram_entropy(tokenizer, [("a",)]) == pytest.approx(1.0986, abs=1e-4)
    assert unigram_entropy(tokenizer, []) is None


def test_a_run_that_fails_at_once_leaves_no_folder(
    tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "poem.txt", tmp_path / "runs" / "poem"
    path.write_text(verse(50))
    sets = options(*TINY, "data.valid=3", "train.device=cpu")
    command = ["train", str(path), "-o", str(out), "--steps", "2", *sets]
    assert main(command) == 2
    assert "must have more than 1 different documents" in capfd.readouterr().err
    assert not out.exists()
    out.mkdir(parents=True)
    assert main(command) == 2
    assert out.exists()  # it was there before


def test_depth_replaces_the_chosen_shape_and_scales_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "poem.txt"
    path.write_text(verse(800))
    chosen = choose_recipe("generate", [path], ["train.device=cpu"]).recipe
    deeper = choose_recipe("generate", [path], ["train.device=cpu", "model.depth=6"]).recipe
    config = deeper.model.config(1000)
    assert (config.decoder_layers, config.d_model, config.d_ff, config.num_heads) == (6, 384, 1024, 6)
    assert config.norm == "rms" and deeper.train.batch_tokens == chosen.train.batch_tokens
    assert deeper.train.lr == pytest.approx(chosen.train.lr * (192 / 384) ** 0.5, rel=0.02)


def test_a_run_with_a_share_and_samples_resumes_to_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text(verse(400))
    sets = [*TINY, "data.max_length=128", "train.device=cpu", "train.batch_tokens=640", "train.save_every=10"]
    sets += ["train.validate_every=5", "train.steps=20"]
    recipe = choose_recipe("generate", [tmp_path / "poem.txt"], sets).recipe
    train(recipe, tmp_path / "whole", display=Display())
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "whole", stopped)
    shutil.rmtree(stopped / "model")
    (stopped / "report.html").unlink()
    shutil.rmtree(list_checkpoints(stopped / "checkpoints")[-1])
    train(recipe, stopped, resume=True, display=Display())
    assert_same_weights(tmp_path / "whole", stopped)
    records = [read_metrics(run / "metrics.jsonl")[-1] for run in (tmp_path / "whole", stopped)]
    assert records[0]["samples"] == records[1]["samples"] and records[0]["loss"] == records[1]["loss"]


def test_a_preset_that_is_asked_for_is_the_whole_shape(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("A text of some words.\n" * 50)
    assert main(["train", str(path), "--preset", "gpt2", "--dump-recipe"]) == 0
    assert tomllib.loads(capfd.readouterr().out)["model"] == {"preset": "gpt2", "encoder_layers": 0}
