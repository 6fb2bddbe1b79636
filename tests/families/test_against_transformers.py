"""Random models of every family: imported, they compute what transformers computes, forwards and backwards; exported again, they
are the same to the bit."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from regard.bundle import Bundle, load_bundle
from regard.errors import RegardError
from regard.export import export, to_family
from regard.families import FAMILIES
from regard.families.family import is_same
from regard.families.table import to_theirs
from regard.generate.engines.torch_engine import load_model
from regard.importing.original import outputs
from regard.importing.transformers import Imported, import_model
from tests.families.checkpoints import CASES, PIECES, Inputs, distance, make_original, packed, run

TASKS = {
    ("encoder", "tokens"): "fill",
    ("encoder", "vector"): "embed",
    ("encoder", "classes"): "classify",
    ("encoder", "tags"): "tag",
    ("decoder", "tokens"): "generate",
    ("encoder+decoder", "tokens"): "translate",
}
LIMIT = 1e-4


def make_inputs(bundle: Bundle, is_padded: bool = True) -> Inputs:
    """Sequences of three lengths, in one batch. The padding's id is among the texts nowhere else: RoBERTa counts by it."""
    generator = torch.Generator().manual_seed(2)
    pad = max(0, bundle.tokenizer.pad_id)
    lengths = torch.tensor([9, 4, 14] if is_padded else [14, 14, 14])
    ids = torch.randint(pad + 1, PIECES, (3, 14), generator=generator)
    mask = (torch.arange(14) < lengths[:, None]).long()
    types = None
    if kinds := bundle.config.front_settings.token_types:
        types = torch.randint(kinds, (3, 14), generator=generator)
    target = torch.randint(PIECES, (3, 11), generator=generator) if bundle.task == "translate" else None
    return Inputs(torch.where(mask.bool(), ids, pad), mask, types, target)


def answer(original: Any, inputs: Inputs, bundle: Bundle) -> Tensor:
    found = original(**inputs.theirs())
    if bundle.task == "embed":
        pooled: Tensor = found.pooler_output
        return pooled
    return packed(inputs, found.prediction_logits if "prediction_logits" in found else found.logits)


@pytest.fixture(scope="module", params=CASES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def original(name: str) -> Any:
    return make_original(name)


@pytest.fixture(scope="module")
def imported(name: str, original: Any, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    folder = tmp_path_factory.mktemp(name)
    original.save_pretrained(folder / "original")
    return import_model(folder / "original", folder / "bundle")


def test_import_finds_the_family_and_compares_with_the_original(name: str, imported: Imported, original: Any) -> None:
    assert imported.architecture == CASES[name][0] == type(original).__name__
    assert FAMILIES[imported.bundle.facts["family"]].name == imported.family
    assert imported.difference is not None and imported.difference.largest <= LIMIT
    shape = "+".join(imported.bundle.config.stacks), imported.bundle.config.head_settings.kind
    assert imported.bundle.task == TASKS[shape]
    assert imported.bundle.facts["parameters"] == load_model(imported.bundle).num_parameters()


@torch.no_grad()
def test_a_batch_of_several_lengths_gives_what_transformers_gives(imported: Imported, original: Any) -> None:
    model = load_model(imported.bundle)
    for is_padded in (False, True):
        inputs = make_inputs(imported.bundle, is_padded)
        assert distance(run(model, inputs), answer(original, inputs, imported.bundle)) <= LIMIT


def test_exported_again_the_tensors_are_the_same_to_the_bit(
    name: str, imported: Imported, original: Any, tmp_path: Path
) -> None:
    report = export(imported.bundle, "transformers", tmp_path / "back")
    assert report.difference.largest < 1e-4
    folders = (imported.bundle.folder.parent / "original", tmp_path / "back")
    before, after = (load_file(folder / "model.safetensors") for folder in folders)
    unused = ("bert.pooler", "cls.seq_relationship") if name == "bert-pretraining" else ("nothing",)
    left_out = {one for one in before if one.startswith(unused)}
    assert before.keys() - left_out == after.keys() and all(torch.equal(before[one], after[one]) for one in after)
    assert bool(imported.notes) == (bool(left_out) or imported.bundle.tokenizer.kind == "ids")
    settings = json.loads((tmp_path / "back" / "config.json").read_text())
    same = original.config.to_dict()
    ids = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
    for key, value in settings.items():
        if key in same and key not in (
            *ids,
            "architectures",
            "dtype",
            "label2id",
            "id2label",
            "embd_pdrop",
            "head_dim",
        ):
            assert value == same[key] or (key == "n_inner" and same[key] is None) or name.startswith("t5-gated"), key


def test_a_bundle_stored_small_answers_nearly_the_same(imported: Imported, tmp_path: Path) -> None:
    export(imported.bundle, "bundle", tmp_path / "small", "fp16")
    small = load_bundle(tmp_path / "small")
    assert (small.task, small.stored) == (imported.bundle.task, "fp16")
    assert json.loads((tmp_path / "small" / "config.json").read_text())["format"] == 3
    inputs = make_inputs(imported.bundle)
    one, other = (run(load_model(bundle), inputs) for bundle in (imported.bundle, small))
    assert 0 < distance(one, other) < 0.05


# Backwards


@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "llama", "gptj", "t5", "t5-gated", "bart"])
def test_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """The gradient of every weight, under the names of transformers: the table that moves weights moves them, too."""
    original = make_original(name)
    original.save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle").bundle
    inputs = make_inputs(bundle)
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(PIECES, (len(answer(original, inputs, bundle)),), generator=generator)
    model = load_model(bundle).requires_grad_(True)
    F.cross_entropy(run(model, inputs), labels).backward()
    F.cross_entropy(answer(original, inputs, bundle), labels).backward()
    entries = FAMILIES[bundle.facts["family"]].entries(bundle.config)
    gradients: dict[str, Any] = {key: parameter.grad for key, parameter in model.named_parameters()}
    ours = to_theirs(entries, gradients)
    theirs = {key: parameter.grad for key, parameter in original.named_parameters()}
    ours.pop("final_logits_bias", None)  # a constant in transformers
    assert ours.keys() == theirs.keys()
    for key, gradient in ours.items():
        # Keys' biases have no effect, and gradients that are nothing but rounding.
        assert float((gradient - theirs[key]).abs().max()) < 1e-3 * float(theirs[key].std()) + 1e-7, key


# Each setting shows in a random model, too: those that the staged goldens cannot show


@pytest.mark.parametrize(
    ("name", "flip"),
    [
        ("bart", {"output_bias": False}),
        ("bart", {"norm_eps": 1e-12}),
        ("bert", {"norm_eps": 1e-5}),
        ("bert-tanh", {"activation": "gelu"}),
        ("roberta", {"norm_eps": 1e-5}),
        ("albert", {"norm_eps": 1e-5}),
        ("gpt2", {"norm_eps": 1e-6}),
        ("gptj", {"norm_eps": 1e-6}),
        ("falcon", {"norm_eps": 1e-6}),
        ("llama", {"norm_eps": 1e-5}),
        ("cohere", {"norm_eps": 1e-6}),
        ("t5", {"norm_eps": 1e-5}),
        ("t5-gated", {"activation": "geglu"}),
        ("llama-biases", {"attention_bias": "none"}),
        ("llama-biases", {"attention_bias": "qkv"}),
        ("llama-biases", {"feed_forward_bias": False}),
        ("llama-linear", {"rotary_scaling": {}}),
        ("llama-linear", {"rotary_base": 10_000.0}),
        ("llama3", {"rotary_scaling": {}}),
        ("llama-heads", {"activation": "geglu_tanh"}),
        ("qwen2", {"attention_bias": "none"}),
        ("cohere-biases", {"attention_bias": "qkv"}),
        ("bart-scaled", {"embedding_scale": False}),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_setting_that_is_changed_shows(name: str, flip: dict[str, Any], tmp_path: Path) -> None:
    original = make_original(name)
    original.save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle").bundle
    model = load_model(bundle)
    changed = type(model)(dataclasses.replace(bundle.config, **flip)).eval()
    changed.load_state_dict(model.state_dict(), strict=False)  # a bias less
    inputs = make_inputs(bundle)
    expected = answer(original, inputs, bundle)
    assert distance(run(model, inputs), expected) <= LIMIT < 2 * LIMIT < distance(run(changed, inputs), expected)


# A mistake in a table does not get through


@pytest.mark.parametrize("mistake", ["rows", "names"])
def test_a_mistake_in_the_table_is_found_by_the_comparison(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_original("llama").save_pretrained(tmp_path / "original")
    family = FAMILIES["llama"]

    def wrong(config: Any) -> Any:
        for entry in family.entries(config):
            if mistake == "rows":
                yield dataclasses.replace(entry, rows=())
            else:
                parts = tuple(
                    part.replace("gate", "?").replace("up", "gate").replace("?", "up") for part in entry.theirs
                )
                yield dataclasses.replace(entry, theirs=parts)

    monkeypatch.setitem(FAMILIES, "llama", dataclasses.replace(family, entries=wrong))
    with pytest.raises(RegardError, match="does not compute what LlamaForCausalLM does: outputs differ by up to"):
        import_model(tmp_path / "original", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_more_rounding_than_usual_is_no_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in SmolLM2, whose rare tokens amplify it: the models are compared in float64, too."""
    make_original("gpt2").save_pretrained(tmp_path / "original")
    monkeypatch.setattr("regard.importing.original.TOLERANCE", 1e-10)
    difference = import_model(tmp_path / "original", tmp_path / "bundle").difference
    assert difference is not None and difference.in_float64 is not None
    assert 0 < difference.in_float64 < 1e-10 < difference.largest < 1e-4


@pytest.mark.parametrize(
    ("dtype", "wrong", "said"),
    [
        (
            torch.float32,
            0.5,
            "does: outputs differ by up to 0.51 of their standard deviation, and only 0.0001 would be",
        ),
        (torch.float32, 0.002, "does: outputs differ by up to 0.002 of"),
        (torch.float32, float("nan"), "does: some outputs are not finite; nothing was written"),
        (torch.float64, 0.5, "does: in float64 outputs differ by up to 0.51 of"),
    ],
)
def test_what_is_wrong_in_one_precision_alone_is_a_mistake(
    dtype: torch.dtype, wrong: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_original("gpt2").save_pretrained(tmp_path / "original")
    if dtype == torch.float64:
        monkeypatch.setattr("regard.importing.original.TOLERANCE", 1e-10)

    def spoilt(model: Any, ids: Tensor, *others: Tensor) -> Tensor:
        found = outputs(model, ids, *others)
        if found.dtype == dtype and len(ids) > 7:  # only the last and longest
            found[-1, -1] += wrong * found.std()
        return found

    monkeypatch.setattr("regard.importing.original.outputs", spoilt)
    with pytest.raises(RegardError, match=said):
        import_model(tmp_path / "original", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_a_mistake_in_the_table_is_found_by_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_original("gpt2").save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle").bundle
    monkeypatch.setattr(to_family, "to_theirs", lambda entries, weights: _swapped(to_theirs(entries, weights)))
    monkeypatch.setattr(to_family, "_check_copies", lambda *given: None)
    with pytest.raises(RegardError, match="the transformers model does not compute what the original does"):
        export(bundle, "transformers", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def _swapped(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    one, two = "transformer.h.0.ln_1.weight", "transformer.h.0.ln_2.weight"
    return {**tensors, one: tensors[two], two: tensors[one]}


# Variants of files


def test_files_in_half_precision_in_parts_and_with_copies_are_read(tmp_path: Path) -> None:
    original = make_original("llama-biases")  # tied
    original.to(torch.bfloat16).save_pretrained(tmp_path / "original", max_shard_size="20KB")
    assert not (tmp_path / "original" / "model.safetensors").exists()
    imported = import_model(tmp_path / "original", tmp_path / "bundle")
    assert imported.difference is not None
    # One file, with a copy of the tied matrix and a constant of old versions.
    tensors = {name: tensor.contiguous() for name, tensor in original.state_dict().items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    for file in (tmp_path / "original").glob("model*"):
        file.unlink()
    save_file(tensors, tmp_path / "original" / "model.safetensors")
    import_model(tmp_path / "original", tmp_path / "again")
    one, other = (load_file(folder / "model.safetensors") for folder in (tmp_path / "bundle", tmp_path / "again"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_names_without_the_prefix_and_old_names_of_norms_are_read(name: str, tmp_path: Path) -> None:
    make_original(name).save_pretrained(tmp_path / "original")
    expected = load_file(import_model(tmp_path / "original", tmp_path / "bundle").bundle.weights)
    path = tmp_path / "original" / "model.safetensors"
    prefix = FAMILIES[name].prefix
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for key, tensor in load_file(path).items():
        for new, before in old.items():
            key = key.replace(new, before)
        tensors[key.removeprefix(prefix)] = tensor
    save_file(tensors, path)
    found = load_file(import_model(tmp_path / "original", tmp_path / "again", compare=False).bundle.weights)
    assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in found)


def test_settings_of_rotary_positions_before_version_5_are_read(tmp_path: Path) -> None:
    make_original("llama3").save_pretrained(tmp_path / "original")
    new = import_model(tmp_path / "original", tmp_path / "new", compare=False).bundle
    path = tmp_path / "original" / "config.json"
    settings = json.loads(path.read_text())
    rope = settings.pop("rope_parameters")
    settings["rope_theta"] = rope.pop("rope_theta")
    path.write_text(json.dumps({**settings, "rope_scaling": rope}))
    old = import_model(tmp_path / "original", tmp_path / "old").bundle
    assert is_same(old.config, new.config) and old.config.rotary_scaling["kind"] == "llama3"


def test_a_language_model_trained_here_is_written_as_the_first_family_that_fits(tmp_path: Path) -> None:
    """And its vocabulary as a tokenizer.json."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import regard
    from regard.bundle import save_bundle
    from regard.config import ModelConfig
    from regard.data.tokenizer import Tokenizer
    from regard.models.transformer import Transformer
    from regard.recipe import DecodeRecipe
    from regard.writing.writer import GrowingText
    from tests.importing.opus import tatoeba

    lines = tatoeba("train.en", 400)
    tokenizer = Tokenizer.train(lines, 600, tmp_path / "tokenizer")
    config = ModelConfig(
        tokenizer.vocab_size, d_model=32, d_ff=48, num_heads=4, encoder_layers=0, decoder_layers=2, norm_position="pre", norm="rms",
        activation="swiglu", positions="rotary", attention_bias="none", feed_forward_bias=False, embedding_scale=False,
    )  # fmt: skip
    model = Transformer(config)
    bundle = save_bundle(
        tmp_path / "bundle", model.state_dict(), config, tokenizer, "", source="", target="", decode=DecodeRecipe(), max_length=64,
        facts={}, task="generate",
    )  # fmt: skip
    export(bundle, "transformers", tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["model_type"] == "llama" and settings["eos_token_id"] == 2
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    for line in [*lines, "漢字 😀 12.5 </s>x"]:
        ids = [tokenizer.bos_id, *tokenizer.encode(line)]  # a prompt begins with <s>, as it does here
        assert theirs(line, split_special_tokens=True)["input_ids"] == ids
        assert theirs.decode(ids[1:]) == line
    assert theirs("")["input_ids"] == [tokenizer.bos_id]
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    written = loaded.generate(**theirs(lines[0], return_tensors="pt"), do_sample=False, max_new_tokens=9)
    own = regard.load(bundle.folder, engine="torch").continuations(lines[0], temperature=0, max_tokens=9)
    prompt = [tokenizer.bos_id, *tokenizer.encode(lines[0])]
    text = GrowingText(tokenizer, prompt).of(written[0].tolist()[len(prompt) :])
    assert text == own[0].continuations[0].text
