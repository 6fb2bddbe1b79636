"""How likely texts are: against log-probabilities of transformers; windows, minimal pairs, multiple choice, and the commands."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import regard
from regard.api import Model
from regard.cli import main
from regard.errors import InputError, UserError
from regard.importing.transformers import import_model
from regard.writing.scoring import Choice, MinimalPair, TextScorer, score_choices, score_pairs, total
from tests import json_tokenizers
from tests.commands import fails

TEXTS = ["The dog sat on the mat.", "A cat", "Die Straße 漢字, and so on: the dog, the cat and the mat. " * 4]
PAIRS = [
    {"sentence_good": "The dog sat.", "sentence_bad": "The dog sit.", "UID": "agreement"},
    {"sentence_good": "The cats sit.", "sentence_bad": "The cats sits.", "UID": "agreement"},
    {"sentence_good": "Who sat?", "sentence_bad": "Sat who?", "UID": "order"},
]
CHOICES = [
    {"question": "The dog sat on", "choices": ["the mat", "a cat, and so on, and on", "x"], "answer": 1},
    {"context": "The cat: ", "choices": [" and", "Straße"], "answer": 0},
]


@pytest.fixture(scope="module", params=["gpt2", "llama3"])
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of transformers with random weights and a context of 64 tokens, and the bundle made of it."""
    folder = tmp_path_factory.mktemp(request.param)
    json_tokenizers.write(folder / "original", request.param)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder / "original")
    common = {"vocab_size": len(theirs), "bos_token_id": theirs.bos_token_id, "eos_token_id": theirs.eos_token_id}
    torch.manual_seed(3)
    model: Any
    if request.param == "gpt2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **common)
        )
    else:
        shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        shape |= {"intermediate_size": 64, "max_position_embeddings": 64, "pad_token_id": None}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **common))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() > 1 else 1)
    model.save_pretrained(folder / "original")
    import_model(folder / "original", folder / "bundle")
    return folder / "original", folder / "bundle"


@pytest.fixture(scope="module")
def model(imported: tuple[Path, Path]) -> Model:
    return regard.load(imported[1], engine="torch", device="cpu")


class Theirs:
    """Log-probabilities by transformers."""

    def __init__(self, folder: Path, opening: int) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        self.tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        self.opening = opening

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def log_probs(self, ids: list[int], new: int) -> list[float]:
        """Of the last `new` of these ids."""
        with torch.no_grad():
            logits = self.model(torch.tensor([ids])).logits[0].double()
        values = torch.log_softmax(logits, -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        return [float(value) for value in values[len(values) - new :]]

    def score(self, text: str) -> float:
        ids = self.ids(text)
        return math.fsum(self.log_probs([self.opening, *ids], len(ids)))


@pytest.fixture(scope="module")
def theirs(imported: tuple[Path, Path], model: Model) -> Theirs:
    tokenizer = model.bundle.tokenizer
    return Theirs(imported[0], (*tokenizer.prompt_opening, tokenizer.bos_id)[0])


def test_texts_are_as_likely_as_in_transformers(model: Model, theirs: Theirs) -> None:
    for text, score in zip(TEXTS[:2], model.score_texts(TEXTS[:2]), strict=True):
        count, size = len(theirs.ids(text)), len(text.encode())
        expected = theirs.score(text)
        assert (score.num_tokens, score.num_bytes, score.windows) == (count, size, 1)
        assert score.log_prob == pytest.approx(expected, abs=1e-3)
        assert score.loss == pytest.approx(-expected / count, abs=1e-4)
        assert score.bits_per_byte == pytest.approx(-expected / math.log(2) / size, abs=1e-4)
        assert score.perplexity == pytest.approx(math.exp(-expected / count), rel=1e-3)


@pytest.mark.parametrize("stride", [1, 7, 32, 63])
def test_long_texts_are_read_in_windows(stride: int, model: Model, theirs: Theirs) -> None:
    """Every token once, after at least `window - stride` others: by hand, window for window."""
    [score] = model.score_texts([TEXTS[2]], stride=stride)
    whole = [theirs.opening, *theirs.ids(TEXTS[2])]
    assert len(whole) > 100
    expected, windows, place = theirs.log_probs(whole[:64], 63), 1, 64
    while place < len(whole):
        end = min(len(whole), place + stride)
        expected += theirs.log_probs(whole[max(0, end - 64) : end], end - place)
        place, windows = end, windows + 1
    assert score.num_tokens == len(expected) == len(whole) - 1 and score.windows == windows
    assert score.log_prob == pytest.approx(math.fsum(expected), abs=2e-3)


def test_several_texts_are_one(model: Model) -> None:
    scores = model.score_texts(TEXTS)
    assert total(scores).log_prob == pytest.approx(sum(one.log_prob for one in scores))
    assert total(scores).num_bytes == sum(len(text.encode()) for text in TEXTS)


def test_minimal_pairs_by_paradigm(model: Model, theirs: Theirs) -> None:
    pairs = [MinimalPair(one["sentence_good"], one["sentence_bad"], one["UID"]) for one in PAIRS]
    found = score_pairs(model.text_scorer(), pairs)
    right = [theirs.score(pair.good) > theirs.score(pair.bad) for pair in pairs]
    assert {name: (one.correct, one.count) for name, one in found.items()} == {
        "agreement": (sum(right[:2]), 2),
        "order": (int(right[2]), 1),
    }
    same = score_pairs(model.text_scorer(), [MinimalPair("The dog", "The dog", "same")])
    assert same["same"].correct == 0  # a tie is wrong


def test_choices_by_sum_and_by_byte(model: Model, theirs: Theirs) -> None:
    questions = [
        Choice("The dog sat on", ("the mat", "a cat, and so on, and on", "x"), answer) for answer in range(3)
    ] + [Choice("The cat: ", (" and", "Straße"), 0)]
    found = score_choices(model.text_scorer(), questions)
    right = normed = 0
    for question in questions:
        values = []
        for choice in question.choices:
            joined = question.context + ("" if question.context[-1] == " " or choice[0] == " " else " ") + choice
            before, whole = theirs.ids(question.context.rstrip()), theirs.ids(joined)
            values.append(math.fsum(theirs.log_probs([theirs.opening, *whole], len(whole) - len(before))))
        by_byte = [value / len(choice.encode()) for value, choice in zip(values, question.choices, strict=True)]
        right += values.index(max(values)) == question.answer
        normed += by_byte.index(max(by_byte)) == question.answer
    assert (found["acc"].correct, found["acc_norm"].correct, found["acc"].count) == (right, normed, 4)


def test_what_does_not_fit_is_refused(model: Model) -> None:
    with pytest.raises(InputError, match="a question with an answer must have at most 64 tokens"):
        score_choices(model.text_scorer(), [Choice("The dog " * 80, ("a", "b"), 0)])
    for stride in (0, 64):
        with pytest.raises(UserError, match="stride must be at least 1 and less than a window of 64 tokens"):
            model.text_scorer(stride)
    assert isinstance(model.text_scorer(63), TextScorer)


# --- the commands ---


def test_the_command_scores_files_and_lines(
    imported: tuple[Path, Path], model: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for path, text in zip(paths, (TEXTS[0], TEXTS[2]), strict=True):
        path.write_text(text + "\n", encoding="utf-8")
    common = ["-m", str(imported[1]), "--device", "cpu"]
    assert main(["score", *map(str, paths), *common, "--json"]) == 0
    printed = capfd.readouterr()
    found = json.loads(printed.out)
    expected = model.score_texts([TEXTS[0], TEXTS[2]])
    assert [one["bits_per_byte"] for one in found["texts"]] == pytest.approx([one.bits_per_byte for one in expected])
    assert found["total"]["tokens"] == sum(one.num_tokens for one in expected)
    assert (
        f"1 of 2 texts are longer than a window of 64 tokens and were read in several, 32 new tokens in each: {paths[1]}"
        in printed.err
    )
    assert main(["score", str(paths[0]), *common, "--lines"]) == 0
    header, line = capfd.readouterr().out.splitlines()
    assert "bits per byte" in header and line.startswith(f"{paths[0]}:1") and f"{expected[0].bits_per_byte:.4f}" in line


def test_the_command_evaluates_pairs_and_choices(
    imported: tuple[Path, Path], model: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, lines in (("pairs", PAIRS), ("choices", CHOICES)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    common = ["-m", str(imported[1]), "--device", "cpu", "--json"]
    assert main(["evaluate", "--pairs", str(tmp_path / "pairs.jsonl"), *common]) == 0
    found = json.loads(capfd.readouterr().out)
    expected = score_pairs(model.text_scorer(), [MinimalPair(*one.values()) for one in PAIRS])
    assert {name: one["correct"] for name, one in found["paradigms"].items()} == {
        n: one.correct for n, one in expected.items()
    }
    assert found["all"]["count"] == 3
    assert main(["evaluate", "--choices", str(tmp_path / "choices.jsonl"), *common]) == 0
    assert set(json.loads(capfd.readouterr().out)) == {"acc", "acc_norm"}


@pytest.mark.parametrize(
    ("option", "line", "complaint"),
    [
        ("--pairs", '{"sentence_good": "a"}', "line 1: sentence_bad must be a text, but is None"),
        ("--pairs", "a\tb", "line 1: must be JSON"),
        ("--pairs", "[]", "line 1: must be a JSON object, but is list"),
        ("--pairs", "", "must have at least one line"),
        (
            "--choices",
            '{"question": "a", "choices": ["b"], "answer": 0}',
            "choices must be a list of at least two texts",
        ),
        (
            "--choices",
            '{"question": "a", "choices": ["b", "c"], "answer": 2}',
            "answer must be a number from 0 to 1, but is 2",
        ),
        ("--choices", '{"choices": ["b", "c"], "answer": 1}', "question or context or ctx or query must be a text"),
    ],
)
def test_wrong_lines_are_named(
    option: str,
    line: str,
    complaint: str,
    imported: tuple[Path, Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(f"{line}\n", encoding="utf-8")
    said = fails(capfd, "evaluate", option, str(path), "-m", str(imported[1]))
    assert complaint in said and str(path) in said


def test_options_of_both_kinds_are_refused(
    imported: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle, path = str(imported[1]), tmp_path / "text.txt"
    path.write_text("\n", encoding="utf-8")
    assert "must have text, but is empty" in fails(capfd, "score", str(path), "-m", bundle)
    assert "got both" in fails(capfd, "score", str(path), "--source", str(path), "-m", bundle)
    assert "score needs FILE ..." in fails(capfd, "score", "-m", bundle)
    assert "--lines is for a language model" in fails(
        capfd, "score", "--lines", "--source", str(path), "--target", str(path), "-m", bundle
    )
    assert "leave out --reference" in fails(
        capfd, "evaluate", "--pairs", str(path), "--reference", str(path), "-m", bundle
    )
    assert "evaluate needs --pairs FILE or --choices FILE, since" in fails(capfd, "evaluate", "-m", bundle)
    path.write_text("The dog\n", encoding="utf-8")
    assert "a language model must be named" in fails(capfd, "score", str(path))
    assert "--stride must be at least 1" in fails(
        capfd, "score", str(path), "--stride", "0", "-m", bundle, "--device", "cpu"
    )
