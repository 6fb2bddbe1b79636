"""Labels and tags of texts: what transformers says with the same weights, long texts in windows, and the verbs."""

from __future__ import annotations

import io
import json
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.bundle import Bundle
from regard.cli import main
from regard.data.labelled import BETWEEN, TableCorpus, encode_labelled
from regard.data.labelled_batch import LabelledTexts
from regard.data.store import store_in_memory
from regard.data.windows import pair_windows
from regard.errors import UserError
from regard.importing.transformers import import_model
from regard.understanding.answers import find_spans, join_windows, log_softmax
from regard.understanding.classifier import frame_windows
from regard.understanding.tagger import cut_words
from tests.commands import fails


def vocabulary(folder: Path) -> None:
    """A WordPiece vocabulary of letters and of some words, as BERT has it."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), ".", ","]
    (folder / "vocab.txt").write_text("\n".join([*pieces, "the", "cat", "sat", "##ting"]) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 24}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


@pytest.fixture(scope="module", params=["one", "several", "number", "tags"])
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any, Any, Bundle]:
    """What kind of model it is, that of transformers and its tokenizer, and the imported one."""
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertForTokenClassification

    kind, folder = request.param, tmp_path_factory.mktemp("bert")
    problem = {"one": "single_label_classification", "several": "multi_label_classification", "number": "regression"}
    labels = ["score"] if kind == "number" else ["O", "B-X", "I-X"] if kind == "tags" else ["left", "right", "up"]
    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=24,
        problem_type=problem.get(kind), id2label=dict(enumerate(labels)), label2id={name: n for n, name in enumerate(labels)},
    )  # fmt: skip
    original = (BertForTokenClassification if kind == "tags" else BertForSequenceClassification)(config).eval()
    for parameter in original.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    original.save_pretrained(folder / "original")
    vocabulary(folder / "original")
    bundle = import_model(folder / "original", folder / "bundle").bundle
    return kind, original, AutoTokenizer.from_pretrained(folder / "original"), bundle


TEXTS = ["The cat sat.", "a bc, sitting", "x"]


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
@torch.no_grad()
def test_answers_are_those_of_transformers(imported: tuple[str, Any, Any, Bundle], engine: str) -> None:
    kind, original, tokenizer, bundle = imported
    model = regard.load(bundle.folder, engine=engine)
    if kind == "tags":
        words = [["the", "cat", "sitting"], ["a", "bc", ","]]
        for some, tagged in zip(words, model.tag(words), strict=True):
            inputs = tokenizer(some, is_split_into_words=True, return_tensors="pt")
            firsts = [inputs.word_ids().index(n) for n in range(len(some))]
            wanted = original(**inputs).logits[0].softmax(-1)[firsts]
            names = [original.config.id2label[int(n)] for n in wanted.argmax(-1)]
            assert list(tagged.tags) == names and tagged.words == tuple(some)
            assert tagged.probabilities == pytest.approx(wanted.max(-1).values.tolist(), abs=1e-5)
        return
    pairs = [("the cat", "sat, a b"), ("sitting", "x")]
    for text, found in zip([*TEXTS, *pairs], model.classify([*TEXTS, *pairs]), strict=True):
        inputs = tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")
        logits = original(**inputs).logits[0]
        if kind == "number":
            assert found.number == pytest.approx(float(logits), abs=1e-5)
            continue
        wanted = logits.softmax(-1) if kind == "one" else logits.sigmoid()
        by_label = {original.config.id2label[n]: float(value) for n, value in enumerate(wanted)}
        assert found.probabilities == pytest.approx(by_label, abs=1e-5)
        if kind == "one":
            assert found.labels == (max(by_label, key=lambda name: by_label[name]),)
        else:
            assert set(found.labels) == {name for name, value in by_label.items() if value >= 0.5}


def test_a_long_text_is_read_in_windows(imported: tuple[str, Any, Any, Bundle]) -> None:
    kind, _, _, bundle = imported
    model, long = regard.load(bundle.folder), "the cat sat. " * 20
    if kind == "tags":
        tagged = model.tag(long)
        assert len(tagged.tags) == 80 and tagged.windows > 3 and all(tagged.tags)
        assert model.tag("the cat").windows == 1 and model.tag("").tags == ()
        return
    found = model.classify(long)
    windows = frame_windows(bundle.tokenizer, long, 24)
    assert found.windows == len(windows) > 3 and max(len(ids) for ids, _ in windows) <= 24
    content = [i for ids, _ in windows for i in ids[1:-1]]
    assert content == bundle.tokenizer.encode(long.strip())  # nothing is lost
    outputs = list(model.classifier.engine.answers(model.classifier.read(long)))
    joined = join_windows(outputs, bundle.config.head_settings.answer)
    if kind == "number":
        assert found.number == pytest.approx(float(np.mean([one[0] for one in outputs])))
    elif kind == "one":
        wanted = np.mean([log_softmax(one) for one in outputs], axis=0)
        assert np.allclose(joined, wanted) and found.label == bundle.config.head_settings.labels[wanted.argmax()]
    both = model.classify((long, "a b"))
    assert both.windows > 3
    assert model.classify("").labels == () and model.classify("").windows == 0


def test_training_cuts_long_texts_as_the_classifier_does(imported: tuple[str, Any, Any, Bundle]) -> None:
    tokenizer, long = imported[3].tokenizer, "the cat was sitting. " * 20
    records: list[str | tuple[str, str]] = [long, "the cat", (long, "a b"), ("a b", long), (long, long), ("a", "b")]
    texts = [(one if isinstance(one, str) else BETWEEN.join(one), "0") for one in records]
    store = store_in_memory(texts, tokenizer, encode_labelled, TableCorpus.columns)
    labelled = LabelledTexts(store, tokenizer, 24, "one", 2)
    for number, one in enumerate(records):
        windows = [place for place, window in enumerate(labelled.windows) if window.record == number]
        framed = [labelled.framed(place)[:2] for place in windows]
        assert framed == [(list(ids), list(types)) for ids, types in frame_windows(tokenizer, one, 24)]
        assert [len(ids) for ids, _ in framed] == labelled.costs[windows].tolist()
    assert labelled.num_windowed == 4


def test_an_input_without_room_for_a_text_is_refused_with_what_helps_there(
    imported: tuple[str, Any, Any, Bundle],
) -> None:
    tokenizer = imported[3].tokenizer
    one = "a text needs at least 3 tokens (2 special tokens and one of the text), but the model reads 2; "
    two = "two texts need at least 5 tokens (3 special tokens and one of each text), but the model reads 4; "
    pair = "the cat", "a b"
    for text, length, said in (("the cat", 2, one), (pair, 4, two)):
        with pytest.raises(UserError, match=re.escape(said) + "use another model$"):
            frame_windows(tokenizer, text, length)
        record = text if isinstance(text, str) else BETWEEN.join(text)
        store = store_in_memory([(record, "0")], tokenizer, encode_labelled, TableCorpus.columns)
        for in_training, remedy in ((True, "raise data.max_length"), (False, "use another model")):
            with pytest.raises(UserError, match=re.escape(said + remedy) + "$"):
                LabelledTexts(store, tokenizer, length, "one", 2, in_training)
    store = store_in_memory([("the cat", "0")], tokenizer, encode_labelled, TableCorpus.columns)
    assert LabelledTexts(store, tokenizer, 4, "one", 2).costs.tolist() == [4]  # pairs, which need more, do not occur


def test_windows_cover_everything(imported: tuple[str, Any, Any, Bundle]) -> None:
    tokenizer = imported[3].tokenizer
    ids = tokenizer.encode("the cat was sitting. " * 20)
    for first, second, room in ((3, 50, 10), (50, 3, 10), (30, 40, 11), (4, 4, 8)):
        pairs = pair_windows(ids[:first], ids[:second], room, tokenizer)
        for side, size in ((0, first), (1, second)):
            assert {n for pair in pairs for n in range(*pair[side])} == set(range(size))
        assert all(a[1] - a[0] + b[1] - b[0] <= room for a, b in pairs)
    lengths = [1, 3, 2, 5, 1, 1, 4, 2, 2, 3]
    windows = cut_words(lengths, 8)
    assert {n for window in windows for n in range(*window)} == set(range(10))
    assert all(sum(lengths[start:stop]) <= 8 for start, stop in windows)
    assert any(first[1] > second[0] for first, second in pairwise(windows))


def test_spans_are_those_of_conlleval() -> None:
    tags = ["B-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER", "I-PER"]
    assert find_spans(tags) == [("PER", 0, 2), ("PER", 2, 3), ("LOC", 4, 5), ("PER", 5, 7)]


def test_the_verbs_print_labels_and_tags(
    imported: tuple[str, Any, Any, Bundle],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kind, _, _, bundle = imported
    verb, folder = ("tag" if kind == "tags" else "classify"), str(bundle.folder)
    (tmp_path / "in.txt").write_text("the cat\nx\n", encoding="utf-8")
    assert main([verb, "-m", folder, "the cat", "x"]) == 0
    by_argument = capfd.readouterr().out
    assert main([verb, "-m", folder, "-i", str(tmp_path / "in.txt")]) == 0
    assert capfd.readouterr().out == by_argument
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the cat\nx\n")))
    assert main([verb, "-m", folder]) == 0
    assert capfd.readouterr().out == by_argument
    said = fails(capfd, verb, "-m", folder, "the cat", str(tmp_path / "in.txt"))
    assert f"in.txt is a file; -i {tmp_path / 'in.txt'} reads the texts in it" in said
    assert main([verb, "-m", folder, "--json", "the cat " * 30]) == 0
    captured = capfd.readouterr()
    [document] = json.loads(captured.out)
    assert document["windows"] > 1 and "note: 1 text is longer than 24 tokens" in captured.err
    if kind == "tags":
        assert by_argument.count("\n") == 4 and [one["word"] for one in document["words"][:2]] == ["the", "cat"]
        assert main([verb, "-m", folder, "--spans", "the cat"]) == 0
    elif kind == "number":
        assert float(by_argument.split("\t")[0]) == pytest.approx(
            regard.load(folder).classify("the cat").number, abs=1e-3
        )
        assert "--top is for labels" in fails(capfd, verb, "-m", folder, "x", "--top", "2")
    else:
        assert main([verb, "-m", folder, "x", "--top", "3"]) == 0
        assert capfd.readouterr().out.count(", ") == 2
    if kind == "one":
        assert "threshold is for models with several labels" in fails(
            capfd, verb, "-m", folder, "x", "--threshold", "0.2"
        )
    if kind == "several":
        assert main([verb, "-m", folder, "--json", "x", "--threshold", "0.001"]) == 0
        assert len(json.loads(capfd.readouterr().out)[0]["labels"]) == 3


def test_a_table_scores_a_model(
    imported: tuple[str, Any, Any, Bundle], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kind, _, _, bundle = imported
    model = regard.load(bundle.folder)
    if kind == "tags":
        path = tmp_path / "a.conll"
        words = ["the", "cat", "sat"]
        path.write_text("".join(f"{w}\t{t}\n" for w, t in zip(words, model.tag([words])[0].tags, strict=True)), "utf-8")
    else:
        path = tmp_path / "a.jsonl"
        rows = []
        for text in TEXTS:
            found = model.classify(text)
            label = found.number if kind == "number" else list(found.labels) if kind == "several" else found.label
            rows.append(json.dumps({"text": text, "label": label}))
        path.write_text("\n".join(rows), encoding="utf-8")
    assert main(["evaluate", "-m", str(bundle.folder), str(path), "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    metrics, labels = found["metrics"], found["labels"]
    assert bool(labels) == (kind in ("one", "several"))  # the tags are all O, and no span is one
    if kind == "one":
        answers = [model.classify(text).label for text in TEXTS]
        assert {one["label"]: one["right"] for one in labels} == {label: answers.count(label) for label in answers}
        assert {one["f1"] for one in labels} == {100.0}
    first = next(iter(metrics.values()))
    assert first["score"] == pytest.approx(100.0) or kind in ("tags", "several")
    if "accuracy" in metrics:
        assert metrics["accuracy"]["score"] == 100.0
    if kind == "tags":
        path.write_text("the\tB-X\ncat\tI-X\nsat\tO\n", "utf-8")
    assert main(["evaluate", "-m", str(bundle.folder), str(path)]) == 0
    shown = capfd.readouterr().out
    assert ("precision  recall" in shown) == (kind != "number")
    assert kind != "tags" or re.search(r"^X +1 +0\.00 +0\.00 +0\.00$", shown, re.MULTILINE)
    assert "leave out --reference" in fails(capfd, "evaluate", "-m", str(bundle.folder), str(path), "--reference", "x")


def test_models_of_other_tasks_are_refused(
    imported: tuple[str, Any, Any, Bundle], capfd: pytest.CaptureFixture[str]
) -> None:
    kind, _, _, bundle = imported
    other = "classify" if kind == "tags" else "tag"
    assert f"must be a model for the task {other}" in fails(capfd, other, "-m", str(bundle.folder), "x")
    with pytest.raises(UserError, match="engine torch-int8 is for language models"):
        regard.load(bundle.folder, engine="torch-int8")
    wrong: Any = [3]
    model = regard.load(bundle.folder)
    with pytest.raises(TypeError, match=r"must be"):
        model.tag(wrong) if kind == "tags" else model.classify(wrong)
