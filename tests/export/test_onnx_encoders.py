"""Encoders in ONNX: graphs and pages answer what transformers does with the same weights."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers

import regard
from regard.bundle import Bundle
from regard.cli import main
from regard.errors import RegardError, UserError
from regard.export import export
from regard.export.tokenizer_json import check_encoder_json, encoder_json, sample_texts
from regard.export.verify import Samples
from regard.generate.encoding import EncoderInput
from regard.generate.engines.onnx_decoder import open_session
from regard.generate.engines.onnx_encoder_graph import MODEL, convert
from regard.generate.engines.select import make_encoder
from regard.importing.transformers import import_model
from tests import encoders
from tests.build import HEADS, ONE_STACK, build, tiny_config
from tests.commands import fails
from tests.families.checkpoints import CASES, find_goldens, make_original
from tests.tiny import reversal_pairs, save_encoder

onnxruntime = pytest.importorskip("onnxruntime")

GOLDENS = find_goldens()
STAGED = ["albert-rxnmapper", "roberta-sapiens-vh", "made-here/bert", "made-here/roberta"]
NAMES = [name for name in CASES if name.startswith(("bert", "roberta", "albert"))]
LENGTHS = (3, 17, 1, 9)
TEXTS = ["The cat sat on the mat.", "x", "Der Hund schläft nicht, sagte sie.", "Who is there?", "naïve 漢字 😀"]
SEVERAL = {"problem_type": "multi_label_classification"}
NUMBER = {"problem_type": "regression", "id2label": {0: "score"}, "num_labels": 1}


# --- the graph ---


def batch(vocab_size: int, kinds: int, padding: int) -> dict[str, np.ndarray[Any, Any]]:
    """A batch of texts of several lengths, padded beyond the longest, with kinds of tokens."""
    draw = np.random.default_rng(1)
    mask = (np.arange(max(LENGTHS) + 3) < np.array(LENGTHS)[:, None]).astype(np.int64)
    ids = np.where(mask == 1, draw.integers(8, min(68, vocab_size), mask.shape), padding)
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": draw.integers(kinds, size=mask.shape) * mask}


def their_outputs(original: Any, given: dict[str, np.ndarray[Any, Any]], count: int) -> list[np.ndarray[Any, Any]]:
    """The logits, or a vector and the states that it is made of, padding left out."""
    with torch.no_grad():
        found = original(**{name: torch.from_numpy(value) for name, value in given.items()})
    names = (
        ["pooler_output", "last_hidden_state"]
        if count == 2
        else ["logits" if "logits" in found else "prediction_logits"]
    )
    return [without_padding(found[name].numpy(), given) for name in names]


def without_padding(output: np.ndarray[Any, Any], given: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return output[given["attention_mask"] == 1] if output.ndim == 3 else output


def check_graph(folder: Path, original: Any) -> None:
    """All outputs of a batch, and of its first text alone: 1e-5 of their deviation, or thrice what transformers itself rounds."""
    session = onnxruntime.InferenceSession(str(folder / MODEL), providers=["CPUExecutionProvider"])
    names, config = [one.name for one in session.get_inputs()], original.config
    padding = config.pad_token_id if config.model_type == "roberta" else 0
    given = batch(config.vocab_size, getattr(config, "type_vocab_size", 1), padding)
    for rows, columns in ((4, 20), (4, 17), (1, 3)):
        cut = {name: value[:rows, :columns] for name, value in given.items()}
        found = [without_padding(one, cut) for one in session.run(None, {name: cut[name] for name in names})]
        rounded = their_outputs(original, cut, len(found))
        exact = their_outputs(copy.deepcopy(original).double(), cut, len(found))
        for ours, theirs, wanted in zip(found, rounded, exact, strict=True):
            rounding = float(np.abs(theirs - wanted).max())
            assert np.abs(ours - wanted).max() <= max(1e-5 * wanted.std(), 3 * rounding)


@pytest.mark.parametrize("name", NAMES)
def test_graphs_of_every_family_answer_as_transformers_does(name: str, tmp_path: Path) -> None:
    original = make_original(name)
    original.save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle", compare=False).bundle
    report = export(bundle, "onnx", tmp_path / "out")
    assert report.difference.largest < 1e-5
    check_graph(report.folder, original)


@pytest.mark.skipif(GOLDENS is None, reason="there are no staged checkpoints; $REGARD_GOLDENS may name them")
@pytest.mark.parametrize("name", STAGED)
def test_graphs_of_staged_checkpoints_answer_as_transformers_does(name: str, tmp_path: Path) -> None:
    assert GOLDENS is not None
    folder = GOLDENS / name
    [architecture] = json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    original = getattr(transformers, architecture).from_pretrained(folder, dtype=torch.float32).eval()
    bundle = import_model(folder, tmp_path / "bundle", compare=False).bundle
    check_graph(export(bundle, "onnx", tmp_path / "out").folder, original)


# --- the page ---

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "regard", "transformers", "onnx"):
            raise ModuleNotFoundError("blocked: " + name)

sys.meta_path.insert(0, Block())
"""


def run_page(folder: Path, lines: list[str]) -> list[str]:
    """The program of a folder's README, run there on these lines."""
    [code] = re.findall(r"^```python\n(.*?)^```$", (folder / "README.md").read_text(encoding="utf-8"), re.S | re.M)
    done = subprocess.run(
        [sys.executable, "-c", BLOCK + code], cwd=folder, input="".join(f"{line}\n" for line in lines), capture_output=True,
        encoding="utf-8", env={**os.environ, "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@torch.no_grad()
def their_logits(original: Path, text: str, **more: Any) -> tuple[list[int], np.ndarray[Any, Any]]:
    """The ids and logits of a text in transformers."""
    architecture = transformers.AutoConfig.from_pretrained(original).architectures[0]
    given = transformers.AutoTokenizer.from_pretrained(original)(text, return_tensors="pt", **more)
    model = getattr(transformers, architecture).from_pretrained(original).eval()
    return given["input_ids"][0].tolist(), model(**given).logits[0].numpy()


def exported(folder: Path, original: Path) -> tuple[Bundle, Path]:
    bundle = import_model(original, folder / "bundle", compare=False).bundle
    return bundle, export(bundle, "onnx", folder / "out").folder


@pytest.mark.parametrize("architecture", ["BertModel", "RobertaModel"])
def test_the_page_makes_the_vectors_of_sentence_transformers(architecture: str, tmp_path: Path) -> None:
    original = encoders.write_model(tmp_path / "original", architecture)
    encoders.write_sentence_files(original, prompts={"query": "find: "})
    bundle, out = exported(tmp_path, original)
    found = np.array([json.loads(line) for line in run_page(out, [*TEXTS, "cat " * 60])])
    wanted = encoders.their_vectors(original, TEXTS)
    np.testing.assert_allclose(found[:-1], wanted, atol=1e-5)
    assert (1 - (found[:-1] * wanted).sum(1)).max() < 1e-6
    ids, _ = bundle.tokenizer.frame(bundle.tokenizer.encode("cat " * 60)[:22])  # of 24 tokens that the model reads
    [cut] = make_encoder(bundle, "torch", "cpu").answers([EncoderInput(ids)])
    np.testing.assert_allclose(found[-1], cut / np.linalg.norm(cut), atol=1e-5)
    assert '"find: "' in (out / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("answer", ["one", "several", "number"])
def test_the_page_gives_the_labels_of_transformers(answer: str, tmp_path: Path) -> None:
    original = encoders.write_model(tmp_path / "original", "BertForSequenceClassification")
    more = {"several": SEVERAL, "number": NUMBER}.get(answer, {})
    config = json.loads((original / "config.json").read_text(encoding="utf-8")) | more
    if answer == "number":
        model = transformers.BertForSequenceClassification.from_pretrained(
            original, num_labels=1, ignore_mismatched_sizes=True
        )
        model.save_pretrained(original)
        config = json.loads((original / "config.json").read_text(encoding="utf-8"))
        config |= {"problem_type": "regression", "id2label": {"0": "score"}, "label2id": {"score": 0}}
    (original / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _, out = exported(tmp_path, original)
    for text, line in zip(TEXTS, run_page(out, TEXTS), strict=True):
        _, logits = their_logits(original, text)
        if answer == "number":
            assert float(line) == pytest.approx(float(logits[0]), abs=1e-5)
            continue
        exponents = np.exp(logits - logits.max())
        shares = 1 / (1 + np.exp(-logits)) if answer == "several" else exponents / exponents.sum()
        order = [i for i in np.argsort(-shares) if shares[i] >= 0.5] if answer == "several" else [int(shares.argmax())]
        parts = line.split("\t") if line else []
        assert parts[::2] == [encoders.LABELS[int(i)] for i in order]
        assert [float(part) for part in parts[1::2]] == pytest.approx([float(shares[i]) for i in order], abs=1e-5)


@pytest.mark.parametrize("architecture", ["BertForTokenClassification", "RobertaForTokenClassification"])
def test_the_page_tags_words_as_regard_does(architecture: str, tmp_path: Path) -> None:
    bundle, out = exported(tmp_path, encoders.write_model(tmp_path / "original", architecture))
    tagged = regard.load(bundle.folder, device="cpu", engine="torch").tag(TEXTS)
    wanted = [[*(f"{word}\t{tag}" for word, tag in zip(one.words, one.tags, strict=True)), ""] for one in tagged]
    assert run_page(out, TEXTS) == [line for lines in wanted for line in lines]
    assert len({tag for one in tagged for tag in one.tags}) > 1 or architecture.startswith("Roberta")


@pytest.mark.parametrize(("architecture", "mask"), [("BertForMaskedLM", "[MASK]"), ("RobertaForMaskedLM", "<mask>")])
def test_the_page_fills_masks_as_transformers_does(architecture: str, mask: str, tmp_path: Path) -> None:
    original = encoders.write_model(tmp_path / "original", architecture)
    _, out = exported(tmp_path, original)
    tokenizer = transformers.AutoTokenizer.from_pretrained(original)
    texts = [f"The {mask} sat on the {mask}.", f"{mask} is there", "no mask"]
    for text, line in zip(texts, run_page(out, texts), strict=True):
        ids, logits = their_logits(original, text)
        places = [place for place, i in enumerate(ids) if i == tokenizer.mask_token_id]
        best = [np.argsort(-logits[place])[:5].tolist() for place in places]
        assert json.loads(line) == [tokenizer.convert_ids_to_tokens(some) for some in best]


@pytest.mark.parametrize("task", ["embed", "classify", "tag", "fill"])
def test_a_model_with_a_vocabulary_of_regards_own(task: str, tmp_path: Path) -> None:
    """What the page writes is what Regard answers."""
    name = {"embed": "vector", "classify": "classes", "tag": "tags"}
    settings = (
        HEADS[name[task]] if task in name else {"decoder_layers": 0, "positions": "rotary", "norm_position": "pre"}
    )
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **settings)))
    out = export(bundle, "onnx", tmp_path / "out").folder
    model = regard.load(bundle.folder, device="cpu", engine="torch")
    texts = [source for source, _ in reversal_pairs(5, 6)] + [" two  spaces", "Käse, 漢"]
    if task == "fill":
        texts = ["a ___ c", "___ b", "a b___.", "___ ___"]
    mask = json.loads((out / "config.json").read_text(encoding="utf-8")).get("mask", "")
    lines = run_page(out, [text.replace("___", mask) for text in texts])
    for text, line in zip(texts, lines, strict=task != "tag"):
        if task == "embed":
            np.testing.assert_allclose(json.loads(line), model.embed(text), atol=1e-5)
        elif task == "classify":
            answer = model.classify(text)
            assert line.split("\t")[0] == answer.label
            assert float(line.split("\t")[1]) == pytest.approx(answer.probabilities[answer.label], abs=1e-5)
        elif task == "fill":
            filled = model.fill(text, k=300)
            assert not isinstance(filled, list)
            likeliest = [[one.text for one in blank] for blank in filled.blanks]
            for shown, known in zip(json.loads(line), likeliest, strict=True):
                pieces = [piece.replace("\u2581", " ").strip() or piece for piece in shown]
                assert [piece for piece in pieces if piece in known] == known[: len([p for p in pieces if p in known])]
    if task == "tag":
        tagged = model.tag(texts)
        wanted = [[*(f"{word}\t{tag}" for word, tag in zip(one.words, one.tags, strict=True)), ""] for one in tagged]
        assert lines == [line for some in wanted for line in some]


@pytest.mark.parametrize("name", ["bert", "albert-classes", "bert-tags", "bert-vector"])
def test_a_model_without_a_tokenizer_takes_ids(name: str, tmp_path: Path) -> None:
    original = make_original(name)
    original.save_pretrained(tmp_path / "original")
    _, out = exported(tmp_path, tmp_path / "original")
    lines = run_page(out, ["9 8 7", "10 11 12 13 14"])
    with torch.no_grad():
        answers = [original(torch.tensor([ids])) for ids in ([9, 8, 7], [10, 11, 12, 13, 14])]
    if name == "bert":
        assert lines == ["[]", "[]"]  # nothing says which id is a mask
    elif name == "albert-classes":
        assert [line.split("\t")[0] for line in lines] == [
            original.config.id2label[int(answer.logits.argmax())] for answer in answers
        ]
    elif name == "bert-vector":
        for line, answer in zip(lines, answers, strict=True):
            np.testing.assert_allclose(json.loads(line), answer.pooler_output[0], atol=1e-5)
    else:
        tags = [[original.config.id2label[int(i)] for i in answer.logits[0].argmax(-1)] for answer in answers]
        assert [line.split("\t")[1] for line in lines if line] == [tag for some in tags for tag in some]


# --- what is refused ---


def test_wrong_numbers_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **HEADS["vector-of-length-1"])))

    def damaged(bundle: Bundle, folder: Path) -> None:
        convert(bundle, folder)
        model = onnx.load(str(folder / MODEL))
        [weight] = [one for one in model.graph.initializer if one.name == "encoder.layers.1.feed_forward.outer.weight"]
        weight.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1.01), weight.name)
        )
        onnx.save(model, str(folder / MODEL))

    monkeypatch.setattr("regard.export.onnx_encoder.convert", damaged)
    with pytest.raises(
        RegardError, match=r"the onnx model does not compute what the original does: numbers of vectors"
    ):
        export(bundle, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_mask_or_kinds_of_tokens_that_do_nothing_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **ONE_STACK["bert"])))

    class Forgetful:
        def __init__(self, name: str, session: Any) -> None:
            self.name, self.session = name, session
            self.get_inputs, self.get_outputs = session.get_inputs, session.get_outputs

        def run(self, names: Any, given: dict[str, Any]) -> Any:
            value = np.ones if self.name == "attention_mask" else np.zeros
            return self.session.run(names, {**given, self.name: value(given[self.name].shape, np.int64)})

    for name in ("attention_mask", "token_type_ids"):
        monkeypatch.setattr(
            "regard.export.onnx_encoder.open_session", lambda *given, name=name: Forgetful(name, open_session(*given))
        )
        with pytest.raises(RegardError, match="the onnx model does not compute what the original does"):
            export(bundle, "onnx", tmp_path / "out")


def test_a_sample_that_begins_with_spaces_is_no_mistake(tmp_path: Path) -> None:
    for task, settings in {"fill": ONE_STACK["bert"], "embed": HEADS["vector"]}.items():
        bundle = save_encoder(tmp_path / task, build(tiny_config(vocab_size=345, **settings)))
        content = encoder_json(bundle, 24)
        samples = Samples([bundle.tokenizer.encode("  a b")], [[]], [[]])
        check_encoder_json(bundle, content, sample_texts(bundle, samples))


def test_another_tokenizer_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **HEADS["vector"])))

    def bare(*given: Any) -> dict[str, Any]:
        return {**encoder_json(*given), "post_processor": None}

    monkeypatch.setattr("regard.export.onnx_encoder.encoder_json", bare)
    with pytest.raises(RegardError, match=r"the exported tokenizer encodes .* to other ids than the bundle"):
        export(bundle, "onnx", tmp_path / "out")


def test_the_command_names_what_was_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **HEADS["vector"])))
    command = ["export", "--to", "onnx", "-m", str(bundle.folder)]
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    assert "numbers of vectors (in root mean squares) differ from the original by" in capfd.readouterr().out
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"model.onnx", "tokenizer.json", "config.json", "README.md"}
    refused = fails(capfd, *command, "-o", str(tmp_path / "small"), "--weights", "int8")
    assert "--weights must be one of fp32 for --to onnx, but is 'int8'" in refused


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_a_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = save_encoder(tmp_path / "bundle", build(tiny_config(vocab_size=345, **HEADS["vector"])))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs the package {package}\b.*pip install 'regard\[export\]'"):
        export(bundle, "onnx", tmp_path / "out")
