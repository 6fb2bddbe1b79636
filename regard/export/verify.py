"""Checks that an exported model computes what the original does: sample sentences with their log-probabilities under the
original, in float32, are compared token by token.

What int8 does to a language model is judged by text: how much its loss rises on text that the original draws itself. On random
pieces, which no such model is made for, single tokens differ by several nats while text does not suffer: SmolLM2-135M in
CTranslate2's int8 differs by 0.58 a token there, in a novel by 0.27 up and down, and its loss on the novel rises by 0.03 nats."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from regard.bundle import Bundle
from regard.errors import RegardError
from regard.generate.options import SearchOptions, forbidden_ids

if TYPE_CHECKING:
    from torch import Tensor

SENTENCES, LONGEST = 12, 40
# The difference of log-probabilities that passes as rounding, by weight format: the largest over all tokens, but for int8 the mean.
# In sentences as odd as these, int8 may change a single token a lot, while a mistake shows in all tokens; so at most MAX_OUTLIERS
# of the tokens may differ by more than OUTLIER.
TOLERANCE = {"fp32": 1e-4, "fp16": 5e-2, "int8": 0.2}
OUTLIER, MAX_OUTLIERS = 1.0, 0.01
# What is compared, by task.
NOUNS = {
    **dict.fromkeys(("translate", "generate", "fill"), "token log-probabilities"),
    **dict.fromkeys(("classify", "tag"), "scores of labels"),
    "embed": "numbers of vectors (in root mean squares)",
}
MAX_RISE = 0.2  # of the loss on its own text, in nats a token, for a language model in int8


@dataclass(frozen=True)
class Samples:
    """Source and target ids without `<s>` and `</s>`, and the log-probabilities of the target tokens, that of `</s>` last."""

    src: list[list[int]]
    tgt: list[list[int]]
    log_probs: list[list[float]]
    is_own: bool = False  # whether a language model drew the texts in `src` itself
    task: str = "translate"
    rounding: Callable[[], float] | None = (
        None  # how far the original itself is from float64, at most; a model of one stack
    )

    @property
    def noun(self) -> str:
        """What is compared."""
        return NOUNS[self.task]


def make_samples(bundle: Bundle, weights: str = "fp32") -> Samples:
    """What an export in this weight format is judged by: for a language model in int8, texts of its own. Otherwise sentences of
    random pieces, from one piece to the longest, for translation half with the model's own output and half with random pieces:
    what the model finds likely, and what it finds unlikely."""
    from regard.generate.engines.torch_engine import TorchEngine

    if bundle.task == "generate" and weights == "int8":
        texts = own_texts(bundle)
        return Samples(texts, [[] for _ in texts], answers(bundle, texts), is_own=True, task="generate")
    tokenizer = bundle.tokenizer
    draw = random.Random(1)
    reserved = {*forbidden_ids(tokenizer), tokenizer.eos_id}
    if bundle.task != "translate":
        reserved.add(tokenizer.pad_id)  # some models give the padding no position
    pieces = [i for i in range(tokenizer.vocab_size) if i not in reserved]
    longest = max(1, min(LONGEST, bundle.max_length, (bundle.config.longest or LONGEST + 2) - 2))
    lengths = [1 + round((longest - 1) * n / (SENTENCES - 1)) for n in range(SENTENCES)]
    src = [draw.choices(pieces, k=length) for length in lengths]
    if bundle.task != "translate":
        rounding = partial(rounding_of, bundle, src)
        return Samples(src, [[] for _ in src], answers(bundle, src), task=bundle.task, rounding=rounding)
    engine = TorchEngine.from_bundle(bundle, "cpu")
    translations = engine.translate(src, SearchOptions(beam=1, max_extra=0))
    tgt = [
        list(hypotheses[0].ids) if number % 2 else draw.choices(pieces, k=draw.randint(0, longest - 1))
        for number, hypotheses in enumerate(translations)
    ]
    return Samples(src, tgt, engine.score(src, tgt))


def own_texts(bundle: Bundle) -> list[list[int]]:
    """Texts that a language model draws, each with what it begins with."""
    from regard.generate.engines.torch_engine import TorchEngine

    start = max(0, bundle.tokenizer.document_start)
    options = SearchOptions(beam=SENTENCES, nbest=SENTENCES, sample=True, max_extra=LONGEST, seed=1)
    [found] = TorchEngine.from_bundle(bundle, "cpu").generate([[start]], options)
    return [[start, *one.ids] for one in found if one.ids] or [[start, start]]


def rounding_of(bundle: Bundle, texts: list[list[int]]) -> float:
    """By how much rounding to float32 changes the answers of a model of one stack, at most."""
    exact = answers(bundle, texts, is_double=True)
    return max(_differences(exact, answers(bundle, texts), bundle.task))


def answers(bundle: Bundle, texts: list[list[int]], is_double: bool = False) -> list[list[float]]:
    """The numbers that are compared for a model of one stack, for each text: see `scores_of`."""
    import torch

    from regard.generate.engines.torch_engine import load_model
    from regard.layout import SequenceLayout

    model = load_model(bundle)
    model = model.double() if is_double else model
    with torch.no_grad():
        found = [model(torch.tensor(ids), SequenceLayout.from_lengths([len(ids)])) for ids in texts]
    return [scores_of(bundle, one, ids, []) for one, ids in zip(found, texts, strict=True)]


def scores_of(bundle: Bundle, answer: Tensor, src: list[int], tgt: list[int]) -> list[float]:
    """What is compared of a model's answer: the log-probabilities of tokens (of a translation and its end; of each next token of a
    text; of a text's own tokens, where the model fills in masked ones), of classes and tags; logits of classes that do not exclude
    each other; a vector, or a number."""
    if bundle.task == "embed" or bundle.config.head_settings.answer != "one":
        return answer.flatten().tolist()
    log_probs = (answer if answer.itemsize > 4 else answer.float()).log_softmax(-1)
    if bundle.task in ("classify", "tag"):
        return log_probs.flatten().tolist()
    wanted = {
        "translate": [*tgt, bundle.tokenizer.eos_id],
        "generate": [*src[1:], bundle.tokenizer.eos_id],
        "fill": src,
    }
    return [float(row[i]) for row, i in zip(log_probs, wanted[bundle.task], strict=True)]


@dataclass(frozen=True)
class LogProbDifference:
    """The absolute difference of log-probabilities over all tokens of the samples."""

    largest: float
    mean: float
    rise: float | None = None  # of the loss on a language model's own text, nats a token
    allowed: float = field(default=math.inf, compare=False)  # of what is judged: largest, mean or rise


def check(samples: Samples, scores: list[list[float]], weights: str, target: str) -> LogProbDifference:
    """How much the log-probabilities differ; raises if it is too much, or if one is NaN or infinite."""
    differences = _differences(samples.log_probs, scores, samples.task)
    allowed = TOLERANCE[weights]
    if weights == "fp32" and max(differences) > allowed and samples.rounding is not None:
        from regard.importing.original import ROUNDINGS

        allowed = max(allowed, ROUNDINGS * samples.rounding())  # a deep model rounds more
    difference = LogProbDifference(max(differences), sum(differences) / len(differences), allowed=allowed)
    if samples.is_own and weights == "int8":
        return _check_rise(samples, scores, difference, target)
    judged, how = (difference.mean, "an average of") if weights == "int8" else (difference.largest, "up to")
    if judged > allowed:
        raise RegardError(
            f"the {target} model does not compute what the original does: {samples.noun} differ by {how} {judged:.3g}, and "
            f"only {allowed:.3g} would be rounding; nothing was written. Please report it with the bundle's config.json"
        )
    outliers = sum(value > OUTLIER for value in differences)
    if outliers > MAX_OUTLIERS * len(differences):
        raise RegardError(
            f"the {target} model does not compute what the original does: {outliers} of {len(differences)} {samples.noun} "
            f"differ by more than {OUTLIER:g}, where one in a hundred would be rounding; nothing was written. "
            f"Please report it with the bundle's config.json"
        )
    return difference


def _differences(ours: list[list[float]], theirs: list[list[float]], task: str) -> list[float]:
    """By how much numbers differ, without sign; those of vectors in root mean squares of the original, since the numbers of a
    vector of length 1 are small."""
    found = []
    for one, other in zip(ours, theirs, strict=True):
        unit = math.sqrt(sum(number * number for number in one) / len(one)) or 1.0 if task == "embed" else 1.0
        found += [abs(a - b) / unit for a, b in zip(one, other, strict=True)]
    return [value if math.isfinite(value) else math.inf for value in found]


def _check_rise(
    samples: Samples, scores: list[list[float]], difference: LogProbDifference, target: str
) -> LogProbDifference:
    """How much higher the loss is on text that the original drew; raises if it is too much."""
    pairs = [
        (one, other)
        for ours, theirs in zip(samples.log_probs, scores, strict=True)
        for one, other in zip(ours[:-1], theirs[:-1], strict=True)  # what follows the last token was not drawn
    ]
    rise = sum(one - other for one, other in pairs) / len(pairs)
    if not rise <= MAX_RISE:  # also rejects NaN
        raise RegardError(
            f"in int8 the {target} model predicts worse: on text that the original writes, its loss is {rise:.3g} nats a token "
            f"higher, and {MAX_RISE:g} are allowed; nothing was written. Use --weights fp16 or fp32"
        )
    return LogProbDifference(difference.largest, difference.mean, rise, MAX_RISE)
