"""The losses of labels, against the formulas and against transformers on the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard.data.labelled_batch import LabelledBatch
from regard.families import FAMILIES
from regard.families.family import Fields
from regard.generate.engines.torch_engine import load_model
from regard.importing.transformers import import_model
from regard.layout import SequenceLayout
from regard.models.label_loss import balanced_weights, label_loss
from regard.models.token_loss import TokenLoss
from regard.tasks.labelled import loss


def test_one_label_is_weighted_smoothed_cross_entropy() -> None:
    torch.manual_seed(1)
    logits, targets = torch.randn(7, 5), torch.tensor([0, 4, 2, -1, 1, 1, 3])
    weights = torch.tensor([1.0, 0.5, 2.0, 3.0, 0.25])
    found = label_loss(logits, targets, "one", weights, smoothing=0.1)
    used = targets >= 0
    log_probs = logits.log_softmax(-1)
    spread = torch.full((7, 5), 0.1 / 5) + 0.9 * F.one_hot(targets.clamp(min=0), 5)
    wanted = -(spread * log_probs).sum(-1) * weights[targets.clamp(min=0)] * used
    assert found.total == pytest.approx(float(wanted.sum()), rel=1e-5) and found.count == 6
    assert found.nll == pytest.approx(float(F.cross_entropy(logits[used], targets[used], reduction="sum")), rel=1e-5)


def test_several_labels_are_binary_cross_entropy_and_a_number_the_squared_error() -> None:
    torch.manual_seed(2)
    logits, targets = torch.randn(6, 3), torch.randint(2, (6, 3)).float()
    found = label_loss(logits, targets, "several", torch.ones(3))
    assert found.total / found.count == pytest.approx(float(F.binary_cross_entropy_with_logits(logits, targets)))
    weighted = label_loss(logits, targets, "several", torch.tensor([2.0, 1.0, 5.0])).total
    by_hand = -(torch.tensor([2.0, 1.0, 5.0]) * targets * F.logsigmoid(logits) + (1 - targets) * F.logsigmoid(-logits))
    assert weighted == pytest.approx(float(by_hand.mean(1).sum()), rel=1e-5)
    numbers = torch.randn(6)
    assert label_loss(logits[:, :1], numbers, "number", torch.ones(1)).total == pytest.approx(
        float(((logits[:, 0] - numbers) ** 2).sum()), rel=1e-5
    )


def test_balanced_classes_count_alike() -> None:
    counts = torch.tensor([80, 15, 5, 0])
    weights = balanced_weights(counts, "one", 100)
    assert (weights * counts)[:3].tolist() == pytest.approx([100 / 3] * 3) and weights[3] == 1.0
    assert balanced_weights(counts, "several", 100).tolist() == pytest.approx([0.25, 85 / 15, 19.0, 1.0])


KINDS = {
    "one": ("single_label_classification", 4, torch.tensor([2, 0, 3])),
    "several": ("multi_label_classification", 4, torch.tensor([[0.0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]])),
    "number": ("regression", 1, torch.tensor([0.5, -1.5, 3.25])),
    "tags": ("", 3, torch.tensor([[0, 2, -100, 1, 1], [1, 1, -100, -100, -100], [2, 0, 1, -100, -100]])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

    problem, labels, wanted = KINDS[kind]
    torch.manual_seed(3)
    settings: Any = {"num_labels": labels, "problem_type": problem or None}
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
        **settings,
    )  # fmt: skip
    original = (BertForTokenClassification if kind == "tags" else BertForSequenceClassification)(config).eval()
    original.save_pretrained(tmp_path / "original")
    bundle = import_model(tmp_path / "original", tmp_path / "bundle").bundle
    assert bundle.config.head_settings.answer == ("one" if kind == "tags" else kind)
    lengths = torch.tensor([5, 2, 3])
    ids, types = torch.randint(1, 50, (3, 5)), torch.randint(2, (3, 5))
    mask = torch.arange(5) < lengths[:, None]
    theirs = original(ids, attention_mask=mask.long(), token_type_ids=types, labels=wanted).loss
    targets = torch.where(wanted < 0, -1, wanted)[mask] if kind == "tags" else wanted
    batch = LabelledBatch(ids[mask], types[mask], SequenceLayout.from_lengths(lengths), targets, torch.ones(labels))
    found = loss(load_model(bundle), batch, TokenLoss())
    assert found.total.item() / found.count == pytest.approx(theirs.item(), rel=1e-5)


def test_one_output_is_a_number_as_in_transformers() -> None:
    settings = {"vocab_size": 50, "hidden_size": 16, "num_attention_heads": 2, "id2label": {"0": "score"}}
    family = FAMILIES["bert"]
    for given, answer in (({}, "number"), ({"problem_type": "multi_label_classification"}, "several")):
        config = family.read(Fields({**settings, **given}, family.defaults), "classes")
        assert config.head_settings.answer == answer
        again = family.read(Fields(family.write(config), family.defaults), "classes")
        assert again.head_settings == config.head_settings
