"""Texts to vectors: the files of sentence-transformers, long texts, prompts, and the command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.bundle import Bundle, load_bundle
from regard.cli import main
from regard.data.windows import cut_windows
from regard.errors import UserError
from regard.export import export
from regard.importing.transformers import import_model
from tests import encoders

TEXTS = ["The cat sat on the mat.", "x", "Der Hund schläft nicht, sagte sie.", "Who is there?"]
LONG = " ".join(TEXTS * 6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    return encoders.vector_model(
        tmp_path_factory.mktemp("vectors"), prompts={"query": "query: ", "document": ""}, similarity_fn_name="cosine"
    )


def test_vectors_are_those_of_transformers_with_mean_pooling_of_length_1(model: tuple[Path, Bundle]) -> None:
    original, bundle = model
    wanted = encoders.their_vectors(original, TEXTS)
    for engine in ("torch", "ctranslate2"):
        found = regard.load(bundle.folder, engine=engine, device="cpu").embed(TEXTS)
        assert found.dtype == np.float32 and np.abs(found - wanted).max() < 1e-5
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    one = regard.load(bundle.folder).embed(TEXTS[0])
    assert one.shape == (32,) and np.abs(one - wanted[0]).max() < 1e-5


def test_the_files_say_pooling_length_and_prompts(model: tuple[Path, Bundle]) -> None:
    _, bundle = model
    head = bundle.config.head_settings
    assert (head.pooling, head.normalize, bundle.max_length) == ("mean", True, 24)
    assert load_bundle(bundle.folder).prompts == {"query": "query: "}  # an empty prompt is none


def test_without_normalize_vectors_keep_their_length(tmp_path: Path) -> None:
    original, bundle = encoders.vector_model(tmp_path, normalize=False)
    found = regard.load(bundle.folder).embed(TEXTS)
    assert np.abs(found - encoders.their_vectors(original, TEXTS, normalize=False)).max() < 1e-4
    assert np.abs(np.linalg.norm(found, axis=1) - 1).min() > 0.1


def test_a_prompt_stands_before_each_text(model: tuple[Path, Bundle]) -> None:
    original, bundle = model
    loaded = regard.load(bundle.folder)
    found = loaded.embed(TEXTS, prompt="query")
    assert np.abs(found - encoders.their_vectors(original, [f"query: {text}" for text in TEXTS])).max() < 1e-5
    with pytest.raises(UserError, match=r"prompt must be one of those that .* has \(query\), but is 'other'"):
        loaded.embed(TEXTS, prompt="other")


def test_long_texts_are_cut_into_windows_and_joined(model: tuple[Path, Bundle]) -> None:
    """The vector of a long text is the mean over all of its tokens, each read in its window."""
    original, bundle = model
    loaded = regard.load(bundle.folder, engine="torch")
    [windows] = loaded.embedder.read([LONG])
    assert len(windows.inputs) > 3 and all(len(one.ids) <= 24 for one in windows.inputs)
    inner = [i for one in windows.inputs for i in one.ids[1:-1]]
    assert inner == bundle.tokenizer.encode(LONG)  # nothing is lost, in order
    assert windows.weights == tuple(len(one.ids) - 2 for one in windows.inputs)
    parts = np.stack(loaded.engine.answers(windows.inputs))  # type: ignore[attr-defined]
    wanted = np.average(parts, axis=0, weights=windows.weights)
    found = loaded.embed([LONG, TEXTS[0]])
    np.testing.assert_allclose(found[0], wanted / np.linalg.norm(wanted), atol=1e-6)
    np.testing.assert_allclose(found[1], encoders.their_vectors(original, TEXTS[:1])[0], atol=1e-5)


def test_many_texts_are_read_ahead_in_chunks_and_keep_their_order(
    model: tuple[Path, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = regard.load(model[1].folder, engine="torch", batch=1)
    texts = [f"{text} {number}" for number in range(9) for text in (*TEXTS, LONG)]
    wanted = loaded.embed(texts)
    monkeypatch.setattr("regard.understanding.embedder._CHUNK", 7)
    monkeypatch.setattr("regard.understanding.embedder._CHUNK_BATCHES", 1)
    done: list[int] = []
    found = loaded.embedder.embed(texts, None, done.append)
    assert done == [7] * 6 + [3]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_each_window_of_a_long_text_has_the_prompt(model: tuple[Path, Bundle]) -> None:
    embedder = regard.load(model[1].folder).embedder
    [windows] = embedder.read([LONG], "query")
    before = embedder.tokenizer.encode("query: ")
    assert len(windows.inputs) > 3
    assert all(list(one.ids[1 : 1 + len(before)]) == before and len(one.ids) <= 24 for one in windows.inputs)


def test_an_input_without_room_for_a_text_is_refused(model: tuple[Path, Bundle]) -> None:
    embedder = regard.load(model[1].folder).embedder
    prompt = len(embedder.tokenizer.encode("query: "))
    embedder.engine.max_length = 2 + prompt
    needed = f"a text needs at least {3 + prompt} tokens (2 special tokens, {prompt} of the prompt and one of the text)"
    with pytest.raises(UserError, match=re.escape(f"{needed}, but the model reads {2 + prompt}; leave out the prompt")):
        embedder.read([LONG], "query")
    assert len(embedder.read([LONG])[0].inputs) > 1
    embedder.engine.max_length = 2
    with pytest.raises(
        UserError, match=r"a text needs at least 3 tokens .*, but the model reads 2; use another model$"
    ):
        embedder.read([LONG])


def test_windows_are_cut_where_a_word_begins(model: tuple[Path, Bundle]) -> None:
    tokenizer = model[1].tokenizer
    ids = tokenizer.encode("The cats were sitting on the mat. " * 9)
    assert not all(piece.startswith("\u2581") for piece in tokenizer.pieces(ids))
    for room in (14, 22):
        windows = [ids[start:stop] for start, stop in cut_windows(ids, room, tokenizer)]
        assert [i for one in windows for i in one] == ids and max(map(len, windows)) <= room
        assert all(tokenizer.pieces(one[:1])[0].startswith("\u2581") for one in windows)
    assert cut_windows(ids[:5], 5, tokenizer) == [(0, 5)] and cut_windows([], 5, tokenizer) == [(0, 0)]


def test_exported_folders_come_back_the_same(model: tuple[Path, Bundle], tmp_path: Path) -> None:
    _, bundle = model
    export(bundle, "transformers", tmp_path / "out")
    names = [one["type"].rpartition(".")[2] for one in json.loads((tmp_path / "out" / "modules.json").read_text())]
    assert names == ["Transformer", "Pooling", "Normalize"]
    back = import_model(tmp_path / "out", tmp_path / "back", compare=False).bundle
    assert (back.config, back.max_length, back.prompts) == (bundle.config, bundle.max_length, bundle.prompts)
    small = export(bundle, "bundle", tmp_path / "int8", "int8")
    assert load_bundle(small.folder).prompts == bundle.prompts


SPOILT: list[tuple[str, Any, str]] = [
    ("modules.json", [{"type": f"a.{kind}", "path": ""} for kind in ("Transformer", "Pooling", "Dense")],
     "modules must be Transformer, Pooling and perhaps Normalize, but are 'Transformer, Pooling, Dense'"),
    ("modules.json", [{"type": kind, "path": "0"} for kind in ("Transformer", "Pooling")], "must lie in the folder itself"),
    ("modules.json", {"a": 1}, "must be a list of modules"),
    ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "must have one of pooling_mode_mean_tokens, "),
    ("1_Pooling/config.json", {"pooling_mode": "max"}, "pooling_mode must be mean or cls, but is 'max'"),
    ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length must be"),
    ("config_sentence_transformers.json", {"prompts": {"a": 5}}, "prompts must be texts by name"),
    ("config_sentence_transformers.json", {"prompts": {"a": "b"}, "default_prompt_name": "a"}, "default_prompt_name must be null"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "content", "message"), SPOILT, ids=[str(one[1])[:40] for one in SPOILT])
def test_what_a_bundle_cannot_hold_is_refused_by_name(tmp_path: Path, file: str, content: Any, message: str) -> None:
    original = encoders.write_model(tmp_path / "original")
    encoders.write_sentence_files(original)
    (original / file).write_text(json.dumps(content))
    with pytest.raises(UserError, match=message.replace("(", r"\(")) as raised:
        import_model(original, tmp_path / "bundle", compare=False)
    assert str(original) in str(raised.value) and not (tmp_path / "bundle").exists()


def test_newer_files_name_pooling_and_length_otherwise(tmp_path: Path) -> None:
    original = encoders.write_model(tmp_path / "original", "BertForMaskedLM")  # of which only the body is used
    encoders.write_sentence_files(original, similarity_fn_name="euclidean")
    (original / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "cls"}))
    (original / "sentence_bert_config.json").write_text(json.dumps({"transformer_task": "feature-extraction"}))
    described = json.loads((original / "tokenizer_config.json").read_text())
    (original / "tokenizer_config.json").write_text(json.dumps({**described, "model_max_length": 17}))
    imported = import_model(original, tmp_path / "bundle", compare=False)
    assert (imported.bundle.task, imported.bundle.config.head_settings.pooling) == ("embed", "first")
    assert imported.bundle.max_length == 17
    assert any("similarity_fn_name is 'euclidean'" in note for note in imported.notes)


# The command


def test_the_command_prints_and_writes_vectors(
    model: tuple[Path, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original, bundle = model
    wanted, named = encoders.their_vectors(original, TEXTS), ("-m", str(bundle.folder))
    assert main(["embed", *TEXTS, *named, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["text"] for one in document] == TEXTS
    np.testing.assert_allclose([one["vector"] for one in document], wanted, atol=1e-5)
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    out = tmp_path / "vectors.npy"
    assert main(["embed", "-i", str(tmp_path / "texts.txt"), *named, "--to", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 4 vectors of 32 numbers\n"
    np.testing.assert_allclose(np.load(out), wanted, atol=1e-5)
    assert main(["embed", TEXTS[1], *named]) == 0
    np.testing.assert_allclose([float(x) for x in capsys.readouterr().out.split()], wanted[1], atol=1e-5)


def test_mistakes_of_the_command_are_one_line(
    model: tuple[Path, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ("-m", str(model[1].folder))
    (tmp_path / "there.npy").write_text("")
    (tmp_path / "a").mkdir()
    commands = [
        (["a", "--to", str(tmp_path / "x.txt"), *named], "must end in .npy or .parquet"),
        (["a", "--to", str(tmp_path / "there.npy"), *named], "already exists; choose another name, or add --force"),
        (["a", "--passage-tokens", "9", *named], "--passage-tokens is for an index"),
        ([str(tmp_path / "a"), "--to", "x.npy", *named], "--to is for texts"),
        ([str(tmp_path / "a"), "b", *named], "makes an index of one folder"),
        (["a", "--prompt", "x", *named], "prompt must be one of those"),
        (["a", "-m", str(tmp_path / "none")], "there is no such model"),
    ]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    commands.append((["a", "--to", str(tmp_path / "x.parquet"), *named], "pip install 'regard\\[parquet\\]'"))
    for arguments, message in commands:
        assert main(["embed", *arguments]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and message.replace("\\", "") in said


def test_a_file_that_cannot_be_written_is_named(
    model: tuple[Path, Bundle], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "vectors.npy"
    command = ["embed", "a", "-m", str(model[1].folder), "--to", str(out)]

    def refuse(path: Path, data: bytes) -> int:  # root, who may run tests, can write everywhere
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", refuse)
        assert main(command) == 1
    assert capsys.readouterr().err == f"regard: {out}: Permission denied\n"
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    assert main(command) == 2
    assert f"{out}: cannot be written, since the folder {tmp_path} is read-only" in capsys.readouterr().err


def test_parquet_has_texts_and_vectors(model: tuple[Path, Bundle], tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "vectors.parquet"
    assert main(["embed", *TEXTS, "-m", str(model[1].folder), "--to", str(out)]) == 0
    table = parquet.read_table(out)
    assert table["text"].to_pylist() == TEXTS
    np.testing.assert_allclose(table["vector"].to_pylist(), encoders.their_vectors(model[0], TEXTS), atol=1e-5)


def test_without_a_built_in_encoder_the_command_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("regard.bundle.builtin_models", dict)
    assert main(["embed", "a"]) == 2
    assert (
        "-m must name a model for the task embed, since this copy of Regard has no built-in one"
        in capsys.readouterr().err
    )
