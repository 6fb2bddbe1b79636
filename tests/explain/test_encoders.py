"""What is said about labels, tags, blanks and vectors, against the formulas, transformers and leaving words out."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.bundle import Bundle
from regard.data.labelled import split_words
from regard.errors import UserError
from regard.explain.attribution import integrated_gradients, log_odds
from regard.explain.encoder_explainer import EncoderExplainer
from regard.explain.encoder_explanation import Attribution, EncoderExplanation
from regard.explain.explanation import by_words
from regard.explain.lines import lines, window_note
from regard.generate.encoding import EncoderInput
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.importing.transformers import import_model
from regard.nn.attention import Attention
from tests import encoders
from tests.explain.encoder_models import DECIDING, text_with

TEXT = "The cat sat on the mat; who is there?"
EXAMPLES = {"classify": TEXT, "tag": TEXT, "fill": "The ___ sat on the [MASK] mat.", "embed": TEXT}


def bundle_of(models: dict[str, tuple[Path, Bundle]], task: str) -> Bundle:
    return models[task][1]


@pytest.fixture(scope="module")
def explain(encoder_models: dict[str, tuple[Path, Bundle]]) -> Callable[..., EncoderExplanation]:
    explainers = {task: EncoderExplainer(bundle) for task, (_, bundle) in encoder_models.items()}
    return lambda task, text, **options: explainers[task].explain(text, **options)


def theirs(models: dict[str, tuple[Path, Bundle]], task: str) -> tuple[Any, Any]:
    """The model of transformers, and its tokenizer."""
    kinds = {"classify": "SequenceClassification", "tag": "TokenClassification", "fill": "MaskedLM"}
    kind = f"AutoModelFor{kinds[task]}" if task in kinds else "AutoModel"
    model = getattr(transformers, kind).from_pretrained(models[task][0], attn_implementation="eager").eval()
    return model, transformers.AutoTokenizer.from_pretrained(models[task][0])


def their_parts(
    model: Any, ids: list[int], hidden: set[int], mask: int, place: int | None, number: int
) -> torch.Tensor:
    """Integrated gradients by the formula, as a sum over many points, with transformers' model: (tokens,)."""
    table = model.get_input_embeddings().weight.detach()
    text = table[ids]
    baseline = table[[mask if n in hidden else i for n, i in enumerate(ids)]]
    steps, parts = 200, torch.zeros_like(text)
    for step in range(steps):
        vectors = (baseline + (step + 0.5) / steps * (text - baseline)).requires_grad_()
        logits = model(inputs_embeds=vectors[None]).logits[0]
        row = logits if place is None else logits[place]
        odds = row[number] - torch.cat((row[:number], row[number + 1 :])).logsumexp(0)
        parts += torch.autograd.grad(odds, vectors)[0] / steps
    found: torch.Tensor = ((text - baseline) * parts).sum(1)
    return found


@pytest.mark.parametrize("task", ["classify", "tag", "fill"])
def test_parts_are_integrated_gradients_of_transformers_model(
    encoder_models: dict[str, tuple[Path, Bundle]], explain: Callable[..., EncoderExplanation], task: str
) -> None:
    found = explain(task, EXAMPLES[task])
    model, tokenizer = theirs(encoder_models, task)
    pieces = found.readings[0].side.pieces
    ids = [piece.id for piece in pieces]
    assert ids == tokenizer(EXAMPLES[task].replace("___", "[MASK]"))["input_ids"]
    assert found.attributions
    for one in found.attributions[:2]:
        word = found.predictions[one.prediction].word
        place = next((n for n, piece in enumerate(pieces) if piece.word == word), None)
        wanted = their_parts(model, ids, set(range(1, len(ids) - 1)), tokenizer.mask_token_id, place, one.id)
        scale = float(wanted.abs().max())
        torch.testing.assert_close(torch.tensor(one.pieces), wanted, atol=0.02 * scale + 1e-3, rtol=0)


@pytest.mark.parametrize("task", ["classify", "tag", "fill"])
def test_parts_sum_to_what_the_words_changed(explain: Callable[..., EncoderExplanation], task: str) -> None:
    found = explain(task, EXAMPLES[task])
    for one in found.attributions:
        assert sum(one.pieces) == pytest.approx(one.value - one.hidden_value, abs=one.error + 1e-4)
        assert one.error <= 0.02 * max(1, abs(one.value - one.hidden_value))
        assert sum(found.by_words(one)) == pytest.approx(sum(one.pieces))
        assert one.pieces[0] == one.pieces[-1] == 0  # what frames the text is not hidden
        assert one.probability == pytest.approx(1 / (1 + math.exp(-one.value)), abs=1e-5)


def test_an_integral_that_jumps_is_cut_until_it_is_complete() -> None:
    def measure(vectors: torch.Tensor) -> torch.Tensor:
        total = vectors.sum((1, 2))
        return torch.stack((torch.sigmoid(60 * (total - 0.3)), total**2), dim=1)

    vectors = torch.tensor([[0.5, 0.25], [0.125, 0.125]])
    found = integrated_gradients(measure, vectors, torch.zeros(2, 2))
    assert float(found.error.max()) < 0.01
    torch.testing.assert_close(found.parts.sum(1), found.values - found.baseline, atol=0.01, rtol=0)
    # Of a square of a sum each part is its share of it.
    torch.testing.assert_close(found.parts[1], torch.tensor([0.75, 0.25]), atol=1e-5, rtol=0)


def test_log_odds_are_those_of_the_softmax() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0])
    for number, share in enumerate(logits.softmax(0).tolist()):
        assert float(log_odds(logits, number)) == pytest.approx(math.log(share / (1 - share)), abs=1e-5)


def occluded(explainer: EncoderExplainer, one: Attribution, found: EncoderExplanation) -> list[float]:
    """How much the log-odds of the answer fall when each word is replaced by mask tokens, by words of the reading."""
    reading = found.readings[0]
    ids = [piece.id for piece in reading.side.pieces]
    engine = TorchEncoder(explainer.model)
    falls = []
    for word in range(len(reading.side.words)):
        mask = explainer.tokenizer.mask_id
        hidden = [mask if piece.word == word else piece.id for piece in reading.side.pieces]
        before, after = (torch.tensor(answer) for answer in engine.answers([EncoderInput(ids), EncoderInput(hidden)]))
        falls.append(float(log_odds(before, one.id) - log_odds(after, one.id)))
    return falls


def test_the_word_that_decides_has_the_largest_part(encoder_models: dict[str, tuple[Path, Bundle]]) -> None:
    explainer, draw = EncoderExplainer(bundle_of(encoder_models, "classify")), random.Random(3)
    ranks = []
    for deciding, label in [*DECIDING.items()] * 2:
        found = explainer.explain(text_with(deciding, draw))
        one = found.attributions[0]
        words = found.readings[0].side.words
        assert one.answer == label == found.predictions[0].candidates[0].text
        parts, falls = found.by_words(one), occluded(explainer, one, found)
        best = max(range(len(words)), key=lambda word: parts[word])
        assert words[best] == deciding
        of_text = slice(1, len(words) - 1)
        assert int(np.argmax(falls[of_text])) + 1 == best  # leaving it out says so, too
        first, second = (np.argsort(np.argsort(some[of_text])).astype(float) for some in (parts, falls))
        ranks.append(float(np.corrcoef(first, second)[0, 1]))
    assert np.mean(ranks) > 0.5


def test_another_label_another_tag_another_token(explain: Callable[..., EncoderExplanation]) -> None:
    found = explain("classify", "we saw a dog", label="other", top=1)
    assert [one.answer for one in found.attributions][:2] == ["other", "animal"]
    assert [one.text for one in found.predictions[0].candidates] == ["animal"]
    deciding = found.readings[0].side.words.index("dog")
    assert found.by_words(found.attributions[0])[deciding] < 0  # it speaks against it
    found = explain("tag", "we saw a dog", at=3, label="I-X")
    first = found.attributions[0]
    assert (found.predictions[first.prediction].word, first.answer) == (3, "I-X")
    assert len(found.attributions) == 4 and [one.text for one in found.readings[0].texts] == ["we saw a dog"]
    found = explain("fill", "The ___ sat on ___.", at=2, token="the")
    first = found.attributions[0]
    assert first.prediction == 1 and first.answer.strip() == "the"


def test_predictions_are_those_of_the_verbs(
    encoder_models: dict[str, tuple[Path, Bundle]], explain: Callable[..., EncoderExplanation]
) -> None:
    loaded = {
        task: regard.load(bundle.folder, engine="torch", device="cpu") for task, (_, bundle) in encoder_models.items()
    }
    [labels] = explain("classify", TEXT).predictions
    wanted = loaded["classify"].classify(TEXT).probabilities
    assert {one.text: one.probability for one in labels.candidates} == pytest.approx(wanted, abs=1e-5)
    tagged, found = loaded["tag"].tag(TEXT), explain("tag", TEXT)
    assert [one.candidates[0].text for one in found.predictions] == list(tagged.tags)
    assert [one.candidates[0].probability for one in found.predictions] == pytest.approx(tagged.probabilities, abs=1e-5)
    assert [found.readings[0].side.words[one.word or 0] for one in found.predictions] == list(tagged.words)
    filled, found = loaded["fill"].fill(EXAMPLES["fill"], 8), explain("fill", EXAMPLES["fill"])
    for ours, blank in zip(found.predictions, filled.blanks, strict=True):
        assert [one.text.strip() for one in ours.candidates] == [one.text for one in blank]
        assert [one.text.startswith(" ") for one in ours.candidates] == [not one.joins for one in blank]
        assert [one.probability for one in ours.candidates] == pytest.approx(
            [one.probability for one in blank], abs=1e-5
        )


def test_a_cosine_is_the_sum_over_pairs_of_words(
    encoder_models: dict[str, tuple[Path, Bundle]], explain: Callable[..., EncoderExplanation]
) -> None:
    texts = ("The cat sat on the mat.", "Who is there, she said?")
    found = explain("embed", texts)
    assert found.similarity is not None and found.text == "\t".join(texts)
    one, other = encoders.their_vectors(encoder_models["embed"][0], list(texts))
    assert found.similarity.cosine == pytest.approx(float(one @ other), abs=1e-5)
    pairs = found.word_pairs()
    assert [len(pairs), len(pairs[0])] == [len(reading.side.words) for reading in found.readings]
    assert sum(map(sum, pairs)) == pytest.approx(found.similarity.cosine, abs=1e-4)
    # The part of one pair of words: the product of the sums of their tokens' states, by the formula.
    model, tokenizer = theirs(encoder_models, "embed")
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    means = [some.mean(0) for some in states]
    share = 1 / (len(states[0]) * len(states[1]) * float(means[0].norm() * means[1].norm()))
    for first, second in ((1, 2), (2, 1)):
        own = [some[reading.side.pieces_of(word)].sum(0)
               for some, reading, word in zip(states, found.readings, (first, second), strict=True)]  # fmt: skip
        assert pairs[first][second] == pytest.approx(float(own[0] @ own[1]) * share, abs=1e-5)
    assert explain("embed", "one text").similarity is None


def test_a_vector_that_is_no_mean_has_no_pairs(tmp_path: Path) -> None:
    _, bundle = encoders.vector_model(tmp_path, pooling="cls_token")
    found = EncoderExplainer(bundle).explain(("The cat", "A dog"))
    one, other = regard.load(bundle.folder, engine="torch").embed(["The cat", "A dog"])
    assert found.similarity is not None and found.similarity.pieces is None
    assert found.similarity.cosine == pytest.approx(float(one @ other), abs=1e-5)
    with pytest.raises(UserError, match="vectors are means"):
        found.word_pairs()


@pytest.mark.parametrize("task", EXAMPLES)
def test_attention_is_that_of_transformers(
    encoder_models: dict[str, tuple[Path, Bundle]], explain: Callable[..., EncoderExplanation], task: str
) -> None:
    [reading] = explain(task, EXAMPLES[task]).readings
    model, tokenizer = theirs(encoder_models, task)
    with torch.no_grad():
        inputs = tokenizer(EXAMPLES[task].replace("___", "[MASK]"), return_tensors="pt")
        wanted = model(**inputs, output_attentions=True).attentions
    assert len(reading.attention) == len(wanted) == 2
    for ours, layer in zip(reading.attention, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(ours), layer[0], atol=1e-5, rtol=0)
    rows = by_words(reading.attention[0][0], reading.drawn, reading.drawn)
    assert [sum(row) for row in rows] == pytest.approx([1.0] * len(rows), abs=1e-4)
    assert [text.text for text in reading.texts] == [EXAMPLES[task].replace("___", "[MASK]")]


def test_two_texts_that_are_read_together_stay_two(explain: Callable[..., EncoderExplanation]) -> None:
    found = explain("classify", ("we saw a dog", "the tea is here."))
    [reading] = found.readings
    words = reading.side.words
    assert [words[text.start : text.stop] for text in reading.texts] == [
        ["we", "saw", "a", "dog"], ["the", "tea", "is", "here", "."]
    ]  # fmt: skip
    assert [text.text for text in reading.texts] == ["we saw a dog", "the tea is here."]
    parts = found.by_words(found.attributions[0])
    outside = [part for word, part in enumerate(parts) if not any(t.start <= word < t.stop for t in reading.texts)]
    assert outside == [0, 0, 0] and any(parts)


@pytest.mark.parametrize("task", ["classify", "tag", "fill", "embed"])
def test_of_a_long_text_a_window_is_shown_and_this_is_said(
    explain: Callable[..., EncoderExplanation], task: str
) -> None:
    long = "the cat sat on the mat. " * 12
    long = f"{'___ ' if task == 'fill' else ''}{long}{'___' if task == 'fill' else 'dog'}"
    options = {"at": 2} if task == "fill" else {"at": 80} if task == "tag" else {"window": 2}
    found = explain(task, long, **options)
    [reading] = found.readings
    assert reading.windows > 1 and reading.window > 1
    assert f"this is part {reading.window} of {reading.windows}" in window_note(found)
    if task == "tag":
        words = split_words(long, by_spaces=False)
        asked = found.predictions[found.attributions[0].prediction].word
        assert asked is not None and reading.side.words[asked] == words[79]
    first = explain(task, long)
    assert first.readings[0].window == 1 and window_note(explain(task, EXAMPLES[task])) == ""


def test_everything_survives_json(explain: Callable[..., EncoderExplanation]) -> None:
    for found in [*(explain(task, text) for task, text in EXAMPLES.items()), explain("embed", ("a cat", "a dog"))]:
        assert EncoderExplanation.from_json(json.loads(json.dumps(found.to_json()))) == found
        assert repr(found).startswith("<regard.EncoderExplanation of '")
    with pytest.raises(UserError, match="format 1, but has 7"):
        EncoderExplanation.from_json({"format": 7})


@pytest.mark.parametrize(
    ("task", "text", "options", "message"),
    [
        (
            "classify",
            "a",
            {"at": 1},
            "at is for models of the task tag or fill, but this one is for classify; leave it out",
        ),
        ("tag", "a", {"window": 1}, "window is for models of the task classify or embed"),
        ("fill", "___", {"label": "x"}, "label is for models of the task classify or tag"),
        ("embed", "a", {"token": "x"}, "token is for models of the task fill"),
        ("classify", "a", {"label": "sport"}, "label must be one that this model has: animal, food, other"),
        ("tag", "a", {"label": "B-Z"}, "label must be one that this model has: O, B-X, I-X"),
        ("fill", "___", {"token": "no such token"}, "token must be one token of the model's vocabulary"),
        ("tag", "a b", {"at": 3}, "at must be between 1 and 2, the number of words, but is 3"),
        ("fill", "a ___", {"at": 2}, "at must be between 1 and 1, the number of blanks, but is 2"),
        ("classify", "a", {"window": 2}, "window must be between 1 and 1, but is 2"),
        ("embed", ("a", "b"), {"window": 2}, "window must be between 1 and 1, but is 2"),
        ("classify", "a", {"top": 0}, "top must be between 1 and 100, but is 0"),
        ("fill", "no blank", {}, "must have a blank"),
        ("tag", ("a", "b"), {}, "reads one text, but got two"),
        ("fill", ("a ___", "b"), {}, "reads one text, but got two"),
        *((task, " ", {}, "there is no text to explain") for task in ("classify", "tag", "embed")),
    ],
)
def test_what_makes_no_sense_is_refused(
    explain: Callable[..., EncoderExplanation], task: str, text: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as refused:
        explain(task, text, **options)
    assert message in str(refused.value)


@pytest.mark.parametrize("answer", ["several", "number"])
def test_several_labels_and_numbers_have_their_own_logits(tmp_path: Path, answer: str) -> None:
    original = encoders.write_model(tmp_path / "original", "BertForSequenceClassification")
    problem, labels = (
        ("multi_label_classification", encoders.LABELS) if answer == "several" else ("regression", {0: "score"})
    )
    config = transformers.AutoConfig.from_pretrained(original)
    config.problem_type, config.id2label = problem, labels
    config.label2id = {label: n for n, label in labels.items()}
    torch.manual_seed(2)
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(original)
    tokenizer = transformers.AutoTokenizer.from_pretrained(original)
    bundle = import_model(original, tmp_path / "bundle", compare=False).bundle
    found = EncoderExplainer(bundle).explain(TEXT)
    inputs = tokenizer(TEXT, return_tensors="pt")
    hidden = {**inputs, "input_ids": torch.where(inputs["input_ids"] > 4, tokenizer.mask_token_id, inputs["input_ids"])}
    with torch.no_grad():
        with_words, without = model(**inputs).logits[0], model(**hidden).logits[0]
    for one in found.attributions:
        assert one.value == pytest.approx(float(with_words[one.id]), abs=1e-5)
        assert one.hidden_value == pytest.approx(float(without[one.id]), abs=1e-5)
        assert sum(one.pieces) == pytest.approx(one.value - one.hidden_value, abs=one.error + 1e-4)
    if answer == "number":
        [one], [prediction] = found.attributions, found.predictions
        assert one.probability is None and prediction.number == one.value and not prediction.candidates
        assert next(lines(found)).startswith(f"score {one.value:.4f} (with the words hidden ")
        with pytest.raises(UserError, match="label is for models with labels, but this one gives a number"):
            EncoderExplainer(bundle).explain(TEXT, label="score")
    else:
        wanted = {labels[n]: share for n, share in enumerate(with_words.sigmoid().tolist())}
        assert {one.text: one.probability for one in found.predictions[0].candidates} == pytest.approx(wanted, abs=1e-5)


def test_pairs_are_for_models_of_pairs(encoder_models: dict[str, tuple[Path, Bundle]]) -> None:
    bundle = bundle_of(encoder_models, "classify")
    single, pairs = (EncoderExplainer(dataclasses.replace(bundle, takes_pairs=some)) for some in (False, True))
    assert single.split("a\tb") == "a\tb" and pairs.split("a\tb") == ("a", "b")
    with pytest.raises(UserError, match="must be a single text"):
        single.explain(("a", "b"))
    with pytest.raises(UserError, match="must be a pair"):
        pairs.explain("a")
    assert EncoderExplainer(bundle_of(encoder_models, "tag")).split("a\tb") == "a\tb"
    assert EncoderExplainer(bundle_of(encoder_models, "embed")).split("a\tb") == ("a", "b")


def kernels_of(model: torch.nn.Module) -> set[str]:
    return {module.kernel for module in model.modules() if isinstance(module, Attention)}


@pytest.mark.parametrize("task", EXAMPLES)
def test_explanations_run_the_reference_kernel(encoder_models: dict[str, tuple[Path, Bundle]], task: str) -> None:
    assert kernels_of(EncoderExplainer(bundle_of(encoder_models, task)).model) == {"reference"}


def test_a_model_explains_with_its_own_weights(
    encoder_models: dict[str, tuple[Path, Bundle]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = regard.load(bundle_of(encoder_models, "classify").folder, engine="torch", device="cpu")
    monkeypatch.setattr(TorchEncoder, "from_bundle", None)  # nothing more is loaded
    found = model.explain("we saw a dog")
    assert isinstance(found, regard.EncoderExplanation) and found.attributions[0].answer == "animal"
    assert isinstance(model.engine, TorchEncoder)
    assert kernels_of(model._encoder_explainer.model) == {"reference"} and kernels_of(model.engine.model) == {"auto"}
    with pytest.raises(UserError, match="beam is for models of the task translate, but this one is for classify"):
        model.explain("x", beam=2)
    with pytest.raises(
        UserError, match="label is for models of the task classify or tag, but this one is for translate"
    ):
        regard.load("tests/golden/bundle-1").explain("a", label="x")
