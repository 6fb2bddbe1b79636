"""Models of every family in CTranslate2: its `Generator`, `Translator` and `Encoder` beside transformers on the same weights."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from regard.bundle import Bundle
from regard.errors import RegardError, UserError
from regard.export import export
from regard.export.verify import MAX_RISE, scores_of
from regard.generate.engines import ctranslate2_specs
from regard.generate.engines.torch_engine import load_model
from regard.importing.transformers import import_model
from regard.layout import SequenceLayout
from tests import json_tokenizers
from tests.commands import fails
from tests.families.checkpoints import CASES, PIECES, find_goldens, make_original

ctranslate2 = pytest.importorskip("ctranslate2")

GOLDENS = find_goldens()
STAGED = [
    "bart-g2p-us",
    "roberta-sapiens-vh",
    *(
        f"made-here/{name}"
        for name in ("gpt2", "llama", "gptj", "falcon", "cohere-as-palm", "bert", "roberta", "t5", "t5v11")
    ),
]
LENGTHS = (1, 9, 4, 17, 2)
NEW = 12
NAMES = [name for name in CASES if not name.startswith("albert")]


def open_checkpoint(name: str, tmp_path: Path) -> tuple[Any, Bundle]:
    """A model of transformers, random or staged, and its bundle."""
    if name in CASES:
        original = make_original(name)
        original.save_pretrained(tmp_path / "original")
        return original, import_model(tmp_path / "original", tmp_path / "bundle", compare=False).bundle
    assert GOLDENS is not None
    folder = GOLDENS / name
    [architecture] = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    original = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
    return original, import_model(folder, tmp_path / "bundle", compare=False).bundle


def make_inputs(bundle: Bundle) -> list[list[int]]:
    draw, ids = random.Random(1), range(8, min(PIECES, bundle.config.vocab_size))
    return [draw.choices(ids, k=length) for length in LENGTHS]


def continued(original: Any, ids: Sequence[int], **options: Any) -> list[int]:
    """What transformers writes greedily, to the limit: the end token is one like others."""
    original.generation_config = transformers.GenerationConfig()
    given = torch.tensor([list(ids)])
    found = original.generate(
        input_ids=given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=NEW, pad_token_id=0,
        eos_token_id=None, **options,
    )  # fmt: skip
    return list(found[0].tolist())


def pieces_of(folder: Path, name: str = "vocabulary") -> list[str]:
    return list(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))


def check_decoder(folder: Path, original: Any, bundle: Bundle) -> None:
    """Greedy continuations, token for token."""
    generator, pieces = ctranslate2.Generator(str(folder)), pieces_of(folder)
    prompts = make_inputs(bundle)
    found = generator.generate_batch(
        [[pieces[i] for i in prompt] for prompt in prompts], max_length=NEW, min_length=NEW, end_token=[],
        include_prompt_in_result=False, sampling_topk=1, max_batch_size=1,
    )  # fmt: skip
    for prompt, result in zip(prompts, found, strict=True):
        assert result.sequences_ids[0] == continued(original, prompt)[len(prompt) :]


def check_both(folder: Path, original: Any, bundle: Bundle) -> None:
    """Greedy translations, token for token, up to the end of either; a source ends with the end token."""
    translator, pieces = ctranslate2.Translator(str(folder)), pieces_of(folder, "shared_vocabulary")
    tokenizer, use_cache = bundle.tokenizer, bundle.config.encoder_layers == bundle.config.decoder_layers
    sources, compared = make_inputs(bundle), 0
    found = translator.translate_batch(
        [[pieces[i] for i in ids] for ids in sources], beam_size=1, max_decoding_length=NEW
    )
    for ids, result in zip(sources, found, strict=True):
        written = [pieces.index(piece) for piece in result.hypotheses[0]]
        options = {"decoder_start_token_id": tokenizer.bos_id, "use_cache": use_cache}
        expected = continued(original, [*ids, tokenizer.eos_id], **options)[1:]
        if tokenizer.eos_id in expected:
            expected = expected[: expected.index(tokenizer.eos_id)]
        assert written == expected
        compared += len(written)
    assert compared > NEW


def check_encoder(folder: Path, original: Any, bundle: Bundle) -> None:
    """The encoder's vectors, in a padded batch, with kinds of tokens where there are some."""
    encoder, texts = ctranslate2.Encoder(str(folder)), make_inputs(bundle)
    kinds = bundle.config.front_settings.token_types
    draw = random.Random(2)
    types = [[draw.randrange(kinds) if kinds else 0 for _ in ids] for ids in texts]
    output = encoder.forward_batch(texts, token_type_ids=types) if kinds > 1 else encoder.forward_batch(texts)
    states = np.array(output.last_hidden_state)
    body = getattr(original, original.base_model_prefix, original)
    for number, ids in enumerate(texts):
        given = {"input_ids": torch.tensor([ids]), "token_type_ids": torch.tensor([types[number]])}
        with torch.no_grad():
            expected = body(**given).last_hidden_state[0].numpy()
        assert np.abs(states[number, : len(ids)] - expected).max() <= 1e-4 * expected.std()


def check(folder: Path, original: Any, bundle: Bundle) -> None:
    kinds = "+".join(bundle.config.stacks)
    {"encoder": check_encoder, "decoder": check_decoder, "encoder+decoder": check_both}[kinds](folder, original, bundle)


@pytest.mark.parametrize("name", NAMES)
def test_models_of_every_family_write_in_ctranslate2_what_they_write_in_transformers(name: str, tmp_path: Path) -> None:
    original, bundle = open_checkpoint(name, tmp_path)
    report = export(bundle, "ctranslate2", tmp_path / "out")
    assert report.difference.largest < 1e-5
    check(report.folder, original, bundle)


@pytest.mark.skipif(GOLDENS is None, reason="there are no staged checkpoints; $REGARD_GOLDENS may name them")
@pytest.mark.parametrize("name", STAGED)
def test_staged_checkpoints_write_in_ctranslate2_what_they_write_in_transformers(name: str, tmp_path: Path) -> None:
    original, bundle = open_checkpoint(name, tmp_path)
    check(export(bundle, "ctranslate2", tmp_path / "out").folder, original, bundle)


@pytest.mark.parametrize("name", ["bert", "llama", "t5-gated"])
@pytest.mark.parametrize("weights", ["fp16", "int8"])
def test_smaller_weights_differ_by_their_rounding(name: str, weights: str, tmp_path: Path) -> None:
    _, bundle = open_checkpoint(name, tmp_path)
    full, small = (export(bundle, "ctranslate2", tmp_path / one, one) for one in ("fp32", weights))
    assert full.difference.mean < 1e-6 < small.difference.mean < small.tolerance
    sizes = [(one.folder / "model.bin").stat().st_size for one in (full, small)]
    assert sizes[1] < 0.75 * sizes[0]


def test_a_language_model_in_int8_is_first_compared_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of the conversion that int8 could hide is found, and nothing is left behind."""
    _, bundle = open_checkpoint("llama", tmp_path)
    report = export(bundle, "ctranslate2", tmp_path / "right", "int8")
    assert report.difference.rise is not None and abs(report.difference.rise) < report.tolerance == MAX_RISE
    model = load_model(bundle)
    with torch.no_grad():
        next(iter(model.parameters())).mul_(1.001)
    monkeypatch.setattr("regard.export.verify.answers", lambda bundle, texts, is_double=False: [
        scores_of(bundle, model(torch.tensor(ids), SequenceLayout.from_lengths([len(ids)])).detach(), ids, []) for ids in texts
    ])  # fmt: skip
    with pytest.raises(RegardError, match="the ctranslate2 model does not compute what the original does"):
        export(bundle, "ctranslate2", tmp_path / "wrong", "int8")
    assert not (tmp_path / "wrong").exists()


def test_albert_is_refused_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_checkpoint("albert", tmp_path)
    capfd.readouterr()
    said = fails(capfd, "export", "--to", "ctranslate2", "-m", str(tmp_path / "bundle"), "-o", str(tmp_path / "out"))
    assert (
        "CTranslate2 does not support model.front.d_embedding = 16; use --engine torch, or export to another format"
        in said
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"positions": "none"}, "model.positions = 'none' in the decoder"),
        ({"norm_position": "post", "final_norm": True}, "model.final_norm with post-norm in the decoder"),
        ({"parallel": True, "norm": "rms"}, "model.parallel with RMSNorm in the decoder"),
    ],
)
def test_settings_that_it_would_compute_wrongly_are_refused_by_name(
    settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    from dataclasses import replace

    _, bundle = open_checkpoint("gpt2", tmp_path)
    changed = replace(bundle, config=replace(bundle.config, **settings))
    assert ctranslate2_specs.refusal(changed) == f"CTranslate2 does not support {named}"


def test_a_model_that_comes_out_wrong_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, bundle = open_checkpoint("gptj", tmp_path)
    monkeypatch.setitem(ctranslate2_specs._ACTIVATIONS, "gelu_tanh", "RELU")
    with pytest.raises(RegardError, match="the ctranslate2 model does not compute what the original does"):
        export(bundle, "ctranslate2", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- the page beside the model ---


def run_page(folder: Path) -> dict[str, Any]:
    """The code of a README, run as a user would."""
    [code] = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(code.replace("FOLDER", str(folder)), "README.md", "exec"), found)
    return found


@pytest.mark.parametrize(
    "name", ["bert", "bert-tanh", "bert-vector", "bert-classes", "roberta-classes", "roberta-tags"]
)
def test_the_page_of_an_encoder_computes_what_transformers_computes(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original, bundle = open_checkpoint(name, tmp_path)
    found = run_page(export(bundle, "ctranslate2", tmp_path / "out").folder)
    with torch.no_grad():
        answer = original(input_ids=torch.tensor([found["ids"]]))
    expected = answer.pooler_output[0] if bundle.task == "embed" else answer.logits[0]
    ours = found["vector"] if bundle.task == "embed" else found["logits"]
    assert np.abs(ours - expected.numpy()).max() < 1e-4
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "tokenizer"), [("gpt2", "gpt2"), ("bart", "roberta"), ("t5", "t5"), ("bert", "bert"), ("llama", "llama2")]
)
def test_the_page_knows_the_tokenizer(
    name: str, tokenizer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_tokenizers.write(tmp_path / "original", tokenizer)
    ids: dict[str, int | None] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    if name in ("t5", "bart"):
        ids = {
            "decoder_start_token_id": 0,
            "eos_token_id": 2 if name == "bart" else 1,
            "pad_token_id": 1 if name == "bart" else 0,
        }
    make_original(name, vocab_size=512, **ids).save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle").bundle
    found = run_page(export(bundle, "ctranslate2", tmp_path / "out").folder)
    assert capsys.readouterr().out.strip()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "original")
    if name == "bert":
        assert found["ids"] == theirs.convert_ids_to_tokens(theirs("one sentence")["input_ids"])
    elif name in ("gpt2", "llama"):
        from regard.generate.engines.torch_engine import TorchEngine
        from regard.generate.options import SearchOptions

        engine = TorchEngine.from_bundle(bundle, "cpu")
        prompt = theirs("Once upon a time")["input_ids"]
        written = found["results"][0].sequences_ids[0]
        [[expected]] = engine.generate([prompt], SearchOptions(beam=1, alpha=0.0, max_extra=len(written)))
        assert written and written == list(expected.ids)


def test_specs_need_ctranslate2_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, bundle = open_checkpoint("gpt2", tmp_path)
    monkeypatch.setitem(import_module("sys").modules, "ctranslate2", None)
    with pytest.raises(UserError, match="CTranslate2 is not installed"):
        export(bundle, "ctranslate2", tmp_path / "out")
