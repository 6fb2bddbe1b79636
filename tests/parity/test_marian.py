"""Logits, greedy and beam search against Hugging Face's MarianMTModel with the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MarianMTModel

from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import SearchOptions
from regard.models.loss import linear_cross_entropy
from regard.models.transformer import Transformer
from tests.build import build, pack, pad, random_sentences, tiny_config
from tests.parity.marian import to_marian

PAD, BOS, EOS = 0, 1, 2
VOCAB_SIZE = 40
LIMIT = 60  # Regard: tokens more than the source; Marian: tokens
SENTENCES = 40


@pytest.mark.parametrize(
    "switches",
    [
        {},
        {"activation": "gelu"},
        {"activation": "silu"},
        {"output_bias": True},
        {"encoder_layers": 3, "decoder_layers": 1},
        {"tie_embeddings": False},
        {"d_model": 64, "num_heads": 2, "d_ff": 256},
    ],
    ids=["paper", "gelu", "silu", "output-bias", "deep-encoder", "untied", "wider"],
)
@torch.no_grad()
def test_logits_equal_those_of_marian(switches: dict[str, Any]) -> None:
    model = build(tiny_config(**switches))
    marian = to_marian(model, BOS, EOS, PAD)
    # Regard has no padding: that filler must not matter is Marian's affair, and is seen when it does.
    sources, targets = random_sentences([7, 1, 30, 12], seed=1), random_sentences([5, 20, 1, 9], seed=2)
    (src, src_valid), (tgt, tgt_valid) = pad(sources, PAD), pad(targets, PAD)
    theirs = marian(input_ids=src, attention_mask=src_valid.long(), decoder_input_ids=tgt).logits[tgt_valid]
    torch.testing.assert_close(model(*pack(sources), *pack(targets)), theirs, atol=2e-5, rtol=0)


def reversals(count: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 13, (count,), generator=generator).tolist()
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator) for length in lengths]


def with_end(sentences: Sequence[Tensor]) -> list[Tensor]:
    return [torch.cat((sentence, torch.tensor([EOS]))) for sentence in sentences]


def half_trained(seed: int, steps: int = 100) -> Transformer:
    """A model that has begun to learn to reverse its input: unsure of what comes next, and ending at many lengths.

    A random one nearly always says the same thing, or never ends.
    """
    model = build(tiny_config(vocab_size=VOCAB_SIZE), seed).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        sources = reversals(24, seed=1000 * seed + step)
        targets = [source.flip(0) for source in sources]
        begun = [torch.cat((torch.tensor([BOS]), target)) for target in targets]
        hidden = model.hidden(*pack(with_end(sources)), *pack(begun))
        loss = linear_cross_entropy(hidden, model.output_weight, torch.cat(with_end(targets)), 0.1)
        optimizer.zero_grad()
        (loss.total / loss.count).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module", params=[1, 2, 3])
def both(request: pytest.FixtureRequest) -> tuple[TorchEngine, MarianMTModel]:
    model = half_trained(seed=request.param)
    return TorchEngine(model, BOS, EOS), to_marian(model, BOS, EOS, PAD)


def generate(marian: Any, sources: Sequence[Tensor], **options: Any) -> tuple[list[list[int] | None], Any]:
    """What Hugging Face finds, without start and end; None for what does not end."""
    src, valid = pad(with_end(sources), PAD)
    output: Any = marian.generate(
        input_ids=src,
        attention_mask=valid.long(),
        do_sample=False,
        max_new_tokens=LIMIT + 1,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    found = []
    for row in output.sequences.tolist():
        ids = row[1:]
        found.append(ids[: ids.index(EOS)] if EOS in ids else None)
    return found, output


def search(engine: TorchEngine, sources: Sequence[Tensor], **options: Any) -> list[Any]:
    return engine.translate(
        [source.tolist() for source in sources], SearchOptions(alpha=0.0, max_extra=LIMIT, **options)
    )


def comparable(found: list[Any], expected: list[list[int] | None]) -> list[tuple[list[int], list[int]]]:
    """The pairs that ended by themselves on both sides: at a limit, the two searches do different things."""
    pairs = [(list(ours[0].ids), theirs) for ours, theirs in zip(found, expected, strict=True)]
    return [(ours, theirs) for ours, theirs in pairs if theirs is not None and len(ours) <= LIMIT]


def assert_worth_comparing(found: list[list[int]]) -> None:
    assert len(found) >= 20
    assert len({len(ids) for ids in found}) >= 6, "of many lengths"
    assert len({tuple(ids) for ids in found}) >= 15, "and not all alike"


def test_greedy_search_equals_marians_token_for_token(both: tuple[TorchEngine, MarianMTModel]) -> None:
    engine, marian = both
    sources = reversals(SENTENCES, seed=1)
    expected, _ = generate(marian, sources, num_beams=1)
    found = search(engine, sources, beam=1)
    pairs = comparable(found, expected)
    assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]
    assert_worth_comparing([ours for ours, _ in pairs])


def test_beam_search_equals_marians_token_for_token(both: tuple[TorchEngine, MarianMTModel]) -> None:
    engine, marian = both
    sources = reversals(SENTENCES, seed=2)
    expected, output = generate(marian, sources, num_beams=4, length_penalty=0.0, early_stopping=False)
    found = search(engine, sources, beam=4)
    pairs = comparable(found, expected)
    assert [ours for ours, _ in pairs] == [theirs for _, theirs in pairs]
    assert_worth_comparing([ours for ours, _ in pairs])
    for ours, theirs, score in zip(found, expected, output.sequences_scores.tolist(), strict=True):
        assert list(ours[0].ids) != theirs or ours[0].log_prob == pytest.approx(score, abs=1e-4)
    greedy = search(engine, sources, beam=1)
    assert sum(a[0].ids != b[0].ids for a, b in zip(found, greedy, strict=True)) >= 5, "a beam finds other translations"


def test_the_four_best_equal_marians_in_order_and_score(both: tuple[TorchEngine, MarianMTModel]) -> None:
    engine, marian = both
    sources = reversals(SENTENCES, seed=3)
    flat, output = generate(
        marian, sources, num_beams=4, num_return_sequences=4, length_penalty=0.0, early_stopping=False
    )
    scores = output.sequences_scores.view(-1, 4).tolist()
    compared = 0
    for number, ours in enumerate(search(engine, sources, beam=4, nbest=4)):
        expected = flat[4 * number : 4 * number + 4]
        if None not in expected and all(len(hypothesis.ids) <= LIMIT for hypothesis in ours):
            compared += 1
            assert [list(hypothesis.ids) for hypothesis in ours] == expected
            assert [hypothesis.log_prob for hypothesis in ours] == pytest.approx(scores[number], abs=1e-4)
    assert compared >= 20
