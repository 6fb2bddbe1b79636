"""Adapters: what LoRA changed, apart from its model, against the merged model, and against peft's own layout."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.adapter import (
    CONFIG,
    OWN,
    WEIGHTS,
    Adapter,
    _temporary_folder,
    adapted,
    adapted_weights,
    factors,
    merge,
    open_adapter,
    write_adapter,
)
from regard.bundle import Bundle, load_bundle, load_weights
from regard.cli import main
from regard.errors import UserError
from regard.importing.transformers import import_model
from regard.models.transformer import Transformer
from regard.training.muon import layer_matrices
from tests import chat_models, json_tokenizers
from tests.commands import fails

RANK = 2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return chat_models.write_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("gpt2")
    json_tokenizers.write(folder / "original", "gpt2")
    size = len(transformers.PreTrainedTokenizerFast.from_pretrained(folder / "original"))
    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "original")
    import_model(folder / "original", folder / "bundle", compare=False)
    return folder / "original", folder / "bundle"


def changed(bundle: Bundle, rank: int = RANK) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The weights with a change of this rank of each matrix of the layers, and how many are stacked in each parameter."""
    weights = load_weights(bundle)
    model = Transformer(bundle.config)
    model.load_state_dict(weights)
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    torch.manual_seed(7)
    stacked = {}
    for parameter, rows in layer_matrices(model).items():
        name = names[parameter]
        stacked[name] = len(rows)
        weights[name] = weights[name] + torch.cat(
            [torch.randn(each, rank) @ torch.randn(rank, parameter.shape[1]) for each in rows]
        )
    return weights, stacked


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_base_and_adapter_are_the_changed_model(family: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    base = load_bundle(request.getfixturevalue(family)[1])
    weights, stacked = changed(base)
    assert write_adapter(tmp_path / "adapter", base, weights, RANK, stacked) < 1e-5
    found = adapted_weights(base, open_adapter(tmp_path / "adapter"))
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4, msg=name)
    assert torch.equal(found["embedding.weight"], load_weights(base)["embedding.weight"])
    size = sum(tensor.numel() for tensor in load_file(tmp_path / "adapter" / WEIGHTS).values())
    thin = sum(RANK * (n * weights[name].shape[1] + weights[name].shape[0]) for name, n in stacked.items())
    assert (
        size == thin if family == "llama" else size > thin
    )  # GPT-2 has queries, keys and values in one, of three times the rank


def test_a_rank_above_the_size_of_a_matrix_changes_no_scale(llama: tuple[Path, Path], tmp_path: Path) -> None:
    base = load_bundle(llama[1])
    weights, stacked = changed(base)
    write_adapter(tmp_path / "adapter", base, weights, 200, stacked)
    found = adapted_weights(base, open_adapter(tmp_path / "adapter"))
    for name, tensor in weights.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4, msg=name)
    ranks = {len(each) for name, each in load_file(tmp_path / "adapter" / WEIGHTS).items() if ".lora_A." in name}
    assert ranks == {200}  # peft refuses factors of another rank than its configuration has


def test_a_rank_that_is_too_low_says_what_it_leaves_out() -> None:
    change = torch.diag(torch.tensor([3.0, 4.0, 0.0]))
    a, b, lost = factors(change, 1)
    assert (*a.shape, *b.shape) == (1, 3, 3, 1) and lost == pytest.approx(0.6)
    torch.testing.assert_close(b @ a, torch.diag(torch.tensor([0.0, 4.0, 0.0])))
    assert factors(torch.zeros(3, 2), 1)[2] == 0.0 and factors(change, 9)[0].shape == (3, 3)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_files_are_those_that_peft_reads_and_writes(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By the published layout; the next test asks peft itself."""
    base = load_bundle(request.getfixturevalue(family)[1])
    write_adapter(tmp_path / "adapter", base, *_with_rank(base))
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    names = set(load_file(tmp_path / "adapter" / WEIGHTS))
    layer = {"llama": "model.layers.1.self_attn.k_proj", "gpt2": "transformer.h.1.attn.c_attn"}[family]
    assert {f"base_model.model.{layer}.lora_{each}.weight" for each in "AB"} < names
    assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", RANK, RANK)
    assert config["fan_in_fan_out"] == (family == "gpt2")
    assert config["rank_pattern"] == ({"attn.c_attn": 3 * RANK} if family == "gpt2" else {})


def _with_rank(base: Bundle) -> tuple[dict[str, Tensor], int, dict[str, int]]:
    weights, stacked = changed(base)
    return weights, RANK, stacked


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_peft_computes_the_same_in_both_directions(family: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    peft = pytest.importorskip("peft")
    original, bundle = request.getfixturevalue(family)
    base = load_bundle(bundle)
    ids = torch.arange(3, 20)

    def theirs(model: Any) -> Tensor:
        with torch.no_grad():
            return model.eval()(ids[None]).logits[0]  # type: ignore[no-any-return]

    def ours(weights: dict[str, Tensor]) -> Tensor:
        model = Transformer(base.config).eval()
        model.load_state_dict(weights)
        from regard.layout import SequenceLayout

        with torch.no_grad():
            return model.logits(model.hidden(ids, SequenceLayout.from_lengths([len(ids)])))

    weights, stacked = changed(base)
    write_adapter(tmp_path / "ours", base, weights, RANK, stacked)
    auto = transformers.AutoModelForCausalLM
    model = peft.PeftModel.from_pretrained(auto.from_pretrained(original), str(tmp_path / "ours"))
    torch.testing.assert_close(theirs(model), ours(weights), rtol=1e-3, atol=1e-3)
    # And an adapter of peft's own.
    modules = {"llama": ["q_proj", "v_proj", "down_proj"], "gpt2": ["c_attn", "mlp.c_proj"]}[family]
    settings = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=modules, alpha_pattern={modules[0]: 7}, fan_in_fan_out=family == "gpt2"
    )
    made = peft.get_peft_model(auto.from_pretrained(original), settings)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data)
    made.save_pretrained(str(tmp_path / "theirs"))
    found = adapted_weights(base, open_adapter(tmp_path / "theirs"))
    torch.testing.assert_close(ours(found), theirs(made), rtol=1e-3, atol=1e-3)


def test_an_adapter_of_another_base_is_refused(llama: tuple[Path, Path], tmp_path: Path) -> None:
    base = load_bundle(llama[1])
    write_adapter(tmp_path / "adapter", base, *_with_rank(base))
    _, other = chat_models.write_model(tmp_path / "other", seed=4)
    with pytest.raises(
        UserError, match=r"must be an adapter of .*, but was made for a model with other weights, 'bundle'"
    ):
        adapted(other, tmp_path / "adapter")
    (tmp_path / "adapter" / OWN).unlink()  # as another program writes it: nothing says for which model
    adapted(other, tmp_path / "adapter")


def test_several_at_once_merge_an_adapter_once(
    llama: tuple[Path, Path], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = load_bundle(llama[1])
    write_adapter(tmp_path / "adapter", base, *_with_rank(base))
    merges = count_merges(monkeypatch)
    folders: list[Path] = []
    threads = [
        threading.Thread(target=lambda: folders.append(adapted(llama[1], tmp_path / "adapter"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(merges) == 1 and len(folders) == 4 and {*folders} == {*merges}
    assert folders[0].is_relative_to(cache)


def count_merges(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where adapters were merged to, in the order of time."""
    folders: list[Path] = []

    def counting(base: Bundle, opened: Adapter, folder: Path) -> Bundle:
        folders.append(folder)
        return merge(base, opened, folder)

    monkeypatch.setattr("regard.adapter.merge", counting)
    return folders


def test_a_damaged_copy_is_merged_again(
    llama: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = load_bundle(llama[1])
    write_adapter(tmp_path / "adapter", base, *_with_rank(base))
    merges = count_merges(monkeypatch)
    folder = adapted(llama[1], tmp_path / "adapter")
    (folder / "config.json").unlink()
    assert adapted(llama[1], tmp_path / "adapter") == folder
    load_bundle(folder)
    assert len(merges) == 2


@pytest.mark.parametrize("trouble", ["no cache", "full"])
def test_where_nothing_can_be_kept_the_copy_lasts_as_long_as_the_process(
    trouble: str, llama: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = load_bundle(llama[1])
    write_adapter(tmp_path / "captain", base, *_with_rank(base))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    at_exit: list[Callable[[], object]] = []
    monkeypatch.setattr("atexit.register", lambda do, *given, **named: at_exit.append(partial(do, *given, **named)))
    _temporary_folder.cache_clear()
    if trouble == "full":
        save = safetensors.torch.save_file

        def full(tensors: dict[str, Tensor], path: str, *given: Any, **named: Any) -> None:
            if "cache" in path:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save(tensors, path, *given, **named)

        monkeypatch.setattr("safetensors.torch.save_file", full)
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "file"))
    merges = count_merges(monkeypatch)
    folder = adapted(llama[1], tmp_path / "captain")
    assert adapted(llama[1], tmp_path / "captain") == folder
    assert [each for each in merges if each.is_relative_to(tmp_path / "temporary")] == [folder]  # once
    assert folder.name == "bundle+captain" and load_bundle(folder).facts["adapter"] == "captain"
    [end] = at_exit
    end()
    assert not any((tmp_path / "temporary").iterdir())
    _temporary_folder.cache_clear()


def test_a_folder_that_does_not_exist_is_named(
    llama: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["generate", "It was", "-m", str(llama[1]), "--adapter"]
    shown = fails(capfd, *words, str(tmp_path / "nothing"))
    assert (
        f"{tmp_path}/nothing: must be the folder of an adapter, but does not exist; name the folder of a run with train.lora"
        in shown
    )
    (tmp_path / "file").write_text("")
    assert "but is a file" in fails(capfd, *words, str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("config", "peft_type", "IA3"), "peft_type must be 'LORA', but is 'IA3'"),
        (("config", "use_dora", True), "use_dora must be False, but is True"),
        (("config", "init_lora_weights", "pissa"), "init_lora_weights must be True, but is 'pissa'"),
        (("config", "alora_invocation_tokens", [3, 4]), "alora_invocation_tokens must be None"),
        (("empty", "model.layers.0.mlp.up_proj", ()), "must be thin matrices that fit, but do not"),
        (("config", "lora_alpha", "x"), "lora_alpha must be a number of at most 1e9, but is 'x'"),
        (("config", "lora_alpha", 10**400), "lora_alpha must be a number of at most 1e9, but is 1000"),
        (("config", "alpha_pattern", {"(a+)+$": 3}), "alpha_pattern must map names of modules to numbers"),
        (("tensor", "model.layers.9.mlp.up_proj", (2, 32)), "which this model does not have"),
        (("tensor", "model.layers.0.mlp.up_proj", (2, 31)), "must have the shape"),
        (("tensor", "model.layers.0.mlp.up_proj", (3, 32)), "must be thin matrices that fit, but do not"),
        (("tensor", "", (2, 32)), "must hold pairs of NAME.lora_A.weight and NAME.lora_B.weight"),
        (("nan", "", ()), "must hold finite numbers"),
    ],
)
def test_what_does_not_fit_is_refused(llama: tuple[Path, Path], tmp_path: Path, change: Any, complaint: str) -> None:
    base = load_bundle(llama[1])
    folder = tmp_path / "adapter"
    write_adapter(folder, base, *_with_rank(base))
    kind, name, value = change
    tensors = load_file(folder / WEIGHTS)
    if kind == "config":
        path = folder / CONFIG
        path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    elif kind == "nan":
        next(iter(tensors.values())).fill_(torch.nan)
    elif kind == "empty":
        for part, shape in (("A", (0, 32)), ("B", (64, 0))):
            tensors[f"base_model.model.{name}.lora_{part}.weight"] = torch.ones(shape)
    else:
        tensors[f"base_model.model.{name}.lora_A.weight" if name else "odd"] = torch.ones(value)
        if ".9." in name:
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.ones(64, 2)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UserError, match=complaint):
        adapted_weights(base, open_adapter(folder))


@pytest.mark.slow
def test_a_run_writes_an_adapter_that_every_command_takes(
    llama: tuple[Path, Path], tmp_path: Path, cache: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    base, run, text = llama[1], tmp_path / "run", tmp_path / "text.txt"
    text.write_text("The cat sat on the mat and looked at the dog. " * 60)
    sets = [f"--set={each}" for each in ("train.lora=2", "data.max_length=32", "train.fast=off")]
    tune = [
        "train",
        str(text),
        "--init",
        str(base),
        "--steps",
        "6",
        "--lr",
        "0.01",
        "--batch-tokens",
        "256",
        "--device",
        "cpu",
    ]
    assert main([*tune, *sets, "-o", str(run)]) == 0
    said = capfd.readouterr().err
    assert f"adapter {run / 'adapter'} (" in said and "higher rank" not in said
    tuned = regard.load(run, engine="torch", device="cpu")
    both = regard.load(base, adapter=run, engine="torch", device="cpu")
    untuned = regard.load(base, engine="torch", device="cpu")
    scores = [model.score_texts([text.read_text()[:46]])[0].log_prob for model in (tuned, both, untuned)]
    assert scores[1] == pytest.approx(scores[0], abs=1e-3) and abs(scores[2] - scores[0]) > 1.0
    prompt = ["generate", "The cat", "--temperature", "0", "--max-tokens", "8", "--engine", "torch", "--device", "cpu"]
    shown = []
    for model in (["-m", str(run)], ["-m", str(base), "--adapter", str(run / "adapter")]):
        assert main([*prompt, *model]) == 0
        shown.append(capfd.readouterr().out)
    assert shown[0] == shown[1]
    assert len(list((cache / "adapted").iterdir())) == 1  # merged once
    merged = tmp_path / "merged"
    assert (
        main(
            ["export", "--to", "bundle", "--weights", "fp32", "-m", str(base), "--adapter", str(run), "-o", str(merged)]
        )
        == 0
    )
    assert "adapter | run" in load_bundle(merged).card
    capfd.readouterr()
    assert "has no adapter_config.json" in fails(capfd, *prompt, "-m", str(base), "--adapter", str(base))


def test_the_scale_is_pefts(llama: tuple[Path, Path], tmp_path: Path) -> None:
    """alpha / r, of a module with an alpha of its own that, and with rslora alpha / sqrt(r)."""
    base = load_bundle(llama[1])
    folder = tmp_path / "adapter"
    write_adapter(folder, base, *_with_rank(base))
    config, before = json.loads((folder / CONFIG).read_text()), load_weights(base)
    names = [f"decoder.layers.{n}.feed_forward.outer.weight" for n in range(2)]

    def changes(**fields: Any) -> list[Tensor]:
        (folder / CONFIG).write_text(json.dumps({**config, **fields}))
        found = adapted_weights(base, open_adapter(folder))
        return [found[name] - before[name] for name in names]

    plain = changes()
    for given, factors_of in (
        ({"lora_alpha": 3 * RANK}, (3, 3)),
        ({"alpha_pattern": {"layers.1.mlp.down_proj": 5 * RANK}}, (1, 5)),
        ({"use_rslora": True}, (RANK**0.5, RANK**0.5)),
    ):
        for found, change, factor in zip(changes(**given), plain, factors_of, strict=True):
            torch.testing.assert_close(found, factor * change, rtol=1e-3, atol=1e-4)


def test_a_server_takes_an_adapter_with_one_model(
    llama: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    base = load_bundle(llama[1])
    write_adapter(tmp_path / "captain", base, *_with_rank(base))
    served: list[Any] = []
    monkeypatch.setattr("regard.serve.web.server.serve", served.append)
    words = ["serve", "--adapter", str(tmp_path / "captain")]
    assert main([*words, "-m", str(base.folder)]) == 0
    [folder] = served[0].models
    assert Path(folder).name == "bundle+captain" and load_bundle(Path(folder)).facts["adapter"] == "captain"
    assert "--adapter goes with one -m MODEL" in fails(capfd, *words, "-m", str(base.folder), "-m", str(base.folder))
