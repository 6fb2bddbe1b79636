"""Word alignment: the attention that engines show is the reference kernel's, and words that go together are found."""

from __future__ import annotations

import random

import pytest
import torch

from regard.bundle import Bundle, load_bundle
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.torch_engine import TorchEngine, load_model
from regard.layout import SequenceLayout
from regard.nn.attention import Recorder, set_kernel
from regard.translation.alignment import TextAlignment, align_texts
from tests.serve.server import GOLDEN
from tests.tiny import make_bundle


@pytest.fixture(scope="module", params=["golden", "two layers", "one layer"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    if request.param == "golden":
        return load_bundle(GOLDEN)
    layers = 1 if request.param == "one layer" else 2
    return make_bundle(tmp_path_factory.mktemp("bundle") / "model", decoder_layers=layers)


def reference(bundle: Bundle, src: list[int], tgt: list[int]) -> torch.Tensor:
    """The attention of the last layer but one as the formula gives it, over the model itself."""
    model = load_model(bundle)
    set_kernel(model, "reference")
    recorder = Recorder()
    eos, bos = bundle.tokenizer.eos_id, bundle.tokenizer.bos_id
    layouts = [SequenceLayout.from_lengths([len(side) + 1]) for side in (src, tgt)]
    memory = model.encode(torch.tensor([*src, eos]), layouts[0])
    model.decode(torch.tensor([bos, *tgt]), layouts[1], memory, layouts[0], recorder)
    layers = sorted(name for name in recorder.weights if name.endswith("cross"))
    heads = recorder.weights[layers[-2] if len(layers) > 1 else layers[0]][0]
    return heads.mean(0)[:-1, :-1]


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
