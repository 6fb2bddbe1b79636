"""Computes explanations: one search with an observer, one forward pass over source and translation with the reference kernel
and a recorder, and one backward pass for every target piece."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from regard.aligning import AlignmentHeads
from regard.bundle import Bundle
from regard.data.pieces import TokenizedSide, group_words, is_punctuation
from regard.data.vocabulary import Side
from regard.errors import UserError
from regard.explain.beam import BeamRecorder, Node
from regard.explain.explanation import (
    ATTENTION_KINDS,
    AttentionKind,
    Candidate,
    Explanation,
    HeadFacts,
    ModelFacts,
    Saliency,
    StepFacts,
    WordAlignment,
    by_words,
    shares,
)
from regard.generate.engines.ctranslate2_engine import CTranslate2Engine
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import Constraints, Engine, Matrix, Prefix, SearchOptions
from regard.generate.word_tokens import word_beginnings
from regard.layout import SequenceLayout
from regard.models.recording import reference_copy
from regard.models.transformer import Transformer
from regard.nn.attention import Recorder
from regard.translation.links import link_words
from regard.translation.reading import one_line

MAX_PIECES = 128  # of either side: the data grows with its square, and nobody reads a larger drawing
_DIGITS = 6
_PART = {"encoder": ("encoder", "self"), "decoder": ("decoder", "self"), "cross": ("decoder", "cross")}


@dataclass
class RecordedPass:
    """A forward pass over source and translation, kept for backward passes."""

    embedded: list[Tensor]  # of the source and of the decoder input: (tokens, d_model)
    log_probs: Tensor  # (target tokens, vocab_size)
    weights: dict[AttentionKind, list[Tensor]]  # per layer: (heads, queries, keys)


class Explainer:
    """Explains translations of one bundle, in fp32 on the CPU."""

    def __init__(self, bundle: Bundle, engine: Engine | None = None) -> None:
        """Shares the weights of `engine` if it has them in fp32 on the CPU; otherwise loads them."""
        self.bundle, self.tokenizer = bundle, bundle.tokenizer
        if len({stack.num_heads for stack in bundle.config.stacks.values()}) > 1:
            raise UserError(
                "an explanation shows the same heads in encoder and decoder, but this model has other model.encoder.num_heads than "
                "model.decoder.num_heads"
            )
        shared = engine.torch_engine if isinstance(engine, CTranslate2Engine) else engine
        if (
            isinstance(shared, TorchEngine)
            and shared.device.type == "cpu"
            and shared.slots is None
            and len(shared.models) == 1
        ):
            self.engine = shared
        else:
            self.engine = TorchEngine.from_bundle(bundle, "cpu")
        # The engine's own model searches, this one is recorded.
        self.recorded_model = reference_copy(self.engine.model, row_tile=0)
        self._lock = Lock()  # a recorded pass puts hooks on the model

    def explain(
        self,
        text: str,
        options: SearchOptions,
        *,
        target: str | None = None,
        prefix: str | None = None,
        force: Mapping[int, str] | None = None,
        top: int = 8,
    ) -> Explanation:
        """Explain the model's translation of `text`, with the `top` candidates of every piece.

        `target` is explained instead of the model's own translation. Otherwise `prefix` forces the translation's beginning and
        `force` its words at some positions, counted from 1; the search completes the rest. The model may continue the last word
        of a prefix, unless a space follows it.
        """
        is_whole = prefix is not None and prefix[-1:].isspace()
        text, target, prefix = clean(text), target and clean(target), prefix and clean(prefix)
        if not text:
            raise UserError("there is no text to explain; give a sentence")
        if target == "":
            raise UserError("the given target is empty; give a translation, or leave it out")
        if top < 1:
            raise UserError(f"top must be at least 1, but is {top}")
        if target is not None and (prefix or force):
            raise UserError("a given target is explained as it is; leave out prefix and force, or leave out target")
        src = self._encode(text, "source", "the text")
        forced = self._encode(prefix, "target", "the prefix") if prefix else []
        tgt, tree = self._search(src, options, [*forced, self._after_word(forced)] if forced and is_whole else forced)
        for number, word in sorted((force or {}).items()):
            forced = self._force_word(tgt, forced, number, word)
            tgt, tree = self._search(src, options, [*forced, self._after_word(forced)])
        if target is not None:
            tgt = forced = self._encode(target, "target", "the target")
        translation = one_line(self.tokenizer.decode(tgt).strip()) if target is None else target
        with self._lock:
            return self._describe(text, translation, src, tgt, len(forced), tree, options, target is not None, top)

    def _encode(self, text: str, side: Side, name: str) -> list[int]:
        limit = min(MAX_PIECES, self.bundle.max_length) if side == "source" else MAX_PIECES
        tag = self.tokenizer.target_tag(self.bundle.target) if side == "source" else ()
        return self._check_length([*tag, *self.tokenizer.encode(text, side)], limit + len(tag), name)

    def _check_length(self, ids: list[int], limit: int, name: str) -> list[int]:
        if self.bundle.config.longest is not None:
            limit = min(limit, self.bundle.config.longest - 1)  # one position is for <s> or </s>
        if len(ids) > limit:
            raise UserError(
                f"{name} must have at most {limit} pieces to be explained, but has {len(ids)}; give one sentence"
            )
        return ids

    def _search(self, src: list[int], options: SearchOptions, prefix: Prefix) -> tuple[list[int], list[Node]]:
        """The ids of the best translation, and the tree of the search."""
        options = replace(options, nbest=1)
        recorder = BeamRecorder(self.tokenizer.bos_id)
        [[best]] = self.engine.search([src], options, [Constraints(prefix)], recorder)
        ids = sorted({node.id for node in recorder.nodes})
        texts = {i: self._texts([i])[0] for i in ids}
        return list(best.ids), recorder.tree(texts)

    def _force_word(self, tgt: list[int], forced: list[int], number: int, word: str) -> list[int]:
        """The ids of the translation up to word `number`, and of the word to force there."""
        side = self._side(tgt, "target")
        if not word.strip():
            raise UserError(f"forced word {number} must not be empty")
        if not 1 <= number <= len(side.words) + 1:
            raise UserError(
                f"word {number} cannot be forced: the translation so far has {len(side.words)} words, counted from 1"
            )
        before = [piece.id for piece in side.pieces if piece.word < number - 1]
        if len(before) < len(forced):
            raise UserError(f"word {number} is part of the prefix; change the prefix instead")
        if is_punctuation(word.strip()):  # no space before it
            forced = self.tokenizer.encode(self.tokenizer.decode(before) + word.strip(), "target")
        else:
            forced = [*before, *self.tokenizer.encode(word.strip(), "target")]
        return self._check_length(forced, MAX_PIECES, "the forced text")

    def _after_word(self, ids: list[int]) -> list[int]:
        """The ids that may follow if the last word is complete: those that begin a word, and `</s>`."""
        return [*word_beginnings(self.tokenizer, ids[-1]), self.tokenizer.eos_id]

    # --- tokens as text ---

    def _texts(self, ids: Sequence[int]) -> list[str]:
        """The text of each piece, with a leading space where a word begins."""
        special = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        return [
            piece if i in special else piece.replace("\u2581", " ").replace("<u2581>", "\u2581")
            for i, piece in zip(ids, self.tokenizer.pieces(ids), strict=True)
        ]

    def _side(self, ids: Sequence[int], side: Side) -> TokenizedSide:
        tokenizer = self.tokenizer
        tags = dict(zip(tokenizer.tag_ids, tokenizer.targets, strict=False))  # shown as their languages
        pieces = [
            f"<{tags[i]}>" if i in tags else piece for i, piece in zip(ids, tokenizer.pieces(ids, side), strict=True)
        ]
        return group_words(ids, pieces, (tokenizer.bos_id, tokenizer.eos_id, *tags))

    # --- the recorded model ---

    def _describe(
        self,
        text: str,
        translation: str,
        src: list[int],
        tgt: list[int],
        num_forced: int,
        tree: list[Node],
        options: SearchOptions,
        given: bool,
        top: int,
    ) -> Explanation:
        bos, eos, config = self.tokenizer.bos_id, self.tokenizer.eos_id, self.bundle.config
        labels = [*tgt, eos]
        source, target = self._side([*src, eos], "source"), self._side(labels, "target")
        recorded = run_recorded(self.recorded_model, [*src, eos], [bos, *tgt])
        steps = self._steps(recorded.log_probs.detach(), labels, num_forced + given, top)
        attention = {kind: [rounded(layer) for layer in recorded.weights[kind]] for kind in ATTENTION_KINDS}
        return Explanation(
            model=ModelFacts(
                self.bundle.source, self.bundle.target, config.encoder_layers, config.decoder_layers, config.num_heads,
                options.beam, options.alpha,
            ),
            text=text,
            translation=translation,
            given=given,
            source=source,
            decoder_input=self._side([bos, *tgt], "target"),
            target=target,
            attention=attention,
            heads={kind: [head_facts(layer, kind) for layer in recorded.weights[kind]] for kind in ATTENTION_KINDS},
            steps=steps,
            log_prob=round(sum(step.log_prob for step in steps), _DIGITS),
            alignment=align(
                recorded.weights["cross"], target, source, self.bundle.alignment_heads, self.tokenizer.targets != ()
            ),
            saliency=saliency(recorded, labels),
            beam=tree,
        )  # fmt: skip

    def _steps(self, log_probs: Tensor, labels: list[int], num_forced: int, top: int) -> list[StepFacts]:
        allowed = log_probs.clone()
        forbidden = [i for i in self.engine.forbidden if i not in labels]
        allowed[:, forbidden] = -math.inf  # the search never considers them
        values, ids = allowed.topk(min(top, allowed.shape[1] - len(forbidden)), dim=1)
        steps = []
        label_texts = self._texts(labels)
        for place, label in enumerate(labels):
            texts = self._texts(ids[place].tolist())
            candidates = [
                Candidate(i, text, round(math.exp(value), _DIGITS))
                for i, text, value in zip(ids[place].tolist(), texts, values[place].tolist(), strict=True)
            ]
            log_prob = float(allowed[place, label])
            rank = int((allowed[place] > log_prob).sum()) + 1
            steps.append(StepFacts(label_texts[place], round(log_prob, _DIGITS), rank, place < num_forced, candidates))
        return steps


def run_recorded(model: Transformer, src: Sequence[int], tgt_in: Sequence[int]) -> RecordedPass:
    """Run the model on one source (with `</s>`) and one decoder input, recording attention and embeddings for gradients."""
    embedded: list[Tensor] = []

    def catch(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    tables = [model.embedding] if model.config.tie_embeddings else [model.src_embedding, model.tgt_embedding]
    hooks = [table.register_forward_hook(catch) for table in tables]
    recorder = Recorder()
    src_layout, tgt_layout = SequenceLayout.from_lengths([len(src)]), SequenceLayout.from_lengths([len(tgt_in)])
    try:
        with torch.inference_mode(False), torch.enable_grad():
            memory = model.encode(torch.tensor(src), src_layout, recorder)
            hidden = model.decode(torch.tensor(tgt_in), tgt_layout, memory, src_layout, recorder)
            log_probs = torch.log_softmax(model.logits(hidden), dim=-1)
    finally:
        for hook in hooks:
            hook.remove()
    config = model.config
    layers = {"encoder": config.encoder_layers, "decoder": config.decoder_layers, "cross": config.decoder_layers}
    weights: dict[AttentionKind, list[Tensor]] = {}
    for kind in ATTENTION_KINDS:
        stack, attention = _PART[kind]
        weights[kind] = [recorder.weights[f"{stack}.{layer}.{attention}"][0] for layer in range(layers[kind])]
    return RecordedPass(embedded, log_probs, weights)


def saliency(recorded: RecordedPass, labels: Sequence[int]) -> Saliency:
    """Gradient x input, summed over d_model: one backward pass for every target piece."""
    of_source: Matrix = []
    of_input: Matrix = []
    for place, label in enumerate(labels):
        gradients = torch.autograd.grad(recorded.log_probs[place, label], recorded.embedded, retain_graph=True)
        # (tokens, d_model) -> (tokens,)
        source, decoder_input = (
            (gradient * vector).sum(-1).detach() for gradient, vector in zip(gradients, recorded.embedded, strict=True)
        )
        of_source.append(rounded(source))
        of_input.append(rounded(decoder_input))
    return Saliency(of_source, of_input)


def head_facts(weights: Tensor, kind: AttentionKind) -> list[HeadFacts]:
    """Entropy and distance of every head of a layer, from weights (heads, queries, keys)."""
    queries, keys = weights.shape[1:]
    entropy = -(weights * weights.clamp_min(1e-12).log2()).sum(-1).mean(-1)
    places = torch.arange(queries, dtype=torch.float32)
    if kind == "cross":  # the target is stretched to the source's length
        places = places * ((keys - 1) / max(1, queries - 1))
    apart = (places[:, None] - torch.arange(keys)[None, :]).abs()
    distance = (weights * apart).sum(-1).mean(-1)
    return [
        HeadFacts(round(abs(e), _DIGITS), round(d, _DIGITS))
        for e, d in zip(entropy.tolist(), distance.tolist(), strict=True)
    ]


def align(
    cross: Sequence[Tensor], target: TokenizedSide, source: TokenizedSide, chosen: AlignmentHeads, has_tag: bool = False
) -> WordAlignment:
    """Align words by the model's alignment heads, with the links of `regard.translation.links`. `has_tag`: the first word of the
    source is the tag of the target language."""
    steps = cross[chosen.layer][list(chosen.heads)].mean(0).tolist()
    # Shifted, row t tells of the token that step t has read; </s> is never read, and needs no link.
    rows = [*steps[1:], steps[-1]] if chosen.shift else steps
    # </s> is not a word, and heads with nothing to attend to rest on the source's.
    words = [[0.0] * has_tag + row[has_tag:-1] for row in by_words(rows, target, source)[:-1]]
    weights = [[round(share, _DIGITS) for share in row] for row in shares(words)]
    links = [list(link) for link in link_words(words)]
    return WordAlignment(chosen.layer, weights, links, list(chosen.heads), chosen.shift)


def clean(text: str) -> str:
    """Strip the text and replace lone surrogates by U+FFFD, as the tokenizer does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def rounded(values: Tensor, digits: int = _DIGITS) -> list:  # type: ignore[type-arg]  # nested as deep as the tensor
    """Nested lists of numbers that are short in JSON."""
    return _with_short_zeros((values.double() * 10**digits).round().div(10**digits).tolist())


def _with_short_zeros(nested: list[Any]) -> list[Any]:
    """0 in place of 0.0."""
    if nested and isinstance(nested[0], list):
        return [_with_short_zeros(one) for one in nested]
    return [value or 0 for value in nested]
