"""What is chosen for two plain files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from regard.builtin import BUILTIN
from regard.config import ModelConfig
from regard.errors import UserError
from regard.progress import counted
from regard.recipe import TrainRecipe, recipe_from_dict
from regard.tasks.translation_plan import CPU_TIERS, GPU_TIERS, Tier
from regard.training.auto import Choice, _epochs, choose_recipe, describe_run
from regard.training.display import Display
from regard.training.fine_tuning import check_init, resolve_recipe
from regard.training.folder import RunFolder
from regard.training.prepare import find_corpora, make_evaluation_sets
from regard.training.speed import Rate, measure_rate, measure_speed
from regard.training.update import WARM_UPDATES, PlainUpdate, SlotUpdate
from tests.tiny import reversal_pairs, write_pairs


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.speed.measure_rate", lambda *_: Rate(1000.0, 1000.0))


def files(folder: Path, source: str, target: str, pairs: int = 50) -> tuple[Path, Path]:
    one, other = write_pairs(folder, "corpus", reversal_pairs(pairs, 1))
    return one.rename(folder / source), other.rename(folder / target)


def choose_pair(source: Path, target: Path, overrides: Sequence[str] = (), check: Any = lambda recipe: None) -> Choice:
    return choose_recipe("translate", [source, target], overrides, check)


def described(choice: Choice) -> list[str]:
    return choice.describe(is_dry_run=True)


def test_languages_come_from_the_file_names(tmp_path: Path) -> None:
    data = choose_pair(*files(tmp_path, "corpus.en", "corpus.twi")).recipe.data
    assert (data.source, data.target) == ("en", "twi")


def test_languages_can_be_said(tmp_path: Path) -> None:
    paths = files(tmp_path, "one.txt", "two.txt")
    data = choose_pair(*paths, ["data.source=xx", "data.target=yy"]).recipe.data
    assert (data.source, data.target) == ("xx", "yy")


def test_a_dry_run_says_that_the_languages_are_swapped(tmp_path: Path) -> None:
    english, german = tmp_path / "corpus.en", tmp_path / "corpus.de"
    german.write_text("The house stands at the end of the street.\nWe talked about what happened.\n" * 30)
    english.write_text("Das Haus steht am Ende der Straße.\nWir sprachen über das, was geschah.\n" * 30)
    for said in (described(choose_pair(english, german)), describe_run(choose_pair(english, german).recipe)):
        assert sum("the source side looks like German, not English" in line for line in said) == 1


def test_a_dry_run_says_that_columns_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"a {i}\tb {i}\tc\n" for i in range(40)))
    data = {"source": "src", "target": "tgt", "train": "pairs.tsv", "valid": 2, "root": str(tmp_path)}
    said = describe_run(
        recipe_from_dict({"data": data, "model": {"preset": "tiny"}, "train": {"steps": 2, "batch_tokens": 200}})
    )
    assert sum("only the first two columns are used" in line for line in said) == 1


def test_one_language_on_both_sides_is_doubted(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    one, _ = files(tmp_path, "corpus.en", "x.de")
    _, other = files(tmp_path / "sub", "x.de", "corpus.en")
    with pytest.raises(UserError, match="both look like en"):
        choose_pair(one, other)


def test_the_choice_is_said_and_has_a_time(tmp_path: Path) -> None:
    choice = choose_pair(*files(tmp_path, "corpus.en", "corpus.de", 500))
    said = "\n".join(described(choice))
    assert "500 pairs, en → de" in said
    assert "held out: 10 pairs for validation and 10 pairs for testing" in said
    assert "500 pairs will not suffice to learn a language" in said and "start from en-de" in said
    assert "1,000 target tokens/s (measured)" in said
    assert (choice.recipe.data.valid, choice.recipe.data.test) == (10, 10)


def test_the_time_of_several_processes_is_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = files(tmp_path, "corpus.en", "corpus.de", 500)
    sets = ["train.device=cpu", "train.epochs=1000"]
    alone = described(choose_pair(*paths, sets))[-2]
    shares: list[int] = []

    def rate(config: Any, device: Any, dtype: Any, train: Any, size: int, *more: Any) -> Rate:
        shares.append(size)
        return Rate(1000.0, 1000.0)

    monkeypatch.setattr("regard.training.speed.measure_rate", rate)
    monkeypatch.setenv("WORLD_SIZE", "4")
    *_, machine, together, _ = described(choose_pair(*paths, sets))
    assert shares == [4] and "; 4 processes" in machine
    assert "4,000 target tokens/s (4 times the measured speed of one process" in together
    minutes = [int(line.split("about ")[1].split(" minutes")[0]) for line in (alone, together)]
    assert minutes[0] >= 40 and minutes[1] == pytest.approx(minutes[0] / 4, abs=1)
    split = described(choose_pair(*paths, [*sets, "train.shard=true", "train.monitor=loss"]))[-2]
    assert split.startswith("time: not measured") and shares == [4]


def test_a_finished_model_has_the_shape_and_the_vocabulary(tmp_path: Path) -> None:
    paths = files(tmp_path, "corpus.en", "corpus.de", 500)
    choice = choose_pair(*paths, ["train.init=en-de"])
    recipe = choice.recipe
    assert recipe.model.preset == "init" and resolve_recipe(recipe).decode.guard
    assert recipe.train.init == str(BUILTIN / "en-de")  # as a recipe file's would be: a run that goes on compares them
    assert recipe.train.lr == 2e-4 and recipe.train.epochs == 5 and recipe.train.batch_tokens < 25_000
    said = "\n".join(described(choice))
    assert "vocabulary: 16,000 pieces" in said and "as in train.init, 8 + 2 layers of 320" in said
    other = choose_pair(*paths, ["train.init=en-de", "decode.guard=false", "train.minutes=3", "tokenizer.extend=100"])
    assert not other.recipe.decode.guard and not other.recipe.train.epochs
    assert "vocabulary: up to 16,100 pieces" in "\n".join(described(other))
    with pytest.raises(UserError, match=r"train\.init: .*nowhere"):
        choose_pair(*paths, ["train.init=nowhere"], check_init)


def test_a_time_budget_replaces_the_epochs(tmp_path: Path) -> None:
    choice = choose_pair(*files(tmp_path, "corpus.en", "corpus.de"), ["train.minutes=5"])
    assert (choice.recipe.train.minutes, choice.recipe.train.epochs) == (5.0, 0.0)
    assert "time: 5 minutes, about" in described(choice)[-2]


@pytest.mark.parametrize("tiers", [CPU_TIERS, GPU_TIERS], ids=["cpu", "gpu"])
def test_every_tier_is_a_valid_recipe_and_larger_text_gets_a_larger_model(tiers: tuple[Tier, ...]) -> None:
    sizes = []
    for tier in tiers:
        values = {
            "data": {"source": "a", "target": "b", "train": "x", "valid": 1},
            "tokenizer": {"vocab_size": tier.vocab_size},
            "model": {"preset": tier.preset, **tier.model},
            "train": {"epochs": tier.epochs, "batch_tokens": tier.batch_tokens, **tier.train},
        }
        config = recipe_from_dict(values).model.config(tier.vocab_size)
        sizes.append(config.d_model * tier.vocab_size)
    assert sizes == sorted(sizes)


def test_the_device_has_a_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = files(tmp_path, "corpus.en", "corpus.de")
    on_cpu = choose_pair(*paths, ["train.device=cpu"]).recipe
    monkeypatch.setattr("regard.training.speed.pick_device", lambda _: torch.device("cuda"))
    on_gpu = choose_pair(*paths).recipe
    assert on_gpu.train.batch_tokens > on_cpu.train.batch_tokens


@pytest.mark.parametrize(
    ("kind", "train", "to_warm_up", "processes"),
    [
        (PlainUpdate, TrainRecipe(steps=1, batch_tokens=205), 1, 1),
        (SlotUpdate, TrainRecipe(steps=1, batch_tokens=205, accumulate=2, fast="slots"), WARM_UPDATES + 1, 1),
        # One of two processes on its share.
        (PlainUpdate, TrainRecipe(steps=1, batch_tokens=410), 1, 2),
        (SlotUpdate, TrainRecipe(steps=1, batch_tokens=410, accumulate=4, fast="slots"), WARM_UPDATES + 1, 2),
    ],
)
def test_a_rate_is_measured_on_the_updates_of_the_run(
    kind: Any, train: TrainRecipe, to_warm_up: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    config = ModelConfig(100, d_model=16, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1)
    call, counts = kind.__call__, []

    def counted(self: Any, parts: Any, count: int) -> Any:
        assert len(parts) == -(-train.accumulate // processes)
        counts.append(count)
        return call(self, parts, count)

    ticks = iter([float(tick) / 4 for tick in range(1000)])
    clock = SimpleNamespace(perf_counter=lambda: next(ticks), process_time=lambda: next(ticks) / 3)
    monkeypatch.setattr(kind, "__call__", counted)
    monkeypatch.setattr("regard.training.speed.time", clock)
    rate = measure_rate(config, torch.device("cpu"), None, train, processes, 20, "translate")
    # Ten sentences of 20 tokens, in one part or in two: to warm up, for a second by the clock and one of CPU time.
    assert set(counts) == {200} and len(counts) > to_warm_up + 2
    assert rate.now == pytest.approx(200 / 0.25)
    assert rate.undisturbed == pytest.approx(200 * 3 / 0.25 * torch.get_num_threads() ** 0.6)


def test_other_programs_do_not_change_the_estimate_but_are_mentioned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = resolve_recipe(choose_pair(*files(tmp_path, "corpus.en", "corpus.de")).recipe)
    quiet = measure_speed(recipe)
    monkeypatch.setattr("regard.training.speed.measure_rate", lambda *_: Rate(1000.0, 90.0))
    busy = measure_speed(recipe)
    assert busy.rate == quiet.rate and quiet.note == "measured"
    assert busy.note == "measured; other programs slow it down to 90 now"


def test_the_measured_threads_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr("regard.training.speed.SAMPLE_SECONDS", 0.0)
    config = ModelConfig(100, d_model=16, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measure_rate(config, torch.device("cpu"), None, TrainRecipe(steps=1, batch_tokens=40), 1, 20, "translate")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("pairs", [5, 7, 30, 500])
def test_a_dry_run_holds_out_what_the_run_holds_out(tmp_path: Path, pairs: int) -> None:
    choice = choose_pair(*files(tmp_path, "corpus.en", "corpus.de", pairs))
    said = "\n".join(described(choice))
    assert described(choice)[1:-1] == describe_run(choice.recipe)[1:-1]
    (tmp_path / "run").mkdir()
    sets = make_evaluation_sets(choice.recipe, find_corpora(choice.recipe), RunFolder(tmp_path / "run"), Display())
    assert (
        f"held out: {counted(len(sets.valid), 'pair')} for validation and {counted(len(sets.test), 'pair')} for testing"
        in said
    )
    assert "1 pairs" not in said and "1 minutes" not in said


def test_an_epoch_without_tokens_has_a_length() -> None:
    """A tiny weight, such as 0.001 of ten tokens, leaves none."""
    assert _epochs(TrainRecipe(steps=5, batch_tokens=100), 1000.0, 0) == 500
