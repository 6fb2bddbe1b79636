"""Bundles that a stranger made: each is refused with one line before it costs memory, and nothing outside its folder is read."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from regard.api import load
from regard.bundle import load_bundle
from regard.cli import main
from regard.errors import RegardError, UserError
from regard.files import MANIFEST, check_manifest, write_manifest
from regard.generate.engines.ctranslate2_model import positions
from regard.version import __version__
from tests.commands import fails

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden bundle in fp32, to be spoilt."""
    return Path(shutil.copytree(GOLDEN / "bundle-1", tmp_path / "bundle"))


def change_config(folder: Path, name: str, value: Any) -> None:
    """Set `model.d_ff` or `source` in config.json, with a manifest that agrees."""
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    section, _, key = name.rpartition(".")
    (settings[section] if section else settings)[key] = value
    path.write_text(json.dumps(settings), encoding="utf-8")
    write_manifest(folder)


def change_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
    write_manifest(folder)


# --- weights ---


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_refused_by_the_name_of_the_tensor(
    folder: Path, engine: str, value: float
) -> None:
    def spoil(weights: dict[str, Any]) -> None:
        weights["encoder.layers.0.feed_forward.inner.weight"][3, 5] = value

    change_weights(folder, spoil)
    with pytest.raises(UserError, match=r"tensor encoder\.layers\.0\.feed_forward\.inner\.weight must hold finite"):
        load(folder, engine=engine, device="cpu")


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_scales_of_an_int8_bundle_that_make_no_finite_weights_are_refused(
    tmp_path: Path, engine: str, value: float
) -> None:
    folder = Path(shutil.copytree(GOLDEN / "bundle-2", tmp_path / "bundle"))
    assert load_bundle(folder).stored == "int8"

    def spoil(weights: dict[str, Any]) -> None:
        weights["embedding.weight_scale"][-1] = value

    change_weights(folder, spoil)
    with pytest.raises(UserError, match=r"tensor embedding\.weight must hold finite numbers"):
        load(folder, engine=engine, device="cpu")


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
def test_finite_weights_whose_outputs_are_not_end_in_an_error_instead_of_the_source(folder: Path, engine: str) -> None:
    def spoil(weights: dict[str, Any]) -> None:
        for name in weights:
            weights[name] = weights[name] * np.float32(1e18)

    change_weights(folder, spoil)
    model = load(folder, engine=engine, device="cpu")
    with pytest.raises(RegardError, match="outputs are not finite"):
        model.translate("a b c")
    with pytest.raises(RegardError, match="outputs for pair 1 are not finite, so it has no score") as failure:
        model.score(["a b c"], ["c b a"])
    assert failure.value.exit_code == 1
    with pytest.raises(RegardError, match="not finite"):
        model.explain("a b c", target="c b a")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: b"\x80\x04\x95\x11\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x06weight\x94]\x94s.",
        lambda content: content[: len(content) // 2],
        lambda content: content[:100],
        lambda content: content + b"more",
        lambda content: b"\xff" * 16,
        lambda content: (10**12).to_bytes(8, "little") + content[8:],
    ],
    ids=["empty", "pickle", "half", "header cut", "trailing", "length of all ones", "long header"],
)
def test_a_weights_file_that_is_none_is_refused_by_name(folder: Path, spoil: Callable[[bytes], bytes]) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(spoil(path.read_bytes()))
    write_manifest(folder)
    with pytest.raises(UserError, match=r"model\.safetensors: must be a safetensors file, but cannot be read as one"):
        load_bundle(folder)


def test_weights_of_another_type_or_for_other_settings_are_refused(folder: Path) -> None:
    def halve(weights: dict[str, Any]) -> None:
        weights["embedding.weight"] = weights["embedding.weight"].astype(np.float16)

    change_weights(folder, halve)
    with pytest.raises(UserError, match=r"tensor embedding\.weight must be F32 in a bundle of fp32, but is F16"):
        load_bundle(folder)


def test_an_int8_matrix_without_its_scale_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "bundle-2", tmp_path / "bundle"))
    change_weights(folder, lambda weights: weights.pop("embedding.weight_scale"))
    with pytest.raises(UserError, match=r"tensor embedding\.weight_scale is missing"):
        load_bundle(folder)


# --- settings ---


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.vocab_size", 10**12, "model.vocab_size must be at most 10,000,000, but is 1000000000000"),
        ("model.vocab_size", 9_000_000, "tensor embedding.weight must have shape (9000000, "),
        ("model.vocab_size", "many", "model.vocab_size must be a whole number, but is 'many'"),
        ("model.vocab_size", None, "model.vocab_size must be a whole number, but is None"),
        ("model.encoder_layers", 10**6, "model.encoder_layers must be at most 1,000, but is 1000000"),
        ("model.decoder_layers", 900, "must have 900 decoder layers, but has "),
        ("model.d_model", 64.0, "model.d_model must be a whole number, but is 64.0"),
        ("model.num_heads", True, "model.num_heads must be a whole number, but is True"),
        ("model.num_kv_heads", [], "model.num_kv_heads must be a whole number, but is []"),
        ("model.norm_eps", float("nan"), "model.norm_eps must be a finite number, but is nan"),
        ("model.tie_embeddings", 1, "model.tie_embeddings must be true or false, but is 1"),
        ("model.positions", ["rotary"], "model.positions must be one of sinusoidal, learned, rotary"),
        ("model.surprise", 1, "model.surprise is not known to this Regard"),
        ("model", [1], "model must be a JSON object, but is [1]"),
        ("decode.beam", 10**9, "decode.beam must be at most 10,000, but is 1000000000"),
        ("decode.beam", 0, "decode.beam must be at least 1, but is 0"),
        ("decode.alpha", 1e308, "decode.alpha must be at most 9.0, but is 1e+308"),
        ("decode.alpha", "x" * 10**6, "decode.alpha must be a number, but is 'xxx"),
        ("decode.max_extra", 10**9, "decode.max_extra must be at most 10,000, but is 1000000000"),
        ("decode.max_extra", -1, "decode.max_extra must not be negative, but is -1"),
        ("decode.guard", "yes", "decode.guard must be true or false, but is 'yes'"),
        ("decode.surprise", 1, "decode.surprise is not known to this Regard"),
        ("max_length", 0, "max_length must be at least 1, but is 0"),
        ("max_length", -3, "max_length must be at least 1, but is -3"),
        ("max_length", 10**9, "max_length must be at most 100,000, but is 1000000000"),
        ("max_length", None, "max_length must be a whole number, but is None"),
        ("source", "", "source must be a language code or a label that fits into a file name, but is ''"),
        ("target", "a\x1b[2J", r"target must be a language code or a label"),
        ("target", "../de", "target must be a language code or a label"),
        ("weights", "int4", "weights must be one of fp32, fp16, int8, but is 'int4'"),
        ("format", True, "format must be a positive integer, but is True"),
        ("facts", "none", "facts must be a JSON object, but is 'none'"),
        ("facts.corpora", 7, "facts must be as Regard writes them, but no card can be made of them (TypeError)"),
        ("facts.checks", {"names": {"passed": 1, "lines": 0}}, "no card can be made of them (ZeroDivisionError)"),
        ("facts.test", {"metrics": {"bleu": {}}}, "facts must be as Regard writes them"),
    ],
)
def test_a_setting_of_a_wrong_kind_or_size_is_refused_in_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str, value: Any, message: str
) -> None:
    change_config(folder, name, value)
    for arguments in (["info"], ["translate", "a b c", "-m"]):
        said = fails(capfd, *arguments, str(folder))
        assert message in said and len(said) < 600


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("task", "surprise", "task must be one of translate, generate, fill, classify, tag, embed, but is 'surprise'"),
        ("task", ["generate"], "task must be one of translate"),
        ("task", None, "task must be one of translate"),
        ("task", "translate", "model.encoder_layers must be at least 1, but is 0"),
        ("task", "fill", "model.encoder_layers must be at least 1, but is 0"),
        ("inputs", ["picture"], "inputs must be ['text'] by the model's settings, but is ['picture']"),
        ("inputs", None, "inputs must be ['text'] by the model's settings, but is None"),
        ("head", "classes", "head must be 'tokens' by the model's settings, but is 'classes'"),
        ("source", "en", "source must be empty for the task generate, but is 'en'"),
        ("model.encoder_layers", 2, "model.encoder_layers must be 0 for the task generate, but is 2"),
        ("model.decoder_layers", 3, "must have 3 decoder layers, but has 2"),
        ("model.decoder", {"d_fff": 3}, "model.decoder.d_fff is not known; did you mean d_ff?"),
        ("model.decoder", [1], "model.decoder must be a table, but is [1]"),
        ("model.head", {"kind": "paint"}, "model.head.kind must be one of"),
        ("model.head", {"logit_scale": float("nan")}, "model.head.logit_scale must be a finite number"),
        ("model.front", {"token_types": 10**9}, "model.front.token_types must be at most"),
        ("model.max_positions", 10**9, "model.max_positions must be at most"),
        ("model.d_model", 32, "tensor embedding.weight must have shape (401, 32)"),
        ("format", 2, "task must not be there before format 3, but is 'generate'"),
        ("format", 1, "task must not be there before format 3, but is 'generate'"),
    ],
)
def test_a_setting_of_format_3_of_a_wrong_kind_or_size_is_refused_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, value: Any, message: str
) -> None:
    folder = Path(shutil.copytree(GOLDEN / "bundle-3", tmp_path / "bundle"))
    change_config(folder, name, value)
    said = fails(capfd, "info", str(folder))
    assert message in said and len(said) < 600


def test_labels_of_a_classifier_are_escaped_and_cut(tmp_path: Path) -> None:
    config = load_bundle(GOLDEN / "bundle-3").config
    for labels in (["a\x1b[2J"], ["a", "a"], [""], "ab", [1]):
        with pytest.raises(UserError, match=r"model\.head\.labels must"):
            dataclasses.replace(config, encoder_layers=1, decoder_layers=0, head={"kind": "classes", "labels": labels})


def test_a_file_of_the_tokenizer_must_be_listed_in_format_3(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(GOLDEN / "bundle-3", tmp_path / "bundle"))
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    del manifest["files"]["tokenizer/huggingface.json"]
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match=r"but tokenizer/huggingface\.json is not there"):
        load_bundle(folder)


@pytest.mark.parametrize("name", ["source", "target", "max_length"])
def test_a_missing_setting_is_refused_by_name(folder: Path, name: str) -> None:
    path = folder / "config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    del settings[name]
    path.write_text(json.dumps(settings), encoding="utf-8")
    write_manifest(folder)
    with pytest.raises(UserError, match=f"config.json: {name} must be"):
        load_bundle(folder)


def test_a_table_of_positions_never_grows_with_the_settings_alone(folder: Path) -> None:
    change_config(folder, "max_length", 100_000)
    bundle = load_bundle(folder)
    assert positions(bundle) * bundle.config.d_model <= 1 << 23
    assert load(folder, engine="ctranslate2").translate("a b c") == "c b a"


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "tokenizer/tokenizer.json"])
def test_deep_json_is_refused_in_one_line(folder: Path, capfd: pytest.CaptureFixture[str], name: str) -> None:
    (folder / name).write_text('{"a":' * 100_000, encoding="utf-8")
    if name != MANIFEST:
        write_manifest(folder)
    assert name in fails(capfd, "translate", "a", "-m", str(folder))


def test_a_tokenizer_with_more_pieces_than_the_model_is_refused(folder: Path, tmp_path: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    size = config["model"]["vocab_size"] - 1

    def cut(weights: dict[str, Any]) -> None:
        weights["embedding.weight"] = np.ascontiguousarray(weights["embedding.weight"][:size])

    change_weights(folder, cut)
    change_config(folder, "model.vocab_size", size)
    for engine in ("torch", "ctranslate2"):
        with pytest.raises(UserError, match="tokenizer: must have at most as many pieces as the model's vocabulary"):
            load(folder, engine=engine)


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ("▁g", "pieces in UTF-8"),
        ("<0x41>", "must be a sentencepiece model, but is damaged"),
        ("<span0>", "must hold Regard's reserved pieces, but lacks them"),
        ("<u2581>", "must hold Regard's reserved pieces, but lacks them"),
        ("</s>", "must have an id for eos, but this one has none"),
    ],
)
def test_a_tokenizer_with_a_spoilt_piece_is_refused(
    folder: Path, capfd: pytest.CaptureFixture[str], piece: str, message: str
) -> None:
    path, name = folder / "tokenizer" / "joint.model", piece.encode()
    content = path.read_bytes()
    spoilt = content.replace(bytes([len(name)]) + name, bytes([len(name)]) + b"\xff" * len(name), 1)
    assert spoilt != content
    path.write_bytes(spoilt)
    write_manifest(folder)
    for engine in ("ctranslate2", "torch"):
        assert message in fails(capfd, "translate", "a b", "-m", str(folder), "--engine", engine)


# --- files ---


def test_a_manifest_must_list_every_file_that_is_used(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for name in list(manifest["files"]):
        others = {other: value for other, value in manifest["files"].items() if other != name}
        (folder / MANIFEST).write_text(json.dumps({"files": others}), encoding="utf-8")
        with pytest.raises(UserError, match=f"must list every file that is used, but {name} is not there"):
            load_bundle(folder)
    empty: tuple[Any, ...] = ({}, [], None)
    for files in empty:
        (folder / MANIFEST).write_text(json.dumps({"files": files}), encoding="utf-8")
        with pytest.raises(UserError, match="has no list of files"):
            load_bundle(folder)


def test_a_file_that_would_change_the_tokenizer_must_be_listed(folder: Path) -> None:
    shutil.copy(folder / "tokenizer" / "joint.model", folder / "tokenizer" / "source.model")
    with pytest.raises(UserError, match=r"but tokenizer/source\.model is not there"):
        load_bundle(folder)
    (folder / "tokenizer" / "source.model").unlink()
    (folder / "README.md").write_text("Regard does not read this.", encoding="utf-8")
    load_bundle(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "tokenizer/../../secret", "a\0b", "\ud800", "x" * 9999])
def test_a_manifest_cannot_name_what_is_not_in_the_bundle(folder: Path, name: str) -> None:
    (folder.parent / "secret").write_text("secret", encoding="utf-8")
    manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    manifest["files"][name] = "0" * 64
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UserError, match=r"leads out of it|cannot be the name|is missing") as refused:
        check_manifest(folder)
    assert "differs" not in str(refused.value)


def test_a_bundle_in_a_download_cache_has_links_to_blobs_and_to_nothing_else(folder: Path) -> None:
    """As huggingface_hub lays it out: models--NAME/blobs/HASH, models--NAME/snapshots/REVISION/FILE -> ../../blobs/HASH."""
    cache = folder.parent / "models--me--toy"
    snapshot, blobs = cache / "snapshots" / "0123abc", cache / "blobs"
    blobs.mkdir(parents=True)
    snapshot.parent.mkdir()
    shutil.copytree(folder, snapshot)
    for number, file in enumerate(path for path in sorted(snapshot.rglob("*")) if path.is_file()):
        shutil.move(file, blobs / str(number))
        file.symlink_to(os.path.relpath(blobs / str(number), file.parent))
    assert load_bundle(snapshot).card == load_bundle(folder).card
    secret = cache / "secret"
    shutil.copy(folder / "card.md", secret)
    (snapshot / "card.md").unlink()
    (snapshot / "card.md").symlink_to("../../secret")
    with pytest.raises(UserError, match="leads out of it"):
        load_bundle(snapshot)


@pytest.mark.parametrize("name", ["card.md", "config.json", "manifest.json", "model.safetensors", "tokenizer"])
def test_a_link_that_leaves_the_bundle_is_refused_and_one_inside_it_is_not(
    folder: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    outside = folder.parent / "outside"
    shutil.move(folder / name, outside)
    (folder / name).symlink_to(outside)
    said = fails(capfd, "info", str(folder))
    assert "must hold its files itself" in said and "leads out of it; put a copy of the file there" in said
    (folder / name).unlink()
    inside = folder / "inside"
    shutil.move(outside, inside)
    (folder / name).symlink_to("inside")
    load_bundle(folder)


def test_a_bundle_that_is_itself_a_link_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert load_bundle(tmp_path / "link").source == load_bundle(folder).source


# --- what is printed ---

HARMFUL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202e\u2028\x7f\ud800"


def test_control_characters_of_a_card_and_its_facts_are_escaped(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "card.md").write_bytes(b"# Card \xff\n" + HARMFUL[:-1].encode() + b"\n")
    change_config(folder, "facts.note", HARMFUL)
    assert main(["info", str(folder)]) == 0
    said = capfd.readouterr().out
    assert said == "# Card \\xff\n\\x1b]0;title\\x07\\x1b[2J\\x9b31m\\u202e\\u2028\\x7f\n"
    assert main(["info", "--json", str(folder)]) == 0
    said = capfd.readouterr().out
    assert json.loads(said)["note"] == HARMFUL
    assert all(character == "\n" or character.isprintable() for character in said)


def test_facts_cannot_pass_for_settings(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change_config(folder, "facts.source", "forged")
    assert main(["info", "--json", str(folder)]) == 0
    assert json.loads(capfd.readouterr().out)["source"] == load_bundle(folder).source != "forged"


def test_control_characters_of_a_message_are_escaped(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert r"no\x1b[2J\nsuch: there is no such model" in fails(capfd, "info", "no\x1b[2J\nsuch")
    change_config(folder, "model." + HARMFUL, 1)
    said = fails(capfd, "info", str(folder))
    assert said[:-1].isprintable() and "is not known to this Regard" in said


def test_a_translation_cannot_steer_the_terminal_but_a_pipe_gets_every_byte(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "tokenizer" / "joint.model"
    content = path.read_bytes()
    path.write_bytes(content.replace("\x04▁g".encode(), "\x04▁\x1b".encode(), 1))  # it writes ESC for g
    assert path.read_bytes() != content
    write_manifest(folder)
    command = ["translate", "-m", str(folder), "--engine", "torch", "--prefix", "\x1b"]
    assert main([*command, "a b"]) == 0
    piped = capsys.readouterr().out
    assert piped.startswith("\x1b")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main([*command, "a b"]) == 0
    assert capsys.readouterr().out == piped.replace("\x1b", "\\x1b")


# --- options ---


@pytest.mark.parametrize("engine", ["ctranslate2", "torch"])
def test_a_beam_is_as_wide_as_the_memory_for_its_vocabulary_allows(
    engine: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["translate", "a b c", "-m", str(GOLDEN / "bundle-1"), "--engine", engine]
    assert "beam must be at most 10,000, but is 1000000000" in fails(capfd, *command, "--beam", "1000000000")
    monkeypatch.setattr("regard.generate.engines.batches._MAX_CELLS", 5000)
    said = fails(capfd, *command, "--beam", "20")
    assert re.search(r"beam must be at most \d\d with this model's \d+ pieces, but is 20", said)
    # Wide beams search fewer sentences together, with the same result.
    model = load(GOLDEN / "bundle-1", engine=engine, device="cpu")
    lines = ["a b c", "d e", "f g h i", "p"]
    narrow = model.translate(lines, beam=9)
    monkeypatch.undo()
    assert model.translate(lines, beam=9) == narrow == [" ".join(reversed(line.split())) for line in lines]


@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_terms_and_phrases_of_tens_of_thousands_of_characters_are_refused(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["translate", "a b c", "-m", str(GOLDEN / "bundle-1"), "--engine", engine]
    (tmp_path / "glossary.tsv").write_text("a\t" + "b " * 15_000 + "\n", encoding="utf-8")
    said = fails(capfd, *command, "--glossary", str(tmp_path / "glossary.tsv"))
    assert "a glossary term must have at most 1,000 characters on either side, but that of 'a' has 29,999" in said
    for option in ("--phrase", "--prefix"):
        said = fails(capfd, *command, option, "b " * 15_000)
        assert "must have at most 1,000 tokens together, but have 30,00" in said


# --- bugs ---


def test_a_bug_has_its_own_exit_code_and_says_how_to_report_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> None:
        raise KeyError("\x1b[2J a bug")

    monkeypatch.setattr("regard.bundle.load_bundle", fail)
    assert main(["info", str(GOLDEN / "bundle-1")]) == 70
    said = capfd.readouterr().err
    assert said.startswith("Traceback") and "KeyError: '\\x1b[2J a bug'" in said
    assert said.splitlines()[-1] == (
        f"regard: internal error: this is a bug in Regard {__version__}; please report it with the command and the lines above"
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "not enough memory (MemoryError)"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory (["),
    ],
)
def test_too_little_memory_is_one_line_and_no_bug(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], error: Exception, message: str
) -> None:
    def fail(folder: Path) -> None:
        raise error

    monkeypatch.setattr("regard.bundle.load_bundle", fail)
    assert main(["info", str(GOLDEN / "bundle-1")]) == 1
    said = capfd.readouterr().err
    assert said.startswith(f"regard: {message}") and said.count("\n") == 1
