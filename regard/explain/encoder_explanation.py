"""The explanation of what an encoder says about a text, as plain data: attention, predictions, and which words decided them; of two
vectors, which words make them similar. `encoder_explainer.py` computes it; no torch here."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.pieces import Piece, TokenizedSide
from regard.errors import InputError, UserError
from regard.escaping import shorten
from regard.explain.explanation import AnyExplanation, AttentionKind, Candidate, HeadFacts
from regard.generate.options import Matrix

FORMAT = 1
# The options of `explain` besides the text and `top`, and the tasks whose models take them.
TASKS_OF: dict[str, tuple[str, ...]] = {
    "target": ("translate",),
    "prefix": ("translate",),
    "force": ("translate",),
    "beam": ("translate",),
    "alpha": ("translate",),
    "label": ("classify", "tag"),
    "token": ("fill",),
    "at": ("tag", "fill"),
    "window": ("classify", "embed"),
}
TASKS = ("classify", "tag", "fill", "embed")

ATTRIBUTION = (
    "integrated gradients (Sundararajan et al., 2017) from the same text with every word hidden, {hidden}: how much each word "
    "changed the {what}. The numbers sum to the difference between text and hidden text; negative ones count against the answer"
)
SIMILARITY = (
    "each vector is the mean over its tokens, so the cosine is a sum over all pairs of tokens: the product of their vectors, "
    "divided by both numbers of tokens and both lengths. The numbers of all pairs sum to the cosine"
)


@dataclass(frozen=True)
class EncoderFacts:
    """The model's shape, and what it answers."""

    task: str
    layers: int
    num_heads: int
    answer: str = ""  # one, several or number, for labels of texts


@dataclass(frozen=True)
class ReadText:
    """A text among the words that a model read at once: those from `start` to `stop`."""

    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class Reading:
    """What the model read at once: a text or a pair, or one window of a long one, and its attention."""

    side: TokenizedSide  # with the tokens that frame it
    texts: list[ReadText]
    window: int  # from 1
    windows: int  # in how many parts the whole text is read
    shown: list[int]  # pieces [start, stop) whose attention to each other is here; all, unless there are too many
    attention: list[list[Matrix]]  # [layer][head][query][key]
    heads: list[list[HeadFacts]]  # over all pieces

    @property
    def drawn(self) -> TokenizedSide:
        """The pieces and words whose attention is here."""
        pieces = self.side.pieces[slice(*self.shown)]
        first = pieces[0].word
        return TokenizedSide(
            [dataclasses.replace(piece, word=piece.word - first) for piece in pieces],
            self.side.words[first : pieces[-1].word + 1],
        )


@dataclass(frozen=True)
class Prediction:
    """What the model says of a text, of one of its words, or of a blank in it."""

    word: int | None  # index in the words of the reading; None: the whole text
    candidates: list[Candidate]  # labels, tags or tokens, the likeliest first; none for a number
    number: float | None = None


@dataclass(frozen=True)
class Attribution:
    """How much each piece decided one answer; see ATTRIBUTION."""

    prediction: int  # index of the prediction
    answer: str  # label, tag or token
    id: int
    probability: float | None  # None for a number
    hidden_probability: float | None  # with every word hidden
    value: float  # log-odds of the answer, or the number
    hidden_value: float
    pieces: list[float]  # the part of each piece of the reading; sums to value - hidden_value
    error: float  # by how much the sum misses it


@dataclass(frozen=True)
class Similarity:
    """The cosine of two texts' vectors as a sum over pairs of pieces; see SIMILARITY."""

    cosine: float
    pieces: Matrix | None  # (pieces of the first, pieces of the second); None where the vectors are not means


@dataclass(frozen=True)
class EncoderExplanation(AnyExplanation):
    """What an encoder says about a text, and why. Layers and heads are counted from 0 here, and from 1 in pages and figures."""

    model: EncoderFacts
    text: str  # a tab between two texts
    readings: list[Reading]  # one; two if the vectors of two texts are compared
    predictions: list[Prediction]
    attributions: list[Attribution]
    method: str  # of the attributions, or of the similarity
    similarity: Similarity | None = None

    def __repr__(self) -> str:
        return f"<regard.EncoderExplanation of {shorten(self.text)}>"

    @property
    def attention(self) -> dict[AttentionKind, list[list[Matrix]]]:
        """What a figure draws: attention in the first text."""
        return {"encoder": self.readings[0].attention}

    def sides(self, kind: AttentionKind) -> tuple[TokenizedSide, TokenizedSide]:
        """The pieces of the queries and of the keys."""
        drawn = self.readings[0].drawn
        return drawn, drawn

    def by_words(self, attribution: Attribution) -> list[float]:
        """An attribution by words of the reading: the sum over the pieces of each."""
        return sums(attribution.pieces, self.readings[0].side)

    def word_pairs(self) -> Matrix:
        """The similarity by pairs of words, (words of the first text, words of the second); they sum to the cosine."""
        if self.similarity is None or self.similarity.pieces is None:
            raise UserError("only two texts whose vectors are means have pairs of words; give two texts")
        first, second = (reading.side for reading in self.readings)
        rows = [sums(row, second) for row in self.similarity.pieces]
        columns = [sums([row[word] for row in rows], first) for word in range(len(second.words))]
        return [[column[word] for column in columns] for word in range(len(first.words))]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return {"format": FORMAT, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> EncoderExplanation:
        """The inverse of `to_json`."""
        fields = dict(document)
        if fields.pop("format", None) != FORMAT:
            raise UserError(f"an explanation must have format {FORMAT}, but has {document.get('format')!r}")
        fields["model"] = EncoderFacts(**fields["model"])
        fields["readings"] = [_reading(one) for one in fields["readings"]]
        fields["predictions"] = [
            Prediction(**{**one, "candidates": [Candidate(**c) for c in one["candidates"]]})
            for one in fields["predictions"]
        ]
        fields["attributions"] = [Attribution(**one) for one in fields["attributions"]]
        if fields["similarity"] is not None:
            fields["similarity"] = Similarity(**fields["similarity"])
        return cls(**fields)


def sums(pieces: Sequence[float], side: TokenizedSide) -> list[float]:
    """Numbers of pieces -> numbers of words."""
    words = [0.0] * len(side.words)
    for piece, value in zip(side.pieces, pieces, strict=True):
        words[piece.word] += value
    return words


def check_task(task: str, given: Collection[str], prefix: str = "") -> None:
    """Refuse models that cannot be explained, and options that make no sense for the model's task. `prefix` stands before the names
    of options."""
    if task not in ("translate", *TASKS):
        raise InputError(
            f"the model to explain must be a model for the task translate, {', '.join(TASKS[:-1])} or {TASKS[-1]}, but is one for "
            f"the task {task}; load another"
        )
    for name in given:
        if task not in TASKS_OF[name]:
            tasks = " or ".join(TASKS_OF[name])
            raise InputError(
                f"{prefix}{name} is for models of the task {tasks}, but this one is for {task}; leave it out"
            )


def _reading(document: dict[str, Any]) -> Reading:
    side = document["side"]
    return Reading(
        **{
            **document,
            "side": TokenizedSide([Piece(**piece) for piece in side["pieces"]], side["words"]),
            "texts": [ReadText(**one) for one in document["texts"]],
            "heads": [[HeadFacts(**head) for head in layer] for layer in document["heads"]],
        }
    )
