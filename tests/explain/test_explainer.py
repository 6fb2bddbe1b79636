"""What an explanation says, against the same computed by other means."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from regard.aligning import AlignmentHeads
from regard.bundle import Bundle
from regard.config import ModelConfig
from regard.errors import UserError
from regard.explain.encoder_explainer import EncoderExplainer
from regard.explain.explainer import MAX_PIECES, Explainer, align, head_facts, run_recorded
from regard.explain.explanation import ATTENTION_KINDS, Explanation, by_words
from regard.explain.text_attention import TextAttention
from regard.generate.engines import encoder_engine
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.generate.options import SearchOptions, forbidden_ids
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.nn.embedding import sinusoids
from regard.nn.linear import set_row_tile
from tests.build import LATER, SWITCHES, build, tiny_config
from tests.explain.encoder_models import tagger
from tests.tiny import save_model

OPTIONS = SearchOptions(beam=3, max_extra=6)
TEXT = "The cat sat on the mat; a b c."


@pytest.fixture(scope="module")
def explanation(explainer: Explainer) -> Explanation:
    return explainer.explain(TEXT, OPTIONS)


class PlainTransformer:
    """The paper's model in the paper's formulas, one sentence at a time, from nothing but named weights."""

    def __init__(self, weights: dict[str, Tensor], heads: int) -> None:
        self.weights, self.heads = weights, heads
        self.d_model = weights["embedding.weight"].shape[1]
        self.attention: dict[str, Tensor] = {}

    def affine(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)
        return scaled * self.weights[f"{name}.norm.weight"] + self.weights[f"{name}.norm.bias"]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool, name: str) -> Tensor:
        size = self.d_model // self.heads
        outputs, recorded = [], []
        for head in range(self.heads):
            part = slice(head * size, (head + 1) * size)
            scores = q[:, part] @ k[:, part].T / math.sqrt(size)
            for i in range(scores.shape[0] if causal else 0):
                scores[i, i + 1 :] = -math.inf
            exponentials = scores.exp()
            weights = exponentials / exponentials.sum(1, keepdim=True)
            recorded.append(weights)
            outputs.append(weights @ v[:, part])
        self.attention[name] = torch.stack(recorded)
        return torch.cat(outputs, dim=1)

    def sublayers(self, x: Tensor, name: str, causal: bool, memory: Tensor | None = None) -> Tensor:
        q, k, v = self.affine(x, f"{name}.self_attention.qkv").chunk(3, dim=1)
        mixed = self.attend(q, k, v, causal, f"{name}.self")
        x = self.norm(x + self.affine(mixed, f"{name}.self_attention.out"), f"{name}.self_residual")
        if memory is not None:
            k, v = self.affine(memory, f"{name}.cross_attention.kv").chunk(2, dim=1)
            mixed = self.attend(self.affine(x, f"{name}.cross_attention.q"), k, v, False, f"{name}.cross")
            x = self.norm(x + self.affine(mixed, f"{name}.cross_attention.out"), f"{name}.cross_residual")
        inner = self.affine(x, f"{name}.feed_forward.inner").clamp_min(0.0)
        return self.norm(x + self.affine(inner, f"{name}.feed_forward.outer"), f"{name}.feed_forward_residual")

    def log_probs(self, src: list[int], tgt_in: list[int], layers: int) -> Tensor:
        table = self.weights["embedding.weight"]
        memory = table[src] * math.sqrt(self.d_model) + sinusoids(len(src), self.d_model)
        for layer in range(layers):
            memory = self.sublayers(memory, f"encoder.layers.{layer}", causal=False)
        x = table[tgt_in] * math.sqrt(self.d_model) + sinusoids(len(tgt_in), self.d_model)
        for layer in range(layers):
            x = self.sublayers(x, f"decoder.layers.{layer}", causal=True, memory=memory)
        return torch.log_softmax(x @ table.T, dim=-1)


@pytest.fixture(scope="module")
def plain(bundle: Bundle, explanation: Explanation) -> tuple[PlainTransformer, Tensor]:
    model = PlainTransformer(load_model(bundle).state_dict(), heads=4)
    src = [piece.id for piece in explanation.source.pieces]
    tgt_in = [piece.id for piece in explanation.decoder_input.pieces]
    return model, model.log_probs(src, tgt_in, layers=2)


def test_attention_is_the_papers_formula_in_every_layer_and_head(
    explanation: Explanation, plain: tuple[PlainTransformer, Tensor]
) -> None:
    names = {
        "encoder": "encoder.layers.{}.self",
        "decoder": "decoder.layers.{}.self",
        "cross": "decoder.layers.{}.cross",
    }
    for kind in ATTENTION_KINDS:
        assert len(explanation.attention[kind]) == 2
        for layer, shown in enumerate(explanation.attention[kind]):
            expected = plain[0].attention[names[kind].format(layer)]
            assert torch.tensor(shown).shape == expected.shape
            torch.testing.assert_close(torch.tensor(shown), expected, atol=1e-5, rtol=0)


def test_rows_sum_to_one_and_nothing_looks_ahead(explanation: Explanation) -> None:
    for kind in ATTENTION_KINDS:
        for layer in explanation.attention[kind]:
            for head in layer:
                assert [sum(row) for row in head] == pytest.approx([1.0] * len(head), abs=1e-4)
                words = by_words(head, *explanation.sides(kind))
                assert [sum(row) for row in words] == pytest.approx([1.0] * len(words), abs=1e-4)
    for layer in explanation.attention["decoder"]:
        for head in layer:
            assert all(weight == 0.0 for place, row in enumerate(head) for weight in row[place + 1 :])


def test_log_probabilities_candidates_and_ranks_are_those_of_the_plain_formulas(
    explanation: Explanation, plain: tuple[PlainTransformer, Tensor], bundle: Bundle
) -> None:
    forbidden = set(forbidden_ids(bundle.tokenizer))
    for step, piece, row in zip(explanation.steps, explanation.target.pieces, plain[1].tolist(), strict=True):
        allowed = {i: value for i, value in enumerate(row) if i not in forbidden}
        best = sorted(allowed, key=allowed.__getitem__, reverse=True)
        assert step.log_prob == pytest.approx(row[piece.id], abs=1e-4)
        assert [candidate.id for candidate in step.candidates] == best[:8]
        probabilities = [math.exp(row[i]) for i in best[:8]]
        assert [candidate.probability for candidate in step.candidates] == pytest.approx(probabilities, abs=1e-5)
        assert step.rank == best.index(piece.id) + 1
        assert step.text.strip() in (piece.text, "")
        assert not step.forced
    assert explanation.log_prob == pytest.approx(sum(step.log_prob for step in explanation.steps), abs=1e-5)
    assert "".join(step.text for step in explanation.steps[:-1]).strip() == explanation.translation


def test_the_translation_is_that_of_the_engine(explanation: Explanation, bundle: Bundle) -> None:
    tokenizer = bundle.tokenizer
    engine = TorchEngine(load_model(bundle), tokenizer.bos_id, tokenizer.eos_id, forbidden=forbidden_ids(tokenizer))
    [[best]] = engine.translate([tokenizer.encode(TEXT)], OPTIONS)
    assert [piece.id for piece in explanation.target.pieces] == [*best.ids, tokenizer.eos_id]
    assert explanation.translation == tokenizer.decode(best.ids).strip()
    assert explanation.log_prob == pytest.approx(best.log_prob, abs=1e-3)


def test_sides_begin_and_end_as_the_model_sees_them(explanation: Explanation, bundle: Bundle) -> None:
    tokenizer = bundle.tokenizer
    target = [piece.id for piece in explanation.target.pieces]
    assert [piece.id for piece in explanation.source.pieces] == [*tokenizer.encode(TEXT), tokenizer.eos_id]
    assert [piece.id for piece in explanation.decoder_input.pieces] == [tokenizer.bos_id, *target[:-1]]
    assert explanation.source.words == ["The", "cat", "sat", "on", "the", "mat", ";", "a", "b", "c", ".", "</s>"]
    assert explanation.source.words[-1] == "</s>" and explanation.decoder_input.words[0] == "<s>"


@pytest.mark.parametrize("switches", [*SWITCHES, *LATER])
def test_every_kind_of_model_can_be_read(switches: str) -> None:
    model = build(tiny_config(**(SWITCHES | LATER)[switches])).requires_grad_(False)
    reading = run_recorded(model, [5, 6, 7, 2], [1, 8, 9])
    src, tgt = SequenceLayout.from_lengths([4]), SequenceLayout.from_lengths([3])
    logits = model(torch.tensor([5, 6, 7, 2]), src, torch.tensor([1, 8, 9]), tgt)
    torch.testing.assert_close(reading.log_probs, torch.log_softmax(logits, dim=-1), atol=1e-4, rtol=0)
    assert len(reading.weights["encoder"]) == model.config.encoder_layers
    assert reading.weights["cross"][0].shape == (4, 3, 4)
    assert [tuple(embedded.shape) for embedded in reading.embedded] == [(4, 32), (3, 32)]


def faded(model: Transformer, src: list[int], tgt_in: list[int], fade: tuple[int, int, float]) -> Tensor:
    """Log-probabilities with one embedding multiplied: (0: source or 1: target, place, factor)."""
    calls = []

    def change(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) - 1 != fade[0]:
            return output
        output = output.clone()
        output[fade[1]] *= fade[2]
        return output

    hook = model.embedding.register_forward_hook(change)
    try:
        src_layout, tgt_layout = SequenceLayout.from_lengths([len(src)]), SequenceLayout.from_lengths([len(tgt_in)])
        logits = model(torch.tensor(src), src_layout, torch.tensor(tgt_in), tgt_layout)
        return torch.log_softmax(logits, dim=-1)
    finally:
        hook.remove()


def test_saliency_is_what_fading_an_embedding_does_to_the_log_probability(
    explainer: Explainer, explanation: Explanation
) -> None:
    model = copy.deepcopy(explainer.recorded_model).double()
    sides = (explanation.source, explanation.decoder_input)
    src, tgt_in = ([piece.id for piece in side.pieces] for side in sides)
    labels = torch.tensor([piece.id for piece in explanation.target.pieces])
    small = 1e-4
    for number, shown in enumerate((explanation.saliency.source, explanation.saliency.decoder_input)):
        for place in range(len(sides[number].pieces)):
            more = faded(model, src, tgt_in, (number, place, 1 + small)).gather(1, labels[:, None])
            less = faded(model, src, tgt_in, (number, place, 1 - small)).gather(1, labels[:, None])
            slopes = ((more - less) / (2 * small))[:, 0].tolist()
            assert [row[place] for row in shown] == pytest.approx(slopes, abs=2e-3, rel=1e-2)
    assert any(abs(value) > 0.1 for row in explanation.saliency.source for value in row)


def test_entropy_and_distance_of_heads_whose_numbers_are_known() -> None:
    one_place = torch.eye(4)
    alike = torch.full((4, 4), 0.25)
    before = torch.eye(4).roll(1, 0)  # place 0 looks at 3, the others one back
    facts = head_facts(torch.stack((one_place, alike, before)), "encoder")
    assert [fact.entropy for fact in facts] == pytest.approx([0.0, 2.0, 0.0], abs=1e-5)
    assert [fact.distance for fact in facts] == pytest.approx([0.0, 1.25, 1.5], abs=1e-5)
    # Two target places over three source places: the last of the target belongs to the last of the source.
    [diagonal] = head_facts(torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]), "cross")
    assert diagonal.distance == 0.0


@pytest.mark.parametrize("shift", [False, True])
def test_the_alignment_is_the_mean_of_the_heads_between_words(explanation: Explanation, shift: bool) -> None:
    cross = [torch.tensor(layer) for layer in explanation.attention["cross"]]
    found = align(cross, explanation.target, explanation.source, AlignmentHeads(0, (1,), shift))
    assert (found.layer, found.heads, found.shift) == (0, [1], shift)
    # Shifted, a word belongs to the step that reads it: the row of the decoder input.
    side = explanation.decoder_input if shift else explanation.target
    words = torch.tensor(by_words(cross[0][1].tolist(), side, explanation.source))[:, :-1]
    words = words[1:] if shift else words[:-1]  # without <s>, or </s>
    torch.testing.assert_close(torch.tensor(found.weights), words / words.sum(1, keepdim=True), atol=1e-4, rtol=0)
    assert dict(map(tuple, found.links)).items() <= dict(enumerate(words.argmax(1).tolist())).items()


def test_the_explanations_alignment_is_that_of_the_bundle(explanation: Explanation) -> None:
    alignment = explanation.alignment
    assert (alignment.layer, alignment.heads, alignment.shift) == (1, [0, 1, 2, 3], False)  # of two layers
    assert alignment.links


def test_json_gives_the_same_explanation_back(explanation: Explanation) -> None:
    text = json.dumps(explanation.to_json(), allow_nan=False)
    assert Explanation.from_json(json.loads(text)) == explanation


def test_json_of_another_format_is_refused() -> None:
    with pytest.raises(UserError, match="format 1, but has 7"):
        Explanation.from_json({"format": 7})


# --- given translations, prefixes, forced words ---


def test_a_given_translation_is_what_is_looked_at(explainer: Explainer, explanation: Explanation) -> None:
    given = explainer.explain(TEXT, OPTIONS, target="die Katze saß")
    tokenizer = explainer.tokenizer
    ids = tokenizer.encode("die Katze saß", "target")
    assert given.given and given.translation == "die Katze saß"
    assert [piece.id for piece in given.target.pieces] == [*ids, tokenizer.eos_id]
    [scores] = explainer.engine.score([tokenizer.encode(TEXT)], [ids])
    assert [step.log_prob for step in given.steps] == pytest.approx(scores, abs=1e-4)
    assert all(step.forced for step in given.steps)
    assert given.beam == explanation.beam  # of the model's own search


def test_a_prefix_is_what_the_translation_begins_with(explainer: Explainer) -> None:
    explained = explainer.explain(TEXT, OPTIONS, prefix="  die Matte ")
    forced = explainer.tokenizer.encode("die Matte", "target")
    assert [piece.id for piece in explained.target.pieces][: len(forced)] == forced
    assert [step.forced for step in explained.steps] == [n < len(forced) for n in range(len(explained.steps))]
    assert explained.translation.startswith("die Matte")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_forced_word_stands_where_it_was_put_and_the_words_before_it_stay(explainer: Explainer, number: int) -> None:
    options = SearchOptions(beam=3, max_extra=3)
    free = explainer.explain("a b c d", options)
    forced = explainer.explain("a b c d", options, force={number: "Hund"})
    assert forced.target.words[number - 1] == "Hund"
    assert forced.target.words[: number - 1] == free.target.words[: number - 1]
    assert forced.beam != free.beam


def test_several_words_are_forced_from_left_to_right(explainer: Explainer) -> None:
    forced = explainer.explain("a b c d", OPTIONS, force={3: "Katze", 1: "Hund"})
    assert (forced.target.words[0], forced.target.words[2]) == ("Hund", "Katze")


def test_the_last_word_of_a_prefix_goes_on_unless_a_space_follows_it(explainer: Explainer) -> None:
    """The model is random; among the beginnings of words there are some that it would go on with."""
    went_on = []
    for letter in "abcdefghijklmnop":
        words = [
            explainer.explain("a b", SearchOptions(beam=1, max_extra=6), prefix=prefix).target.words[0]
            for prefix in (letter, f"{letter} ")
        ]
        assert words[0].startswith(letter) and words[1] == letter
        went_on.append(words[0] != letter)
    assert any(went_on)


def test_what_comes_after_a_prefix_is_the_best_that_the_model_finds(explainer: Explainer, bundle: Bundle) -> None:
    """With a beam of one: at every place after the prefix, the likeliest token."""
    tokenizer = bundle.tokenizer
    explained = explainer.explain("a b", SearchOptions(beam=1, max_extra=6), prefix="c d")
    model = PlainTransformer(load_model(bundle).state_dict(), heads=4)
    forbidden = forbidden_ids(tokenizer)
    ids, limit = tokenizer.encode("c d", "target"), len(tokenizer.encode("a b")) + 6
    while len(ids) < limit:
        row = model.log_probs([*tokenizer.encode("a b"), tokenizer.eos_id], [tokenizer.bos_id, *ids], layers=2)[-1]
        row[forbidden] = -math.inf
        if int(row.argmax()) == tokenizer.eos_id:
            break
        ids.append(int(row.argmax()))
    assert [piece.id for piece in explained.target.pieces] == [*ids, tokenizer.eos_id]


def test_forced_punctuation_stands_without_a_space(explainer: Explainer) -> None:
    forced = explainer.explain("a b c d", OPTIONS, force={1: "die", 2: "Katze", 3: ","})
    assert forced.translation.startswith("die Katze,")
    assert forced.target.words[:3] == ["die", "Katze", ","]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": " \t"}, "no text to explain"),
        ({"text": "a b " * MAX_PIECES}, "at most 60 pieces"),
        ({"target": "a " * (MAX_PIECES + 1)}, "the target must have at most 128 pieces"),
        ({"target": "  "}, "target is empty"),
        ({"prefix": "a " * (MAX_PIECES + 1)}, "the prefix must have at most 128 pieces"),
        ({"target": "a", "prefix": "b"}, "leave out prefix and force"),
        ({"target": "a", "force": {1: "b"}}, "leave out prefix and force"),
        ({"force": {0: "a"}}, "word 0 cannot be forced"),
        ({"force": {999: "a"}}, "word 999 cannot be forced"),
        ({"force": {1: " "}}, "forced word 1 must not be empty"),
        ({"force": {1: "a"}, "prefix": "b c"}, "word 1 is part of the prefix"),
        ({"top": 0}, "top must be at least 1"),
    ],
)
def test_what_cannot_be_explained_is_refused_by_name(explainer: Explainer, fields: dict, message: str) -> None:
    arguments = {"text": "a b c", **fields}
    with pytest.raises(UserError, match=message):
        explainer.explain(arguments.pop("text"), OPTIONS, **arguments)


def test_a_table_of_learned_positions_is_not_left(tmp_path: Path, bundle: Bundle) -> None:
    size = bundle.tokenizer.vocab_size
    config = ModelConfig(
        size, d_model=32, d_ff=48, num_heads=4, encoder_layers=1, decoder_layers=1, positions="learned", max_positions=9
    )
    explainer = Explainer(save_model(tmp_path / "learned", build(config), bundle.tokenizer))
    assert len(explainer.explain("a b c d e f g h", OPTIONS, prefix="a b c d e f g h").target.pieces) == 9
    with pytest.raises(UserError, match="the text must have at most 8 pieces"):
        explainer.explain("a b c d e f g h i", OPTIONS)
    with pytest.raises(UserError, match="the prefix must have at most 8 pieces"):
        explainer.explain("a", OPTIONS, prefix="a b c d e f g h i")
    with pytest.raises(UserError, match="the forced text must have at most 8 pieces"):
        explainer.explain("a", OPTIONS, prefix="a b c d", force={5: "abcdefghijklmnop"})


def test_half_a_character_is_shown_as_the_tokenizer_reads_it(explainer: Explainer) -> None:
    explained = explainer.explain("a \udce4 b", OPTIONS)
    assert explained.text == "a \ufffd b"
    assert explained.source.words == ["a", "\ufffd", "b", "</s>"]


def test_copies_that_read_one_text_at_a_time_have_no_tiles(
    tmp_path: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of an engine, which records batches, keep them."""
    engine = TorchEngine.from_bundle(bundle, "cpu")
    monkeypatch.setattr(encoder_engine, "set_row_tile", lambda model, rows: set_row_tile(model, 64))
    copies = (
        Explainer(bundle, engine).recorded_model,
        TextAttention(bundle, engine)._model,
        EncoderExplainer(tagger(tmp_path)[1]).model,
    )
    assert [tiles(one) for one in copies] == [{0}, {0}, {0}]
    assert tiles(engine.model) == tiles(engine._recorded_models()[0]) == {64}


def tiles(model: Transformer) -> set[object]:
    return {getattr(module, "row_tile") for module in model.modules() if hasattr(module, "row_tile")}  # noqa: B009
