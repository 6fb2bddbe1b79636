"""Continuations beside those of transformers' `generate` on the same weights, for prompts of different lengths in one batch: the
likeliest token each time, beams, samples, rules about repetition; and decoders with a source."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from regard.export import export
from regard.families import FAMILIES
from regard.families.table import from_theirs
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, Hypothesis, SearchOptions
from regard.generate.search.seeds import sentence_rng
from regard.importing.transformers import import_model
from regard.models.transformer import Transformer
from tests.families.checkpoints import CASES, PIECES, find_goldens, make_original, read_golden

DECODERS = [name for name, (architecture, _) in CASES.items() if architecture.endswith(("CausalLM", "LMHeadModel"))]
BOTH = [name for name, (architecture, _) in CASES.items() if "Conditional" in architecture]
GOLDENS = find_goldens()
STAGED = ["gpt2", "llama", "gptj", "falcon", "cohere-as-palm"]
LIMIT = 14


def make_prompts(lengths: Sequence[int], seed: int = 1) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(8, PIECES) for _ in range(length)] for length in lengths]


PROMPTS = make_prompts([1, 9, 4, 17, 9, 2])


def make_ours(original: Any) -> Transformer:
    family = FAMILIES[original.config.model_type]
    config = family.config(original.config.to_dict(), type(original).__name__)
    model = Transformer(config)
    weights = {name: value.clone() for name, value in original.state_dict().items()}
    model.load_state_dict(from_theirs(family.entries(config), weights))
    return model.eval()


@cache
def both(name: str) -> tuple[Any, Transformer]:
    """A model of transformers, and the same of ours."""
    if not name.startswith("staged-"):
        original = make_original(name)
        return original, make_ours(original)
    assert GOLDENS is not None
    folder = GOLDENS / "made-here" / name.removeprefix("staged-")
    golden = read_golden(folder)
    model = Transformer(golden.config)
    model.load_state_dict(golden.weights)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), model.eval()


every_decoder = pytest.mark.parametrize(
    "name",
    [
        *DECODERS,
        *(
            pytest.param(
                f"staged-{name}",
                marks=pytest.mark.skipif(GOLDENS is None, reason="no staged checkpoints: set REGARD_GOLDENS"),
            )
            for name in STAGED
        ),
    ],
)


def theirs(original: Any, prompts: Sequence[Sequence[int]], ends: Sequence[int], **options: Any) -> list[list[int]]:
    """What transformers continues with, without ends; prompts are padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    given = {"max_new_tokens": LIMIT, "do_sample": False, "num_beams": 1, "pad_token_id": 0, "top_k": 0, **options}
    # A model's own ends and starts are not meant.
    original.generation_config = transformers.GenerationConfig()
    found = original.generate(input_ids=ids, attention_mask=mask, eos_token_id=list(ends) or None, **given)
    return [until(row, ends) for row in found[:, longest:].tolist()]


def until(row: list[int], ends: Sequence[int]) -> list[int]:
    return row[: next((n for n, token in enumerate(row) if token in ends), len(row))]


def ours(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    batch: int = 0,
    slots: bool = False,
    **options: Any,
) -> list[list[Hypothesis]]:
    end, *stops = ends or [-1]
    engine = TorchEngine(model, -1, end, stop_ids=stops, batch=batch, slots=slots)
    return engine.generate(prompts, SearchOptions(**{"beam": 1, "alpha": 0.0, "max_extra": LIMIT, **options}))


@cache
def ends_of(name: str) -> tuple[int, int]:
    """Two tokens that some continuations have, so that some end early and others at their limit."""
    found = theirs(both(name)[0], PROMPTS, ())
    seen = [row[5] for row in found]
    return seen[0], next(token for token in [*seen, *range(PIECES)] if token != seen[0])


@every_decoder
@pytest.mark.parametrize("count", [0, 1, 2], ids=["no-end", "one-end", "two-ends"])
def test_greedy_continuations_are_those_of_transformers(name: str, count: int) -> None:
    original, model = both(name)
    ends = ends_of(name)[:count]
    expected = theirs(original, PROMPTS, ends)
    found = ours(model, PROMPTS, ends)
    assert [list(one.ids) for [one] in found] == expected
    assert [one.ended for [one] in found] == [len(row) < LIMIT for row in expected]
    assert not count or any(len(row) < LIMIT for row in expected)
    assert found == [ours(model, [prompt], ends)[0] for prompt in PROMPTS]  # alone: the same bits


@every_decoder
def test_beams_find_what_those_of_transformers_find(name: str) -> None:
    original, model = both(name)
    ends = ends_of(name)[:1]
    options = {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.0, "early_stopping": False}
    expected = theirs(original, PROMPTS, ends, **options)
    found = ours(model, PROMPTS, ends, beam=4, nbest=3)
    assert [list(one.ids) for some in found for one in some] == expected


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj", "falcon", "cohere"])
@pytest.mark.parametrize("beam", [1, 4])
def test_slots_find_what_transformers_finds(name: str, beam: int) -> None:
    """Two slots for six prompts, which enter as others leave."""
    original, model = both(name)
    ends = ends_of(name)
    expected = theirs(original, PROMPTS, ends, num_beams=beam, length_penalty=0.0, early_stopping=False)
    found = ours(model, PROMPTS, ends, batch=2, slots=True, beam=beam)
    assert [list(one.ids) for [one] in found] == expected
    assert beam > 1 or len({len(row) for row in expected}) > 1  # some end early


@pytest.mark.parametrize("name", ["gpt2", "llama", "cohere"])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"no_repeat": 2}, {"no_repeat_ngram_size": 2}),
        ({"repetition_penalty": 1.7}, {"repetition_penalty": 1.7}),
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
    ],
    ids=str,
)
def test_repetition_counts_the_prompt_as_in_transformers(name: str, options: Any, named: Any) -> None:
    original, model = both(name)
    prompts = [[9, 10, 9, 10, 9], [11, 12, 13], [20] * 6, [30, 31, 30, 33, 30, 31, 30]]
    ends = ()  # those in a prompt would count there, and do not here
    # One at a time, since transformers counts padding, too.
    expected = [row for prompt in prompts for row in theirs(original, [prompt], ends, **named)]
    assert [list(one.ids) for [one] in ours(model, prompts, ends, **options)] == expected
    assert expected != theirs(original, prompts, ends)  # it made a difference


@pytest.fixture
def our_chances(monkeypatch: pytest.MonkeyPatch) -> list[random.Random]:
    """Lets transformers draw with our random numbers, of which each row has its own: the likeliest tokens first."""
    chances: list[random.Random] = []

    def multinomial(probs: Tensor, num_samples: int) -> Tensor:
        assert num_samples == 1
        uniform = torch.tensor([[chance.random()] for chance in chances], dtype=torch.float64)
        values, tokens = probs.double().sort(dim=-1, descending=True, stable=True)
        cumulative = values.cumsum(dim=-1)
        return tokens.gather(1, (cumulative <= uniform * cumulative[:, -1:]).sum(dim=-1, keepdim=True))

    monkeypatch.setattr(torch, "multinomial", multinomial)
    return chances


class Turns(random.Random):
    """One random number after the other for the samples of a prompt, in turns."""

    def __init__(self, shared: random.Random) -> None:
        self.shared = shared

    def __new__(cls, shared: random.Random) -> Turns:
        return super().__new__(cls)

    def random(self) -> float:
        return self.shared.random()


@pytest.mark.parametrize("name", ["gpt2", "llama", "gptj", "falcon", "cohere"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 12, "top_p": 0.8, "temperature": 1.5},
    ],
    ids=str,
)
def test_samples_are_those_of_transformers_with_the_same_chances(
    name: str, options: dict[str, Any], our_chances: list[random.Random]
) -> None:
    original, model = both(name)
    ends, samples = ends_of(name)[:1], 3
    for prompt in PROMPTS:
        shared = sentence_rng(5, prompt)
        our_chances += [Turns(shared)] * samples
    expected = theirs(original, PROMPTS, ends, do_sample=True, num_return_sequences=samples, **options)
    found = ours(model, PROMPTS, ends, beam=samples, nbest=samples, sample=True, seed=5, **options)
    for number, some in enumerate(found):
        rows = expected[samples * number : samples * (number + 1)]
        assert sorted(list(one.ids) for one in some) == sorted(rows)
    assert len({tuple(row) for row in expected}) > len(PROMPTS)


@every_decoder
@torch.no_grad()
def test_log_probabilities_are_those_of_transformers(name: str) -> None:
    original, model = both(name)
    engine = TorchEngine(model, -1, ends_of(name)[0])
    texts = make_prompts([5, 1, 0, 8, 3, 6], seed=3)
    scored = engine.score(PROMPTS, texts)
    for prompt, text, values in zip(PROMPTS, texts, scored, strict=True):
        ids = [*prompt, *text]
        log_probs = torch.log_softmax(original(input_ids=torch.tensor([ids])).logits[0], dim=-1)[len(prompt) - 1 :]
        labels = [*text, ends_of(name)[0]]
        assert values == pytest.approx([float(log_probs[n, token]) for n, token in enumerate(labels)], abs=1e-4)
        assert engine.next_log_probs(prompt, text) == pytest.approx(log_probs[-1].tolist(), abs=1e-4)


# --- decoders with a source ---


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("beam", [1, 3])
def test_decoders_with_a_source_find_what_those_of_transformers_find(name: str, beam: int) -> None:
    original, model = both(name)
    start, end = 0, 2
    sources = make_prompts([5, 11, 2, 8], seed=4)
    original.generation_config = transformers.GenerationConfig()
    longest = max(map(len, sources)) + 1
    ids = torch.tensor([[*source, end] + [1] * (longest - len(source) - 1) for source in sources])
    mask = torch.tensor([[1] * (len(source) + 1) + [0] * (longest - len(source) - 1) for source in sources])
    found = original.generate(
        input_ids=ids, attention_mask=mask, decoder_start_token_id=start, eos_token_id=end, pad_token_id=1, num_beams=beam,
        max_new_tokens=LIMIT, length_penalty=0.0, early_stopping=False, do_sample=False,
        use_cache=model.config.encoder_layers == model.config.decoder_layers,  # else the cache of T5 is too small there
    )  # fmt: skip
    expected = [until(row, [end]) for row in found[:, 1:].tolist()]
    engine = TorchEngine(model, start, end)
    constraints = [Constraints(max_tokens=LIMIT)] * len(sources)
    ours = engine.translate(sources, SearchOptions(beam=beam, alpha=0.0), constraints=constraints)
    compared = [(list(some[0].ids), row) for some, row in zip(ours, expected, strict=True) if len(row) < LIMIT]
    at_limit = [(list(some[0].ids)[:LIMIT], row) for some, row in zip(ours, expected, strict=True) if len(row) == LIMIT]
    # A translation must end, those at the limit of transformers need not: beams may then choose differently.
    for mine, other in compared + (at_limit if beam == 1 else []):
        assert mine == other


@pytest.mark.parametrize("name", BOTH)
@torch.no_grad()
def test_greedy_decoding_with_a_cache_is_that_without_one(name: str) -> None:
    _, model = both(name)
    sources = make_prompts([5, 11, 2, 8], seed=5)
    engine = TorchEngine(model, 0, 2)
    found = engine.translate(sources, SearchOptions(beam=1, max_extra=6))
    for source, [one] in zip(sources, found, strict=True):
        tokens: list[int] = []
        while len(tokens) < len(source) + 6:
            log_probs = engine.next_log_probs(source, tokens)
            best = max(range(PIECES), key=log_probs.__getitem__)
            if best == 2:
                break
            tokens.append(best)
        assert list(one.ids) == tokens
        [values] = engine.score([source], [one.ids])
        assert sum(values) == pytest.approx(one.log_prob, abs=1e-4)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_an_exported_model_does_not_stop_after_twenty_tokens(name: str, tmp_path: Path) -> None:
    """transformers' own default; Regard's limit goes with the model."""
    make_original(name).save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle", compare=False).bundle
    export(bundle, "transformers", tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    limit = model.generation_config.max_length
    assert limit == min(1 + bundle.max_length + bundle.decode.max_extra, bundle.config.longest or 10**6) > 21
    if name == "bart":
        model.generation_config.eos_token_id = None
        assert model.generate(torch.tensor([[9, 8, 7]]), num_beams=1, use_cache=False).shape == (1, limit)
