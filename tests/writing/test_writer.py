"""Continuations as text: against transformers on the same weights, streamed and whole, stop strings, options and refusals."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import regard
from regard.api import Model
from regard.cli import main
from regard.data.tokenizer import Tokenizer
from regard.errors import InputError, UserError
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, Hypothesis, OnFinished, SearchOptions
from regard.importing.tokenizer import read_tokenizer
from regard.importing.transformers import import_model
from regard.writing.options import WritingOptions, writing_options
from regard.writing.writer import GrowingText, Writer
from tests import json_tokenizers
from tests.commands import fails

KINDS = {
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, {"n_embd": 32, "n_layer": 2, "n_head": 2}),
    "llama3": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig,
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
    ),
}
PROMPTS = ["The dog", "A cat sat on the mat, and", "Die Straße 漢字"]


@pytest.fixture(scope="module", params=KINDS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of transformers with random weights, and the bundle made of it."""
    folder = tmp_path_factory.mktemp(request.param)
    json_tokenizers.write(folder / "original", request.param)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder / "original")
    make, configure, shape = KINDS[request.param]
    ends = {"bos_token_id": theirs.bos_token_id, "eos_token_id": theirs.eos_token_id, "pad_token_id": None}
    torch.manual_seed(3)
    model = make(configure(vocab_size=len(theirs), **shape, **ends))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6 if parameter.dim() > 1 else 1)  # so that texts differ from prompt to prompt
    model.save_pretrained(folder / "original")
    import_model(folder / "original", folder / "bundle")
    return folder / "original", folder / "bundle"


@pytest.fixture(scope="module")
def model(imported: tuple[Path, Path]) -> Model:
    return regard.load(imported[1])


@pytest.mark.parametrize("engine", ["torch", "ctranslate2-fp32"])
def test_the_likeliest_text_is_that_of_transformers(imported: tuple[Path, Path], engine: str) -> None:
    model = regard.load(imported[1], engine=engine)
    original: Any = transformers.AutoModelForCausalLM.from_pretrained(imported[0])
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(imported[0])
    found = model.continuations(PROMPTS, temperature=0, max_tokens=20)
    assert model.generate(PROMPTS, temperature=0, max_tokens=20) == [one.continuations[0].text for one in found]
    for prompt, one in zip(PROMPTS, found, strict=True):
        entered = theirs(prompt, return_tensors="pt")
        output = original.generate(**entered, max_new_tokens=20, do_sample=False)[0]
        new = output[entered["input_ids"].shape[1] :].tolist()
        assert one.num_prompt_tokens == entered["input_ids"].shape[1]
        whole = theirs.decode(output, skip_special_tokens=True)
        assert (prompt + one.continuations[0].text) == whole
        assert one.continuations[0].reason == ("end" if new[-1] == theirs.eos_token_id else "length")


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 4}, {"beam": 3}], ids=["greedy", "sample", "beam"])
def test_streaming_ends_with_the_same_text(model: Model, options: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        growing = list(model.follow(prompt, max_tokens=20, **options))
        assert growing[-1] == model.generate(prompt, max_tokens=20, **options)
        assert all(late.startswith(early) for early, late in pairwise(growing))
        assert len(growing) > 3 or "beam" in options


def test_the_same_seed_gives_the_same_samples(model: Model) -> None:
    [one] = model.continuations("The dog", n=4, seed=11, max_tokens=10)
    assert len({found.text for found in one.continuations}) > 1
    assert model.continuations(["A cat", "The dog"], n=4, seed=11, max_tokens=10)[1] == one
    drawn = {model.generate("The dog", max_tokens=10) for _ in range(5)}
    assert len(drawn) > 1, "without a seed each sample is another"


def test_log_probabilities_of_tokens_add_up(model: Model) -> None:
    for written in model.continuations(PROMPTS, n=2, seed=1, max_tokens=12, token_log_probs=True):
        for one in written.continuations:
            assert "".join(token.text for token in one.tokens) == one.text
            if one.reason == "length":
                assert sum(token.log_prob for token in one.tokens) == pytest.approx(one.log_prob, abs=1e-3)


def test_a_prefix_begins_every_continuation(model: Model) -> None:
    text = model.generate("The dog", prefix=" and", temperature=0, max_tokens=8)
    assert isinstance(text, str) and text.startswith(" and")
    assert text[4:] == model.generate("The dog and", temperature=0, max_tokens=8)
    assert list(model.follow("The dog", prefix=" and", temperature=0, max_tokens=8))[-1] == text


def test_phrases_appear(model: Model) -> None:
    text = model.generate("The dog", phrases=["mat"], temperature=0, max_tokens=20)
    assert re.search(r"\bmat\b", text), "whole words"
    assert list(model.follow("The dog", phrases=["mat"], temperature=0, max_tokens=20))[-1] == text


def test_several_phrases_appear_in_samples(model: Model) -> None:
    for seed in range(4):
        text = model.generate("The dog", phrases=["mat", "cat"], seed=seed, max_tokens=30)
        assert re.search(r"\bmat\b", str(text)) and re.search(r"\bcat\b", str(text))


def test_an_empty_prompt_begins_a_text(model: Model) -> None:
    assert model.generate(seed=1, max_tokens=5) == model.generate("", seed=1, max_tokens=5)


def test_a_text_is_never_longer_than_the_model_was_made_for(imported: tuple[Path, Path], model: Model) -> None:
    longest = model.bundle.max_length
    assert TorchEngine.from_bundle(model.bundle, "cpu").context == longest
    short = Writer(model.bundle.tokenizer, TorchEngine.from_bundle(replace(model.bundle, max_length=10)))
    [written] = short.write(["The dog"], writing_options(temperature=0, max_tokens=50))
    assert written.num_prompt_tokens + written.continuations[0].num_tokens <= 10
    assert written.continuations[0].reason in ("length", "end")
    with pytest.raises(InputError, match="a prompt must have fewer than 10 tokens"):
        short.write(["The dog sat on the mat, and the cat sat on the dog, and so on"], writing_options(temperature=0))


# Stop strings


class Spelled:
    """An engine that always writes the same text, a token at a time."""

    batch, parallel, takes_phrases = 8, 1, True

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids, self.steps = tuple(ids), 0

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        return [[Hypothesis(self.ids, -1.0, -1.0)] for _ in prompts]

    def stream(
        self, prompt: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        for number in range(1, len(self.ids) + 1):
            self.steps = number
            yield self.ids[:number]
        yield self.ids

    def score(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[list[float]]:
        return [[-0.1] * (len(text) + 1) for text in texts]

    def next_log_probs(self, prompt: Sequence[int], prefix: Sequence[int]) -> list[float]:
        return []


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A tokenizer that spells rare characters in bytes."""
    lines = ["One. Two. Three, four; the cat sat on the mat."] * 20
    return Tokenizer.train(lines, 400, tmp_path_factory.mktemp("characters") / "tokenizer")


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ((), "One. Two. 漢 Three"),
        (("Three",), "One. Two. 漢 "),
        (("o. 漢",), "One. Tw"),
        (("Threes", "Four"), "One. Two. 漢 Three"),
        (("wo", "."), "One"),
        (("O",), ""),
        (("漢",), "One. Two. "),
    ],
)
def test_a_text_ends_before_a_stop_string(characters: Tokenizer, stop: tuple[str, ...], text: str) -> None:
    ids = characters.encode("One. Two. 漢 Three")
    engine = Spelled(ids)
    writer, options = Writer(characters, engine), writing_options(stop=stop, temperature=0, token_log_probs=True)
    [written] = writer.write(["the cat"], options)
    assert written.continuations[0].text == (f" {text}" if text or stop == ("O",) else text)
    assert written.continuations[0].reason == ("stop" if text != "One. Two. 漢 Three" else "end")
    assert "".join(token.text for token in written.continuations[0].tokens) == written.continuations[0].text
    growing = list(writer.follow("the cat", options))
    assert growing[-1] == written.continuations[0].text
    assert all(late.startswith(early) for early, late in pairwise(growing))
    assert not any("\ufffd" in one for one in growing), "a character of several tokens appears when it is complete"
    is_early = bool(stop) and stop != ("Three",) and written.continuations[0].reason == "stop"
    assert (engine.steps < len(ids)) == is_early, "what follows a stop string is not computed"


@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_nothing_is_computed_after_a_stop_string(imported: tuple[Path, Path], engine: str) -> None:
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    model = regard.load(imported[1], engine=engine)
    whole = [one.continuations[0] for one in model.continuations(PROMPTS, temperature=0, max_tokens=60)]
    stop = whole[1].text[10:13]
    for before, one in zip(whole, model.continuations(PROMPTS, temperature=0, max_tokens=60, stop=stop), strict=True):
        found = one.continuations[0]
        assert found.text == before.text.partition(stop)[0]
        assert (found.reason == "stop") == (stop in before.text)
        if found.reason == "stop":  # it ends with the token that completes the stop string
            tokens = len(model.bundle.tokenizer.encode(found.text + stop, "target"))
            assert found.num_tokens < before.num_tokens and found.num_tokens <= tokens + 8


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_characters_in_bytes_stay_when_the_next_is_incomplete(tmp_path: Path, cut: int) -> None:
    """Llama 2 spells them in bytes, and tokenizers shows an incomplete run as U+FFFD alone."""
    json_tokenizers.write(tmp_path, "llama2")
    tokenizer, _ = read_tokenizer(tmp_path, {}, "decoder", "gpt2", 2_000)
    ids = tokenizer.encode("a 漢字")
    growing = list(Writer(tokenizer, Spelled(ids[: len(ids) - cut])).follow("a", writing_options(temperature=0)))
    assert all(late.startswith(early) for early, late in pairwise(growing))
    assert growing[-1].lstrip() == ("a 漢字" if not cut else "a 漢\ufffd")


def test_a_long_text_is_the_text_of_all_its_ids(characters: Tokenizer) -> None:
    text = "One. Two. 漢字 Three, four; äöü the cat sat on the mat. " * 8
    ids = characters.encode(text)
    growing, before = GrowingText(characters, characters.encode("the cat")), characters.encode("the cat")
    for number in range(len(ids) + 1):
        whole = characters.decode([*before, *ids[:number]])[len("the cat") :]
        assert growing.of(ids[:number]) == whole


# Options


def test_options_say_what_they_mean() -> None:
    assert writing_options(temperature=0) == WritingOptions(SearchOptions(beam=1, alpha=0.0, max_extra=200))
    sampled = writing_options(n=3, seed=5, max_tokens=7).search
    assert (sampled.sample, sampled.beam, sampled.nbest, sampled.temperature, sampled.top_p) == (True, 3, 3, 0.8, 0.95)
    assert (sampled.seed, sampled.max_extra) == (5, 7)
    assert writing_options(beam=4, n=2).search == SearchOptions(beam=4, nbest=2, max_extra=200)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"temperature": -1}, "temperature must not be negative"),
        ({"temperature": math.nan}, "temperature must be a finite number"),
        ({"beam": 3, "top_k": 5}, "top_k is for samples"),
        ({"temperature": 0, "top_p": 0.5}, "top_p is for samples"),
        ({"temperature": 0, "n": 2}, "n must be 1"),
        ({"alpha": 1.0}, "alpha needs a beam"),
        ({"beam": 0}, "beam must be"),
        ({"beam": "3"}, "beam must be a whole number"),
        ({"n": 20_000}, "n must be at most"),
        ({"max_tokens": 20_000}, "max_tokens must be at most"),
        ({"stops": "a"}, "did you mean stop"),
        ({"n": 0}, "n must be"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"stop": ""}, "stop must not be empty"),
        ({"stop": ["a"] * 17}, "stop must have at most 16"),
        ({"topk": 5}, "did you mean top_k"),
        ({"beam": 2, "n": 3}, r"n must be at most the beam \(2\)"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        writing_options(**options)


def test_each_verb_needs_a_model_of_its_task(model: Model) -> None:
    for call in (
        lambda: model.translate("a"),
        lambda: model.score(["a"], ["b"]),
        lambda: model.align([("a", "b")]),
        lambda: model.explain("a"),
        lambda: regard.load("tests/golden/bundle-1").generate("a"),
        lambda: regard.load("tests/golden/bundle-1", task="generate"),
    ):
        with pytest.raises(UserError, match="must be a model for the task"):
            call()


# The command


def test_the_command_prints_prompt_and_continuation(
    imported: tuple[Path, Path], model: Model, capfd: pytest.CaptureFixture[str]
) -> None:
    common = ("-m", str(imported[1]), "--temperature", "0", "--max-tokens", "9")
    expected = [model.generate(prompt, temperature=0, max_tokens=9) for prompt in PROMPTS]
    assert main(["generate", PROMPTS[0], *common]) == 0
    assert capfd.readouterr().out.rstrip("\n") == _printed(PROMPTS[0] + str(expected[0])).rstrip("\n")
    assert main(["generate", *PROMPTS, *common, "--no-prompt"]) == 0
    assert capfd.readouterr().out == _printed("\n\n---\n".join(map(str, expected)) + "\n")
    assert main(["generate", *PROMPTS, *common, "--json", "--log-probs"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert [one["continuations"][0]["text"] for one in document] == expected
    assert all(one["continuations"][0]["tokens"] for one in document)


def test_the_command_reads_files(
    imported: tuple[Path, Path], model: Model, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompts.txt").write_text("The dog\nA cat\n", encoding="utf-8")
    common = ("-m", str(imported[1]), "--seed", "3", "--max-tokens", "5", "--json", "-i", str(tmp_path / "prompts.txt"))
    assert main(["generate", *common]) == 0
    [whole] = json.loads(capfd.readouterr().out)
    assert (whole["prompt"], whole["seed"]) == ("The dog\nA cat", 3)
    assert main(["generate", *common, "--lines"]) == 0
    lines = json.loads(capfd.readouterr().out)
    assert [one["prompt"] for one in lines] == ["The dog", "A cat"]
    assert lines[1]["continuations"][0]["text"] == model.generate("A cat", seed=3, max_tokens=5)


def test_the_command_refuses_in_one_line(imported: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    bundle = str(imported[1])
    assert "generate needs -m MODEL" in fails(capfd, "generate", "a")
    assert "--top-k is for samples" in fails(capfd, "generate", "a", "-m", bundle, "--beam", "2", "--top-k", "3")
    assert "--max-tokens must be at least 1" in fails(capfd, "generate", "a", "-m", bundle, "--max-tokens", "0")
    assert "regard: -n must be at least 1" in fails(capfd, "generate", "a", "-m", bundle, "-n", "0")
    draws_none = "--temperature is for samples, but a beam search draws none"
    assert draws_none in fails(capfd, "generate", "a", "-m", bundle, "--beam", "2", "--temperature", "0.5")
    assert "but got both" in fails(capfd, "generate", "a", "-m", bundle, "-i", "file.txt")
    assert "add --json" in fails(capfd, "generate", "a", "-m", bundle, "--log-probs")
    assert "must be a model for the task generate" in fails(capfd, "generate", "a", "-m", "en-de")
    assert "must be a model for the task translate" in fails(capfd, "translate", "a", "-m", bundle)


def _printed(text: str) -> str:
    from regard.escaping import escape

    return escape(text, keep="\n\t")
