"""LLaMA models in llama.cpp's format: written here with the package gguf as llama.cpp's converter writes them, read by Regard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
from safetensors.torch import load_file

from regard.bundle import load_bundle
from regard.cli import main
from regard.errors import UserError
from regard.importing.gguf import import_gguf
from regard.importing.transformers import import_model
from tests import json_tokenizers
from tests.commands import fails
from tests.families.checkpoints import make_original
from tests.importing.opus import tatoeba
from tests.mutations import mutations

Q = gguf.GGMLQuantizationType
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}  # blocks of 32


def permute(weights: np.ndarray, heads: int) -> np.ndarray:
    """As in llama.cpp's convert_hf_to_gguf.py, `LlamaModel.permute`."""
    shape = (heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return np.ascontiguousarray(weights.reshape(shape).swapaxes(1, 2).reshape(weights.shape))


def their_name(name: str) -> str:
    place, _, kind = name.rpartition(".")
    if place in TOP:
        return f"{TOP[place]}.{kind}"
    _, _, number, part = place.split(".", 3)
    return f"blk.{number}.{NAMES[part]}.{kind}"


def byte_vocabulary(writer: Any) -> int:
    content = json.loads(json_tokenizers.content("gpt2"))
    pieces = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*pieces, "<|endoftext|>"])
    writer.add_token_types([1] * len(pieces) + [3])
    writer.add_token_merges([" ".join(merge) for merge in content["model"]["merges"]])
    writer.add_bos_token_id(len(pieces))
    writer.add_eos_token_id(len(pieces))
    return len(pieces) + 1


def sentencepiece_model(folder: Path) -> sentencepiece.SentencePieceProcessor:
    """As LLaMA's: BPE with bytes, no normalisation, a space before each text."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tatoeba("train.en", 600)), model_prefix=str(folder / "spm"), model_type="bpe", vocab_size=500,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
        character_coverage=0.99,
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))


def sentencepiece_vocabulary(writer: Any, model: sentencepiece.SentencePieceProcessor) -> int:
    size = model.get_piece_size()
    kinds = [
        2 if model.is_unknown(i) else 3 if model.is_control(i) else 6 if model.is_byte(i) else 1 for i in range(size)
    ]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in range(size)])
    writer.add_token_scores([model.get_score(i) for i in range(size)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return size


def write_gguf(path: Path, original: Any, kind: Any = Q.F32, vocabulary: Any = byte_vocabulary, **changes: Any) -> None:
    config, writer = original.config, gguf.GGUFWriter(str(path), "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(changes.pop("rotated", config.head_dim))
    for add, value in changes.items():
        getattr(writer, add)(value)
    vocabulary(writer)
    for name, tensor in original.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.float().numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            values = permute(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        own = kind if values.ndim == 2 else Q.F32
        writer.add_tensor(their_name(name), gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def original() -> Any:
    return make_original("llama", vocab_size=401, **WIDE)


@pytest.fixture(scope="module")
def file(original: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, original)
    return path


def test_the_weights_are_those_of_the_same_model_from_transformers(original: Any, file: Path, tmp_path: Path) -> None:
    original.save_pretrained(tmp_path / "original")
    theirs = import_model(tmp_path / "original", tmp_path / "one").bundle
    imported = import_gguf(file, tmp_path / "two")
    assert imported.difference is not None, "transformers reads the file, too"
    ours = imported.bundle
    one, two = load_file(theirs.weights), load_file(ours.weights)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert (ours.task, ours.config.to_dict() | {"norm_eps": 0}) == (
        "generate",
        theirs.config.to_dict() | {"norm_eps": 0},
    )
    assert ours.config.norm_eps == pytest.approx(1e-6)
    assert "model.gguf, a LLaMA model of llama.cpp (GGUF)" in ours.card


@pytest.mark.parametrize("kind", [Q.F16, Q.BF16, Q.Q8_0, Q.Q4_1, Q.Q5_0])
def test_quantised_weights_are_turned_into_the_floats_that_they_stand_for(
    kind: Any, original: Any, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "model.gguf", original, kind)
    write_gguf(tmp_path / "exact.gguf", original)
    found, exact = (
        load_file(import_gguf(tmp_path / f"{name}.gguf", tmp_path / name, compare=False).bundle.weights)
        for name in ("model", "exact")
    )
    limits = {Q.F16: 1e-3, Q.BF16: 1e-2, Q.Q8_0: 1e-2, Q.Q4_1: 0.2, Q.Q5_0: 0.1}
    for name, weight in found.items():
        error = float((weight - exact[name]).abs().max())
        assert error <= limits[kind] * float(exact[name].abs().max()), name
    assert any(not torch.equal(found[name], exact[name]) for name in found)


def test_a_tied_model_has_no_output_matrix(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", make_original("llama", vocab_size=401, tie_word_embeddings=True, **WIDE))
    bundle = import_gguf(tmp_path / "m.gguf", tmp_path / "bundle").bundle
    assert bundle.config.tie_embeddings


def test_the_byte_level_tokenizer_gives_the_ids_of_the_original(file: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Theirs

    tokenizer = import_gguf(file, tmp_path / "bundle").bundle.tokenizer
    theirs = Theirs.from_str(json_tokenizers.content("gpt2"))
    for line in tatoeba("dev.en", 100) + tatoeba("dev.de", 100):
        assert tokenizer.encode(line) == theirs.encode(line).ids
        assert tokenizer.decode(tokenizer.encode(line)) == line
    assert tokenizer.eos_id not in tokenizer.encode("<|endoftext|>") and tokenizer.eos_id == 400


def test_the_sentencepiece_tokenizer_gives_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    model = sentencepiece_model(tmp_path)
    write_gguf(
        tmp_path / "m.gguf",
        make_original("llama", vocab_size=500, **WIDE),
        vocabulary=lambda w: sentencepiece_vocabulary(w, model),
    )
    tokenizer = import_gguf(tmp_path / "m.gguf", tmp_path / "bundle").bundle.tokenizer
    for line in [*tatoeba("dev.en", 200), *tatoeba("dev.de", 100), "漢字 😀  two  spaces", "a</s>b <s>"]:
        assert tokenizer.encode(line) == model.encode(line)
        assert tokenizer.decode(model.encode(line)) == model.decode(model.encode(line)) == line
    assert (tokenizer.opening, tokenizer.closing, tokenizer.unk_id) == ((1,), (), 0)


def test_the_command_says_what_it_found(file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "--from", "gguf", str(file), "-o", str(tmp_path / "bundle")]) == 0
    said = capfd.readouterr().out
    assert "found LLaMA (LlamaForCausalLM): 2 layers of decoder, " in said and "task generate" in said
    assert load_bundle(tmp_path / "bundle").task == "generate"
    assert main(["info", str(tmp_path / "bundle")]) == 0
    assert "| task | generate |" in capfd.readouterr().out
    said = fails(capfd, "translate", "a", "-m", str(tmp_path / "bundle"))
    assert "must be a model for the task translate, but is one for the task generate" in said
    said = fails(capfd, "import", "--from", "gguf", str(file), "-o", str(tmp_path / "b"), "--source", "en")
    assert "--source and --target are for models that translate" in said


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"add_expert_count": 4}, "llama.expert_count must be 0"),
        ({"add_sliding_window": 128}, "sliding_window must be null, but is 128"),
        (
            {"add_rope_scaling_type": gguf.RopeScalingType.YARN},
            "rope_type must be one of default, linear, llama3, but is 'yarn'",
        ),
        ({"rotated": 8}, "rope.dimension_count must be the width of a head"),
        (
            {"add_tokenizer_pre": "chatglm-bpe"},
            "tokenizer.ggml.pre must be one of gpt-2, smollm, llama-bpe, but is 'chatglm-bpe'",
        ),
    ],
)
def test_what_a_bundle_cannot_hold_is_refused_by_name(
    changes: dict[str, Any], complaint: str, original: Any, tmp_path: Path
) -> None:
    def vocabulary(writer: Any) -> None:
        byte_vocabulary(writer)
        if pre := changes.get("add_tokenizer_pre"):
            writer.kv_data[0]["tokenizer.ggml.pre"] = gguf.GGUFValue(pre, gguf.GGUFValueType.STRING)

    given = {name: value for name, value in changes.items() if name != "add_tokenizer_pre"}
    write_gguf(tmp_path / "m.gguf", original, vocabulary=vocabulary, **given)
    with pytest.raises(UserError, match=complaint):
        import_gguf(tmp_path / "m.gguf", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "m.gguf"), "gptneox")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UserError, match=r"general\.architecture must be 'llama', but is 'gptneox'"):
        import_gguf(tmp_path / "m.gguf", tmp_path / "bundle")


def test_without_the_package_the_remedy_is_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"needs the package gguf.*pip install 'regard\[gguf\]'"):
        import_gguf(file, tmp_path / "bundle")


@pytest.mark.slow
def test_a_damaged_file_is_refused_in_one_line_or_read(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    header = whole[: len(whole) - 200_000]  # most of the file is numbers, in which damage does not show
    refused = []
    for number, spoilt in enumerate([*mutations(header, 60, "gguf"), *mutations(header[:2000], 60, "head")]):
        (tmp_path / "m.gguf").write_bytes(spoilt + whole[len(header) :])
        try:
            import_gguf(tmp_path / "m.gguf", tmp_path / f"bundle{number}", compare=False)
        except UserError as error:
            refused.append(str(error))
    assert len(refused) > 30 and all("\n" not in one and "m.gguf" in one for one in refused)
