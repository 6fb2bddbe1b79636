"""Word alignment: the attention that engines show is the reference kernel's, and words that go together are found."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.aligning import AlignmentHeads
from regard.bundle import Bundle, add_alignment, add_facts, load_bundle
from regard.config import ModelConfig
from regard.errors import UserError
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.generate.options import SearchOptions
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.nn.attention import Recorder, set_kernel
from regard.translation.alignment import TextAlignment, align_texts
from regard.translation.links import link_words
from tests.serve.server import GOLDEN
from tests.tiny import make_bundle, save_model

HEADS = {
    "not measured": None,
    "one head, shifted": AlignmentHeads(0, (1,), shift=True),
    "two heads": AlignmentHeads(1, (3, 1), shift=False),
    "two heads, shifted": AlignmentHeads(1, (0, 2), shift=True),
}


@pytest.fixture(scope="module", params=[*HEADS, "shared keys"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Two decoder layers of four heads with random weights."""
    tokenizer = load_bundle(GOLDEN).tokenizer
    shares = request.param == "shared keys"
    torch.manual_seed(3)
    shape = {"d_model": 32, "d_ff": 64, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 2}
    made = Transformer(ModelConfig(tokenizer.vocab_size, num_kv_heads=2 if shares else 0, **shape))
    folder = tmp_path_factory.mktemp("bundle") / "model"
    save_model(folder, made, tokenizer)
    heads = AlignmentHeads(0, (3,), shift=True) if shares else HEADS[request.param]
    return load_bundle(folder) if heads is None else add_alignment(folder, heads)


def reference(bundle: Bundle, src: list[int], tgt: list[int]) -> torch.Tensor:
    """The attention of the alignment heads as the formula gives it, over the model itself."""
    model = load_model(bundle)
    set_kernel(model, "reference")
    recorder = Recorder()
    eos, bos = bundle.tokenizer.eos_id, bundle.tokenizer.bos_id
    layouts = [SequenceLayout.from_lengths([len(side) + 1]) for side in (src, tgt)]
    memory = model.encode(torch.tensor([*src, eos]), layouts[0])
    model.decode(torch.tensor([bos, *tgt]), layouts[1], memory, layouts[0], recorder)
    if bundle.alignment is None:
        return recorder.weights["decoder.1.cross"][0].mean(0)[:-1, :-1]
    heads = recorder.weights[f"decoder.{bundle.alignment.layer}.cross"][0][list(bundle.alignment.heads)].mean(0)
    return (heads[1:] if bundle.alignment.shift else heads[:-1])[:, :-1]


@pytest.mark.parametrize("engine", [CTranslate2Engine, TorchEngine])
def test_engines_show_the_reference_attention(
    bundle: Bundle, engine: type[CTranslate2Engine] | type[TorchEngine]
) -> None:
    made = engine.from_bundle(bundle) if engine is CTranslate2Engine else TorchEngine.from_bundle(bundle, "cpu")
    choose = random.Random(1)
    words = range(bundle.tokenizer.vocab_size - 10, bundle.tokenizer.vocab_size)
    pairs = [[choose.choices(words, k=choose.randint(1, 12)) for _ in range(2)] for _ in range(9)]
    shown = made.attention([src for src, _ in pairs], [tgt for _, tgt in pairs])
    for (src, tgt), matrix in zip(pairs, shown, strict=True):
        torch.testing.assert_close(torch.tensor(matrix), reference(bundle, src, tgt), atol=2e-6, rtol=1e-5)
    assert made.attention([[], words], [words, []]) == [[], []]


def test_an_ensemble_takes_the_mean_of_each_models_own_heads(tmp_path: Path) -> None:
    chosen = [AlignmentHeads(0, (1,), shift=True), AlignmentHeads(1, (0,), shift=False)]
    bundles = [make_bundle(tmp_path / str(n), decoder_layers=2, change=_other if n else None) for n in range(2)]
    bundles = [add_alignment(bundle.folder, heads) for bundle, heads in zip(bundles, chosen, strict=True)]
    src, tgt = [300, 301, 302], [310, 311]
    [together] = TorchEngine.from_bundle(bundles[0], "cpu", others=bundles[1:]).attention([src], [tgt])
    each = torch.stack([reference(bundle, src, tgt) for bundle in bundles])
    torch.testing.assert_close(torch.tensor(together), each.mean(0), atol=1e-6, rtol=1e-5)


def _other(model: Transformer) -> None:
    with torch.no_grad():
        model.embedding.weight.mul_(-1.0)


def test_the_order_of_heads_changes_no_translation(tmp_path: Path) -> None:
    """CTranslate2 returns the first heads only, so the ones that align are put first."""
    ids = [[300 + n, 310, 320 + n] for n in range(20)]
    plain = make_bundle(tmp_path / "model", decoder_layers=2)
    before = CTranslate2Engine.from_bundle(plain).translate(ids, SearchOptions())
    after = CTranslate2Engine.from_bundle(add_alignment(plain.folder, AlignmentHeads(0, (1,), shift=True)))
    assert [[one.ids for one in some] for some in after.translate(ids, SearchOptions())] == [
        [one.ids for one in some] for some in before
    ]


def test_bundles_keep_the_choice_and_old_ones_do_without(tmp_path: Path) -> None:
    plain = make_bundle(tmp_path / "model", decoder_layers=2)
    assert "alignment" not in json.loads((plain.folder / "config.json").read_text(encoding="utf-8"))
    assert plain.alignment_heads == AlignmentHeads(1, (0, 1), shift=False)
    chosen = AlignmentHeads(0, (1,), shift=True)
    assert add_alignment(plain.folder, chosen).alignment_heads == chosen
    assert add_facts(plain.folder, {"steps": 3}).alignment == chosen  # and the manifest is intact


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ([], "alignment must hold layer, heads and shift"),
        ({"layer": 0, "heads": [0]}, "alignment must hold layer, heads and shift"),
        ({"layer": 2, "heads": [0], "shift": True}, "alignment.layer must be at most 1, but is 2"),
        ({"layer": True, "heads": [0], "shift": True}, "alignment.layer must be a whole number"),
        ({"layer": 0, "heads": [], "shift": True}, "alignment.heads must be different heads from 0 to 3"),
        ({"layer": 0, "heads": [1, 1], "shift": True}, "alignment.heads must be different heads"),
        ({"layer": 0, "heads": [4], "shift": True}, "alignment.heads must be different heads"),
        ({"layer": 0, "heads": [0], "shift": 1}, "alignment.shift must be true or false, but is 1"),
        ({"layer": 0, "heads": [0, 3], "shift": True}, "one head or all where heads share keys"),
    ],
)
def test_a_choice_that_the_model_cannot_have_is_refused_by_its_field(field: Any, told: str) -> None:
    config = ModelConfig(8, d_model=32, num_heads=4, num_kv_heads=2, decoder_layers=2)
    with pytest.raises(UserError, match=re.escape(told)):
        AlignmentHeads.from_json(field, config)


def test_a_word_that_is_clearly_anothers_gets_no_second_link() -> None:
    # die Katze, sagt er -> the cat says he: the comma rests on a neighbour's word
    weights = [
        [0.9, 0.1, 0.0, 0.0],
        [0.1, 0.8, 0.1, 0.0],
        [0.0, 0.3, 0.2, 0.2],
        [0.0, 0.1, 0.8, 0.1],
        [0.0, 0.0, 0.0, 0.0],
    ]
    assert link_words(weights) == [(0, 0), (1, 1), (3, 2)]
    assert link_words([[0.5], [0.45]]) == [(0, 0), (1, 0)]  # a compound: two words for one
    assert link_words([[], []]) == [] == link_words([])


@pytest.mark.parametrize("engine", [CTranslate2Engine, TorchEngine])
def test_a_model_that_reverses_letters_aligns_them_in_reverse(
    engine: type[CTranslate2Engine] | type[TorchEngine],
) -> None:
    golden = load_bundle(GOLDEN)
    made = engine.from_bundle(golden) if engine is CTranslate2Engine else TorchEngine.from_bundle(golden, "cpu")
    texts = ["a b c d", "p o n m", "k", "", " c d e f"]
    found = align_texts(made, golden.tokenizer, [(text, text[::-1]) for text in texts], 256)
    for text, aligned in zip(texts, found, strict=True):
        letters = [text[slice(*span)] for span in aligned.source]
        assert letters == text.split()
        assert [(text[slice(*aligned.source[i])], text[::-1][slice(*aligned.target[j])]) for i, j in aligned.pairs] == [
            (letter, letter) for letter in reversed(letters)
        ]


def test_what_is_too_long_has_words_and_no_pairs() -> None:
    golden = load_bundle(GOLDEN)
    (aligned,) = align_texts(CTranslate2Engine.from_bundle(golden), golden.tokenizer, [("a b c", "c b a")], 2)
    spans = ((0, 1), (2, 3), (4, 5))
    assert aligned == TextAlignment(spans, spans, ())


def test_a_model_aligns_texts_in_python() -> None:
    model = regard.load(GOLDEN, device="cpu")
    [aligned] = model.align([("a b c", "c b a")])
    assert aligned.pairs == ((2, 0), (1, 1), (0, 2))


def test_a_document_puts_elements_where_their_words_went(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<p>a <b>b</b> c <i>d e</i></p>", encoding="utf-8")
    written = regard.load(GOLDEN, device="cpu").translate_file(tmp_path / "page.html")
    assert "<p><i>e d</i> c <b>b</b> a</p>" in written.read_text(encoding="utf-8")
