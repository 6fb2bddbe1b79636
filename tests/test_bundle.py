"""Bundles: complete, checked, and refused by name when something is wrong with them."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.builtin import builtin_models
from regard.bundle import FORMAT, add_facts, find_bundle, format_of, load_bundle, load_weights
from regard.card import make_card
from regard.errors import UserError
from regard.files import atomic_folder, write_manifest
from regard.generate.engines.torch_engine import load_model
from regard.layout import SequenceLayout
from tests.tiny import make_bundle

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle").folder


def test_a_saved_bundle_loads_as_it_was(folder: Path) -> None:
    bundle = load_bundle(folder)
    assert (bundle.source, bundle.target, bundle.max_length) == ("en", "de", 24)
    assert load_model(bundle).config == bundle.config
    assert bundle.tokenizer.decode(bundle.tokenizer.encode("a b c")) == "a b c"
    assert {path.name for path in folder.iterdir()} == {
        "model.safetensors", "config.json", "tokenizer", "recipe.toml", "card.md", "manifest.json"
    }  # fmt: skip


def test_a_bundle_needs_nothing_outside_its_folder(folder: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.move(folder, moved)
    for leftover in tmp_path.iterdir():
        if leftover != moved:
            shutil.rmtree(leftover)
    load_model(load_bundle(moved))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer/joint.model", "card.md"])
def test_a_changed_byte_is_refused_by_the_files_name(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=name.split("/")[-1]):
        load_bundle(folder)


def test_a_missing_file_is_refused_by_its_name(folder: Path) -> None:
    (folder / "tokenizer" / "joint.model").unlink()
    with pytest.raises(UserError, match=r"joint\.model: is missing"):
        load_bundle(folder)


def test_a_later_format_is_refused_with_the_remedy(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["format"] = FORMAT + 1
    (folder / "config.json").write_text(json.dumps(settings))
    write_manifest(folder)
    with pytest.raises(
        UserError, match=f"bundle format must be at most {FORMAT} .*, but is {FORMAT + 1}; upgrade Regard"
    ):
        load_bundle(folder)


def test_a_tensor_of_the_wrong_shape_is_refused_by_name(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["model"]["d_ff"] = 128
    (folder / "config.json").write_text(json.dumps(settings))
    write_manifest(folder)
    with pytest.raises(UserError, match=r"feed_forward.* must have shape"):
        load_model(load_bundle(folder))


def test_what_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model"):
        find_bundle(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"must be a bundle or a run folder, but has no config\.json"):
        find_bundle(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="the run is unfinished and has no model yet"):
        find_bundle(tmp_path)


def test_built_in_models_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.builtin.BUILTIN", tmp_path / "builtin")
    with pytest.raises(
        UserError, match=r"-m must name a bundle or a run folder, since .* no built-in models; .* regard train"
    ):
        find_bundle(None)
    with pytest.raises(UserError, match=r"no such model; name a bundle or a run folder$"):
        find_bundle("de-en")
    for name in ("de-en", "en-de"):
        shutil.copytree(GOLDEN / "bundle-1", tmp_path / "builtin" / name)
    assert list(builtin_models()) == ["en-de", "de-en"]
    assert find_bundle(None) == tmp_path / "builtin" / "en-de"
    assert find_bundle("de-en") == tmp_path / "builtin" / "de-en"
    with pytest.raises(UserError, match=r"en-fr: there is no such model; .*, or a built-in model \(en-de, de-en\)$"):
        find_bundle("en-fr")
    # A folder of that name, where one is, is what was meant.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "bundle-1", tmp_path / "de-en")
    assert find_bundle("de-en") == Path("de-en")


def test_facts_are_added_to_a_bundle(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(GOLDEN / "bundle-1", folder)
    before = load_bundle(folder)
    metric = {"name": "BLEU", "score": 22.456, "confidence": 0.61, "signature": "nrefs:1|case:mixed"}
    added = add_facts(
        folder,
        {"scores": {"news": {"sentences": 3003, "metrics": {"bleu": metric}}}, "sources": ["a", "b"], "limits": ["c"]},
    )
    after = load_bundle(folder)
    assert added == after and load_weights(added).keys() == load_weights(after).keys()
    assert after.facts["sources"] == ["a", "b"] and after.facts["steps"] == before.facts["steps"]
    assert after.config == before.config and after.decode == before.decode
    card = (folder / "card.md").read_text(encoding="utf-8")
    assert "| news | 3,003 | 22.46 ± 0.61 |" in card and "- BLEU: `nrefs:1|case:mixed`" in card
    assert "## Sources\n\n- a\n- b\n\n## Limits\n\n- c\n" in card


def test_many_corpora_have_a_list_of_their_own_in_the_card(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(GOLDEN / "bundle-1", folder)
    bundle = add_facts(folder, {"corpora": list("abcd")})
    assert "| training corpora | a, b, c, d |" in make_card(bundle) and "## Corpora" not in make_card(bundle)
    bundle = add_facts(folder, {"corpora": list("abcde")})
    assert "| training corpora | 5 |" in make_card(bundle)
    assert "## Corpora\n\n- a\n- b\n- c\n- d\n- e\n" in make_card(bundle)


def test_others_may_read_a_bundle_as_far_as_the_umask_allows(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = tmp_path / "bundle"
        with atomic_folder(folder) as temporary:
            (temporary / "model.safetensors").touch(mode=0o600)
    finally:
        os.umask(before)
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o640


def test_a_file_system_without_rights_holds_a_bundle_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "chmod", refuse)
    with atomic_folder(tmp_path / "bundle") as temporary:
        (temporary / "model.safetensors").touch(mode=0o600)
    assert (tmp_path / "bundle" / "model.safetensors").is_file()


@pytest.mark.parametrize("engine", ["auto", "torch"])
@pytest.mark.parametrize("folder", [GOLDEN / "bundle-1", GOLDEN / "bundle-2"], ids=lambda path: path.name)
def test_every_earlier_format_is_still_read_and_translates_as_it_did(folder: Path, engine: str) -> None:
    from regard.api import load

    expected = json.loads((GOLDEN / f"{folder.name}.json").read_text(encoding="utf-8"))
    model = load(folder, device="cpu", engine=engine)
    assert model.translate([entry["source"] for entry in expected]) == [entry["translation"] for entry in expected]


def test_a_language_model_is_still_read_and_finds_the_same_tokens_likely() -> None:
    bundle = load_bundle(GOLDEN / "bundle-3")
    assert (bundle.task, bundle.inputs, bundle.config.head_settings.kind) == ("generate", ("text",), "tokens")
    assert (bundle.source, bundle.target) == ("", "")
    model = load_model(bundle)
    for entry in json.loads((GOLDEN / "bundle-3.json").read_text(encoding="utf-8")):
        ids = bundle.tokenizer.encode(entry["text"])
        assert ids == entry["ids"] and bundle.tokenizer.decode(ids) == entry["text"]
        with torch.no_grad():
            log_probs = model(torch.tensor(ids), SequenceLayout.from_lengths([len(ids)])).log_softmax(-1)
        assert log_probs.argmax(-1).tolist() == entry["next"]
        torch.testing.assert_close(log_probs.amax(-1), torch.tensor(entry["log_probs"]), atol=1e-5, rtol=0)


def test_formats_1_and_2_are_read_as_translation() -> None:
    for name in ("bundle-1", "bundle-2"):
        bundle = load_bundle(GOLDEN / name)
        assert (bundle.task, bundle.inputs) == ("translate", ("text",))
        assert "task" not in json.loads((GOLDEN / name / "config.json").read_text())


def test_a_bundle_is_written_in_the_lowest_format_that_can_hold_it(tmp_path: Path) -> None:
    plain = load_bundle(GOLDEN / "bundle-1")
    imported = load_bundle(GOLDEN / "bundle-3")
    assert format_of(plain.config, plain.tokenizer, "fp32", "translate") == 1
    assert format_of(plain.config, plain.tokenizer, "int8", "translate") == 2
    biased = dataclasses.replace(plain.config, output_bias=True)
    assert format_of(biased, plain.tokenizer, "fp32", "translate") == 1, "earlier versions read it"
    later = dataclasses.replace(plain.config, d_head=8)
    assert format_of(later, plain.tokenizer, "fp32", "translate") == 3
    assert format_of(plain.config, imported.tokenizer, "fp32", "translate") == 3
    alone = dataclasses.replace(plain.config, encoder_layers=0)
    assert format_of(alone, plain.tokenizer, "fp32", "generate") == 3
    make_bundle(tmp_path / "one")
    assert json.loads((tmp_path / "one" / "config.json").read_text())["format"] == 1
    assert list(json.loads((tmp_path / "one" / "config.json").read_text()))[:2] == ["format", "model"]


def test_a_model_for_another_task_is_refused_with_its_task() -> None:
    with pytest.raises(UserError, match="must be a model for the task translate, but is one for the task generate"):
        load_bundle(GOLDEN / "bundle-3", "translate")
    assert load_bundle(GOLDEN / "bundle-3", "generate").task == "generate"


def test_facts_are_added_to_a_bundle_of_any_format(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    shutil.copytree(GOLDEN / "bundle-3", folder)
    assert add_facts(folder, {"limits": ["none"]}).task == "generate"
    assert json.loads((folder / "manifest.json").read_text())["format"] == 3
    assert "- none" in load_bundle(folder).card


def test_a_golden_model_of_several_directions_translates_as_it_did() -> None:
    model = regard.load(GOLDEN / "bundle-4", device="cpu", engine="torch")
    expected = json.loads((GOLDEN / "bundle-4.json").read_text(encoding="utf-8"))
    assert model.directions == (("low", "up"), ("low", "gre"), ("up", "low"))
    assert {entry["target"] for entry in expected} == {"up", "gre", "low"}
    for entry in expected:
        assert model.translate(entry["source"], target=entry["target"]) == entry["translation"]


def test_there_is_a_golden_bundle_of_every_format() -> None:
    formats = {json.loads((folder / "config.json").read_text())["format"] for folder in GOLDEN.glob("bundle-*/")}
    assert formats == set(range(1, FORMAT + 1))


def test_the_card_shows_scores_with_their_whole_signatures(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    metric = {"name": "BLEU", "score": 32.5, "confidence": 1.25, "signature": "nrefs:1|case:mixed"}
    card = make_card(dataclasses.replace(bundle, facts={**bundle.facts, "test": {"metrics": {"bleu": metric}}}))
    assert "- BLEU 32.50 ± 1.25, `nrefs:1|case:mixed`" in card.splitlines()


def test_the_card_shows_sets_that_are_measured_differently_in_one_table(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    sets = {"similar": ("spearman", "Spearman", 82.3), "translations": ("retrieval", "retrieval accuracy", 91.25)}
    scores = {
        name: {"sentences": 7, "metrics": {key: {"name": shown, "score": score, "signature": f"of {name}"}}}
        for name, (key, shown, score) in sets.items()
    }
    card = make_card(dataclasses.replace(bundle, facts={**bundle.facts, "scores": scores}))
    assert "| test set | sentences | Spearman | retrieval accuracy |" in card
    assert "| similar | 7 | 82.30 |  |" in card and "| translations | 7 |  | 91.25 |" in card
    assert "- Spearman: `of similar`" in card and "- retrieval accuracy: `of translations`" in card
