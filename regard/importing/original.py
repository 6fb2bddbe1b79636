"""Compares an imported model with the original as transformers computes it: the same ids through both, output by output."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.config import ModelConfig
from regard.data.tokenizer import Tokenizer
from regard.errors import RegardError
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.settings import Pooling

TOLERANCE = 1e-4  # of the standard deviation of the original's outputs
# Other programs may differ by this multiple of what float32 changes in the original, beside float64: a deep model rounds more.
ROUNDINGS = 10
_LENGTHS = (1, 7, 24)
# Text that both tokenizers must agree on; without names of control tokens, which transformers reads as such.
_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  Zwei  Leerzeichen, ein\tTabulator; 3.14159 und 12,345!",
    "naïve café, 漢字かな, 😀 e\u0301",
    "I'll can't WE'VE don't",
)


@dataclass(frozen=True)
class Difference:
    """How far the outputs of two models are apart."""

    largest: float  # difference of two outputs in float32, in standard deviations of the original's
    outputs: int  # numbers compared
    in_float64: float | None = None  # the same in float64, where `largest` is beyond TOLERANCE


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """The package without its progress bars and advice; ModuleNotFoundError where it is not installed."""
    import transformers

    logging: Any = transformers.utils.logging
    had_bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Recommended: pip install sacremoses", UserWarning)
            yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if had_bars:
            logging.enable_progress_bar()


def compare_models(
    folder: Path, architecture: str, config: ModelConfig, weights: Mapping[str, Tensor], tokenizer: Tokenizer
) -> tuple[Difference | None, str]:
    """The difference between the converted model and the original, or why they were not compared; a RegardError if they differ by
    more than rounding."""
    if "T5" in architecture and not config.tie_embeddings:
        return None, "transformers 5 replaces T5's output matrix by its embedding"
    gguf = {"gguf_file": folder.name} if folder.is_file() else {}
    place = folder.parent if folder.is_file() else folder
    with ExitStack() as stack:
        try:
            transformers = stack.enter_context(quiet_transformers())
        except ModuleNotFoundError:
            return None, "the package transformers is not installed"
        try:
            theirs = getattr(transformers, architecture).from_pretrained(place, dtype=torch.float32, **gguf).eval()
        except Exception as error:  # noqa: BLE001 - its errors have many types, and an import can do without it
            return None, f"transformers does not load it ({str(error).split(chr(10))[0]})"
        if not gguf:  # transformers' reading of a tokenizer in GGUF leaves out how text is cut
            _check_tokenizer(folder, tokenizer, transformers)
    model = Transformer(config)
    model.load_state_dict(dict(weights))
    return _compare(model.eval(), theirs, tokenizer.pad_id, architecture), ""


def _compare(model: Transformer, theirs: Any, pad_id: int, architecture: str) -> Difference:
    """The difference of two models, which are in float64 afterwards if float32 does not tell a mistake from rounding."""
    inputs = _inputs(model.config, pad_id)
    found, wanted = _answers(model, theirs, inputs)
    difference = Difference(_distance(found, wanted), len(wanted))
    how, judged, allowed = "", difference.largest, TOLERANCE
    if TOLERANCE < judged < math.inf:  # not NaN
        exact, exactly_wanted = _answers(model.double(), torch.nn.Module.double(theirs), inputs)
        allowed = max(TOLERANCE, ROUNDINGS * _distance(wanted, exactly_wanted))
        in_float64 = _distance(exact, exactly_wanted)
        difference = replace(difference, in_float64=in_float64)
        if judged <= allowed:
            how, judged, allowed = "in float64 ", in_float64, TOLERANCE
    if not judged <= allowed:  # also NaN
        reason = f"{how}outputs differ by up to {judged:.2g} of their standard deviation, and only {allowed:.2g} would be rounding"
        raise RegardError(
            f"the imported model does not compute what {architecture} does: "
            f"{reason if math.isfinite(judged) else f'{how}some outputs are not finite'}; nothing was written. Please report it "
            "with its config.json"
        )
    return difference


# Token ids, token types, and the decoder's input where there is an encoder, too.
Inputs = Sequence[tuple[Tensor, Tensor, Tensor]]


def _inputs(config: ModelConfig, pad_id: int) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    # Some models give the padding no position.
    pieces = torch.tensor([i for i in range(config.vocab_size) if i != pad_id] or [0])

    def draw(count: int) -> Tensor:
        return pieces[torch.randint(len(pieces), (count,), generator=generator)]

    inputs = []
    for length in _LENGTHS:
        length = min(length, config.longest or length)
        ids, target = draw(length), draw(max(1, length // 2))
        types = torch.randint(max(1, config.front_settings.token_types), (length,), generator=generator)
        inputs.append((ids, types, target))
    return inputs


@torch.no_grad()
def _answers(model: Transformer, theirs: Any, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """All numbers that Regard's model answers, and the original's."""
    ours = [outputs(model, *one).flatten() for one in inputs]
    return torch.cat(ours), torch.cat([their_outputs(theirs, model.config, *one).flatten() for one in inputs])


def _distance(found: Tensor, wanted: Tensor) -> float:
    """The largest difference of two numbers, in standard deviations of those that are wanted; NaN if one is."""
    return float((found - wanted).abs().max() / wanted.std().clamp_min(1e-30))


def outputs(model: Transformer, ids: Tensor, types: Tensor, target: Tensor) -> Tensor:
    """What Regard's model answers: logits, (tokens, pieces); a classifier's, (1, classes); a vector, (1, d_model). `target` is the
    decoder's input where there is an encoder, too; `types` count where the model has token types."""
    layout = SequenceLayout.from_lengths([len(ids)])
    token_types = types if model.config.front_settings.token_types else None
    if len(model.config.stacks) == 2:
        return model(ids, layout, target, SequenceLayout.from_lengths([len(target)]), token_types)  # type: ignore[no-any-return]
    return model(ids, layout, token_types=token_types)  # type: ignore[no-any-return]


def their_outputs(theirs: Any, config: ModelConfig, ids: Tensor, types: Tensor, target: Tensor) -> Tensor:
    """The same of a model of transformers."""
    given: dict[str, Tensor] = {"input_ids": ids[None]}
    if len(config.stacks) == 2:
        given["decoder_input_ids"] = target[None]
    if config.front_settings.token_types:
        given["token_type_ids"] = types[None]
    found = theirs(**given)
    head = config.head_settings
    if head.kind == "vector":
        vector = _their_vector(found, head.pooling)
        return torch.nn.functional.normalize(vector, dim=-1) if head.normalize else vector
    logits: Tensor = found["prediction_logits" if "prediction_logits" in found else "logits"]
    return logits[0] if logits.ndim == 3 else logits


def _their_vector(found: Any, pooling: Pooling) -> Tensor:
    """One vector of the outputs of transformers, as sentence-transformers makes it."""
    if pooling == "tanh-first":
        pooled: Tensor = found.pooler_output
        return pooled
    hidden: Tensor = found.last_hidden_state[0]
    return hidden[:1] if pooling == "first" else hidden.mean(0, keepdim=True)


def _check_tokenizer(folder: Path, ours: Tokenizer, transformers: Any) -> None:
    """Refuse a tokenizer that gives other ids than transformers does."""
    if ours.kind != "huggingface":
        return
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in _TEXTS:
        ids = ours.frame(ours.encode(text))[0]
        if (expected := list(theirs(text)["input_ids"])) != ids:
            raise RegardError(
                f"{folder}: the tokenizer encodes {text!r} to other ids than transformers' {type(theirs).__name__} "
                f"({ids[:8]} and {expected[:8]}); nothing was written. Please report it with the tokenizer's files"
            )
