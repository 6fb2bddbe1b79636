"""Runs that start from a finished model."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from regard.bundle import Bundle, find_bundle, load_bundle, load_weights
from regard.config import ModelConfig
from regard.data.extend import extend_tokenizer
from regard.data.tokenizer import Tokenizer
from regard.errors import Interrupted, UserError
from regard.models.transformer import Transformer
from regard.parallel.ranks import Ranks
from regard.recipe import DecodeRecipe, Recipe, load_recipe
from regard.tasks.translate import TranslationValidator
from regard.training.display import Display
from regard.training.fine_tuning import load_init_bundle, load_init_weights, resolve_recipe
from regard.training.finish import warn_if_worse
from regard.training.folder import RunFolder
from regard.training.loop import RunState, Trainer
from regard.training.metrics import read_metrics
from regard.training.run import resolve_on_first, train
from tests.build import HEADS, build, tiny_config
from tests.tiny import make_bundle, reversal_pairs, save_encoder, save_model, write_pairs, write_recipe
from tests.training.runs import Listener, damage, quiet


def fine_tuning(folder: Path, **fields: object) -> Path:
    """The tiny recipe without its vocabulary and shape."""
    path = write_recipe(folder, **fields)
    text = path.read_text().replace("[tokenizer]\nvocab_size = 400\n", "")
    begin, end = text.index("[model]"), text.index("[train]")
    path.write_text(text[:begin] + '[model]\npreset = "init"\n' + text[end:])
    return path


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt something."""
    folder = tmp_path_factory.mktemp("old")
    recipe = write_recipe(folder / "recipe", steps=60, lr=5e-3, save_every=60, validate_every=60, average=1)
    train(load_recipe(recipe), folder / "run", display=Display())
    return folder / "run"


def test_a_run_starts_with_the_weights_and_vocabulary_of_another(old: Path, tmp_path: Path) -> None:
    recipe = fine_tuning(tmp_path / "recipe", init=str(old), steps=2, lr=1e-9, log_every=1, average=1)
    listener = Listener()
    bundle = train(load_recipe(recipe), tmp_path / "run", display=listener)
    before = load_bundle(old / "model")
    assert bundle.config == before.config
    assert bundle.tokenizer.fingerprint == before.tokenizer.fingerprint
    assert f"pieces, from {old}" in listener.said
    for name, tensor in load_weights(before).items():
        torch.testing.assert_close(load_weights(bundle)[name], tensor, rtol=0, atol=1e-6)
    last, first = (read_metrics(run / "metrics.jsonl") for run in (old, tmp_path / "run"))
    assert first[0]["loss"] < 1.3 * [r["loss"] for r in last if r["kind"] == "train"][-1]
    assert bundle.facts["init"] == "run"
    assert str(old) not in (bundle.folder / "recipe.toml").read_text()


def test_a_run_may_use_the_vocabulary_of_another(old: Path, tmp_path: Path) -> None:
    values = {"steps": 2, "average": 1}
    recipe = write_recipe(tmp_path / "recipe", **values)
    listener = Listener()
    bundle = train(load_recipe(recipe, [f"tokenizer.folder={old / 'tokenizer'}"]), tmp_path / "run", display=listener)
    assert bundle.tokenizer.fingerprint == load_bundle(old / "model").tokenizer.fingerprint
    assert f"pieces, from {old / 'tokenizer'}" in listener.said
    assert str(old) not in (tmp_path / "run" / "model" / "recipe.toml").read_text()
    for change, message in (
        (f"tokenizer.folder={tmp_path}", "tokenizer.folder: "),
        ("tokenizer.protect=true", "was made without protected spans; set tokenizer.protect = false"),
        (f"train.init={old}", "tokenizer.folder must not be set with train.init"),
    ):
        with pytest.raises(UserError, match=message):
            train(
                load_recipe(recipe, [f"tokenizer.folder={old / 'tokenizer'}", change]),
                tmp_path / "other",
                display=Display(),
            )
    assert not (tmp_path / "other").exists()


def test_new_text_gets_new_pieces(old: Path, tmp_path: Path) -> None:
    recipe = fine_tuning(tmp_path / "recipe", init=str(old), steps=4)
    write_pairs(tmp_path / "recipe", "train", [("ɛno yɛ", "asɛm kɛse"), ("ɔkɔɔ fie", "anɔpa yi")] * 50)
    listener = Listener()
    train(load_recipe(recipe), tmp_path / "bytes", display=listener)
    assert "not in the vocabulary" in listener.said and "ɛ" in listener.said
    said = quiet(recipe, tmp_path / "few", "tokenizer.extend=1")
    assert ", 1 new" in said and "not in the vocabulary" in said and "a larger tokenizer.extend" in said
    bundle = train(load_recipe(recipe, ["tokenizer.extend=25"]), tmp_path / "run", display=Display())
    size = load_bundle(old / "model").config.vocab_size
    assert size < bundle.config.vocab_size <= size + 25
    assert load_weights(bundle)["embedding.weight"].shape[0] == bundle.config.vocab_size


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_piece_starts_as_the_mean_of_what_it_was_written_with(tmp_path: Path, tied: bool) -> None:
    tokenizer = make_bundle(tmp_path / "made").tokenizer
    config = ModelConfig(
        tokenizer.vocab_size, 32, 64, 2, 1, 1, tie_embeddings=tied, output_bias=True
    )  # fmt: skip
    torch.manual_seed(3)
    model = Transformer(config)
    torch.nn.init.normal_(model.output_bias)
    bundle = save_model(tmp_path / "bundle", model, tokenizer)
    wider = extend_tokenizer(tokenizer, ["ɛno yɛ asɛm kɛse"] * 9, 12, 1.0, seed=1)
    grown = Transformer(dataclasses.replace(config, vocab_size=wider.vocab_size))
    load_init_weights(recipe_from(bundle, tmp_path), grown, wider)
    names = ["embedding.weight"] if tied else ["src_embedding.weight", "tgt_embedding.weight", "output.weight"]
    for name in [*names, "output_bias"]:
        before, after = model.state_dict()[name], grown.state_dict()[name]
        assert torch.equal(after[: len(before)], before)
        for number in range(tokenizer.vocab_size, wider.vocab_size):
            text = wider.pieces([number])[0].replace("▁", " ")
            ids = tokenizer.encode_parts([tokenizer.span_ids[0], text])[1:]
            torch.testing.assert_close(after[number], before[ids].mean(dim=0))


@pytest.mark.parametrize(("before", "after"), [("mean", "tanh-first"), ("tanh-first", "mean"), ("mean", "first")])
def test_a_head_that_pools_in_another_way_is_new(before: str, after: str, tmp_path: Path) -> None:
    """The old matrix was made for other vectors; BERT's pooler may not even be there."""
    models = [
        build(
            tiny_config(
                vocab_size=345, **{**HEADS["classes"], "head": {**HEADS["classes"]["head"], "pooling": pooling}}
            ),
            seed,
        )
        for seed, pooling in ((1, before), (2, after))
    ]
    bundle = save_encoder(tmp_path / "bundle", models[0])
    first, own = (model.state_dict() for model in models)
    fresh = {name: tensor.clone() for name, tensor in own.items()}
    recipe = SimpleNamespace(
        train=SimpleNamespace(init=str(bundle.folder)), settings=SimpleNamespace(has_own_head=True)
    )
    load_init_weights(cast(Any, recipe), models[1], bundle.tokenizer)
    for name, tensor in models[1].state_dict().items():
        assert torch.equal(tensor, (fresh if name.startswith("head.") else first)[name]), name


def recipe_from(bundle: Bundle, folder: Path) -> Recipe:
    return load_recipe(fine_tuning(folder / "recipe", init=str(bundle.folder)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.init=nowhere", "train.init: .*nowhere: there is no such model"),
        ("tokenizer.protect=true", r"tokenizer\.protect: the model in train\.init was trained without"),
        ("tokenizer.character_coverage=0.9", r"tokenizer\.character_coverage must not be set with train\.init"),
        ("tokenizer.vocab_size=500", r"tokenizer\.vocab_size must not be set with train\.init"),
        ("model.d_ff=128", r"model\.d_ff must not be set with model\.preset = 'init'"),
        ("model.preset=tiny", r"model\.d_model must be 32, as in the model in train\.init, but is 192"),
        ("train.init=", r"model\.preset = 'init' needs train\.init"),
        ("tokenizer.extend=-1", r"tokenizer\.extend must not be negative"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(old: Path, tmp_path: Path, change: str, message: str) -> None:
    recipe = fine_tuning(tmp_path / "recipe", init=str(old))
    change = 'train.init=""' if change == "train.init=" else change
    with pytest.raises(UserError, match=message):
        train(load_recipe(recipe, [change]), tmp_path / "run", display=Display())
    assert not (tmp_path / "run").exists()


def test_the_path_is_meant_from_where_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = fine_tuning(tmp_path / "recipe", init="../old")
    monkeypatch.chdir(tmp_path)
    assert load_recipe(recipe).train.init == str(tmp_path / "old")
    assert load_recipe(recipe, ["train.init=here"]).train.init == str(tmp_path / "here")


def test_a_run_may_start_from_a_built_in_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = fine_tuning(tmp_path / "recipe", init="en-de")
    (tmp_path / "en-de").mkdir()  # not where the recipe lies
    bundle = load_init_bundle(load_recipe(recipe))
    assert bundle.folder == find_bundle(None)
    assert resolve_recipe(load_recipe(recipe)).model.config(bundle.config.vocab_size) == bundle.config
    model = Transformer(bundle.config)
    load_init_weights(load_recipe(recipe), model, bundle.tokenizer)  # they are stored in int8
    assert torch.equal(model.state_dict()["embedding.weight"], load_weights(bundle)["embedding.weight"])
    assert load_recipe(recipe, ["train.init=en-de"]).train.init == str(tmp_path / "en-de")
    # A path is never taken for a name, and a folder of that name, where one is, is what was meant.
    with pytest.raises(UserError, match=r"train\.init: .*runs/en-de: there is no such model"):
        load_init_bundle(load_recipe(recipe, ["train.init=runs/en-de"]))
    (tmp_path / "recipe" / "en-de").mkdir()
    assert load_recipe(recipe).train.init == str(tmp_path / "recipe" / "en-de")


def test_a_fine_tuned_run_is_resumed_without_the_model_that_it_started_from(old: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(old, copy)
    recipe = fine_tuning(tmp_path / "recipe", init=str(copy), steps=10)
    out = tmp_path / "run"
    train(load_recipe(recipe), out, display=Display())
    shutil.rmtree(copy)
    for steps, words in (
        (15, out / "recipe.toml"),
        (20, recipe),
    ):  # its own recipe, and the one that says preset = "init"
        train(load_recipe(words, [f"train.steps={steps}"]), out, resume=True, display=Display())
        assert load_bundle(out / "model").facts["steps"] == steps
    assert isinstance(load_bundle(out / "model").tokenizer, Tokenizer)
    with pytest.raises(UserError, match=r"model\.dropout must stay 0\.1, .*, but is 0\.4"):
        train(load_recipe(recipe, ["model.dropout=0.4"]), out, resume=True, display=Display())
    with pytest.raises(UserError, match=r"train\.init must stay .*, but is '/elsewhere'"):
        train(load_recipe(recipe, ["train.init=/elsewhere"]), out, resume=True, display=Display())


def validations(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "valid"]


def assert_same_weights(one: Bundle, other: Bundle) -> None:
    for name, tensor in load_weights(other).items():
        assert torch.equal(load_weights(one)[name], tensor)


def test_fine_tuning_that_cannot_help_returns_the_model_that_it_started_from(old: Path, tmp_path: Path) -> None:
    recipe, out = fine_tuning(tmp_path / "recipe", init=str(old), average=1), tmp_path / "run"
    [before] = validations(old)
    said = quiet(recipe, out, "train.lr=1.0", "train.steps=20", "model.dropout=0.0")
    start, *later = validations(out)
    assert start["step"] == 0 and start["loss"] == pytest.approx(before["loss"], abs=1e-4)
    assert start["best"] and not any(record["best"] for record in later)
    assert [record["step"] for record in later] == [10, 20] and later[-1]["loss"] > start["loss"] + 0.1
    unchanged = f"the validation set (loss {start['loss']:.3f}), so that model is written, unchanged"
    assert unchanged in said and f"model   {out / 'model'} (the model in train.init, unchanged)" in said
    assert_same_weights(load_bundle(out / "model"), load_bundle(old / "model"))
    said = quiet(recipe, out, "train.lr=1.0", "train.steps=25", "model.dropout=0.0", resume=True)
    assert unchanged in said and "changed: train.steps 20 → 25" in said
    assert [record["step"] for record in validations(out)] == [0, 10, 25]
    assert_same_weights(load_bundle(out / "model"), load_bundle(old / "model"))


def test_the_same_bleu_with_a_lower_loss_beats_the_start(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = TranslationValidator.measure
    monkeypatch.setattr(TranslationValidator, "measure", lambda *arguments: {**measured(*arguments), "bleu": 7.0})
    recipe = fine_tuning(tmp_path / "recipe", init=str(old), average=1, monitor="bleu", steps=4, validate_every=4)
    for name, rate, chosen in (
        ("better", 1e-3, "last checkpoint"),
        ("worse", 1.0, "the model in train.init, unchanged"),
    ):
        assert chosen in quiet(recipe, tmp_path / name, f"train.lr={rate}")
        assert [record["best"] for record in validations(tmp_path / name)] == [True, name == "better"]


@pytest.mark.parametrize(("best", "is_worse"), [(-40.0, True), (-47.9, False), (-50.0, False)])
def test_a_run_of_an_earlier_version_says_that_it_ended_worse(best: float, is_worse: bool) -> None:
    """It has no copy of the weights that it started from."""
    notes: list[str] = []
    trainer = SimpleNamespace(
        state=RunState(start=-47.9, best=best),
        recipe=SimpleNamespace(monitor="bleu", fit_head=False),
        note=notes.append,
    )
    warn_if_worse(cast(Any, trainer))
    assert ["(BLEU 47.9), so the model of this run is worse" in note for note in notes] == [True] * is_worse


def test_a_damaged_start_is_named_and_the_run_ends_with_what_it_has(old: Path, tmp_path: Path) -> None:
    recipe, out = fine_tuning(tmp_path / "recipe", init=str(old), average=1, steps=2, lr=1.0), tmp_path / "run"
    quiet(recipe, out)
    damage(out / "start" / "model.safetensors")
    said = quiet(recipe, out, "train.steps=3", resume=True)
    assert "its weights cannot be written" in said and "(last checkpoint)" in said


def test_a_run_that_is_stopped_while_its_start_is_measured_says_that_nothing_is_saved(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "_measure_start", lambda self: setattr(self, "stops", True))
    with pytest.raises(
        Interrupted, match="stopped before the first step, so nothing was saved; start again with: regard train"
    ):
        quiet(fine_tuning(tmp_path / "recipe", init=str(old), steps=2), tmp_path / "run")


def test_where_no_rate_is_said_a_run_keeps_what_its_start_has_learnt(old: Path, tmp_path: Path) -> None:
    recipe = fine_tuning(tmp_path / "recipe", init=str(old), steps=20)
    assert not load_recipe(recipe).train.lr and resolve_recipe(load_recipe(recipe)).train.lr == 2e-4
    assert resolve_recipe(load_recipe(recipe, ["train.lr=1e-3"])).train.lr == 1e-3
    assert "no step beat" not in quiet(recipe, tmp_path / "run")
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert max(record["lr"] for record in records if record["kind"] == "train") <= 2e-4
    assert load_recipe(tmp_path / "run" / "recipe.toml").train.lr == 2e-4


def test_the_guard_is_that_of_the_start_unless_it_is_said(tmp_path: Path) -> None:
    made = make_bundle(tmp_path / "made")
    for guard in (True, False):
        bundle = save_model(
            tmp_path / f"bundle-{guard}", Transformer(made.config), made.tokenizer, decode=DecodeRecipe(guard=guard)
        )
        recipe, out = fine_tuning(tmp_path / "recipe", init=str(bundle.folder), steps=2), tmp_path / f"run-{guard}"
        quiet(recipe, out)
        assert load_bundle(out / "model").decode.guard is guard
        quiet(recipe, out, "train.steps=3", f"decode.guard={str(not guard).lower()}", resume=True)
        assert load_bundle(out / "model").decode.guard is not guard


def test_a_start_of_other_languages_is_said(old: Path, tmp_path: Path) -> None:
    recipe = fine_tuning(tmp_path / "recipe", init=str(old), steps=2)
    assert "train.init translates" not in quiet(recipe, tmp_path / "run")
    for name in ("train", "valid"):
        for side, other in (("src", "de"), ("tgt", "en")):
            shutil.copy(tmp_path / "recipe" / f"{name}.{side}", tmp_path / "recipe" / f"{name}.{other}")
    changed = ["data.source=de", "data.target=en", "data.train=train.{de,en}", "data.valid=valid.{de,en}"]
    said = quiet(recipe, tmp_path / "other", *changed)
    assert "train.init translates src → tgt, this run de → en; the built-in model de-en matches" in said


def test_a_recipe_that_is_written_names_a_built_in_model_by_its_name(tmp_path: Path) -> None:
    recipe = load_recipe(fine_tuning(tmp_path / "recipe", init="en-de"))
    assert 'init = "builtin:en-de"' in recipe.to_toml()
    (tmp_path / "recipe" / "en-de").mkdir()  # is not meant
    (tmp_path / "recipe" / "written.toml").write_text(recipe.to_toml())
    assert load_recipe(tmp_path / "recipe" / "written.toml") == recipe
    with pytest.raises(
        UserError, match="must name one of the built-in models en-de, de-en, minilm-en-de, but names 'xx'"
    ):
        load_recipe(tmp_path / "recipe" / "written.toml", ["train.init=builtin:xx"])


def test_a_run_without_an_intact_checkpoint_says_that_it_needs_the_model_it_started_from(
    old: Path, tmp_path: Path
) -> None:
    copy, out = tmp_path / "copy", tmp_path / "run"
    shutil.copytree(old, copy)
    recipe = load_recipe(fine_tuning(tmp_path / "recipe", init=str(copy), steps=5, save_every=5))
    train(recipe, out, display=Display())
    (out / "report.html").unlink()
    shutil.rmtree(copy)
    for checkpoint in (out / "checkpoints").iterdir():
        (checkpoint / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"train\.init: .*copy: there is no such model"):
        train(recipe, out, resume=True, display=Display())


def test_spans_are_protected_as_in_the_model_that_a_run_starts_from(tmp_path: Path) -> None:
    lines = [side for pair in reversal_pairs(200, 3) for side in pair]
    tokenizer = Tokenizer.train(lines, 420, tmp_path / "tokenizer", protects=True)
    config = ModelConfig(tokenizer.vocab_size, 32, 64, 2, 1, 1)
    bundle = save_model(tmp_path / "bundle", Transformer(config), tokenizer)
    recipe = fine_tuning(tmp_path / "recipe", init=str(bundle.folder), steps=2)
    trained = train(load_recipe(recipe), tmp_path / "run", display=Display())
    assert trained.tokenizer.protects
    assert load_recipe(tmp_path / "run" / "recipe.toml").tokenizer.protect is True
    message = (
        r"tokenizer\.protect: the model in train\.init was trained with protected spans; remove tokenizer\.protect"
    )
    with pytest.raises(UserError, match=message):
        train(load_recipe(recipe, ["tokenizer.protect=false"]), tmp_path / "other", display=Display())
    assert "protect" not in load_recipe(recipe).to_dict()["tokenizer"]  # nothing was said of it


def test_only_the_first_process_resolves_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe(fine_tuning(tmp_path, init="en-de"))
    folder = RunFolder(tmp_path / "run")
    resolved = resolve_on_first(recipe, folder, Ranks())
    assert recipe.model.preset == "init" and resolved.model.config(1000).d_model == 320 and resolved.train.lr

    class Second(Ranks):
        def run_on_first(self, work: Any) -> None:
            return None

        def broadcast(self, value: Any) -> Any:
            assert value is None
            return json.loads(json.dumps(resolved.to_dict()))

    monkeypatch.setattr("regard.training.run.resolve_recipe", lambda *_: pytest.fail("resolved a second time"))
    assert resolve_on_first(recipe, folder, Second(1, 2)) == resolved
