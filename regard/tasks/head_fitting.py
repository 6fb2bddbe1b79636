"""A new head for labels, fitted before the first step: regression from the vectors of the encoder to the labels. Training
then starts from a sensible answer; a random head would distort the encoder while it learns (Kumar et al. 2022, "Fine-Tuning can
Distort Pretrained Features and Underperform Out-of-Distribution")."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from regard.data.labelled_batch import LabelledTexts
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.models.heads import SequenceHead, TagHead
from regard.models.transformer import Transformer
from regard.progress import progress
from regard.tasks.regression import Dense, fit_linear
from regard.understanding.label_inputs import as_input

MAX_TOKENS = 300_000  # of the texts to fit on; of more text a part is taken, spread evenly
STRENGTHS = (1.0, 10.0, 100.0, 1000.0)  # inverse penalties to choose from
HELD_OUT = 10  # every tenth text chooses the strength
FEWEST = 50  # texts to choose it with
ITERATIONS = 40


def fit_new_head(model: Transformer, texts: LabelledTexts, class_weights: Tensor, device: torch.device) -> None:
    """Set the head's output layer to the regression on these texts."""
    head = model.head
    assert isinstance(head, SequenceHead | TagHead) and head.output is not None
    vectors, targets, records = head_inputs(copy.deepcopy(model).to(device), texts, device)
    center = vectors.mean(dim=0)
    scale = (vectors - center).norm(dim=1).mean().clamp(min=1e-6)
    weights, bias = _fit((vectors - center) / scale, targets, records, texts, class_weights)
    with torch.no_grad():
        head.output.weight.copy_((weights / scale).T)
        head.output.bias.copy_(bias - center @ weights / scale)


def head_inputs(model: Transformer, texts: LabelledTexts, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """What the output layer gets, (rows, d_model), the target of each row and its record. Rows are windows of texts or, with tags,
    their words."""
    step = max(1, -(-int(texts.costs.sum()) // MAX_TOKENS))
    windows = range(0, len(texts.windows), step)
    engine = TorchEncoder(model, device=device, in_training=True, before_output=True)
    inputs = [as_input(model.config, texts.framed(window)[:2]) for window in windows]
    with progress("fitting the head", len(inputs), "texts") as on_progress:
        found = engine.answers(inputs, lambda numbers: on_progress(len(numbers)))
    records = torch.tensor([texts.windows[window].record for window in windows])
    if not texts.has_tags:
        return torch.from_numpy(np.asarray(found)), texts.targets[records], records
    tags = [np.array(texts.tags(window)) for window in windows]
    rows = np.concatenate([vectors[own >= 0] for vectors, own in zip(found, tags, strict=True)])
    words = torch.tensor([int((own >= 0).sum()) for own in tags])
    targets = torch.from_numpy(np.concatenate([own[own >= 0] for own in tags]))
    return torch.from_numpy(rows), targets, records.repeat_interleave(words)


def _fit(
    vectors: Tensor, targets: Tensor, records: Tensor, texts: LabelledTexts, class_weights: Tensor
) -> tuple[Tensor, Tensor]:
    """With the strength that predicts held-out texts best; all rows of a text are on the same side."""

    def fit(rows: Tensor, strength: float) -> tuple[Tensor, Tensor]:
        return fit_linear(
            Dense(vectors[rows]), targets[rows], texts.answer, texts.num_labels, strength, ITERATIONS, class_weights
        )

    everything = torch.arange(len(vectors))
    distinct, number = records.unique(return_inverse=True)
    if len(distinct) < FEWEST:
        return fit(everything, STRENGTHS[1])
    is_held_out = number % HELD_OUT == HELD_OUT - 1
    kept, held_out = everything[~is_held_out], everything[is_held_out]
    losses = []
    for strength in STRENGTHS:
        weights, bias = fit(kept, strength)
        losses.append(_loss(vectors[held_out] @ weights + bias, targets[held_out], texts.answer, class_weights))
    return fit(everything, STRENGTHS[losses.index(min(losses))])


def _loss(logits: Tensor, targets: Tensor, answer: str, class_weights: Tensor) -> float:
    if answer == "one":
        return float(functional.cross_entropy(logits, targets, class_weights))
    if answer == "several":
        return float(functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=class_weights))
    return float(functional.mse_loss(logits[:, 0], targets))
