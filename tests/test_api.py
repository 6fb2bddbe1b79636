"""The Python API as the documentation shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from tests.tiny import make_bundle, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    return regard.load(make_bundle(tmp_path_factory.mktemp("api") / "bundle").folder, device="cpu")


def test_the_exported_names_are_these() -> None:
    assert set(dir(regard)) == {
        "Augmented", "Bundle", "EncoderExplanation", "Explanation", "Index", "Interrupted", "Model", "ModelConfig", "Recipe",
        "RegardError", "SearchOptions", "SequenceLayout", "Tokenizer", "Transformer", "TranslationOptions", "UserError",
        "__version__", "augment_corpus", "compare", "load", "load_bundle", "load_index", "load_recipe", "noise_corpus", "score",
        "train",
    }  # fmt: skip
    for name in dir(regard):
        assert getattr(regard, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = regard.trian


def test_a_model_says_what_it_is(model: regard.Model) -> None:
    assert repr(model) == f"<regard.Model en → de (bundle), {type(model.engine).__name__}>"
    assert (model.source, model.target) == ("en", "de")
    pair = regard.load([model.bundle.folder, model.bundle.folder], device="cpu")
    assert repr(pair) == "<regard.Model en → de (bundle), ensemble of 2 models, TorchEngine>"


def test_what_people_print_is_short(model: regard.Model) -> None:
    scores = regard.score(["a b"], ["a b"], bootstrap=0)
    assert repr(scores) == "<regard.Scores BLEU 0.00, chrF2 100.00, TER 0.00; 1 sentence>"
    comparison = regard.compare(["a b"], ["a b"], ["a b"], bootstrap=5)
    assert repr(comparison).startswith("<regard.Comparison of A and B: No significant difference")
    assert repr(model.bundle).startswith("<regard.Bundle en → de, d_model 32, 1+1 layers, ")
    assert repr(model.bundle.tokenizer) == f"<regard.Tokenizer joint, {model.bundle.tokenizer.vocab_size:,} pieces>"
    assert repr(model.explain("a b")).startswith("<regard.Explanation of 'a b' → '")


def test_a_wrong_type_is_answered_with_the_right_one(model: regard.Model) -> None:
    any_model: Any = model
    for call, message in (
        (lambda: any_model.translate(5), r"`text` must be a string or a list of strings, but is 5 \(int\)"),
        (lambda: any_model.translate(None), "but is None"),
        (lambda: any_model.translate(b"a"), r"\(bytes\); decode it first"),
        (lambda: any_model.translate(Path("a.txt")), "call translate_file"),
        (lambda: any_model.translate({"a": 1}), r"\(dict\)"),
        (lambda: any_model.translate(["a", 3]), r"but its item 1 is 3 \(int\)"),
        (lambda: any_model.translate("a", prefix=3), "`prefix` must be a string or a list of strings"),
        (lambda: any_model.translate("a", glossary=3), "`glossary` must be a mapping or the path of a file"),
        (lambda: any_model.nbest("a", 2), "`text` must be a list of sentences, but is one string"),
        (lambda: any_model.nbest(["a"], "2"), "`n` must be a whole number"),
        (lambda: any_model.score(["a"], [1]), "`tgt` must be a list of sentences, but its item 0 is 1"),
        (lambda: any_model.follow(3), "`text` must be a string"),
        (lambda: any_model.alternatives(3), "`text` must be a string"),
        (lambda: any_model.explain(3), "`text` must be a string"),
        (lambda: any_model.translate_file(3), "`source` must be a path"),
        (lambda: regard.load(5), "`model` must be a path"),
        (lambda: regard.load_recipe(5), "`path` must be a path"),
        (lambda: regard.train("recipe.toml"), r"`recipe` must be a Recipe, .*load_recipe\(path\)"),
        (lambda: regard.score("abc", "abc"), "`hypotheses` must be a list of strings, but is one string"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(regard.UserError, match="there is no search option 'beem'; did you mean beam"):
        model.translate("a", beem=3)


def test_progress_is_shown_only_where_it_is_wanted(
    model: regard.Model, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard import progress

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    lines = ["a b", "c"]
    file = tmp_path / "in.txt"
    file.write_text("a b\nc\n")
    expected = model.translate(lines)
    model.nbest(lines, 2)
    model.translate_file(file)
    assert capfd.readouterr().err == ""
    assert model.translate(lines, progress=True) == expected
    assert "translating: 2 of 2 lines" in capfd.readouterr().err
    model.nbest(lines, 2, progress=True)
    assert "translating: 2 of 2 lines" in capfd.readouterr().err
    counted: list[int] = []
    model.translate_file(file, force=True, progress=True, on_progress=counted.append)
    assert "translating: 2 of 2 sentences" in capfd.readouterr().err
    assert sum(counted) == 2


def test_loading_and_training_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("INFO", "regard")
    recipe = regard.load_recipe(str(write_recipe(tmp_path / "recipe", steps=3, log_every=1)))
    regard.train(recipe, tmp_path / "run", progress=False)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    assert any(message.startswith("step 3") for message in caplog.messages)
    model = regard.load(tmp_path / "run", device="cpu")
    assert caplog.messages[-1] == f"loaded {model!r}"


def test_one_sentence_gives_text_and_a_list_gives_a_list(model: regard.Model) -> None:
    one = model.translate("a b c")
    assert isinstance(one, str)
    assert model.translate(["a b c", ""]) == [one, ""]


def test_an_empty_list_of_models_is_refused_with_the_remedy() -> None:
    with pytest.raises(regard.UserError, match="must name at least one model, but is an empty list"):
        regard.load([])


def test_nbest_and_score_agree_with_translate(model: regard.Model) -> None:
    [result] = model.nbest(["a b c"], 3)
    assert len(result.translations) == 3
    assert result.text == model.translate("a b c")
    assert model.score(["a b c"], ["c b a"])[0] < 0


def test_a_recipe_trains_from_python(tmp_path: Path) -> None:
    recipe = regard.load_recipe(write_recipe(tmp_path / "recipe", steps=3))
    bundle = regard.train(recipe, tmp_path / "run")
    assert isinstance(regard.load(tmp_path / "run", device="cpu").translate("a"), str)
    assert bundle.facts["steps"] == 3


def test_the_transformer_is_a_plain_module() -> None:
    config = regard.ModelConfig(vocab_size=50, d_model=16, d_ff=32, num_heads=2, encoder_layers=1, decoder_layers=1)
    network = regard.Transformer(config)
    layout = regard.SequenceLayout.from_lengths([2, 3])
    logits = network(torch.randint(50, (5,)), layout, torch.randint(50, (5,)), layout)
    assert logits.shape == (5, 50)
    logits.sum().backward()
    assert isinstance(network, torch.nn.Module)
