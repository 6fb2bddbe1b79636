"""The explanation of one translation as plain data, with a lossless JSON form and a notebook display. `explainer.py` computes
it; no torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from regard.data.pieces import Piece, TokenizedSide
from regard.errors import UserError
from regard.escaping import shorten
from regard.explain.beam import Node
from regard.generate.options import Matrix

FORMAT = 1
EXAMPLE = "The animal didn't cross the street because it was too tired"

AttentionKind = Literal["encoder", "decoder", "cross"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)

CAUTION = (
    "Attention shows where a head reads, not what it does with it: values, other heads, residual connections and feed-forward "
    "layers shape the word too, and other weights can give the same output. Compare it with a measure of the output itself."
)
SALIENCY = (
    "gradient × input: to first order, how much the log-probability of the target piece would fall if the embedding of "
    "the other piece were scaled to zero; negative values count against the target piece"
)


@dataclass(frozen=True)
class ModelFacts:
    """The model's shape and search settings."""

    source: str
    target: str
    encoder_layers: int
    decoder_layers: int
    num_heads: int
    beam: int
    alpha: float


@dataclass(frozen=True)
class HeadFacts:
    """An attention head in two numbers."""

    entropy: float  # mean over queries, in bits: 0 attends to one key only, log2(keys) to all equally
    distance: float  # mean distance from query to key, in pieces; for cross-attention from the stretched diagonal


@dataclass(frozen=True)
class Candidate:
    """A piece that the model considered at a step."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class StepFacts:
    """One target piece: how likely it was, and what else the model considered."""

    text: str  # here and in candidates, with a leading space where a word begins
    log_prob: float
    rank: int  # 1: no piece was likelier
    forced: bool  # part of a given prefix or translation
    candidates: list[Candidate]  # the likeliest pieces, best first


@dataclass(frozen=True)
class WordAlignment:
    """Which source words each target word corresponds to: the cross-attention of the model's `AlignmentHeads`, by words."""

    layer: int  # from 0
    weights: Matrix  # (target words, source words) without </s>; rows sum to 1
    links: list[list[int]]  # [target word, source word]; see `regard.translation.links`
    heads: list[int] | None = None  # from 0; missing in explanations of earlier versions, which used all
    shift: bool = False  # whether the step that reads a word aligns it


@dataclass(frozen=True)
class Saliency:
    """Gradient x input for every target piece; see SALIENCY."""

    source: Matrix  # (target pieces, source pieces)
    decoder_input: Matrix  # (target pieces, decoder input); 0 for later positions


class AnyExplanation:
    """What every explanation offers: a page, figures and files, and its page in a notebook."""

    if TYPE_CHECKING:  # fields of one, computed by another

        @property
        def attention(self) -> dict[AttentionKind, list[list[Matrix]]]:
            """What a figure draws: [layer][head][query][key] of each kind."""

        def sides(self, kind: AttentionKind) -> tuple[TokenizedSide, TokenizedSide]:
            """The pieces of the queries and of the keys."""

        def to_json(self) -> dict[str, Any]:
            """Plain dicts, lists, strings and numbers."""

    def html(self) -> str:
        """The page, as one self-contained file."""
        from regard.explain.page import render_page

        return render_page(self)

    def figure(
        self,
        kind: AttentionKind = "encoder",
        layer: int | None = None,
        heads: Sequence[int] = (),
        word: str | None = None,
        pieces: bool = False,
    ) -> str:
        """An SVG with lines between words, as in figures 3 to 5 of the paper; of two texts, those of the first. See
        `figure.draw_attention`."""
        from regard.explain.figure import draw_attention, to_svg

        return to_svg(draw_attention(self, kind, layer, heads, word, pieces))

    def save(self, path: str | Path, **options: Any) -> None:
        """Write a page (.html), the data (.json) or a figure (.svg, .png); `options` are those of `figure`."""
        from regard.explain.save import save

        save(self, Path(path), **options)

    def _repr_html_(self) -> str:
        from regard.explain.page import render_frame

        return render_frame(self)


@dataclass(frozen=True)
class Explanation(AnyExplanation):
    """What a model did to translate one sentence.

    Row t of cross-attention is what the decoder attends to while it chooses target piece t, with decoder input t, the piece
    before, as its input. Layers and heads are counted from 0 here, and from 1 in pages and figures.
    """

    model: ModelFacts
    text: str
    translation: str
    given: bool  # the translation was given by the caller instead of searched for
    source: TokenizedSide
    decoder_input: TokenizedSide  # <s>, then the target without </s>
    target: TokenizedSide  # with </s>
    attention: dict[AttentionKind, list[list[Matrix]]]  # [layer][head][query][key], from the reference kernel
    heads: dict[AttentionKind, list[list[HeadFacts]]]  # [layer][head]
    steps: list[StepFacts]
    log_prob: float
    alignment: WordAlignment
    saliency: Saliency
    beam: list[Node]  # the tree of the search; for a given translation, of the model's own search

    def __repr__(self) -> str:
        return f"<regard.Explanation of {shorten(self.text)} → {shorten(self.translation)}>"

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        document: dict[str, Any] = {"format": FORMAT}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "attention":
                document[field.name] = value
            elif field.name == "heads":
                document[field.name] = {
                    kind: [[dataclasses.asdict(head) for head in layer] for layer in layers]
                    for kind, layers in value.items()
                }
            elif isinstance(value, list):
                document[field.name] = [dataclasses.asdict(item) for item in value]
            else:
                document[field.name] = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Explanation:
        """The inverse of `to_json`."""
        fields = dict(document)
        if fields.pop("format", None) != FORMAT:
            raise UserError(f"an explanation must have format {FORMAT}, but has {document.get('format')!r}")
        for name in ("source", "decoder_input", "target"):
            side = fields[name]
            fields[name] = TokenizedSide([Piece(**piece) for piece in side["pieces"]], side["words"])
        fields["model"] = ModelFacts(**fields["model"])
        fields["heads"] = {
            kind: [[HeadFacts(**head) for head in layer] for layer in layers]
            for kind, layers in fields["heads"].items()
        }
        fields["steps"] = [
            StepFacts(**{**step, "candidates": [Candidate(**one) for one in step["candidates"]]})
            for step in fields["steps"]
        ]
        fields["alignment"] = WordAlignment(**fields["alignment"])
        fields["saliency"] = Saliency(**fields["saliency"])
        fields["beam"] = [Node(**node) for node in fields["beam"]]
        return cls(**fields)

    def sides(self, kind: AttentionKind) -> tuple[TokenizedSide, TokenizedSide]:
        """The pieces of the queries and of the keys; a cross-attention query goes by the piece that it chooses."""
        if kind == "encoder":
            return self.source, self.source
        return (self.decoder_input, self.decoder_input) if kind == "decoder" else (self.target, self.source)


def by_words(matrix: Matrix, queries: TokenizedSide, keys: TokenizedSide) -> Matrix:
    """(query pieces, key pieces) -> (query words, key words): sums over a word's keys and averages over its queries, so that rows
    still sum to 1."""
    columns = [piece.word for piece in keys.pieces]
    rows: Matrix = []
    for word in range(len(queries.words)):
        members = queries.pieces_of(word)
        row = [0.0] * len(keys.words)
        for place in members:
            for column, weight in zip(columns, matrix[place], strict=True):
                row[column] += weight / len(members)
        rows.append(row)
    return rows


def shares(words: Matrix) -> Matrix:
    """Normalise (target words, source words), without `</s>`, to rows that sum to 1. A row of zeros becomes empty."""
    return [[weight / total for weight in row] if (total := sum(row)) > 0 else [] for row in words]
