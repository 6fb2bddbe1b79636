"""Bundles with their weights stored small: the same numbers as CTranslate2's, and all else as it was."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from regard import bundle as bundle_module
from regard.api import load
from regard.bundle import Bundle, load_bundle, load_weights
from regard.cli import main
from regard.errors import RegardError, UserError
from regard.export import export, quantised
from regard.export.verify import LogProbDifference, Samples, answers, check, make_samples
from regard.files import write_manifest
from regard.generate.engines.torch_engine import load_model
from tests.build import LATER, SWITCHES, build, tiny_config
from tests.tiny import make_bundle, save_encoder, save_model


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "bundle")


def export_bundle(bundle: Bundle, out: Path, weights: str) -> Bundle:
    export(bundle, "bundle", out, weights)
    return load_bundle(out)


# The numbers


@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_rows_are_rounded_as_ctranslate2_rounds_them(scale: float) -> None:
    weight = torch.randn(40, 33, generator=torch.Generator().manual_seed(1)) * scale
    weight[3] = 0.0
    weight[4] = 1e-42  # of which 127 / it is no float32
    weight[5, 0], weight[5, 1:] = 127.0, torch.arange(32) - 15.5  # halves, exactly
    spec: Any = import_module("ctranslate2.specs.common_spec").LinearSpec()
    spec.weight = weight.numpy().copy()
    spec.bias = np.zeros(40, dtype=np.float32)
    spec.validate()
    spec.optimize(quantization="int8")
    integers, scales = quantised.quantise(weight)
    assert integers.dtype == torch.int8 and np.array_equal(integers.numpy(), spec.weight.numpy())
    assert scales.dtype == torch.float32 and np.array_equal(scales.numpy(), spec.weight_scale.numpy())
    assert integers[5, 1:9].tolist() == [-16, -14, -14, -12, -12, -10, -10, -8], "half to even"


def test_int8_is_the_nearest_of_255_steps_and_vectors_are_untouched(bundle: Bundle, tmp_path: Path) -> None:
    small = export_bundle(bundle, tmp_path / "small", "int8")
    before, after = load_weights(bundle), load_weights(small)
    assert set(after) == set(before) and {tensor.dtype for tensor in after.values()} == {torch.float32}
    for name, weight in before.items():
        if weight.ndim == 1:
            assert torch.equal(after[name], weight), name
        else:
            step = weight.abs().amax(dim=1, keepdim=True) / 127
            assert ((after[name] - weight).abs() <= 0.501 * step).all(), name
            assert not torch.equal(after[name], weight), name
    stored = load_file(small.weights)
    assert stored["embedding.weight"].dtype == torch.int8
    assert stored["embedding.weight_scale"].shape == (bundle.config.vocab_size,)
    assert small.weights.stat().st_size < 0.35 * bundle.weights.stat().st_size


def test_fp16_is_half_as_large_and_exact_to_16_bits(bundle: Bundle, tmp_path: Path) -> None:
    small = export_bundle(bundle, tmp_path / "small", "fp16")
    before, after = load_weights(bundle), load_weights(small)
    for name, weight in before.items():
        assert torch.equal(after[name], weight if weight.ndim == 1 else weight.half().float()), name
        assert after[name].dtype == torch.float32
    assert small.weights.stat().st_size < 0.6 * bundle.weights.stat().st_size


@pytest.mark.parametrize("weights", ["fp16", "int8"])
def test_what_was_stored_small_can_be_stored_in_fp32_again(bundle: Bundle, tmp_path: Path, weights: str) -> None:
    small = export_bundle(bundle, tmp_path / "small", weights)
    large = export_bundle(small, tmp_path / "large", "fp32")
    assert large.stored == "fp32" and json.loads((large.folder / "config.json").read_text())["format"] == 1
    stored, expected = load_file(large.weights), load_weights(small)
    assert set(stored) == set(expected) and all(torch.equal(stored[name], expected[name]) for name in stored)


def test_rounding_twice_is_rounding_once(bundle: Bundle, tmp_path: Path) -> None:
    once = export_bundle(bundle, tmp_path / "once", "int8")
    twice = export_bundle(once, tmp_path / "twice", "int8")
    first, second = load_file(once.weights), load_file(twice.weights)
    for name in first:
        torch.testing.assert_close(second[name], first[name], rtol=1e-6, atol=0)


CARRIED = SWITCHES | {name: LATER[name] for name in ("t5", "bart", "no-key-bias", "shared-layers", "different-stacks")}


@pytest.mark.parametrize("weights", ["fp16", "int8"])
@pytest.mark.parametrize("switches", CARRIED.values(), ids=CARRIED)
def test_every_switch_is_carried(bundle: Bundle, tmp_path: Path, switches: dict[str, Any], weights: str) -> None:
    config = tiny_config(vocab_size=bundle.config.vocab_size, **switches)
    model = build(config)
    whole = save_model(tmp_path / "whole", model, bundle.tokenizer)
    small = export_bundle(whole, tmp_path / "small", weights)  # which compares log-probabilities
    assert small.config == config
    for name, weight in model.state_dict().items():
        if name.endswith(("positions.weight", "relative.weight")):
            assert torch.equal(load_file(small.weights)[name], weight)


def test_a_wrong_number_is_noticed_and_nothing_is_left_behind(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        integers, scales = quantise(weight)
        return integers, scales / 3

    quantise = quantised.quantise
    monkeypatch.setattr(quantised, "quantise", wrong)
    with pytest.raises(RegardError, match="does not compute what the original does"):
        export(bundle, "bundle", tmp_path / "small", "int8")
    assert not (tmp_path / "small").exists()


# The bundle around them


@pytest.mark.parametrize("weights", ["fp32", "fp16", "int8"])
def test_all_else_is_carried_over(bundle: Bundle, tmp_path: Path, weights: str) -> None:
    small = export_bundle(bundle, tmp_path / "small", weights)
    for name in ("config", "source", "target", "decode", "max_length", "facts"):
        assert getattr(small, name) == getattr(bundle, name), name
    assert small.stored == weights
    assert small.tokenizer.fingerprint == bundle.tokenizer.fingerprint
    assert (small.folder / "recipe.toml").read_text() == (bundle.folder / "recipe.toml").read_text()
    card = (small.folder / "card.md").read_text(encoding="utf-8")
    expected = {"fp32": "", "fp16": "| stored as | 16-bit floats", "int8": "| stored as | 8-bit integers with a scale"}
    assert expected[weights] in card and ("stored as" in card) == (weights != "fp32")
    assert "computed" not in card  # that is the engine's business


def test_it_translates_as_the_original_does_on_the_golden_model(tmp_path: Path) -> None:
    golden = Path(__file__).parents[1] / "golden" / "bundle-1"
    small = export_bundle(load_bundle(golden), tmp_path / "small", "int8")
    lines = ["a b c", "p o n m", "k l", "h e l d"]
    assert load(small.folder, device="cpu").translate(lines) == load(golden, device="cpu").translate(lines)


def test_info_shows_how_the_weights_are_stored(
    bundle: Bundle, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    export(bundle, "bundle", tmp_path / "small", "int8")
    assert main(["info", str(tmp_path / "small")]) == 0
    assert "8-bit integers" in capfd.readouterr().out


def test_an_older_regard_refuses_it_with_the_remedy(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for weights in ("fp16", "int8"):
        export(bundle, "bundle", tmp_path / weights, weights)
        with monkeypatch.context() as older:
            older.setattr(bundle_module, "FORMAT", 1)
            with pytest.raises(
                UserError, match=r"bundle format must be at most 1 for this version of Regard, but is 2; upgrade Regard"
            ):
                load_bundle(tmp_path / weights)


def test_an_ordinary_bundle_is_one_that_older_regards_read(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = json.loads((bundle.folder / "config.json").read_text())
    assert settings["format"] == 1 and "weights" not in settings
    first = {
        "vocab_size", "d_model", "d_ff", "num_heads", "encoder_layers", "decoder_layers", "dropout", "norm_position", "norm",
        "activation", "positions", "num_kv_heads", "tie_embeddings", "max_positions", "norm_eps",
    }  # fmt: skip
    assert set(settings["model"]) == first, "a field that they do not know would be refused"
    monkeypatch.setattr(bundle_module, "FORMAT", 1)
    assert load_model(load_bundle(bundle.folder)).config == bundle.config


def test_a_way_of_storing_that_is_not_known_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    export(bundle, "bundle", tmp_path / "small", "int8")
    settings = json.loads((tmp_path / "small" / "config.json").read_text())
    (tmp_path / "small" / "config.json").write_text(json.dumps({**settings, "weights": "int4"}))
    write_manifest(tmp_path / "small")
    with pytest.raises(UserError, match="weights must be one of fp32, fp16, int8, but is 'int4'"):
        load_bundle(tmp_path / "small")


def test_a_matrix_without_its_scales_is_refused_by_name(bundle: Bundle, tmp_path: Path) -> None:
    small = export_bundle(bundle, tmp_path / "small", "int8")
    tensors = load_file(small.weights)
    del tensors["embedding.weight_scale"]
    save_file(tensors, small.weights)
    write_manifest(small.folder)
    with pytest.raises(UserError, match=r"model\.safetensors: tensor embedding\.weight_scale is missing"):
        load_model(load_bundle(small.folder))


def test_one_token_that_turns_over_is_rounding_and_many_are_a_mistake() -> None:
    samples = Samples([[5]] * 10, [[6] * 9] * 10, [[-1.0] * 10] * 10)
    turned = [list(row) for row in samples.log_probs]
    turned[2][3] = -4.0
    assert check(samples, turned, "int8", "bundle") == LogProbDifference(3.0, 0.03)
    with pytest.raises(RegardError, match=r"differ by up to 3, and only 0\.05 would be rounding"):
        check(samples, turned, "fp16", "bundle")
    turned[7][0] = -4.0  # the mean would let that pass
    with pytest.raises(RegardError, match=r"2 of 100 token log-probabilities differ by more than 1,"):
        check(samples, turned, "int8", "bundle")
    with pytest.raises(RegardError, match=r"differ by an average of 0\.3"):
        check(samples, [[-1.3] * 10] * 10, "int8", "bundle")
    with pytest.raises(RegardError, match="differ by an average of inf"):
        check(samples, [[math.nan] * 10] * 10, "int8", "bundle")


def test_a_language_model_in_int8_is_judged_by_its_loss_on_its_own_text() -> None:
    """Differences up and down are rounding, however large; what makes all text less likely is not."""
    samples = Samples([[5] * 10] * 10, [[]] * 10, [[-3.0] * 10] * 10, is_own=True)
    noisy = [[-3.0 + (2.5 if n % 2 else -2.2) for n in range(10)] for _ in range(10)]
    found = check(samples, noisy, "int8", "ctranslate2")
    assert found.mean > 2 and found.rise == pytest.approx((5 * 2.2 - 4 * 2.5) / 9)
    with pytest.raises(RegardError, match=r"its loss is 0\.25 nats a token higher, and 0\.2 are allowed"):
        check(samples, [[-3.25] * 10] * 10, "int8", "ctranslate2")
    with pytest.raises(RegardError, match="its loss is nan nats"):
        check(samples, [[math.nan] * 10] * 10, "int8", "ctranslate2")


def test_a_deep_model_may_round_more_in_fp32_and_no_more_than_that() -> None:
    asked = []

    def rounding() -> float:
        asked.append(True)
        return 5e-5

    samples = Samples([[5]] * 10, [[]] * 10, [[-1.0]] * 10, rounding=rounding)
    assert check(samples, [[-1.00005]] * 10, "fp32", "x").allowed == 1e-4 and not asked
    assert check(samples, [[-1.0004]] * 10, "fp32", "x").allowed == pytest.approx(5e-4) and asked
    with pytest.raises(RegardError, match=r"differ by up to 0\.0006, and only 0\.0005 would be rounding"):
        check(samples, [[-1.0006]] * 10, "fp32", "x")
    with pytest.raises(RegardError, match=r"only 0\.05 would be rounding"):
        check(samples, [[-1.06]] * 10, "fp16", "x")


def test_the_numbers_of_vectors_are_compared_in_their_size() -> None:
    """Those of a vector of length 1 are smaller than what may change in a log-probability."""
    vectors = [[0.02 * (1 if n % 2 else -1) for n in range(100)] for _ in range(10)]
    samples = Samples([[5]] * 10, [[]] * 10, vectors, task="embed")
    near = [[number * 1.1 for number in vector] for vector in vectors]
    assert check(samples, near, "int8", "bundle").mean == pytest.approx(0.1)
    for weights, factor in (("int8", 0.7), ("fp16", 1.06), ("fp32", 1.0002)):
        with pytest.raises(RegardError, match=r"numbers of vectors .* differ by"):
            check(samples, [[number * factor for number in vector] for vector in vectors], weights, "bundle")


@pytest.mark.parametrize("answer", ["several", "number"])
def test_labels_that_do_not_exclude_each_other_are_compared_as_they_are(answer: str, tmp_path: Path) -> None:
    """log_softmax hides what all logits of a text share, and all of a single one."""
    labels = ["score"] if answer == "number" else ["a", "b"]
    head = {"kind": "classes", "labels": labels, "answer": answer}
    model = build(tiny_config(vocab_size=345, decoder_layers=0, head=head))
    bundle = save_encoder(tmp_path / "m", model)
    before = make_samples(bundle)
    with torch.no_grad():
        model.get_parameter("head.output.bias").add_(0.01)
    moved = save_encoder(tmp_path / "moved", model)
    with pytest.raises(RegardError, match=r"scores of labels differ by up to 0\.01"):
        check(before, answers(moved, before.src), "fp32", "x")
