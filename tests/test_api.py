"""The Python API as the documentation shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import regard
from tests.tiny import make_bundle, write_recipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> regard.Model:
    return regard.load(make_bundle(tmp_path_factory.mktemp("api") / "bundle").folder, device="cpu")


def test_the_exported_names_are_these() -> None:
    assert set(dir(regard)) == {
        "Augmented", "Bundle", "Explanation", "Interrupted", "Model", "ModelConfig", "Recipe", "RegardError", "SearchOptions",
        "SequenceLayout", "Tokenizer", "Transformer", "TranslationOptions", "UserError", "__version__", "augment_corpus", "compare",
        "load", "load_bundle", "load_recipe", "noise_corpus", "score", "train",
    }  # fmt: skip
    for name in dir(regard):
        assert getattr(regard, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = regard.trian


def test_a_model_says_what_it_is(model: regard.Model) -> None:
    assert repr(model) == f"<regard.Model en → de, {type(model.engine).__name__}>"


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
