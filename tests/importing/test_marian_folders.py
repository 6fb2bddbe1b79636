"""Marian models as bundles: the same text in, the same text out as with transformers, or a refusal by name."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MarianMTModel, MarianTokenizer
from transformers.utils import logging as transformers_logging

from regard.bundle import Bundle, load_bundle
from regard.data.tokenizer import Tokenizer
from regard.data.vocabulary import Vocabulary
from regard.errors import UserError
from regard.export import export
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.generate.options import SearchOptions
from regard.importing.marian import import_marian
from regard.translation.glossary import Glossary
from regard.translation.reading import Segment, cut_line
from regard.translation.translation_options import TranslationOptions
from regard.translation.translator import Translator
from tests.importing.opus import change_json, tatoeba, vocabulary, write_json, write_opus
from tests.mutations import mutations
from tests.test_fuzz import VALUES
from tests.translation.test_translator import Echo

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses:UserWarning"),
]
LIMIT = 60
STEPS = 180
CASES: dict[str, dict[str, Any]] = {
    "opus": {},
    "renormalised": {"search": {"renormalize_logits": True}},
    "relu": {"activation_function": "relu", "encoder_layers": 1, "decoder_layers": 3},
    "gelu": {"activation_function": "gelu", "encoder_layers": 3, "decoder_layers": 1},
    "separate": {"separate": "fewer target"},
    "three-matrices": {"separate": "fewer source", "tie_word_embeddings": False},
    "shared-but-untied": {"tie_word_embeddings": False},
    "unscaled": {"scale_embedding": False, "steps": 450},
}
ODD = [
    "",
    "x",
    ">>deu<< Where are you?",
    ">>xyz<< no such language",
    "漢字 in the middle",
    "  two  spaces  ",
    "Ａｂｃ ﬁn … “quoted”",
    "a\tb\u00a0c",
    "▁ literal",
]


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    yield
    transformers_logging.set_verbosity(verbosity)
    transformers_logging.enable_progress_bar()


@dataclass(frozen=True)
class Both:
    folder: Path
    model: Any
    tokenizer: Any
    bundle: Bundle
    engine: TorchEngine
    renormalised: bool

    def translator(self, **options: Any) -> Translator:
        search = SearchOptions(alpha=0.0, max_extra=LIMIT, **options)
        return Translator(self.bundle.tokenizer, self.engine, TranslationOptions(search), self.bundle.max_length)

    def generate(self, lines: list[str], **options: Any) -> Any:
        batch = self.tokenizer(lines, return_tensors="pt", padding=True)
        return self.model.generate(
            **batch, max_new_tokens=LIMIT, return_dict_in_generate=True, output_scores=True, **options
        )


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp(request.param)
    write_opus(folder / "marian", **{"steps": STEPS, **CASES[request.param]})
    return load_both(folder, request.param == "renormalised")


def load_both(folder: Path, renormalised: bool = False) -> Both:
    model = MarianMTModel.from_pretrained(folder / "marian").eval()
    tokenizer = MarianTokenizer.from_pretrained(folder / "marian")
    import_marian(folder / "marian", folder / "bundle")
    bundle = load_bundle(folder / "bundle")
    return Both(folder, model, tokenizer, bundle, TorchEngine.from_bundle(bundle, "cpu"), renormalised)


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain") / "opus-mt-en-de"
    write_opus(folder)
    return folder


@pytest.fixture
def changed(marian: Path, tmp_path: Path) -> Path:
    """A copy of a Marian folder, to be spoilt."""
    return Path(shutil.copytree(marian, tmp_path / "changed"))


# The same translations


def compare(both: Both, lines: list[str], **options: Any) -> list[str]:
    """The translations that ended by themselves on both sides, which must be equal; at a limit the searches differ."""
    output = both.generate(lines, num_beams=options["beam"], **({"length_penalty": 0.0} if options["beam"] > 1 else {}))
    expected = both.tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    ended = [0 in row[1:LIMIT] for row in output.sequences.tolist()]
    found = [result.text for result in both.translator(**options).translate(lines)]
    pairs = [pair for *pair, end in zip(found, expected, ended, strict=True) if end]
    assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]
    return [ours for ours, _ in pairs]


@pytest.mark.parametrize("beam", [1, 4])
def test_text_in_is_text_out_as_with_transformers(both: Both, beam: int) -> None:
    odd = [
        line for line in ODD if line.strip() and "▁" not in line
    ]  # Regard keeps a typed ▁, sentencepiece makes it a space
    lines = tatoeba("dev.en", 80) + odd
    found = compare(both, lines, beam=beam)
    assert len(found) >= 20
    assert len(set(found)) >= 10 and len({len(text) for text in found}) >= 4, "not all alike"


def test_the_ids_and_scores_of_a_beam_are_those_of_transformers(both: Both) -> None:
    lines = tatoeba("test.en", 40)
    output = both.generate(lines, num_beams=4, length_penalty=0.0, num_return_sequences=4)
    rows = [row[1:] for row in output.sequences.tolist()]
    scores = output.sequences_scores.tolist()
    src = both.bundle.tokenizer.encode_batch(lines)
    found = both.engine.translate(src, SearchOptions(beam=4, nbest=4, alpha=0.0, max_extra=LIMIT))
    compared = 0
    for number, hypotheses in enumerate(found):
        theirs = rows[4 * number : 4 * number + 4]
        if all(0 in row[: LIMIT - 1] for row in theirs):
            compared += 1
            assert [list(hypothesis.ids) for hypothesis in hypotheses] == [row[: row.index(0)] for row in theirs]
            values = [hypothesis.log_prob for hypothesis in hypotheses]
            assert values == pytest.approx(scores[4 * number : 4 * number + 4], abs=1e-4)
    assert compared >= 10


@torch.no_grad()
def test_log_probabilities_of_given_translations_agree(both: Both) -> None:
    tokenizer = both.bundle.tokenizer
    src = tokenizer.encode_batch(tatoeba("dev.en", 12))
    tgt = tokenizer.encode_batch(tatoeba("dev.de", 12), "target")
    for source, target, ours in zip(src, tgt, both.engine.score(src, tgt), strict=True):
        start = both.model.config.decoder_start_token_id
        logits = both.model(
            input_ids=torch.tensor([[*source, 0]]), decoder_input_ids=torch.tensor([[start, *target]])
        ).logits[0]
        if both.renormalised:
            logits[:, start] = -torch.inf
        theirs = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor([*target, 0])[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-4, rtol=0)


def test_the_padding_would_be_chosen_if_it_were_not_forbidden(both: Both) -> None:
    """Or the tests above would not notice."""
    pad = both.model.config.pad_token_id
    output = both.generate(tatoeba("dev.en", 40), num_beams=1, bad_words_ids=None)
    assert any(pad in row[1:-1] and 0 in row[row.index(pad, 1) :] for row in output.sequences.tolist())


def test_every_text_gets_the_ids_that_marian_tokenizer_gives(both: Both) -> None:
    tokenizer = both.bundle.tokenizer
    lines = tatoeba("dev.en", 300) + tatoeba("dev.de", 300) + ODD
    assert tokenizer.encode_batch(lines) == [ids[:-1] for ids in both.tokenizer(lines)["input_ids"]]
    targets = both.tokenizer(text_target=lines)["input_ids"]
    assert tokenizer.encode_batch(lines, "target") == [ids[:-1] for ids in targets]
    assert sum(tokenizer.unk_id in ids for ids in tokenizer.encode_batch(lines)) > 20, (
        "unknown characters are among them"
    )
    draw = torch.Generator().manual_seed(1)  # also pieces that only the other language's model knows, in any order
    size = min(len(both.tokenizer.decoder), tokenizer.vocab_size)
    random = torch.randint(size, (300, 6), generator=draw).tolist()
    for ids in [*targets, *random, *([i] for i in range(size)), [both.tokenizer.pad_token_id, 9, 0]]:
        assert tokenizer.decode(ids) == both.tokenizer.decode(ids, skip_special_tokens=True)


def test_exported_again_the_folder_holds_the_same_numbers(both: Both, tmp_path: Path) -> None:
    export(both.bundle, "transformers", tmp_path / "again")
    again = MarianMTModel.from_pretrained(tmp_path / "again").eval()
    lines = tatoeba("dev.en", 10)
    batch = both.tokenizer(lines, return_tensors="pt", padding=True)
    assert MarianTokenizer.from_pretrained(tmp_path / "again")(lines)["input_ids"] == both.tokenizer(lines)["input_ids"]
    options: dict[str, Any] = {"num_beams": 1, "max_new_tokens": 40}
    # But for the last place: Regard does not force an end, and the models here are told to.
    assert torch.equal(again.generate(**batch, **options)[:, :-1], both.model.generate(**batch, **options)[:, :-1])
    if both.bundle.config.tie_embeddings and not both.renormalised:
        before, after = (
            load_file(place / "model.safetensors") for place in (both.folder / "marian", tmp_path / "again")
        )
        assert set(before) == set(after)
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_generated_unknown_piece_is_nothing_in_the_text(tmp_path: Path) -> None:
    marian = write_opus(tmp_path / "marian", steps=STEPS)
    tokenizer = MarianTokenizer.from_pretrained(tmp_path / "marian")
    lines = tatoeba("dev.en", 20)
    generated = marian.generate(
        **tokenizer(lines, return_tensors="pt", padding=True), num_beams=1, max_new_tokens=LIMIT
    )
    counts = generated.flatten().bincount()
    counts[[0, 1, marian.config.pad_token_id]] = 0
    tensors = load_file(tmp_path / "marian" / "model.safetensors")
    shared, bias = tensors["model.shared.weight"], tensors["final_logits_bias"][0]
    shared[1] = shared[counts.argmax()]
    bias[1] = bias[counts.argmax()] + 0.1  # the unknown piece wins wherever the most common one did
    save_file(tensors, tmp_path / "marian" / "model.safetensors", metadata={"format": "pt"})
    both = load_both(tmp_path)
    assert any(1 in row for row in both.generate(lines, num_beams=1).sequences.tolist())
    assert compare(both, lines, beam=1)


# What a bundle is told by the folder


def test_the_bundle_says_where_it_comes_from_and_how_it_is_searched(marian: Path, tmp_path: Path) -> None:
    bundle = import_marian(marian, tmp_path / "bundle")
    assert (bundle.source, bundle.target, bundle.max_length) == ("eng", "deu", 127)
    assert (bundle.decode.beam, bundle.decode.alpha) == (4, 1.0)
    assert bundle.config.activation == "silu" and bundle.config.output_bias and bundle.config.tie_embeddings
    card = (tmp_path / "bundle" / "card.md").read_text(encoding="utf-8")
    assert "imported with Regard" in card and "| imported from | opus-mt-en-de, a Marian model" in card
    assert bundle.facts["parameters"] == load_model(bundle).num_parameters()
    assert json.loads((tmp_path / "bundle" / "config.json").read_text())["format"] == 1


def test_labels_come_from_the_caller_or_from_the_folders_name(changed: Path, tmp_path: Path) -> None:
    write_json(changed / "tokenizer_config.json", {})
    named = Path(shutil.move(changed, tmp_path / "models--Helsinki-NLP--opus-mt-tc-big-en-fi" / "snapshots" / "0ff"))
    bundle = import_marian(named, tmp_path / "one")
    assert (bundle.source, bundle.target) == ("en", "fi")
    assert bundle.facts["imported"].startswith("Helsinki-NLP/opus-mt-tc-big-en-fi,")
    bundle = import_marian(named, tmp_path / "two", source="a", target="b")
    assert (bundle.source, bundle.target) == ("a", "b")


def test_settings_of_the_search_may_stand_in_config_json(changed: Path, tmp_path: Path) -> None:
    """As in models from before there was a generation_config.json."""
    (changed / "generation_config.json").unlink()
    pad = json.loads((changed / "config.json").read_text())["pad_token_id"]
    change_json(changed / "config.json", num_beams=6, max_length=512, bad_words_ids=[[pad]], length_penalty=0.5)
    bundle = import_marian(changed, tmp_path / "bundle")
    assert (bundle.decode.beam, bundle.decode.alpha) == (6, 0.5)
    assert bundle.tokenizer.vocabulary.special.forbidden == (pad,)


def test_a_field_that_is_missing_has_the_value_that_transformers_gives_it(changed: Path, tmp_path: Path) -> None:
    settings = json.loads((changed / "config.json").read_text())
    for name in ("activation_function", "scale_embedding"):
        del settings[name]
    write_json(changed / "config.json", settings)
    bundle = import_marian(changed, tmp_path / "bundle")
    theirs = MarianMTModel.from_pretrained(changed).config
    assert bundle.config.activation == theirs.activation_function == "gelu"
    assert theirs.scale_embedding is False and not bundle.config.tie_embeddings, "unscaled is three matrices"


def test_nothing_of_transformers_is_needed(marian: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    load_model(import_marian(marian, tmp_path / "bundle"))


# Files of other kinds


def weights_of(bundle: Bundle) -> dict[str, torch.Tensor]:
    return load_file(bundle.weights)


def test_a_pickle_is_read_only_when_allowed_and_then_gives_the_same_bundle(
    marian: Path, changed: Path, tmp_path: Path
) -> None:
    tensors = load_file(changed / "model.safetensors")
    table = MarianMTModel.from_pretrained(marian).model.encoder.embed_positions.weight.clone()
    # Older files hold every name of the shared matrix, and the sinusoids.
    names = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    positions = {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}
    more = {**tensors, **dict.fromkeys(names, tensors["model.shared.weight"]), **positions}
    (changed / "model.safetensors").unlink()
    torch.save(more, changed / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model\.bin: is a pickle.*--allow-pickle.*safetensors"):
        import_marian(changed, tmp_path / "refused")
    pickled = weights_of(import_marian(changed, tmp_path / "pickled", allow_pickle=True))
    expected = weights_of(import_marian(marian, tmp_path / "safe"))
    assert set(pickled) == set(expected) and all(torch.equal(pickled[name], expected[name]) for name in expected)
    assert not (tmp_path / "refused").exists()


class Program:
    """Unpickling it makes a folder."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


def test_a_program_in_a_pickle_is_refused_and_does_not_run(changed: Path, tmp_path: Path) -> None:
    (changed / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Program(tmp_path / "was-here")}, changed / "pytorch_model.bin")
    with pytest.raises(UserError, match="cannot be read as tensors alone"):
        import_marian(changed, tmp_path / "bundle", allow_pickle=True)
    assert not (tmp_path / "was-here").exists()


def test_half_precision_becomes_single(changed: Path, tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in load_file(changed / "model.safetensors").items()}
    save_file(halves, changed / "model.safetensors")
    weights = weights_of(import_marian(changed, tmp_path / "bundle"))
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    shared = halves["model.shared.weight"].float()
    assert torch.equal(weights["embedding.weight"][:, 0::2], shared[:, :16])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.decoder.layers.1.fc2.bias"), r"tensor model\.decoder\.layers\.1\.fc2\.bias is missing"),
        (lambda t: t.pop("model.shared.weight"), r"embed_tokens\.weight is missing"),
        (
            lambda t: t.update({"model.encoder.layernorm_embedding.weight": torch.ones(32)}),
            "tensor model.encoder.layernorm_embedding.weight has no place in a bundle",
        ),
        (
            lambda t: t.update({"model.encoder.embed_positions.weight": torch.randn(128, 32)}),
            "must be the paper's sinusoids",
        ),
        (
            lambda t: t.update({"model.encoder.layers.0.fc1.bias": torch.zeros(47)}),
            r"inner\.bias must have shape \(48,\)",
        ),
    ],
    ids=["missing", "no-embedding", "extra", "learned-positions", "shape"],
)
def test_tensors_that_do_not_fit_are_refused_by_name(changed: Path, tmp_path: Path, change: Any, message: str) -> None:
    tensors = load_file(changed / "model.safetensors")
    change(tensors)
    save_file(tensors, changed / "model.safetensors")
    with pytest.raises(UserError, match=message):
        import_marian(changed, tmp_path / "bundle")


# Refusals


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"model_type": "mbart"}, r"config\.json: model_type must be 'marian', but is 'mbart'"),
        ("config.json", {"normalize_before": True}, "normalize_before must be False, but is True"),
        ("config.json", {"normalize_embedding": True}, "normalize_embedding must be False"),
        ("config.json", {"add_final_layer_norm": True}, "add_final_layer_norm must be False"),
        ("config.json", {"static_position_embeddings": False}, "static_position_embeddings must be True"),
        ("config.json", {"activation_function": "gelu_new"}, "activation_function must be one of relu.*'gelu_new'"),
        ("config.json", {"decoder_attention_heads": 2}, "decoder_attention_heads must be equal, but are 4 and 2"),
        ("config.json", {"decoder_ffn_dim": 64}, "decoder_ffn_dim must be equal, but are 48 and 64"),
        ("config.json", {"d_model": 30, "encoder_attention_heads": 4}, "d_model must be a multiple"),
        (
            "generation_config.json",
            {"no_repeat_ngram_size": 3},
            r"generation_config\.json: no_repeat_ngram_size must be 0",
        ),
        ("generation_config.json", {"forced_bos_token_id": 3}, "forced_bos_token_id must be None, but is 3"),
        (
            "generation_config.json",
            {"repetition_penalty": 1.3},
            "repetition_penalty must be 1.0.*remove it from the file",
        ),
        ("generation_config.json", {"do_sample": True}, "do_sample must be False"),
        (
            "generation_config.json",
            {"bad_words_ids": [[3, 4]]},
            r"bad_words_ids must hold single pieces, but has \[3, 4\]",
        ),
        ("generation_config.json", {"bad_words_ids": [[3000]]}, "bad_words_ids must be below"),
        ("generation_config.json", {"eos_token_id": [0, 2]}, r"eos_token_id must be an integer, but is \[0, 2\]"),
        (
            "generation_config.json",
            {"eos_token_id": 2, "forced_eos_token_id": 2},
            "must have the same id everywhere, but is 0 .* and 2",
        ),
        ("generation_config.json", {"forced_eos_token_id": 5}, r"forced_eos_token_id must be eos_token_id \(0\)"),
        ("generation_config.json", {"decoder_start_token_id": 9999}, "decoder_start_token_id must be below"),
        ("generation_config.json", {"length_penalty": -1.0}, "length_penalty must be 0 or more"),
        ("tokenizer_config.json", {"additional_special_tokens": ["<x>"]}, "no added tokens, but has '<x>'"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"0": {"content": "</s>"}, "99": {"content": "<y>"}}},
            "no added tokens, but has '<y>'",
        ),
        ("tokenizer_config.json", {"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs must be empty"),
        ("tokenizer_config.json", {"unk_token": "<what>"}, "must hold '<what>'"),
        ("vocab.json", {"more": 9999}, r"vocab\.json: ids must be below \d+, but one is 9999"),
        ("vocab.json", {"more": 3}, "must have different ids, but both have 3"),
        ("vocab.json", {"more": "3"}, "the id of piece 'more' must be an integer"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_a_bundle_cannot_be_is_refused_by_name(
    changed: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    change_json(changed / file, **changes)
    with pytest.raises(UserError, match=message):
        import_marian(changed, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("name", ["config.json", "vocab.json", "source.spm", "target.spm", "model.safetensors"])
def test_a_missing_file_is_refused_by_its_name(changed: Path, tmp_path: Path, name: str) -> None:
    (changed / name).unlink()
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        import_marian(changed, tmp_path / "bundle")


def test_what_is_there_is_not_written_over(marian: Path, tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        import_marian(marian, tmp_path)
    with pytest.raises(UserError, match="must be a folder with a Marian model"):
        import_marian(marian / "nowhere", tmp_path / "bundle")


# The tokenizer of an imported model


def test_a_saved_and_copied_tokenizer_gives_the_same_ids(marian: Path, tmp_path: Path) -> None:
    tokenizer = import_marian(marian, tmp_path / "bundle").tokenizer
    line = ">>deu<< Where is Tom? 漢"
    ids = tokenizer.encode(line)
    assert ids[0] == vocabulary("en", "de")[">>deu<<"] and tokenizer.unk_id in ids
    tokenizer.save(tmp_path / "saved")
    for other in (copy.deepcopy(tokenizer), Tokenizer.load(tmp_path / "saved")):
        assert other.encode(line) == ids and other.fingerprint == tokenizer.fingerprint
        assert (other.bos_id, other.eos_id, other.pad_id) == (tokenizer.pad_id, 0, tokenizer.pad_id)
        assert other.pieces([0, 1, 2, 10**6]) == ["</s>", "<unk>", ">>deu<<", "<1000000>"]
    # A Regard that does not know vocab.json refuses the folder instead of taking sentencepiece's numbers.
    assert json.loads((tmp_path / "saved" / "tokenizer.json").read_text())["format"] == 2
    swapped = {piece: i for i, piece in enumerate(reversed(tokenizer.vocabulary.source))}
    special = dataclasses.replace(tokenizer.vocabulary.special, unk=swapped["<unk>"])
    other_vocabulary = Vocabulary(swapped, swapped, special, tokenizer.vocab_size)
    assert Tokenizer(tokenizer.models, other_vocabulary).fingerprint != tokenizer.fingerprint


def mixed_pieces(tokenizer: Tokenizer, text: str, terms: dict[str, str]) -> list[str] | None:
    """The pieces of a source with these terms in it; None: none of them is, or not so that they can be read."""
    options = TranslationOptions(glossary=Glossary.of(terms))
    for constraint in Translator(tokenizer, Echo(), options, 100).text_side.constraint_builder.build(
        [[Segment(text, "")]]
    ):
        switched = constraint.code_switch(constraint.phrases) if constraint.code_switch is not None else None
        return None if switched is None else tokenizer.pieces(switched.ids, "source")
    return None


def test_a_language_code_has_no_terms_and_a_sentence_begins_after_it(marian: Path, tmp_path: Path) -> None:
    tokenizer = import_marian(marian, tmp_path / "bundle").tokenizer
    for text, same in {"The cat is old": "Die cat is old", "Is the cat old": "Is die cat old"}.items():
        expected = tokenizer.pieces(tokenizer.encode(f">>deu<< {same}"), "source")
        assert expected[0] == ">>deu<<"
        assert mixed_pieces(tokenizer, f">>deu<< {text}", {"the": "die", "deu": "eng"}) == expected


def test_a_term_that_cannot_be_read_in_a_source_is_not_put_there(tmp_path: Path) -> None:
    write_opus(tmp_path / "marian", separate="fewer target")
    tokenizer = import_marian(tmp_path / "marian", tmp_path / "bundle").tokenizer
    assert tokenizer.unk_id in tokenizer.encode("für") and tokenizer.unk_id not in tokenizer.encode("für", "target")
    assert mixed_pieces(tokenizer, "the 漢 is old", {"漢": "für"}) is None  # for one thing that it cannot read another
    assert mixed_pieces(tokenizer, "the 漢 is old", {"漢": "fur"}) == tokenizer.pieces(
        tokenizer.encode("the fur is old"), "source"
    )


def test_a_wrong_description_of_an_imported_tokenizer_is_refused(marian: Path, tmp_path: Path) -> None:
    import_marian(marian, tmp_path / "bundle").tokenizer.save(tmp_path / "saved")
    change_json(tmp_path / "saved" / "tokenizer.json", special={"unk": 1})
    with pytest.raises(UserError, match=r"tokenizer\.json: `special` must give"):
        Tokenizer.load(tmp_path / "saved")


def test_every_part_of_a_long_line_says_its_language(marian: Path, tmp_path: Path) -> None:
    tokenizer = import_marian(marian, tmp_path / "bundle").tokenizer
    text = " ".join(tatoeba("dev.en", 12))
    parts = cut_line(f">>deu<< {text}", tokenizer, 40)
    assert len(parts) > 2
    assert all(part.text.startswith(">>deu<< ") and len(tokenizer.encode(part.text)) <= 40 for part in parts)
    assert "".join(part.text.removeprefix(">>deu<< ") + part.after for part in parts) == text
    whole = cut_line(">>deu<< short", tokenizer, 40)
    assert [part.text for part in whole] == [">>deu<< short"]


# Folders that a stranger made


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_settings_of_any_kind_are_refused_or_imported(changed: Path, tmp_path: Path, name: str) -> None:
    settings = json.loads((changed / name).read_text(encoding="utf-8"))
    more = ("separate_vocabs", "source_lang", "added_tokens_decoder", "suppress_tokens", "length_penalty")
    draw, imported = random.Random(name), 0
    for key in (*settings, *more):
        for value in draw.sample(VALUES, 2):
            write_json(changed / name, {**settings, key: value})
            with suppress(UserError):
                import_marian(changed, tmp_path / "bundle")
                load_model(load_bundle(tmp_path / "bundle"))
                imported += 1
            shutil.rmtree(tmp_path / "bundle", ignore_errors=True)
    assert imported > 5


@pytest.mark.parametrize("name", ["model.safetensors", "source.spm", "vocab.json"])
def test_a_damaged_file_is_refused_or_imported(changed: Path, tmp_path: Path, name: str) -> None:
    content = (changed / name).read_bytes()
    head = content[:6000]  # of the weights, the names and shapes
    for damaged in mutations(head, 30, name):
        (changed / name).write_bytes(damaged + content[len(head) :])
        with suppress(UserError):
            import_marian(changed, tmp_path / "bundle")
            load_model(load_bundle(tmp_path / "bundle"))
        shutil.rmtree(tmp_path / "bundle", ignore_errors=True)


def test_weights_that_are_not_finite_are_not_imported(changed: Path, tmp_path: Path) -> None:
    tensors = load_file(changed / "model.safetensors")
    tensors["model.encoder.layers.0.fc1.weight"][1, 2] = float("nan")
    save_file(tensors, changed / "model.safetensors")
    with pytest.raises(
        UserError, match=r"tensor encoder\.layers\.0\.feed_forward\.inner\.weight must hold finite numbers"
    ):
        import_marian(changed, tmp_path / "bundle")
