"""Figures: the lines are the weights, the words are the words, in SVG and in PNG."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from regard.errors import UserError
from regard.explain.explainer import Explainer
from regard.explain.explanation import ATTENTION_KINDS, AttentionKind, Explanation, by_words
from regard.explain.figure import COLOURS, draw_attention, to_png
from regard.generate.options import SearchOptions
from tests.explain.payloads import PAYLOADS

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def explanation(explainer: Explainer) -> Explanation:
    return explainer.explain("The cat sat on the mat.", SearchOptions(beam=2, max_extra=4))


def read(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.encode())


def words_of(figure: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in figure.iter(f"{SVG}text")]


@pytest.mark.parametrize("kind", ATTENTION_KINDS)
@pytest.mark.parametrize("pieces", [False, True])
def test_lines_are_as_strong_as_the_weights(explanation: Explanation, kind: AttentionKind, pieces: bool) -> None:
    figure = read(explanation.figure(kind, layer=2, heads=[3], pieces=pieces))
    queries, keys = explanation.sides(kind)
    weights = explanation.attention[kind][1][2]
    names = [[piece.text for piece in side.pieces] for side in (queries, keys)]
    if not pieces:
        weights, names = by_words(weights, queries, keys), [queries.words, keys.words]
    assert words_of(figure) == [*names[0], *names[1]]
    places = [float(text.get("transform", "").split("(")[1].split()[0]) for text in figure.iter(f"{SVG}text")]
    above, below = places[: len(names[0])], places[len(names[0]) :]
    drawn = {
        (float(line.get("x1")), float(line.get("x2"))): float(line.get("stroke-opacity"))
        for line in figure.iter(f"{SVG}line")
    }
    expected = {
        (above[q], below[k]): pytest.approx(weight, abs=6e-4)
        for q, row in enumerate(weights)
        for k, weight in enumerate(row)
        if weight >= 0.01
    }
    assert drawn == expected
    assert {line.get("stroke") for line in figure.iter(f"{SVG}line")} == {COLOURS[2]}


def test_the_default_is_the_last_layer_but_one_with_all_heads(explanation: Explanation) -> None:
    drawing = draw_attention(explanation)
    assert drawing.title == "Encoder self-attention, layer 1 of 2, all heads"
    assert {line.colour for line in drawing.lines} == set(COLOURS[:4])
    assert draw_attention(explanation, "cross", 2, [1, 4]).title == "Cross-attention, layer 2 of 2, heads 1, 4"


def test_one_word_shows_only_what_it_looks_at(explanation: Explanation) -> None:
    drawing = draw_attention(explanation, word="CAT")
    assert {line.x1 for line in drawing.lines} == {drawing.words[1].x}
    assert len(drawing.boxes) == len(drawing.lines) > 0
    assert [word.opacity for word in drawing.words[:3]] == [0.35, 1.0, 0.35]
    assert not draw_attention(explanation).boxes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "layer must be between 1 and 2, but is 3"),
        ({"layer": 0}, "layer must be between 1 and 2, but is 0"),
        ({"heads": [5]}, "head must be between 1 and 4, but is 5"),
        ({"word": "dog"}, "word must be one of The, cat, sat, on, the, mat, ., </s>, but is 'dog'"),
        ({"kind": "sideways"}, "attention must be one of encoder, decoder, cross, but is 'sideways'"),
    ],
)
def test_what_is_not_there_is_refused_by_name(explanation: Explanation, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        explanation.figure(**options)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payloads_stay_text_in_figures(as_both_sides: Callable[[str], Explanation], payload: str) -> None:
    explanation = as_both_sides(payload)
    figure = read(explanation.figure())
    assert {child.tag for child in figure.iter()} <= {f"{SVG}{name}" for name in "svg title g rect line text".split()}
    assert not [name for child in figure.iter() for name in child.attrib if name.startswith("on") or "href" in name]
    shown = ["".join(c if c >= " " or c == "\n" else "\ufffd" for c in word) for word in explanation.source.words]
    assert words_of(figure) == [*shown, *shown]


def test_a_png_shows_the_same_drawing(explanation: Explanation) -> None:
    import matplotlib.image

    drawing = draw_attention(explanation, "cross", 2, [2])
    pixels = matplotlib.image.imread(io.BytesIO(to_png(drawing, dots_per_inch=96)))
    assert pixels.shape[:2] == pytest.approx((drawing.height, drawing.width), abs=1)
    strongest = max(drawing.lines, key=lambda line: line.opacity)
    middle = pixels[int((strongest.y1 + strongest.y2) / 2), int((strongest.x1 + strongest.x2) / 2), :3]
    wanted = np.array([int(strongest.colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    # Between white and the head's colour, at least half as strong as the weight alone would make it.
    strength = (1 - middle) / (1 - wanted)
    assert (strength > strongest.opacity / 2).all()
    assert np.abs(strength - strength.mean()).max() < 0.1
    assert np.allclose(pixels[0, 0, :3], 1.0)


def test_the_name_says_what_is_written(explanation: Explanation, tmp_path: Path) -> None:
    for name in ("page.html", "figure.svg", "figure.PNG", "data.json"):
        explanation.save(tmp_path / name)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == explanation.html()
    assert (tmp_path / "figure.svg").read_text(encoding="utf-8") == explanation.figure()
    assert (tmp_path / "figure.PNG").read_bytes().startswith(b"\x89PNG")
    assert Explanation.from_json(json.loads((tmp_path / "data.json").read_text(encoding="utf-8"))) == explanation
    with pytest.raises(UserError, match=r"must end in \.html, \.svg, \.png or \.json"):
        explanation.save(tmp_path / "figure.pdf")
    with pytest.raises(UserError, match="layer: for figures only"):
        explanation.save(tmp_path / "page.html", layer=2)
    with pytest.raises(UserError, match="does not exist"):
        explanation.save(tmp_path / "nowhere" / "page.html")


def test_without_matplotlib_a_png_is_refused_with_a_remedy(
    explanation: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'regard\[figures\]'"):
        explanation.save(tmp_path / "figure.png")
    explanation.save(tmp_path / "figure.svg")
