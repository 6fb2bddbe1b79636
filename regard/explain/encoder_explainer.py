"""Computes explanations of encoders: one pass with the reference kernel and a recorder for attention and predictions, integrated
gradients for what decided them, and for two texts the cosine of their vectors by pairs of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.bundle import Bundle
from regard.errors import InputError
from regard.explain.attribution import integrated_gradients, log_odds
from regard.explain.encoder_explanation import (
    ATTRIBUTION,
    SIMILARITY,
    Attribution,
    EncoderExplanation,
    EncoderFacts,
    Prediction,
    Reading,
    Similarity,
    check_task,
)
from regard.explain.encoder_reading import ReadWindow, read_blanks, read_classified, read_tagged, read_vectors
from regard.explain.explainer import clean, head_facts, rounded
from regard.explain.explanation import Candidate
from regard.explain.text_attention import drawn_pieces
from regard.generate.encoding import EncoderEngine
from regard.generate.engines.encoder_engine import TorchEncoder
from regard.layout import SequenceLayout
from regard.models.heads import SequenceHead
from regard.models.recording import reference_copy
from regard.nn.attention import Recorder
from regard.understanding.classifier import Classifier, Text
from regard.understanding.embedder import Embedder
from regard.understanding.filler import Filler
from regard.understanding.tagger import Tagger

MAX_READ = 512  # tokens that are read at once, also by models that could read more: attention grows with the square
MAX_TOP = 100
_LABELS = 5  # of a text, that are attributed to words
_ATTRIBUTED = 768  # pieces times answers that are attributed; at least the chosen one is
_DIGITS = 6

_TEXT_SIDES: dict[str, type[Classifier | Tagger | Filler | Embedder]] = {
    "classify": Classifier, "tag": Tagger, "fill": Filler, "embed": Embedder
}  # fmt: skip


@dataclass(frozen=True)
class Question:
    """An answer that is attributed to words: class `id` of prediction `number`."""

    number: int
    id: int


class EncoderExplainer:
    """Explains what one encoder says, in fp32 on the CPU."""

    def __init__(self, bundle: Bundle, engine: EncoderEngine | None = None) -> None:
        """Shares the weights of `engine` if it has them in fp32 on the CPU; otherwise loads them."""
        check_task(bundle.task, ())
        self.bundle, self.tokenizer = bundle, bundle.tokenizer
        is_usable = isinstance(engine, TorchEncoder) and engine.device.type == "cpu"
        shared = engine.model if is_usable and isinstance(engine, TorchEncoder) else None
        model = TorchEncoder.from_bundle(bundle, "cpu").model if shared is None else shared
        reader = TorchEncoder(model, max_length=min(bundle.max_length, MAX_READ))  # says how long windows are
        self.model = reference_copy(model, row_tile=0)
        self.head = bundle.config.head_settings
        if self._is_shared and bundle.task in ("classify", "tag") and len(self.head.labels) < 2:
            raise InputError("an explanation needs a model with at least two labels, but this one has only one")
        self._text_side = _TEXT_SIDES[bundle.task](bundle, reader)

    def explain(
        self,
        text: Text,
        *,
        label: str | None = None,
        token: str | None = None,
        at: int | None = None,
        window: int | None = None,
        top: int = 8,
    ) -> EncoderExplanation:
        """Explain the model's answer to a text, with the `top` likeliest candidates of each prediction.

        `label` is the label or tag, `token` the token to explain instead of the likeliest. `at` is the word whose tag, or the blank
        whose token is explained, counting from 1; `window` the part of a long text.
        """
        given = {"label": label, "token": token, "at": at, "window": window}
        check_task(self.bundle.task, [name for name, value in given.items() if value is not None])
        if not 1 <= top <= MAX_TOP:
            raise InputError(f"top must be between 1 and {MAX_TOP}, but is {top}")
        text = _cleaned(text)
        side = self._text_side
        if isinstance(side, Embedder):
            return self._compare(text, side, window)
        if isinstance(side, Classifier):
            side.check_pairs([text])
            return self._answer(text, read_classified(side, text, window), label, None, top)
        if not isinstance(text, str):
            raise InputError(f"a model for the task {self.bundle.task} reads one text, but got two; give one")
        if isinstance(side, Tagger):
            return self._answer(text, read_tagged(side, text, at), label, at, top)
        return self._answer(text, read_blanks(side, text, at), token, at, top)

    def split(self, line: str) -> Text:
        """A line as people write it: a tab separates two texts where the model may read two."""
        if isinstance(self._text_side, Classifier):
            [text] = self._text_side.split_lines([line])
            return text
        first, tab, second = line.partition("\t")
        return (first, second) if tab and isinstance(self._text_side, Embedder) else line

    # --- predictions, and what decided them ---

    def _answer(self, text: Text, read: ReadWindow, wanted: str | None, at: int | None, top: int) -> EncoderExplanation:
        states, recorder = self._record(read)
        logits = self._logits(states[None], read)[0]  # (predictions, classes)
        predictions = self._predictions(read, logits, top)
        chosen = None if at is None and self.bundle.task != "classify" else (at or 1) - 1 - read.first
        questions = self._questions(read, logits, wanted, chosen)
        reading = self._reading(read, recorder, read.places[questions[0].number] if read.places else 0)
        return EncoderExplanation(
            self._facts(),
            _shown(text),
            [reading],
            predictions,
            self._attributions(read, logits, questions),
            self._method(),
        )

    def _record(self, read: ReadWindow) -> tuple[Tensor, Recorder]:
        """The last states of all tokens, (tokens, d_model), and the attention on the way."""
        recorder = Recorder()
        layout = SequenceLayout.from_lengths([len(read.input.ids)])
        with torch.inference_mode():
            states = self.model.encode(torch.tensor(list(read.input.ids)), layout, recorder, _types(read, 1))
        return states, recorder

    def _logits(self, states: Tensor, read: ReadWindow) -> Tensor:
        """What the head says of copies of a text, (copies, tokens, d_model) -> (copies, predictions, classes)."""
        copies, tokens, _ = states.shape
        packed, kind = states.flatten(0, 1), self.head.kind  # (copies, tokens, d_model) -> (copies * tokens, d_model)
        if kind == "classes":
            answer: Tensor = self.model.head(packed, SequenceLayout.from_lengths([tokens] * copies))
            return answer[:, None]
        places = torch.tensor(list(read.places))
        # (copies, predictions, d_model) -> (copies * predictions, d_model)
        rows = states.index_select(1, places).flatten(0, 1)
        answer = self._tagged(rows) if kind == "tags" else self.model.logits(rows)
        # (copies * predictions, classes) -> (copies, predictions, classes)
        return answer.view(copies, len(places), -1)

    def _tagged(self, rows: Tensor) -> Tensor:
        """What the head says of tokens, each for itself: (tokens, d_model) -> (tokens, tags)."""
        tagged: Tensor = self.model.head(rows, SequenceLayout.from_lengths([1] * len(rows)))
        return tagged

    def _predictions(self, read: ReadWindow, logits: Tensor, top: int) -> list[Prediction]:
        if self._is_number:
            return [Prediction(None, [], _short(logits[0, 0]))]
        words: list[int | None] = [read.side.pieces[place].word for place in read.places]
        return [Prediction(word, self._candidates(row, top)) for word, row in zip(words or [None], logits, strict=True)]

    def _candidates(self, row: Tensor, top: int) -> list[Candidate]:
        shares = self._probabilities(row)
        allowed = shares
        if isinstance(self._text_side, Filler):
            allowed = torch.where(torch.from_numpy(self._text_side.is_text), shares, -1.0)
        ids = allowed.argsort(descending=True, stable=True)[:top].tolist()
        return [Candidate(i, self._name(i), _short(shares[i])) for i in ids if allowed[i] >= 0]

    def _probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1) if self._is_shared else logits.sigmoid()

    def _name(self, number: int) -> str:
        """A label or tag, or a token with a space before it where it begins a word."""
        if not isinstance(self._text_side, Filler):
            return self.head.labels[number]
        token = self._text_side.candidate(number, 0.0)
        return token.text if token.joins else f" {token.text}"

    def _questions(self, read: ReadWindow, logits: Tensor, wanted: str | None, chosen: int | None) -> list[Question]:
        """Which answers are attributed, the chosen one first."""
        most = max(1, _ATTRIBUTED // len(read.side.pieces))
        if self.bundle.task == "classify":
            if self._is_number and wanted is not None:
                raise InputError("label is for models with labels, but this one gives a number; leave it out")
            order = logits[0].argsort(descending=True, stable=True).tolist()
            first = order[0] if wanted is None else self._find(wanted)
            others = [i for i in order[:_LABELS] if i != first]
            return [Question(0, i) for i in [first, *others[: most - 1]]]
        allowed = logits
        if isinstance(self._text_side, Filler):
            allowed = logits.masked_fill(~torch.from_numpy(self._text_side.is_text), -torch.inf)
        best = allowed.argmax(-1).tolist()
        if chosen is None:
            chosen = self._first_named(best)
        ids = {**dict(enumerate(best)), chosen: best[chosen] if wanted is None else self._find(wanted)}
        others = sorted((n for n in ids if n != chosen), key=lambda n: abs(n - chosen))
        return [Question(chosen, ids[chosen]), *(Question(n, ids[n]) for n in sorted(others[: most - 1]))]

    def _first_named(self, best: Sequence[int]) -> int:
        """The first word of a span, if tags mark spans, else the first word."""
        if self.bundle.task != "tag" or "O" not in self.head.labels:
            return 0
        return next((n for n, i in enumerate(best) if self.head.labels[i] != "O"), 0)

    def _find(self, wanted: str) -> int:
        """The id of a label, tag or token."""
        side = self._text_side
        if isinstance(side, Filler):
            found = side.find_token(wanted.strip())
            if found is None:
                raise InputError("token must be one token of the model's vocabulary; give another, or leave it out")
            return found
        if wanted not in self.head.labels:
            known = ", ".join(self.head.labels[:20]) + (", …" if len(self.head.labels) > 20 else "")
            raise InputError(f"label must be one that this model has: {known}")
        return self.head.labels.index(wanted)

    def _attributions(self, read: ReadWindow, logits: Tensor, questions: Sequence[Question]) -> list[Attribution]:
        ids = torch.tensor(list(read.input.ids))
        with torch.inference_mode(False), torch.no_grad():
            embedded, baseline = self.model.embed_source(ids), self._hidden(read, ids)

        def measure(vectors: Tensor) -> Tensor:
            copies, tokens, _ = vectors.shape
            layout = SequenceLayout.from_lengths([tokens] * copies)
            # (copies, tokens, width) -> (copies * tokens, width), and back
            states = self.model.encode_embedded(vectors.flatten(0, 1), layout, None, _types(read, copies))
            found = self._logits(states.unflatten(0, (copies, tokens)), read)
            numbers = [found[:, one.number, one.id] for one in questions]
            if self._is_shared:
                numbers = [log_odds(found[:, one.number], one.id) for one in questions]
            return torch.stack(numbers, dim=1)

        found = integrated_gradients(measure, embedded, baseline)
        made = []
        for n, one in enumerate(questions):
            value, hidden = _short(found.values[n]), _short(found.baseline[n])
            made.append(
                Attribution(
                    one.number,
                    self._name(one.id),
                    one.id,
                    None if self._is_number else _share(found.values[n]),
                    None if self._is_number else _share(found.baseline[n]),
                    value,
                    hidden,
                    rounded(found.parts[n]),
                    _short(found.error[n]),
                )
            )
        return made

    def _hidden(self, read: ReadWindow, ids: Tensor) -> Tensor:
        """The embeddings of the text with every word hidden, (tokens, width); what frames it stays."""
        tokenizer = self.tokenizer
        if tokenizer.mask_id >= 0:
            hidden = self.model.embed_source(torch.tensor([tokenizer.mask_id]))
        else:
            hidden = self.model.embedding.weight.mean(0, keepdim=True)
        hidden_words = {word for text in read.texts for word in range(text.start, text.stop)}
        is_word = torch.tensor([piece.word in hidden_words for piece in read.side.pieces])
        return torch.where(is_word[:, None], hidden, self.model.embed_source(ids))

    def _method(self) -> str:
        hidden = (
            "its tokens replaced by the mask token"
            if self.tokenizer.mask_id >= 0
            else "its embeddings replaced by their mean"
        )
        return ATTRIBUTION.format(
            hidden=hidden, what="number" if self._is_number else "log-odds of the answer, log(p / (1 − p))"
        )

    @property
    def _is_number(self) -> bool:
        """Whether the model gives a text a number in place of labels."""
        return self.head.kind == "classes" and self.head.answer == "number"

    @property
    def _is_shared(self) -> bool:
        """Whether the classes share one probability of 1; else the logit of each is its log-odds, or the number."""
        return self.head.kind != "classes" or self.head.answer == "one"

    # --- vectors ---

    def _compare(self, text: Text, embedder: Embedder, window: int | None) -> EncoderExplanation:
        texts = [text] if isinstance(text, str) else list(text)
        if not all(texts):
            raise InputError("there is no text to explain; give a text that is not empty")
        reads = read_vectors(embedder, texts, window)
        recorded = [self._record(read) for read in reads]
        readings = [self._reading(read, recorder, 0) for read, (_, recorder) in zip(reads, recorded, strict=True)]
        similarity = self._similarity(*(states for states, _ in recorded)) if len(texts) == 2 else None
        method = SIMILARITY if similarity is not None and similarity.pieces is not None else ""
        return EncoderExplanation(self._facts(), _shown(text), readings, [], [], method, similarity)

    def _similarity(self, first: Tensor, second: Tensor) -> Similarity:
        """From the states of both texts, (tokens, d_model)."""
        assert isinstance(self.model.head, SequenceHead)
        with torch.inference_mode():
            one, other = (
                self.model.head.pooled(states, SequenceLayout.from_lengths([len(states)]))[0]
                for states in (first, second)
            )
            lengths = (one.norm() * other.norm()).clamp_min(1e-12)
            pieces = None
            if self.head.pooling == "mean":
                pieces = rounded(first @ second.T / (len(first) * len(second) * lengths))
            return Similarity(_short(one @ other / lengths), pieces)

    # --- what all share ---

    def _facts(self) -> EncoderFacts:
        config = self.bundle.config
        answer = self.head.answer if self.head.kind == "classes" else ""
        return EncoderFacts(self.bundle.task, config.encoder_layers, config.stacks["encoder"].num_heads, answer)

    def _reading(self, read: ReadWindow, recorder: Recorder, around: int) -> Reading:
        """The attention of a window; of one with too many pieces those around a place, or the first."""
        layers = [recorder.weights[f"encoder.{n}.self"][0] for n in range(self.bundle.config.encoder_layers)]
        pieces = len(read.side.pieces)
        count = drawn_pieces(pieces, len(layers) * layers[0].shape[0])
        start = min(max(0, around - count // 2), pieces - count)
        part = slice(start, start + count)
        return Reading(
            read.side, read.texts, read.window, read.windows, [start, start + count],
            [rounded(layer[:, part, part]) for layer in layers], [head_facts(layer, "encoder") for layer in layers],
        )  # fmt: skip


def _types(read: ReadWindow, copies: int) -> Tensor | None:
    return torch.tensor([*read.input.types] * copies) if read.input.types else None


def _share(odds: Tensor) -> float:
    """A probability from its log-odds."""
    return _short(odds.double().sigmoid())


def _short(value: Tensor) -> float:
    return round(float(value), _DIGITS)


def _shown(text: Text) -> str:
    return text if isinstance(text, str) else "\t".join(text)


def _cleaned(text: Text) -> Text:
    """Without spaces around, and with lone surrogates as U+FFFD, as the tokenizer has them."""
    if isinstance(text, tuple):
        return clean(text[0]), clean(text[1])
    return clean(text)
