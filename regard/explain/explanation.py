"""An explanation of one translation as plain data: it goes through JSON without loss, and shows itself in a notebook. What is
computed is in `explainer.py`; no torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from regard.data.pieces import Piece, TokenizedSide
from regard.errors import UserError
from regard.explain.beam import Node
from regard.generate.options import Matrix

FORMAT = 1
EXAMPLE = "The animal didn't cross the street because it was too tired"

AttentionKind = Literal["encoder", "decoder", "cross"]
ATTENTION_KINDS: tuple[AttentionKind, ...] = get_args(AttentionKind)

CAUTION = (
    "Attention says where a head reads, not what becomes of it: values, other heads, residual paths and feed-forward layers "
    "shape the word too, and other weights can give the same output, so hold it against a measure that follows the output itself."
)
SALIENCY = (
    "gradient × input: to first order, how much the log-probability of the target piece would fall if the embedding of "
    "the other piece were faded out; negative values speak against the piece"
)


@dataclass(frozen=True)
class ModelFacts:
    """The model and how it searched."""

    source: str
    target: str
    encoder_layers: int
    decoder_layers: int
    num_heads: int
    beam: int
    alpha: float


@dataclass(frozen=True)
class HeadFacts:
    """One head in two numbers."""

    entropy: float  # of its rows, in bits, the mean: 0 looks at one place, log2(keys) at all alike
    distance: float  # mean number of pieces between query and key; of cross-attention along the stretched diagonal


@dataclass(frozen=True)
class Candidate:
    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class StepFacts:
    """One target piece: how likely it was, and what else the model thought of."""

    text: str  # of the piece, as those of candidates: with a space in front where a word begins
    log_prob: float
    rank: int  # 1: no piece was likelier
    forced: bool  # it stood in a given prefix or translation
    candidates: list[Candidate]  # the likeliest, best first


@dataclass(frozen=True)
class WordAlignment:
    """Which source words a target word goes with: cross-attention of one layer, the mean of its heads, by words."""

    layer: int  # from 0
    weights: Matrix  # (target words, source words), the ends left out, rows that sum to one
    links: list[list[int]]  # [target word, source word]: the heaviest of each target word


@dataclass(frozen=True)
class Saliency:
    """Gradient x input for every target piece; see SALIENCY."""

    source: Matrix  # (target, source)
    decoder_input: Matrix  # (target, decoder input); nothing after a piece's own place


@dataclass(frozen=True)
class Explanation:
    """What a model did for one sentence.

    Row t of cross-attention is what the decoder reads while it chooses target piece t, at whose place its input is decoder input t,
    the piece before. Layers and heads are counted from 0 here, from 1 where people see them.
    """

    model: ModelFacts
    text: str
    translation: str
    given: bool  # the translation was given instead of searched for
    source: TokenizedSide
    decoder_input: TokenizedSide  # the start, then the target without its end
    target: TokenizedSide  # with its end
    attention: dict[AttentionKind, list[list[Matrix]]]  # [layer][head][query][key], from the reference kernel
    heads: dict[AttentionKind, list[list[HeadFacts]]]  # [layer][head]
    steps: list[StepFacts]
    log_prob: float
    alignment: WordAlignment
    saliency: Saliency
    beam: list[Node]  # the search's tree; with a given translation, of the model's own search

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
        """What `to_json` gave."""
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
        """What stands at the queries and at the keys; the queries of cross-attention go by the piece that they choose."""
        if kind == "encoder":
            return self.source, self.source
        return (self.decoder_input, self.decoder_input) if kind == "decoder" else (self.target, self.source)

    def html(self) -> str:
        """The page as one file that needs nothing else."""
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
        """Lines between words as in the paper's figures 3 to 5, as SVG; layer and heads from 1. See `figure.py`."""
        from regard.explain.figure import draw, to_svg

        return to_svg(draw(self, kind, layer, heads, word, pieces))

    def save(self, path: str | Path, **options: Any) -> None:
        """Write page.html, data.json, figure.svg or figure.png, as the name ends; `options` are those of `figure`."""
        from regard.explain.save import save

        save(self, Path(path), **options)

    def _repr_html_(self) -> str:
        from regard.explain.page import render_frame

        return render_frame(self)


def by_words(matrix: Matrix, queries: TokenizedSide, keys: TokenizedSide) -> Matrix:
    """Weights between words from weights between pieces: what goes to a word's pieces is added up, what comes from a word's pieces
    is averaged, so that rows still sum to one."""
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


def link_words(words: Matrix) -> tuple[Matrix, list[tuple[int, int]]]:
    """Weights (target words, source words), without the ends: with rows that sum to one, and (target word, source word) of the
    heaviest of each target word. A row of nothing stays one, and has no link."""
    weights: Matrix = []
    links = []
    for number, row in enumerate(words):
        total = sum(row)
        weights.append([weight / total for weight in row] if total > 0 else [])
        if total > 0:
            links.append((number, max(range(len(row)), key=row.__getitem__)))
    return weights, links
