"""Chooses the heads by which a model aligns words, from held-out pairs and without word alignments by hand.

What a target word comes from is measured on the model itself: a source word is left out, and the target word whose
log-probability falls most depends on it most. That takes a forward pass for every source word, so it is done once, when a model
is written, and the heads that agree with it most often are stored in the bundle (`AlignmentHeads`).

On the built-in models this agreement ranks layers, heads and shifts as alignments by hand do (docs/results.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.aligning import AlignmentHeads
from regard.bundle import add_alignment, load_bundle
from regard.config import ModelConfig
from regard.data.corpus import Texts
from regard.data.tokenizer import Tokenizer
from regard.device import pick_device
from regard.errors import UserError
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.models.recording import cross_attention, reference_copy
from regard.models.transformer import Transformer
from regard.translation.words import TokenWords, token_words

_SENTENCES = 40  # enough for hundreds of target words
_MIN_WORDS, _MAX_TOKENS = 3, 30  # of either side
_ENOUGH = 30  # target words; with fewer, nothing is chosen
_GAIN = 0.02  # share of the target words by which more heads must agree better than fewer


@dataclass(frozen=True)
class _Sentence:
    """A pair in tokens, which word each belongs to, and what each target word depends on."""

    src: list[int]
    tgt: list[int]
    source: TokenWords
    target: TokenWords


def measure_alignment_heads(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    pairs: Sequence[Texts],
    device: torch.device,
) -> AlignmentHeads | None:
    """As `choose_alignment_heads`, for weights."""
    with torch.device("meta"):
        model = Transformer(config)
    model.load_state_dict(
        {name: weight.detach().to(device, torch.float32) for name, weight in weights.items()}, assign=True
    )
    return choose_alignment_heads(model.requires_grad_(False), tokenizer, pairs, device)


def measure_bundle(folder: str | Path, pairs: Sequence[Texts], device: str = "auto") -> AlignmentHeads:
    """Choose the heads of a bundle that was written without them, and store them in it."""
    bundle = load_bundle(Path(folder), "translate")
    chosen = choose_alignment_heads(load_model(bundle), bundle.tokenizer, pairs, pick_device(device))
    if chosen is None:
        raise UserError(
            f"pairs must have at least {_ENOUGH} words in sentences of {_MIN_WORDS} words to {_MAX_TOKENS} tokens; "
            f"give some hundred pairs of ordinary sentences"
        )
    add_alignment(bundle.folder, chosen)
    return chosen


def choose_alignment_heads(
    model: Transformer, tokenizer: Tokenizer, pairs: Sequence[Texts], device: torch.device
) -> AlignmentHeads | None:
    """The heads whose attention agrees best with what the target words of these pairs depend on; None if there is too little
    text. The model is moved to `device` and set up for translation."""
    sentences = list(_sample(tokenizer, pairs))
    if sum(len(one.target.words) for one in sentences) < _ENOUGH:
        return None
    with torch.inference_mode():
        depends = _dependence(TorchEngine(model, tokenizer.bos_id, tokenizer.eos_id, device=device), sentences)
        recorded = cross_attention(
            reference_copy(model),
            [(*one.src, tokenizer.eos_id) for one in sentences],
            [(tokenizer.bos_id, *one.tgt) for one in sentences],
            device,
        )
        # [sentence] -> (layers, num_heads, tgt_len + 1, src_words)
        by_source = [
            torch.stack(layers)[..., :-1].float().cpu() @ _membership(one.source)
            for one, layers in zip(sentences, recorded, strict=True)
        ]
    return _best(model.config, sentences, by_source, depends)


def _sample(tokenizer: Tokenizer, pairs: Sequence[Texts]) -> Iterator[_Sentence]:
    """Sentences of ordinary length, spread over the text."""
    usable = []
    for source, target, *languages in pairs:
        src, tgt = tokenizer.encode(source), tokenizer.encode(target, "target")
        src = [*tokenizer.target_tag(languages[-1]), *src] if languages and src else src
        if max(len(src), len(tgt)) <= _MAX_TOKENS and src and tgt:
            one = _Sentence(src, tgt, token_words(tokenizer, src, "source"), token_words(tokenizer, tgt, "target"))
            if min(len(one.source.words), len(one.target.words)) >= _MIN_WORDS:
                usable.append(one)
    step = max(1, len(usable) // _SENTENCES)
    yield from usable[::step][:_SENTENCES]


def _dependence(engine: TorchEngine, sentences: Sequence[_Sentence]) -> list[Tensor]:
    """For every sentence, the source word that each target word depends on most, (tgt_words,)."""
    src: list[list[int]] = []
    tgt: list[list[int]] = []
    for one in sentences:
        without = [
            [token for token, own in zip(one.src, one.source.word_of_token, strict=True) if own != word]
            for word in range(len(one.source.words))
        ]
        src += [one.src, *without]
        tgt += [one.tgt] * (1 + len(without))
    scores = iter(engine.score(src, tgt))
    most = []
    for one in sentences:
        # log-probabilities (1 + src_words, tgt_len), the first row with the whole source
        table = torch.tensor([next(scores)[:-1] for _ in range(1 + len(one.source.words))])
        falls = (table[:1] - table[1:]) @ _membership(one.target)
        most.append(falls.argmax(0))
    return most


def _best(
    config: ModelConfig, sentences: Sequence[_Sentence], by_source: Sequence[Tensor], depends: Sequence[Tensor]
) -> AlignmentHeads:
    """The best of all layers, shifted or not. Of equals the first."""
    gain = _GAIN * sum(map(len, depends))
    decoder = config.stacks["decoder"]

    def agreement(candidate: AlignmentHeads) -> int:
        return sum(
            _agreeing(one, weights[candidate.layer, list(candidate.heads)].mean(0), candidate.shift, own)
            for one, weights, own in zip(sentences, by_source, depends, strict=True)
        )

    def best_of(layer: int, shift: bool) -> tuple[int, AlignmentHeads]:
        """The best head, or the two best, or more, if they are clearly better than fewer."""
        single = [AlignmentHeads(layer, (head,), shift) for head in range(decoder.num_heads)]
        order = sorted(single, key=lambda one: -agreement(one))
        best, most = order[0], agreement(order[0])
        for count in range(2, decoder.num_heads + 1):
            candidate = AlignmentHeads(layer, tuple(sorted(one.heads[0] for one in order[:count])), shift)
            if candidate.head_order(config) is not None and (found := agreement(candidate)) > most + gain:
                best, most = candidate, found
        return most, best

    found = [best_of(layer, shift) for layer in range(decoder.layers) for shift in (False, True)]
    return max(found, key=lambda one: one[0])[1]


def _agreeing(sentence: _Sentence, steps: Tensor, shift: bool, depends: Tensor) -> int:
    """How many target words attend most to the source word that they depend on. `steps` is (tgt_len + 1, src_words)."""
    rows = steps[1:] if shift else steps[:-1]
    words = _membership(sentence.target).T @ rows
    return int((words.argmax(1) == depends).sum())


def _membership(side: TokenWords) -> Tensor:
    """(tokens, words): 1 where a token belongs to a word."""
    words = torch.tensor(side.word_of_token)
    return (words[:, None] == torch.arange(len(side.words))).float()  # a tag belongs to no word
