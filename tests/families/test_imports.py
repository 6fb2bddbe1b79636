"""Folders of transformers as people have them: what import says of them, what it refuses by name, and what damage does to them."""

from __future__ import annotations

import copy
import json
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.api import load
from regard.bundle import load_bundle
from regard.cli import main
from regard.errors import RegardError, UserError
from regard.export import export
from regard.families import FAMILIES
from regard.importing.transformers import import_model
from tests import json_tokenizers
from tests.commands import fails
from tests.families.checkpoints import CASES, make_original
from tests.importing.opus import change_json, write_json
from tests.mutations import mutations
from tests.test_fuzz import VALUES

GOLDEN = Path(__file__).parents[1] / "golden" / "bundle-1"


def write(folder: Path, name: str, tokenizer: str | None = None, **changes: Any) -> Path:
    """A folder of transformers, with a tokenizer that fits it."""
    if tokenizer is not None:
        changes = {"vocab_size": 512, **changes}
        json_tokenizers.write(folder, tokenizer)
    make_original(name, **changes).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("folder") / "gpt2", "gpt2", "gpt2", eos_token_id=400, bos_token_id=400)


@pytest.fixture
def changed(gpt2: Path, tmp_path: Path) -> Path:
    """A copy of a folder, to be spoilt."""
    return Path(shutil.copytree(gpt2, tmp_path / "changed"))


# What is said


def test_the_command_says_what_it_found_and_how_far_it_is_from_the_original(
    gpt2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bundle"
    assert main(["import", "--from", "transformers", str(gpt2), "-o", str(out)]) == 0
    said = capfd.readouterr().out.splitlines()
    assert said[0].startswith("found GPT-2 (GPT2LMHeadModel): 2 layers of decoder, ") and said[0].endswith(
        " parameters"
    )
    assert said[1] == f"{out}: task generate"
    assert said[2].startswith("compared with transformers: ") and said[2].endswith(" of their standard deviation")
    assert main(["import", "--from", "transformers", str(gpt2), "-o", str(tmp_path / "b"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (document["family"], document["task"], document["notes"]) == ("GPT-2", "generate", [])
    assert 0 < document["difference"] < 1e-4 and document["difference_in_float64"] is None
    assert main(["info", str(out)]) == 0
    card = capfd.readouterr().out
    assert "# Language model" in card and "| task | generate |" in card and "| layers | 2 |" in card
    assert "A Transformer language model imported with Regard" in card
    assert main(["info", str(out), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["task"] == "generate"
    assert main(["models", str(tmp_path)]) == 0
    assert "generate" in capfd.readouterr().out


def test_the_command_says_when_it_compared_in_float64(
    gpt2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.importing.original.TOLERANCE", 1e-10)
    command = ["import", "--from", "transformers", str(gpt2), "-o"]
    assert main([*command, str(tmp_path / "one")]) == 0
    said = capfd.readouterr().out.splitlines()[2]
    found = re.search(
        r"by at most (\S+) of their standard deviation, which is rounding: by at most (\S+) in float64$", said
    )
    assert found is not None and float(found[2]) < 1e-10 < float(found[1])
    assert main([*command, str(tmp_path / "two"), "--json"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert document["difference_in_float64"] < 1e-10 < document["difference"]


@pytest.mark.parametrize("verb", ["translate", "explain", "score", "evaluate", "augment", "compare"])
def test_verbs_of_translation_refuse_other_models_in_one_line(
    verb: str, gpt2: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import_model(gpt2, tmp_path / "bundle", compare=False)
    (tmp_path / "text").write_text("a\n")
    text, bundle = str(tmp_path / "text"), str(tmp_path / "bundle")
    command = {
        "translate": ["translate", "a", "-m", bundle],
        "explain": ["explain", "a", "-m", bundle, "-o", str(tmp_path / "page.html")],
        "score": ["score", "--source", text, "--target", text, "-m", bundle],
        "evaluate": ["evaluate", "-m", bundle, "--source", text, "--reference", text],
        "augment": ["augment", "--distill", "-i", text, "-m", bundle, "-o", str(tmp_path / "out.tsv")],
        "compare": ["compare", "--source", text, "--reference", text, "-m", bundle, "-m", str(GOLDEN)],
    }[verb]
    said = fails(capfd, *command)
    tasks = "translate, classify, tag, fill or embed" if verb == "explain" else "translate"
    assert f"must be a model for the task {tasks}, but is one for the task generate" in said


def test_a_language_model_does_not_go_to_onnx(gpt2: Path, tmp_path: Path) -> None:
    bundle = import_model(gpt2, tmp_path / "bundle", compare=False).bundle
    with pytest.raises(
        UserError, match="--to onnx takes models for the tasks translate, embed, classify, tag and fill"
    ):
        export(bundle, "onnx", tmp_path / "out")
    with pytest.raises(UserError, match="must be a model for the task translate"):
        load(tmp_path / "bundle").translate("a")
    with pytest.raises(UserError, match="must be a model for the task translate"):
        load(tmp_path / "bundle", task="translate")


def test_without_transformers_import_works_and_says_that_nothing_was_compared(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers"]:
        monkeypatch.setitem(sys.modules, name, None)
    imported = import_model(gpt2, tmp_path / "bundle")
    assert imported.difference is None
    assert imported.notes == ["not compared with the original: the package transformers is not installed"]


def test_the_tokenizer_comes_with_the_model_and_goes_with_it(gpt2: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    bundle = import_model(gpt2, tmp_path / "bundle").bundle
    assert bundle.tokenizer.kind == "huggingface" and bundle.tokenizer.eos_id == 400
    export(bundle, "transformers", tmp_path / "back")
    assert (tmp_path / "back" / "tokenizer.json").read_bytes() == (gpt2 / "tokenizer.json").read_bytes()
    one, two = AutoTokenizer.from_pretrained(gpt2), AutoTokenizer.from_pretrained(tmp_path / "back")
    assert one("The dog is here.")["input_ids"] == two("The dog is here.")["input_ids"]
    assert one.eos_token == two.eos_token


def test_a_tokenizer_that_differs_from_transformers_is_refused(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regard.data.tokenizer import Tokenizer

    frame = Tokenizer.frame
    monkeypatch.setattr(Tokenizer, "frame", lambda self, ids, second=None: (frame(self, ids)[0][:-1], []))
    with pytest.raises(RegardError, match=r"the tokenizer encodes .* to other ids than transformers' "):
        import_model(gpt2, tmp_path / "bundle")


@pytest.mark.parametrize(
    ("name", "tokenizer"),
    [
        ("bert", "bert"),
        ("roberta", "roberta"),
        ("llama", "llama3"),
        ("llama", "llama2"),
        ("t5", "t5"),
        ("bart", "roberta"),
    ],
)
def test_every_kind_of_tokenizer_comes_and_goes_with_its_family(name: str, tokenizer: str, tmp_path: Path) -> None:
    ids = {
        "decoder_start_token_id": 0,
        "eos_token_id": 2 if name == "bart" else 1,
        "pad_token_id": 1 if name == "bart" else 0,
    }
    extra: dict[str, Any] = ids if name in ("t5", "bart") else {"pad_token_id": 1} if name == "roberta" else {}
    if name == "llama":
        extra = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    folder = write(tmp_path / "original", name, tokenizer, **extra)
    imported = import_model(folder, tmp_path / "bundle")
    assert imported.difference is not None
    export(imported.bundle, "transformers", tmp_path / "back")
    before, after = (load_file(one / "model.safetensors") for one in (folder, tmp_path / "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[one], after[one]) for one in before)


def test_text_goes_through_an_imported_encoder_decoder(tmp_path: Path) -> None:
    """BART's sources begin with <s>, and T5's do not: the translator needs to know nothing of it."""
    from transformers import BartForConditionalGeneration

    ids = {"decoder_start_token_id": 2, "eos_token_id": 2, "pad_token_id": 1, "bos_token_id": 0}
    folder = write(tmp_path / "original", "bart", "roberta", **ids)
    bundle = import_model(folder, tmp_path / "bundle", source="en", target="de").bundle
    assert (bundle.task, bundle.source, bundle.target) == ("translate", "en", "de")
    assert bundle.tokenizer.encode("the dog")[0] == 0 != bundle.tokenizer.encode("the dog", "target")[0]
    model = load(tmp_path / "bundle", engine="torch", device="cpu")
    theirs = BartForConditionalGeneration.from_pretrained(folder).eval()
    src = torch.tensor([[*bundle.tokenizer.encode("the dog"), 2]])
    expected = theirs.generate(
        src, num_beams=1, max_new_tokens=12, do_sample=False, min_length=0, forced_eos_token_id=None
    )
    [found] = model.engine.translate([src[0, :-1].tolist()], model.search_options(beam=1, max_extra=0).search)
    count = min(len(found[0].ids), expected.shape[1] - 1)
    assert count > 2 and list(found[0].ids[:count]) == expected[0, 1 : 1 + count].tolist()
    assert isinstance(model.translate("the dog"), str)


def test_search_settings_are_kept_or_named(changed: Path, tmp_path: Path) -> None:
    search = {"do_sample": True, "top_p": 0.9, "eos_token_id": [400, 7], "suppress_tokens": [5]}
    write_json(changed / "generation_config.json", search)
    imported = import_model(changed, tmp_path / "bundle")
    assert imported.notes == ["search settings that the bundle does not keep: do_sample, top_p"]
    assert imported.bundle.tokenizer.stop_ids == (400, 7) and imported.bundle.tokenizer.controls.forbidden == (5,)


# What is refused


@pytest.mark.parametrize(
    ("name", "changes", "complaint"),
    [
        ("gpt2", {"model_type": "gpt_neox"}, "model_type must be one of marian, bart, .*, but is 'gpt_neox'"),
        ("gpt2", {"architectures": ["GPT2ForQuestionAnswering"]}, "architectures must be one of GPT2LMHeadModel, but is 'GPT2For"),
        ("gpt2", {"activation_function": "quick_gelu"}, "activation_function must be one of relu, .* but is 'quick_gelu'"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx must be False, but is True"),
        ("gpt2", {"n_embd": "many"}, "n_embd must be a whole number, but is 'many'"),
        ("gpt2", {"n_embd": 10**9}, "n_embd must be at most"),
        ("gpt2", {"n_layer": 3}, "tensor transformer.h.2.* is missing"),
        ("gpt2", {"n_layer": 1}, "tensor h.1.* has no place in a bundle"),
        ("gpt2", {"n_inner": 7}, "must have shape|must fit the model's settings"),
        ("gpt2", {"layer_norm_epsilon": None, "n_positions": 7}, "must have shape"),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type must be one of default, .*, but is 'yarn'"),
        ("llama", {"rope_parameters": [1]}, "rope_parameters must be an object"),
        ("llama", {"pretraining_tp": 2}, "pretraining_tp must be 1, but is 2"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1, but is 0.5"),
        ("mistral", {"sliding_window": 16}, "sliding_window must be null, but is 16"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16}, "sliding_window must be null, but is 16"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types must all be 'full_attention'"),
        ("falcon", {"alibi": True}, "alibi must be False, but is True"),
        ("falcon", {"new_decoder_architecture": True}, "new_decoder_architecture must be False, but is True"),
        ("cohere", {"use_qk_norm": True}, "use_qk_norm must be False, but is True"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
        ("bert", {"is_decoder": True}, "is_decoder must be False"),
        ("albert", {"num_hidden_groups": 2}, "num_hidden_groups must be 1, but is 2"),
        ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj must be one of"),
        ("bart", {"normalize_before": True}, "normalize_before must be False, but is True"),
    ],
)  # fmt: skip
def test_what_a_bundle_cannot_hold_is_refused_by_name(
    name: str, changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    make_original(name).save_pretrained(tmp_path / "original")
    change_json(tmp_path / "original" / "config.json", **changes)
    with pytest.raises(UserError, match=complaint) as refused:
        import_model(tmp_path / "original", tmp_path / "bundle")
    assert "\n" not in str(refused.value) and str(tmp_path / "original") in str(refused.value)
    assert not (tmp_path / "bundle").exists()


def test_a_pickle_is_refused_by_name(changed: Path, tmp_path: Path) -> None:
    torch.save(load_file(changed / "model.safetensors"), changed / "pytorch_model.bin")
    (changed / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"pytorch_model\.bin: is a pickle, .* download the model as safetensors"):
        import_model(changed, tmp_path / "bundle")
    (changed / "pytorch_model.bin").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: is missing"):
        import_model(changed, tmp_path / "bundle")


def test_an_index_may_name_only_files_of_the_folder(changed: Path, tmp_path: Path) -> None:
    shutil.move(changed / "model.safetensors", tmp_path / "secret.safetensors")
    cases: list[tuple[Any, str]] = [
        ({"a": "../secret.safetensors"}, "leads out of it"),
        ({"a": "none.safetensors"}, "is missing, though"),
        ({"a": 3}, "`weight_map` must give the file of each tensor"),
        ([], "`weight_map` must give the file of each tensor"),
    ]
    for places, complaint in cases:
        write_json(changed / "model.safetensors.index.json", {"weight_map": places})
        with pytest.raises(UserError, match=complaint):
            import_model(changed, tmp_path / "bundle")


def test_tensors_that_are_wrong_are_refused_by_name(changed: Path, tmp_path: Path) -> None:
    path = changed / "model.safetensors"
    whole = load_file(path)
    name = "transformer.h.0.attn.c_attn.weight"
    cases: list[tuple[dict[str, torch.Tensor], str]] = [
        ({name: torch.full_like(whole[name], float("nan"))}, r"self_attention\.qkv\.weight must hold finite numbers"),
        ({name: whole[name][:5]}, "must have shape"),
        ({"transformer.h.0.attn.more.weight": torch.ones(2)}, "tensor h.0.attn.more.weight has no place in a bundle"),
        ({"lm_head.weight": torch.ones(2, 2)}, "lm_head.weight must equal the embedding"),
        ({"wte.weight": torch.ones(2, 2)}, "two tensors must be copies of each other, but differ: wte.weight"),
    ]
    for change, complaint in cases:
        save_file({**whole, **change}, path)
        with pytest.raises(UserError, match=complaint):
            import_model(changed, tmp_path / "bundle")
        assert not (tmp_path / "bundle").exists()


def test_languages_are_for_models_that_translate(gpt2: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--source and --target are for models that translate"):
        import_model(gpt2, tmp_path / "bundle", source="en")


def test_a_folder_that_is_none_and_one_that_exists_are_refused(gpt2: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be a folder with a model of transformers"):
        import_model(gpt2 / "nowhere", tmp_path / "bundle")
    bundle = import_model(gpt2, tmp_path / "bundle", compare=False).bundle
    with pytest.raises(UserError, match="is a bundle of Regard already"):
        import_model(bundle.folder, tmp_path / "again")
    with pytest.raises(UserError, match="already exists"):
        import_model(gpt2, tmp_path / "bundle")


def test_a_model_of_no_family_is_refused_with_the_setting(tmp_path: Path) -> None:
    from regard.bundle import save_bundle
    from regard.config import ModelConfig
    from regard.models.transformer import Transformer
    from regard.recipe import DecodeRecipe

    tokenizer = load_bundle(GOLDEN).tokenizer
    config = ModelConfig(tokenizer.vocab_size, 32, 48, 2, 0, 1)  # the paper's post-norm with sinusoids
    given = {"source": "", "target": "", "decode": DecodeRecipe(), "max_length": 20, "facts": {}, "task": "generate"}
    bundle = save_bundle(tmp_path / "bundle", Transformer(config).state_dict(), config, tokenizer, "", **given)
    with pytest.raises(
        UserError,
        match=r"that Regard knows \(bart, .*\) has this model's settings; \S+ is the nearest, but not with model\.\w+ = ",
    ):
        export(bundle, "transformers", tmp_path / "out")


def test_a_translation_model_of_t5s_shape_goes_to_transformers_as_t5(tmp_path: Path) -> None:
    """Trained here, with a vocabulary of sentencepiece: it need not be Marian's shape."""
    from transformers import T5ForConditionalGeneration

    from regard.bundle import save_bundle
    from regard.config import ModelConfig
    from regard.models.transformer import Transformer

    golden = load_bundle(GOLDEN)
    config = ModelConfig(
        golden.tokenizer.vocab_size, 32, 48, 2, 2, 2, norm_position="pre", norm="rms", norm_eps=1e-6, positions="relative",
        attention_bias="none", feed_forward_bias=False, embedding_scale=False, score_scale=1.0,
    )  # fmt: skip
    torch.manual_seed(1)
    weights = Transformer(config).state_dict()
    given = {"source": "en", "target": "de", "decode": golden.decode, "max_length": 20, "facts": {}}
    bundle = save_bundle(tmp_path / "bundle", weights, config, golden.tokenizer, "", **given)
    report = export(bundle, "transformers", tmp_path / "out")
    assert report.difference.largest < 1e-4
    assert type(T5ForConditionalGeneration.from_pretrained(tmp_path / "out")).__name__ == "T5ForConditionalGeneration"
    assert (
        json.loads((tmp_path / "out" / "config.json").read_text())["decoder_start_token_id"] == bundle.tokenizer.bos_id
    )


# Damage


@pytest.mark.slow
def test_damaged_files_are_refused_in_one_line_or_read(gpt2: Path, tmp_path: Path) -> None:
    refused = 0
    for name in (
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
    ):
        for number, spoilt in enumerate(mutations((gpt2 / name).read_bytes(), 45, name)):
            folder = Path(shutil.copytree(gpt2, tmp_path / "spoilt"))
            (folder / name).write_bytes(spoilt)
            try:
                import_model(folder, tmp_path / f"{name}-{number}", compare=False)
            except UserError as error:
                refused += 1
                said = str(error)
            else:
                said = ""
            shutil.rmtree(folder)
            assert "\n" not in said
    assert refused > 80


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama3", "bert-classes", "t5", "bart"])
def test_settings_of_any_kind_are_refused_in_one_line_or_read(name: str, tmp_path: Path) -> None:
    make_original(name).save_pretrained(tmp_path / "original")
    path = tmp_path / "original" / "config.json"
    whole = json.loads(path.read_text())
    family = FAMILIES[whole["model_type"]]
    draw = random.Random(name)
    refused = 0
    for number, key in enumerate([*whole, *family.defaults, *family.fixed] * 2):
        settings = copy.deepcopy(whole)
        settings[key] = draw.choice(VALUES)
        path.write_text(json.dumps(settings))
        try:
            import_model(tmp_path / "original", tmp_path / f"bundle{number}", compare=False)
        except UserError as error:
            refused += 1
            said = str(error)
        else:
            said = ""
        assert "\n" not in said
    assert refused > 10


def test_all_families_have_a_random_model_here() -> None:
    kinds = {make_original(name).config.model_type for name in CASES}
    assert kinds == set(FAMILIES)
