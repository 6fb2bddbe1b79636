"""What can be refused without the text is refused before any of it is read."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.cli import main
from regard.config import ModelConfig
from regard.data.corpus import Corpus
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.recipe import load_recipe
from regard.tasks.translate import LANGUAGE_LINES
from regard.training.auto import choose_recipe
from regard.training.check import check_machine
from regard.training.display import Display
from regard.training.folder import RunFolder
from regard.training.open_run import check_checkpoint
from regard.training.run import train
from tests.commands import fails
from tests.tiny import make_bundle, reversal_pairs, save_model, write_pairs, write_recipe
from tests.training.test_fine_tuning import fine_tuning


class TextWasReadError(AssertionError):
    pass


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads pairs has not looked at everything else before."""

    def read(self: Corpus, note: Any = None) -> Any:
        raise TextWasReadError

    monkeypatch.setattr(Corpus, "pairs", read)


def refused(recipe: Path, out: Path, message: str, *sets: str, resume: bool = False) -> None:
    with pytest.raises(UserError, match=message):
        train(load_recipe(recipe, sets), out, resume=resume, display=Display())


def test_the_watch_sees_text_that_is_read(unread: None, tmp_path: Path) -> None:
    with pytest.raises(TextWasReadError):
        train(load_recipe(write_recipe(tmp_path / "recipe")), tmp_path / "run", display=Display())


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.fast=slots,graph", r"train\.fast: graph needs a CUDA device"),
        ("train.device=cuda", "torch finds no CUDA device"),
        ("train.tensorboard=true", "train.tensorboard = true needs the extra"),
        ("data.test=nothing.{src,tgt}", "data.test: .*nothing.src: there is no such file"),
        ("data.train=packed.tsv.zst", r"packed\.tsv\.zst: reading \.zst needs one more package"),
    ],
)
def test_a_recipe_that_cannot_run_here_is_refused_at_once(
    change: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "cuda" in change and torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    recipe = write_recipe(tmp_path / "recipe")
    (tmp_path / "recipe" / "packed.tsv.zst").write_bytes(b"")
    refused(recipe, tmp_path / "run", message, change)
    assert not (tmp_path / "run").exists()


def test_a_machine_is_judged_by_its_kind_and_the_number_of_processes(tmp_path: Path) -> None:
    recipe = load_recipe(write_recipe(tmp_path, fast="slots", accumulate=2))
    check_machine(recipe, torch.device("cpu"), 2)
    with pytest.raises(UserError, match=r"train\.accumulate must be a multiple of the number of processes \(3\)"):
        check_machine(recipe, torch.device("cpu"), 3)
    plain = dataclasses.replace(recipe, train=dataclasses.replace(recipe.train, fast="off", recompute=True))
    check_machine(plain, torch.device("cpu"), 3)
    with pytest.raises(UserError, match=r"train\.recompute must be false on mps"):
        check_machine(plain, torch.device("mps"), 1)


def test_a_run_that_cannot_go_on_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where its store is gone and all text would have to be read again."""
    recipe = write_recipe(tmp_path / "recipe", steps=5, fast="slots")
    out = tmp_path / "run"
    train(load_recipe(recipe), out, display=Display())
    (out / "report.html").unlink()
    shutil.rmtree(out / "store")
    monkeypatch.setattr(Corpus, "pairs", lambda self: pytest.fail("text was read"))
    refused(recipe, out, "the run was started with the fast path's fixed-shape batches", "train.fast=off", resume=True)
    refused(recipe, out, "already holds a run")
    refused(recipe, out, r"train\.seed must stay 1, as the run was started .*, but is 2", "train.seed=2", resume=True)


@pytest.mark.usefixtures("unread")
def test_a_start_that_does_not_fit_is_refused_at_once(tmp_path: Path) -> None:
    refused(
        fine_tuning(tmp_path / "a", init=str(tmp_path / "no")), tmp_path / "run", r"train\.init: .*there is no such"
    )
    tokenizer = make_bundle(tmp_path / "made").tokenizer
    config = ModelConfig(tokenizer.vocab_size, 32, 64, 2, 1, 1, positions="learned", max_positions=100)
    learned = save_model(tmp_path / "learned", Transformer(config), tokenizer)
    recipe = fine_tuning(tmp_path / "b", init=str(learned.folder))
    refused(recipe, tmp_path / "run", r"data\.max_length \(256\) must be below model\.max_positions \(100\)")
    assert not (tmp_path / "run").exists()


def test_validation_files_are_read_before_the_training_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = write_recipe(tmp_path / "recipe")
    (tmp_path / "recipe" / "valid.tgt").write_text("one line\n", encoding="utf-8")
    pairs = Corpus.pairs

    def sample_only(corpus: Corpus, *arguments: Any) -> Iterator[tuple[str, str]]:
        """The lines that tell the languages; no more of the training text."""
        for number, pair in enumerate(pairs(corpus, *arguments)):
            if "train" in corpus.name and number >= LANGUAGE_LINES:
                pytest.fail("text was read")
            yield pair

    monkeypatch.setattr(Corpus, "pairs", sample_only)
    refused(recipe, tmp_path / "run", "must have the same number of lines", "data.test=5")


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.stepps=5", "--set train.stepps is not known; did you mean steps?"),
        ("train.lr=-1", "train.lr must not be negative"),
        ("train.fast=graph", "train.fast: graph needs a CUDA device"),
        ("train.device=tpu", "device must be auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_two_files_are_not_read_for_a_wrong_option(
    change: str, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = write_pairs(tmp_path, "corpus", reversal_pairs(50, 1))
    files = [str(one.rename(tmp_path / "corpus.en")), str(other.rename(tmp_path / "corpus.de"))]
    words = [*files, "--out", str(tmp_path / "run"), "--set"]
    if "device" not in change:
        words += ["train.device=cpu", "--set"]
    assert message in fails(capfd, "train", *words, change)


def test_what_would_fit_more_text_is_not_refused_before_the_text_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train.shard` goes with the recipe for millions of pairs as it is, and not with those for fewer."""
    one, other = write_pairs(tmp_path, "corpus", reversal_pairs(50, 1))
    files = one.rename(tmp_path / "corpus.en"), other.rename(tmp_path / "corpus.de")
    monkeypatch.setattr("regard.training.speed.pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("regard.tasks.translation_plan.count_words", lambda corpus: (5_000_000, 100_000_000))
    assert choose_recipe("translate", files, ["train.shard=true"]).recipe.train.shard
    monkeypatch.setattr("regard.tasks.translation_plan.count_words", lambda corpus: (50, 500))
    with pytest.raises(UserError, match=r"train\.monitor must be 'loss' with train\.shard"):
        choose_recipe("translate", files, ["train.shard=true"])


@pytest.mark.usefixtures("unread")
def test_two_files_are_not_read_for_a_folder_that_is_taken(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, other = write_pairs(tmp_path, "corpus", reversal_pairs(50, 1))
    files = [str(one.rename(tmp_path / "corpus.en")), str(other.rename(tmp_path / "corpus.de"))]
    RunFolder(tmp_path / "run").model.mkdir(parents=True)
    said = fails(capfd, "train", *files, "--out", str(tmp_path / "run"), "--set", "train.device=cpu")
    assert "already holds a run; resume it with --resume" in said
    # What it would be may be asked all the same.
    assert main(["train", *files, "--out", str(tmp_path / "run"), "--dry-run", "--set", "train.device=cpu"]) == 70
    assert "TextWasReadError" in capfd.readouterr().err


def test_several_gpus_get_a_part_of_every_update_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = write_pairs(tmp_path, "corpus", reversal_pairs(50, 1))
    files = one.rename(tmp_path / "corpus.en"), other.rename(tmp_path / "corpus.de")
    assert choose_recipe("translate", files).recipe.train.accumulate == 1
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr("regard.training.speed.own_device", lambda *_: torch.device("cuda"))
    assert choose_recipe("translate", files).recipe.train.accumulate == 4
    assert choose_recipe("translate", files, ["train.accumulate=8"]).recipe.train.accumulate == 8


def test_a_checkpoint_of_another_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"format": 99}', encoding="utf-8")
    with pytest.raises(
        UserError,
        match=r"checkpoint format must be \d+ for this version of Regard, but is 99; resume with the version that",
    ):
        check_checkpoint(tmp_path, None)
