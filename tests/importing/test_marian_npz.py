"""Marian's own .npz files as bundles: the same translations as CTranslate2 makes of them, or a refusal by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ctranslate2  # type: ignore[import-untyped]
import numpy as np
import pytest
import sentencepiece
import yaml
from safetensors.torch import load_file

from regard.api import load
from regard.cli import main
from regard.errors import UserError
from regard.importing.marian_npz import import_npz
from tests.importing.opus import tatoeba, write_opus

pytestmark = pytest.mark.slow
_PARTS = {"self_attn.": "self_", "encoder_attn.": "context_", "fc1.": "ffn_", "fc2.": "ffn_"}
_LETTERS = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "out_proj": "o", "fc1": "1", "fc2": "2"}
_NORMS = {
    "self_attn_layer_norm": "self_Wo",
    "encoder_attn_layer_norm": "context_Wo",
    "final_layer_norm": "ffn_ffn",
}


def write_npz(folder: Path, **changes: Any) -> Path:
    """A small model that has learned a little, as Marian and OPUS-MT write it."""
    write_opus(folder / "hf", steps=180, padding=0.0)
    config = json.loads((folder / "hf" / "config.json").read_text())
    settings = {
        "type": "transformer", "enc-depth": 2, "dec-depth": 2, "transformer-heads": 4, "tied-embeddings-all": True,
        "transformer-preprocess": "", "transformer-postprocess": "dan", "transformer-postprocess-emb": "d",
        "transformer-ffn-activation": "swish", "transformer-decoder-autoreg": "self-attention",
        "transformer-no-projection": False, "transformer-guided-alignment-layer": "last", **changes,
    }  # fmt: skip
    arrays: dict[str, Any] = {"special:model.yml": np.frombuffer(yaml.dump(settings).encode() + b"\0", dtype=np.int8)}
    for name, tensor in load_file(folder / "hf" / "model.safetensors").items():
        array = tensor.numpy()
        if ".layers." in name:
            _, stack, _, number, rest = name.split(".", 4)
            part, kind = rest.rsplit(".", 1)
            place = f"{stack}_l{int(number) + 1}_"
            if part in _NORMS:
                arrays[f"{place}{_NORMS[part]}_ln_{'scale' if kind == 'weight' else 'bias'}"] = array[None]
                continue
            scope = next(theirs for ours, theirs in _PARTS.items() if f"{part}.".startswith(ours))
            letter = _LETTERS[part.split(".")[-1]]
            arrays[f"{place}{scope}{'W' if kind == 'weight' else 'b'}{letter}"] = (
                array.T if kind == "weight" else array[None]
            )
        elif name == "final_logits_bias":
            arrays["decoder_ff_logit_out_b"] = array[:, :-1]
        elif "embed_positions" not in name:
            arrays["Wemb"] = array[: config["vocab_size"] - 1]
    np.savez(folder / "model.npz", **arrays)
    pieces = json.loads((folder / "hf" / "vocab.json").read_text())
    del pieces["<pad>"]
    lines = [f"{json.dumps(piece, ensure_ascii=False)}: {i}\n" for piece, i in pieces.items()]
    (folder / "vocab.yml").write_text("".join(lines), encoding="utf-8")
    for side in ("source.spm", "target.spm"):
        (folder / side).write_bytes((folder / "hf" / side).read_bytes())
    return folder


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_npz(tmp_path_factory.mktemp("npz"))


def test_translations_are_those_of_ctranslate2s_own_reader(marian: Path, tmp_path: Path) -> None:
    command = [
        "import",
        "--from",
        "marian",
        str(marian),
        "-o",
        str(tmp_path / "bundle"),
        "--source",
        "en",
        "--target",
        "de",
    ]
    assert main(command) == 0
    model = load(tmp_path / "bundle", engine="torch", device="cpu")
    lines = tatoeba("dev.en", 40)
    options = {"beam": 1, "no_repeat": 0, "max_repeat": 0}
    ours = [result.translations[0].text for result in model.nbest(lines, 1, **options)]

    vocabularies = [str(marian / "vocab.yml")] * 2
    ctranslate2.converters.MarianConverter(str(marian / "model.npz"), vocabularies).convert(str(tmp_path / "ct2"))
    source = sentencepiece.SentencePieceProcessor(model_file=str(marian / "source.spm"))
    pieces = [source.encode(line, out_type=str) for line in lines]
    found = ctranslate2.Translator(str(tmp_path / "ct2")).translate_batch(pieces, beam_size=1, min_decoding_length=0)
    theirs = [
        "".join(piece for piece in one.hypotheses[0] if piece != "<unk>").replace("▁", " ").strip() for one in found
    ]
    assert len(set(theirs)) > 10
    agreeing = sum(one == other for one, other in zip(ours, theirs, strict=True))
    assert agreeing == len(lines), [
        (line, *both) for line, *both in zip(lines, ours, theirs, strict=True) if both[0] != both[1]
    ]


def test_one_sentencepiece_model_may_be_the_vocabulary(marian: Path, tmp_path: Path) -> None:
    processor = sentencepiece.SentencePieceProcessor(model_file=str(marian / "source.spm"))
    with np.load(marian / "model.npz") as opened:
        arrays = dict(opened)
    size = processor.get_piece_size()
    arrays["Wemb"] = np.resize(arrays["Wemb"], (size, 32))
    arrays["decoder_ff_logit_out_b"] = np.resize(arrays["decoder_ff_logit_out_b"], (1, size))
    np.savez(tmp_path / "model.npz", **arrays)
    (tmp_path / "vocab.ende.spm").write_bytes((marian / "source.spm").read_bytes())
    bundle = import_npz(tmp_path, tmp_path / "bundle", source="en", target="de")
    for line in tatoeba("dev.en", 20):
        [ids] = bundle.tokenizer.encode_batch([line])
        assert [i for i in ids if i != processor.eos_id()] == processor.encode(line)


def test_the_bundle_says_where_it_comes_from(marian: Path, tmp_path: Path) -> None:
    bundle = import_npz(marian / "model.npz", tmp_path / "bundle", source="en", target="de")
    assert (bundle.source, bundle.target) == ("en", "de")
    assert bundle.facts["imported"] == "model.npz, a Marian model"
    assert bundle.facts["imported_weights"].startswith("model.npz, SHA-256 ")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("transformer-decoder-autoreg", "rnn", "must be 'self-attention', but is 'rnn'; small Bergamot models"),
        ("transformer-preprocess", "n", "transformer-preprocess must be ''"),
        ("transformer-ffn-activation", "gelu", "must be one of swish, relu"),
        ("enc-depth", 3, "array encoder_l3_self_Wq is missing"),
        ("dec-depth", 1, "array decoder_l2_context_Wk has no place in a bundle"),
        ("type", "s2s", "type must be 'transformer'"),
    ],
)
def test_what_a_bundle_cannot_hold_is_refused(
    marian: Path, tmp_path: Path, name: str, value: Any, message: str
) -> None:
    with np.load(marian / "model.npz") as opened:
        arrays = dict(opened)
    settings = yaml.safe_load(arrays["special:model.yml"].tobytes()[:-1]) | {name: value}
    arrays["special:model.yml"] = np.frombuffer(yaml.dump(settings).encode() + b"\0", dtype=np.int8)
    for file in ("vocab.yml", "source.spm", "target.spm"):
        (tmp_path / file).write_bytes((marian / file).read_bytes())
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(UserError) as error:
        import_npz(tmp_path, tmp_path / "bundle")
    assert message in str(error.value)
    assert not (tmp_path / "bundle").exists()


def test_other_files_are_refused(marian: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(UserError, match=r"has no special:model\.yml"):
        import_npz(tmp_path / "other.npz", tmp_path / "bundle")
    (tmp_path / "other.npz").write_bytes((marian / "model.npz").read_bytes()[:5000])
    with pytest.raises(UserError, match=r"cannot be read as an \.npz file"):
        import_npz(tmp_path, tmp_path / "bundle")
    (tmp_path / "other.npz").write_bytes((marian / "model.npz").read_bytes())
    with pytest.raises(UserError, match="must have one vocabulary"):
        import_npz(tmp_path, tmp_path / "bundle")
