"""Bundles for transformers: what MarianMTModel and MarianTokenizer load, and what they then say."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianMTModel, MarianTokenizer
from transformers.utils import logging as transformers_logging

from regard.bundle import Bundle, save_bundle
from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError, UserError
from regard.export import export
from regard.families import marian
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions
from regard.models.loss import linear_cross_entropy
from regard.models.transformer import Transformer
from regard.recipe import DecodeRecipe
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from tests.build import HEADS, ONE_STACK, SWITCHES, build, pack, tiny_config
from tests.importing.opus import tatoeba
from tests.tiny import reversal_pairs, save_encoder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning"),
]
# What the paper's model has, and what Marian has besides.
KNOWN = {"paper", "gelu", "silu", "deep-encoder", "untied", "output-bias"}
REFUSED = {
    "pre-norm": "norm_position = 'pre'",
    "rms": "norm = 'rms'",
    "swiglu": "activation = 'swiglu'",
    "learned": "positions = 'learned'",
    "rotary": "positions = 'rotary'",
    "grouped": "num_kv_heads = 2",
    "one-kv-head": "num_kv_heads = 1",
    "modern": "norm_position = 'pre'",
    "post-norm-modern": "norm = 'rms'",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Of English and German sentences, and of single letters."""
    letters = [side for pair in reversal_pairs(200, 3) for side in pair]
    lines = tatoeba("train.en", 1500) + tatoeba("train.de", 1500) + letters
    return Tokenizer.train(lines, 900, tmp_path_factory.mktemp("tokenizer"))


def make_config(tokenizer: Tokenizer, **switches: Any) -> ModelConfig:
    shape = {"d_model": 32, "d_ff": 48, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    return ModelConfig(tokenizer.vocab_size, **{**shape, **switches})


def save(folder: Path, model: Transformer, tokenizer: Tokenizer) -> Bundle:
    return save_bundle(
        folder,
        model.state_dict(),
        model.config,
        tokenizer,
        "",
        source="en",
        target="de",
        decode=DecodeRecipe(beam=3, alpha=0.7, max_extra=40),
        max_length=100,
        facts={},
    )


def half_trained(tokenizer: Tokenizer, steps: int = 250) -> Transformer:
    """A model that has begun to learn to reverse letters, and would rather say pieces that stand for nothing."""
    model = build(make_config(tokenizer, output_bias=True)).train()
    assert model.output_bias is not None
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        pairs = reversal_pairs(24, seed=step)
        sides = [[torch.tensor(tokenizer.encode(pair[side])) for pair in pairs] for side in (0, 1)]
        mark = {name: torch.tensor([getattr(tokenizer, name)]) for name in ("bos_id", "eos_id")}
        src = pack([torch.cat((ids, mark["eos_id"])) for ids in sides[0]])
        tgt_in = pack([torch.cat((mark["bos_id"], ids)) for ids in sides[1]])
        labels = torch.cat([torch.cat((ids, mark["eos_id"])) for ids in sides[1]])
        loss = linear_cross_entropy(model.hidden(*src, *tgt_in), model.output_weight, labels, 0.1)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    with torch.no_grad():
        model.output_bias[[tokenizer.unk_id, tokenizer.span_ids[0], tokenizer.pad_id]] += 12.0
    return model.eval()


@dataclass(frozen=True)
class Both:
    bundle: Bundle
    folder: Path
    model: Any
    tokenizer: Any


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Both:
    folder = tmp_path_factory.mktemp("both")
    bundle = save(folder / "bundle", half_trained(tokenizer), tokenizer)
    export(bundle, "transformers", folder / "marian")
    model = MarianMTModel.from_pretrained(folder / "marian").eval()
    return Both(bundle, folder / "marian", model, MarianTokenizer.from_pretrained(folder / "marian"))


# The same model


def test_every_switch_is_either_known_or_refused() -> None:
    assert KNOWN | set(REFUSED) == set(SWITCHES) and not KNOWN & set(REFUSED)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_model_that_marian_has_computes_the_same_there(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer, **SWITCHES[name])), tokenizer)
    report = export(bundle, "transformers", tmp_path / "marian")
    assert 0 < report.difference.largest < 2e-5


@pytest.mark.parametrize(("name", "named"), REFUSED.items())
def test_what_marian_does_not_have_is_refused_by_name(
    name: str, named: str, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer, **SWITCHES[name])), tokenizer)
    with pytest.raises(UserError, match=f"^model.{named} is not known to transformers' Marian.*--to ctranslate2"):
        export(bundle, "transformers", tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


def test_another_epsilon_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer, norm_eps=1e-6)), tokenizer)
    with pytest.raises(UserError, match=r"model\.norm_eps = 1e-06"):
        export(bundle, "transformers", tmp_path / "marian")


def test_a_wrong_weight_is_noticed_and_nothing_is_left_behind(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer)), tokenizer)
    monkeypatch.setattr(marian, "_order", lambda d_model: tuple(range(d_model)))
    with pytest.raises(RegardError, match="does not compute what the original does"):
        export(bundle, "transformers", tmp_path / "marian")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_another_tokenizer_is_noticed(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer)), tokenizer)
    pieces = Tokenizer.pieces
    monkeypatch.setattr(
        Tokenizer, "pieces", lambda self, ids: [*pieces(self, ids)][:400] + [*pieces(self, ids)][:399:-1]
    )
    with pytest.raises(RegardError, match="to other ids than the bundle"):
        export(bundle, "transformers", tmp_path / "marian")


# The same translations


@pytest.mark.parametrize("beam", [1, 4])
def test_text_in_is_text_out_as_in_regard(both: Both, beam: int) -> None:
    """With the length penalties off on both sides: they are different formulas."""
    lines = [source for source, _ in reversal_pairs(60, seed=99, longest=10)]
    batch = both.tokenizer(lines, return_tensors="pt", padding=True)
    penalty = {"length_penalty": 0.0} if beam > 1 else {}
    generated = both.model.generate(**batch, num_beams=beam, max_length=60, **penalty)
    theirs = both.tokenizer.batch_decode(generated, skip_special_tokens=True)
    ended = [2 in row[1:-2] for row in generated.tolist()]
    engine = TorchEngine.from_bundle(both.bundle, "cpu")
    options = TranslationOptions(SearchOptions(beam=beam, alpha=0.0, max_extra=60))
    found = Translator(both.bundle.tokenizer, engine, options, both.bundle.max_length).translate(lines)
    pairs = [(one.text, other) for one, other, end in zip(found, theirs, ended, strict=True) if end]
    assert [ours for ours, _ in pairs] == [other for _, other in pairs]
    assert len(pairs) >= 30 and len({text for text, _ in pairs}) >= 20, "not all alike"


def test_forbidden_pieces_would_be_said_if_they_were_not_forbidden(both: Both) -> None:
    """Or the test above would not notice."""
    batch = both.tokenizer(["a b c"], return_tensors="pt")
    forbidden = {0, both.bundle.tokenizer.span_ids[0], 3}
    freely = both.model.generate(**batch, num_beams=1, max_length=20, bad_words_ids=None)[0].tolist()
    assert forbidden & set(freely[1:])
    assert not forbidden & set(both.model.generate(**batch, num_beams=1, max_length=20)[0, 1:-1].tolist())


# The same tokens


def test_sentences_get_the_ids_that_regard_gives_them(both: Both) -> None:
    ours = both.bundle.tokenizer
    lines = tatoeba("dev.en", 400) + tatoeba("dev.de", 400)
    lines += [
        "“Quoted” – and… «so»",
        "</s> <pad> <unk> <s> <span0> <0x41>",
        "naïve 😀 漢字 e\u0301",
        "a\u00a0b\tc",
        "  a  b ",
    ]
    lines += ["x >>de<< y", "<u2581>"]
    assert both.tokenizer(lines)["input_ids"] == [[*ids, 2] for ids in ours.encode_batch(lines)]
    assert both.tokenizer(text_target=lines)["input_ids"] == [[*ids, 2] for ids in ours.encode_batch(lines, "target")]
    for line in lines:
        ids = [1, *ours.encode(line), 2, 3, 3]
        assert both.tokenizer.decode(ids, skip_special_tokens=True) == line.strip()


@pytest.mark.parametrize("line", ["a\u2581b", ">>de<< a"])
def test_what_the_readme_says_is_read_otherwise_is_read_otherwise(both: Both, line: str) -> None:
    assert both.tokenizer(line)["input_ids"] != [*both.bundle.tokenizer.encode(line), 2]
    readme = (both.folder / "README.md").read_text(encoding="utf-8")
    assert "U+2581" in readme and "`>>`" in readme


def test_ids_are_regards_own(both: Both) -> None:
    vocabulary = json.loads((both.folder / "vocab.json").read_text(encoding="utf-8"))
    ours = both.bundle.tokenizer
    assert sorted(vocabulary.values()) == list(range(ours.vocab_size))
    assert ours.pieces(vocabulary.values()) == list(vocabulary)
    assert (both.tokenizer.unk_token_id, both.tokenizer.eos_token_id, both.tokenizer.pad_token_id) == (0, 2, 3)


# The folder


def test_the_folder_loads_without_naming_marian(both: Both) -> None:
    assert isinstance(AutoTokenizer.from_pretrained(both.folder), MarianTokenizer)
    assert isinstance(AutoModelForSeq2SeqLM.from_pretrained(both.folder), MarianMTModel)


def test_the_search_is_set_as_near_to_the_bundles_as_it_comes(both: Both) -> None:
    config = both.model.generation_config
    assert (config.num_beams, config.length_penalty, config.early_stopping) == (3, 0.7, False)
    assert (config.decoder_start_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 3)
    assert config.forced_eos_token_id is None and both.model.config.forced_eos_token_id is None
    assert config.max_length == both.model.config.max_position_embeddings == 512
    readme = (both.folder / "README.md").read_text(encoding="utf-8")
    assert "`length_penalty` = 0.7" in readme and "((5 + n) / 6)^alpha" in readme and "40 tokens more" in readme
    assert both.tokenizer.model_max_length == 101


def test_sinusoids_are_not_stored_and_come_back(both: Both) -> None:
    assert not [name for name in load_file(both.folder / "model.safetensors") if "positions" in name]
    expected = marian_sinusoids(512, 32)
    for stack in (both.model.model.encoder, both.model.model.decoder):
        torch.testing.assert_close(stack.embed_positions.weight, expected, atol=1e-5, rtol=0)


def marian_sinusoids(length: int, d_model: int) -> torch.Tensor:
    angles = torch.arange(length, dtype=torch.float64)[:, None] / 10_000 ** (torch.arange(0, d_model, 2) / d_model)
    return torch.cat((angles.sin(), angles.cos()), dim=1).float()


def test_exporting_says_nothing_and_changes_no_setting(
    tokenizer: Tokenizer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer)), tokenizer)
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    export(bundle, "transformers", tmp_path / "marian")
    assert capfd.readouterr() == ("", "")
    assert (transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()) == before


def test_without_the_package_the_error_names_it(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer)), tokenizer)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs the package transformers.*pip install 'regard\[export\]'"):
        export(bundle, "transformers", tmp_path / "marian")


def test_two_models_without_a_vocabulary_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pair = Tokenizer([tokenizer.models[0], tokenizer.models[0]])
    bundle = save(tmp_path / "bundle", build(make_config(tokenizer)), pair)
    with pytest.raises(UserError, match=r"without vocab\.json cannot become a MarianTokenizer"):
        export(bundle, "transformers", tmp_path / "marian")


# --- models of one stack with a vocabulary of Regard's own ---


@pytest.mark.parametrize("task", ["embed", "fill", "classify"])
def test_an_encoder_trained_here_reads_a_text_there_as_here(task: str, tmp_path: Path) -> None:
    """The tokenizer puts around a text what Regard does, and a mask takes the place of a word."""
    heads = {"embed": HEADS["vector"], "classify": HEADS["classes"], "fill": ONE_STACK["bert"]}
    settings = {**heads[task], "front": {"token_types": 2}}
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **settings)))
    export(bundle, "transformers", tmp_path / "out")
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path / "out"), bundle.tokenizer
    for text in ("a b c", "Käse, 漢", " two  spaces" if task != "fill" else "x"):
        assert theirs(text)["input_ids"] == ours.frame(ours.encode(text))[0]
        assert theirs(text, "d e")["input_ids"] == ours.frame(ours.encode(text), ours.encode("d e"))[0]
    if task == "fill":
        expected = [*ours.encode("a"), ours.mask_id, *ours.encode(" c", at_start=False), ours.eos_id]
        assert theirs(f"a {theirs.mask_token} c")["input_ids"] == expected
