"""Fine-tuning on text and on conversations, from an imported model with its own tokenizer and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from regard.bundle import load_bundle
from regard.cli import main
from regard.data.corpus import CorpusRange
from regard.data.documents import ChatCorpus, find_texts
from regard.data.rows import RowPacking, TextRows
from regard.data.store import Column, store_in_memory
from regard.data.tokenizer import Tokenizer
from regard.errors import UserError
from regard.recipe import load_recipe, recipe_from_dict
from regard.tasks import generate
from regard.training.metrics import read_metrics
from regard.training.speed import Rate
from regard.writing.chat import Conversation
from regard.writing.chat_records import encode_chat, encode_texts
from tests import chat_models
from tests.commands import fails

CHAT = [
    {"role": "user", "content": "What is it?"},
    {"role": "assistant", "content": "A test."},
    {"role": "user", "content": "And then?"},
    {"role": "assistant", "content": "Another."},
]
# ChatML with the tag by which transformers itself finds the tokens of answers.
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return chat_models.write_model(tmp_path_factory.mktemp("models"), MARKED)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.speed.measure_rate", lambda *_: Rate(1000.0, 1000.0))


def write_chats(path: Path, chats: list[Any]) -> Path:
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return path


def loaded(folder: Path) -> Tokenizer:
    return load_bundle(folder).tokenizer


def test_the_tokens_of_answers_are_those_that_transformers_marks(models: tuple[Path, Path]) -> None:
    original, bundle = models
    theirs: Any = transformers.PreTrainedTokenizerFast.from_pretrained(original)
    expected = theirs.apply_chat_template(CHAT, return_dict=True, return_assistant_tokens_mask=True)
    tokenizer = loaded(bundle)
    ids, learnt = encode_chat(Conversation(tokenizer), tokenizer, CHAT)
    drop = len(expected["input_ids"]) - len(ids)
    assert drop in (0, 1) and ids == expected["input_ids"][drop:]
    assert learnt == expected["assistant_masks"][drop:] and 0 < sum(learnt) < len(learnt)


def test_only_answers_have_labels(models: tuple[Path, Path]) -> None:
    tokenizer = loaded(models[1])
    store = store_in_memory(
        [(json.dumps(chat),) * 2 for chat in (CHAT, CHAT[:2])], tokenizer, encode_texts, ChatCorpus.columns
    )
    rows = TextRows(store["text"], store.corpora, 16, 0, 1, seed=None, learnt=store["learnt"])
    gathered = rows.gather(np.arange(len(rows.costs)))
    learnt = store["learnt"].ids
    assert (gathered.labels >= 0).sum() == learnt.sum()
    assert gathered.labels[gathered.labels >= 0].tolist() == store["text"].ids[learnt > 0].tolist()
    text = tokenizer.decode(gathered.labels[gathered.labels >= 0])
    assert text.replace(" ", "") == "Atest.Another.Atest."
    # In training the rows of an update count the labels that they have.
    ring = TextRows(store["text"], store.corpora, 16, 0, 1, seed=3, learnt=store["learnt"])
    from regard.data.feed import Part

    parts = [Part(np.array([0, 1]), 0), Part(np.arange(2, len(ring.costs)), 0)]
    packed = RowPacking(ring).pack(parts, slice(0, 1), None)
    every = ring.gather(np.arange(len(ring.costs)))
    assert packed.count == (every.labels >= 0).sum() < packed.tokens == ring.costs.sum()


def test_a_validation_counts_the_tokens_of_answers_alone(models: tuple[Path, Path]) -> None:
    bundle = load_bundle(models[1])
    values = {"data": {"train": "x", "valid": 1, "max_length": 64}, "train": {"steps": 1, "device": "cpu", "init": "x"}}
    recipe = recipe_from_dict({"task": "generate", "model": {"preset": "init"}, **values})
    records = [(json.dumps(CHAT),) * 2]
    learnt = store_in_memory(records, bundle.tokenizer, encode_texts, ChatCorpus.columns)["learnt"].ids
    [signature] = {metric.signature for metric in generate.score_test_set(recipe, bundle, records).metrics}
    assert signature == f"tokens:{learnt.sum()}|bytes:{len('A test.' + chr(10) + 'Another.')}" and learnt.sum() < len(
        learnt
    )


def test_rows_without_a_mask_are_as_before() -> None:
    column = Column(np.array([5, 6, 7, 8, 9]), np.array([0, 3, 5]))
    corpora = [CorpusRange("x", 1.0, 0, 2)]
    plain = TextRows(column, corpora, 5, 1, 2)
    masked = TextRows(column, corpora, 5, 1, 2, learnt=Column(np.array([1, 0, 1, 0, 1]), column.offsets))
    assert plain.learns_all and not masked.learns_all
    assert masked.gather(np.array([0, 1])).labels.tolist() == [5, -1, 7, -1, -1, 9, -1]
    assert plain.gather(np.array([0, 1])).labels.tolist() == [5, 6, 7, 2, 8, 9, 2]


def test_a_template_that_rewrites_answers_is_refused(tmp_path: Path) -> None:
    template = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if loop.last or message['role'] != 'assistant' %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    _, bundle = chat_models.write_model(tmp_path, template)
    tokenizer = loaded(bundle)
    encode_chat(Conversation(tokenizer), tokenizer, CHAT[:2])
    with pytest.raises(UserError, match="train on conversations that end with their first answer"):
        encode_chat(Conversation(tokenizer), tokenizer, CHAT)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"messages": "hello"}', "must be a JSON object with messages"),
        ('{"messages": [{"role": "user"}]}', "must be a JSON object with messages"),
        ('{"messages": [{"role": "user", "content": 3}]}', "must be a JSON object with messages"),
        ('{"text": "a document"}', "must be a JSON object with messages"),
        (
            '{"messages": [{"role": "robot", "content": "x"}]}',
            "a role must be one of system, user, assistant, but is 'robot'",
        ),
        ('{"messages": [{"role": "user", "content": "x"}]}', "messages must have an answer"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "messages must have an answer"),
    ],
)
def test_wrong_conversations_are_refused_by_line(tmp_path: Path, line: str, complaint: str) -> None:
    path = write_chats(tmp_path / "chats.jsonl", [CHAT])
    path.write_text(path.read_text() + line + "\n")
    corpus = find_texts(path.name, tmp_path, "file")
    assert isinstance(corpus, ChatCorpus)
    with pytest.raises(UserError, match=f"chats.jsonl, line 2: .*{complaint}"):
        list(corpus.records())


def test_conversations_need_a_model_that_answers(
    tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_chats(tmp_path / "chats.jsonl", [[{**CHAT[0], "content": str(n)}, *CHAT[1:]] for n in range(30)])
    assert "conversations need --init" in fails(capfd, "train", str(path), "--steps", "2")
    _, bundle = chat_models.write_model(tmp_path, None)
    assert main(["train", str(path), "--init", str(bundle), "--steps", "2", "-o", str(tmp_path / "run")]) == 2
    assert "this model has no chat template" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_fine_tuning_on_chats_teaches_the_answers(
    models: tuple[Path, Path], tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    chats = [
        [{"role": "user", "content": f"{n} is {n * 7 % 13}?"}, {"role": "assistant", "content": "the test"}]
        for n in range(60)
    ]
    path, out = write_chats(tmp_path / "chats.jsonl", chats), tmp_path / "run"
    sets = ["--set", "train.device=cpu", "--set", "train.batch_tokens=512", "--set", "train.precision=fp32"]
    command = ["train", str(path), "--init", str(models[1]), "-o", str(out), "--steps", "60", "--lr", "0.01", *sets]
    assert main(command) == 0
    assert f"try it  regard generate --chat -m {out}" in capfd.readouterr().err
    valid = [record for record in read_metrics(out / "metrics.jsonl") if record["kind"] == "valid"]
    assert valid[-1]["loss"] < 0.5 * valid[0]["loss"]
    assert valid[-1]["samples"][0]["continuation"] == "the test" != valid[0]["samples"][0]["continuation"]
    assert load_recipe(out / "recipe.toml").data.valid == 3
    held_out = [json.loads(line) for line in (out / "heldout" / "valid.jsonl").read_text().splitlines()]
    assert len(held_out) == 3 and held_out[0]["messages"][1]["content"] == "the test"
    # What was learnt goes with the template.
    assert main(["generate", "-m", str(out), "--chat", "5 is 9?", "--temperature", "0"]) == 0
    assert capfd.readouterr().out.strip() == "the test"


def test_of_few_conversations_one_is_held_out_as_a_whole(
    models: tuple[Path, Path], tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    chats = [[{**CHAT[0], "content": str(number)}, *CHAT[1:]] for number in range(5)]
    path, out = write_chats(tmp_path / "chats.jsonl", chats), tmp_path / "run"
    command = [
        "train",
        str(path),
        "--init",
        str(models[1]),
        "-o",
        str(out),
        "--steps",
        "2",
        "--set",
        "train.device=cpu",
    ]
    assert main([*command, "--valid", "0.2"]) == 2
    assert "conversations are held out as a whole" in capfd.readouterr().err
    assert main(command) == 0
    [held_out] = [json.loads(line) for line in (out / "heldout" / "valid.jsonl").read_text().splitlines()]
    assert held_out["messages"] in chats


def test_fine_tuning_on_text_keeps_the_tokenizer(
    models: tuple[Path, Path], tmp_path: Path, quick: None, capfd: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "notes.txt", tmp_path / "run"
    path.write_text("The test is the test that is a test.\n" * 200)
    sets = ["--set", "train.device=cpu", "--set", "train.batch_tokens=512", "--set", "data.max_length=64"]
    assert (
        main(["train", str(path), "--init", str(models[1]), "-o", str(out), "--steps", "20", "--lr", "0.01", *sets])
        == 0
    )
    valid = [record for record in read_metrics(out / "metrics.jsonl") if record["kind"] == "valid"]
    assert valid[-1]["loss"] < valid[0]["loss"]
    assert loaded(out / "model").fingerprint == loaded(models[1]).fingerprint
    assert loaded(out / "model").chat is not None
