"""The engine that runs the model itself, on any device that torch supports. With an encoder it translates, without one it continues
prompts; only how a sentence enters the model differs.

Sentences are sorted by length and searched in batches. A sentence's result does not depend on its batch: linear layers work
on tiles of a fixed number of rows, and attention at lengths that are a function of the sentence alone. On GPUs with Triton,
sentences go through slots of a fixed shape instead, with CUDA graphs and in fp16 (`slot_engine.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice

import torch
from torch import Tensor

from regard.aligning import AlignmentHeads
from regard.bundle import Bundle, load_weights
from regard.device import pick_device, with_index
from regard.errors import InputError, RegardError, UserError
from regard.generate.engines.batches import beam_batch, check_constraints, cut_batches, length_limit
from regard.generate.engines.entering import encode, with_end
from regard.generate.engines.slot_engine import SlotDecoder
from regard.generate.engines.stepper import Stepper, mean_probability
from regard.generate.options import (
    NO_CONTINUATION,
    NOTHING_FOUND,
    Constraints,
    Hypothesis,
    Matrix,
    OnFinished,
    SearchOptions,
    forbidden_ids,
)
from regard.generate.search.constrained import constrained_search
from regard.generate.search.core import Observer, beam_search, search_steps
from regard.generate.search.phrases import PhraseAutomaton
from regard.generate.search.stable import stable_prefixes
from regard.generate.search.state import SearchSpec
from regard.layout import SequenceLayout
from regard.models.int8 import to_int8
from regard.models.recording import cross_attention, reference_copy
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.kernels import on_triton
from regard.nn.linear import set_row_tile

_ROW_TILE = {"cpu": 64, "cuda": 256, "mps": 256}
_BUCKET = {"cpu": 8, "cuda": 64, "mps": 64}
_SCORE_ROWS = 2_048  # rows of logits held at a time; a multiple of every row tile
_BATCH_TOKENS = {"cpu": 8_192, "cuda": 32_768, "mps": 8_192}  # tokens of a batch, counted with padding
_BATCH = {"cpu": 32, "cuda": 256, "mps": 64}  # sentences of a batch
_CONTINUATION = 64  # tokens after a prompt that a cache has room for at first
_SLOTS = 512  # sentences in slots; fewer if the memory cannot hold them


class TorchEngine:
    """Searches with a model, or an ensemble, which must not be trained meanwhile."""

    def __init__(
        self,
        model: Transformer,
        bos_id: int,
        eos_id: int,
        *,
        forbidden: Sequence[int] = (),
        device: torch.device | str = "cpu",
        batch: int = 0,
        slots: bool = False,
        others: Sequence[Transformer] = (),
        alignment: Sequence[AlignmentHeads] = (),
        stop_ids: Sequence[int] = (),
        context: int | None = None,
    ) -> None:
        """`others` are models of the same vocabulary; a token's probability is then the mean over all models. `alignment` names
        the heads of every model that align words; by default `AlignmentHeads.default`. Each of `stop_ids` ends an output, as
        the end token does; a model without an encoder may have neither, or no start token (-1). `context` is the longest text, a
        prompt and what follows, that such a model was made for."""
        self.device = with_index(torch.device(device))
        self.models = [one.to(self.device).eval() for one in (model, *others)]
        self.model = self.models[0]
        self.has_encoder = bool(self.model.config.encoder_layers)
        self._aligning = tuple(alignment)
        if self.has_encoder and not alignment:
            self._aligning = tuple(AlignmentHeads.default(one.config) for one in self.models)
        self.bos_id, self.forbidden, self.context = bos_id, tuple(forbidden), context
        ends = [token for token in dict.fromkeys((eos_id, *stop_ids)) if token >= 0]
        self.eos_id, *others_ends = ends or [self.model.config.vocab_size]  # without any, a token that never comes
        self.stop_ids = tuple(others_ends)
        self.batch = batch or (_SLOTS if slots else _BATCH.get(self.device.type, 64))
        self.parallel = 1
        self.takes_phrases = True
        self.batch_tokens = _BATCH_TOKENS.get(self.device.type, 8_192)
        self.bucket = _BUCKET.get(self.device.type, 64)
        self.slots: SlotDecoder | None = None
        self._lock = threading.Lock()  # see `_exclusive`
        self._copying = threading.Lock()
        self._recorded: list[Transformer] = []  # the models as `reference_copy` returns them, once they are needed
        if slots:
            self.slots = SlotDecoder(self.model, self.bos_id, self.eos_id, self.forbidden, self.batch, self.stop_ids)
            return
        for one in self.models:
            set_row_tile(one, _ROW_TILE.get(self.device.type, 64))
            set_kernel(one, "by_length")

    @classmethod
    def from_bundle(
        cls, bundle: Bundle, device: str = "auto", batch: int = 0, others: Sequence[Bundle] = (), int8: bool = False
    ) -> TorchEngine:
        """In slots and fp16 on a GPU with Triton, unless it is an ensemble or has relative positions, which the cache of slots does
        not take; else in batches and fp32, with `int8` linear layers if asked for, on a CPU."""
        tokenizer = bundle.tokenizer
        model = load_model(bundle)
        picked = pick_device(device)
        has_encoder = bool(bundle.config.encoder_layers)
        slots = on_triton(picked) and not others and model.decoder.relative is None
        if slots:
            model = model.half()  # its 11 bits of precision flip fewer near-ties than the 8 of bf16
        if int8:
            to_int8(model)
        return cls(
            model,
            tokenizer.bos_id,
            tokenizer.eos_id,
            forbidden=forbidden_ids(tokenizer),
            device=picked,
            batch=batch,
            slots=slots,
            others=[load_model(other) for other in others],
            alignment=[one.alignment_heads for one in (bundle, *others)] if has_encoder else (),
            stop_ids=() if has_encoder else tokenizer.stop_ids,
            context=None if has_encoder else bundle.max_length,
        )

    @property
    def precision(self) -> str:
        """In which it computes: fp32, fp16 or int8."""
        if self.model.output_int8 is not None:
            return "int8"
        return {torch.float32: "fp32", torch.float16: "fp16"}.get(self.model.output_matrix.dtype, "other")

    @property
    def bytes_per_token(self) -> int:
        """Memory of the keys and values of a token in the cache of one row."""
        stack = self.model.decoder.config
        return 2 * stack.kv_heads * stack.d_head * stack.layers * self.model.output_matrix.itemsize

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        """As `Engine.translate`."""
        if not self.has_encoder:
            raise UserError("this model has no encoder: it continues texts and does not translate; use generate")
        return self._find(ids, options, on_finished, constraints)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        """As `TextEngine.generate`; `options.max_extra` tokens at most."""
        if self.has_encoder:
            raise UserError("this model has an encoder: it translates and does not continue texts; use translate")
        return self._find(prompts, options, on_finished, constraints)

    def _find(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        check_constraints(constraints)
        ids = self._checked(ids, options, constraints)
        if any(constraint.phrases for constraint in constraints):
            return constrained_search(ids, options, on_finished, constraints, self._find, self.in_batches, self.score)
        is_constrained = any(constraint != Constraints() for constraint in constraints)
        # Slots do not look for the end of a text that `Constraints.ends` sees: going on to the limit takes less time than batches.
        if self.slots is not None and not is_constrained and not options.beyond_beam:
            beam_batch(options, self.model.config, self.batch)  # refuses a beam that is too wide
            with self._exclusive():
                return self._translate_in_slots(self.slots, ids, options, on_finished)
        return self.in_batches(
            ids, options, on_finished, constraints if is_constrained or _has_ends(constraints) else ()
        )

    def in_batches(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        """As `translate`, but phrases constrain the first search already, and slots are not used."""
        results: list[list[Hypothesis]] = [[] for _ in ids]
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        together = min(beam_batch(options, model.config, self.batch) for model in self.models)
        for numbers in cut_batches(order, [len(sentence) for sentence in ids], together, self.batch_tokens):
            chosen = [constraints[number] for number in numbers] if constraints else ()
            with self._exclusive():
                searched = self.search([ids[number] for number in numbers], options, chosen)
            for number, hypotheses in zip(numbers, searched, strict=True):
                results[number] = hypotheses
            if on_finished is not None:
                on_finished(numbers)
        return results

    def _translate_in_slots(
        self, slots: SlotDecoder, ids: Sequence[Sequence[int]], options: SearchOptions, on_finished: OnFinished | None
    ) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in ids]
        limits = self._limits(ids, options)
        for number, hypotheses in slots.translate(ids, limits, options):
            if not hypotheses:
                nothing = NOTHING_FOUND if self.has_encoder else NO_CONTINUATION
                raise RegardError(f"{nothing} in half precision, which is used on GPUs; use --device cpu")
            results[number] = hypotheses
            if on_finished is not None:
                on_finished([number])
        return results

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Around a caller's work on the device. With slots, one caller at a time: CUDA graphs are captured and replayed on the same
        memory, and nothing else may compute meanwhile. Without slots, callers share nothing that changes."""
        with self._lock if self.slots is not None else nullcontext(), self._on_device():
            yield

    def _on_device(self) -> AbstractContextManager[object]:
        """Triton and CUDA events use the current device, which is per thread."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    @torch.inference_mode()
    def search(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        constraints: Sequence[Constraints] = (),
        observer: Observer | None = None,
    ) -> list[list[Hypothesis]]:
        """Search all sentences as one batch, without slots."""
        with self._on_device():
            stepper, spec = self._search_spec(ids, options, constraints)
            return beam_search(stepper.step, stepper.select, spec, self.device, observer)

    @torch.inference_mode()
    def stream(
        self, src: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        """As `Engine.stream`. With phrases there is only one item, the complete output."""
        if constraint is not None and constraint.phrases:
            yield self._find([src], options, None, [constraint])[0][0].ids
            return
        beam_batch(options, self.model.config, 1)  # refuses a beam that is too wide
        check_constraints([constraint] if constraint is not None else [])
        with self._exclusive():
            stepper, spec = self._search_spec([src], options, [constraint or Constraints()])
            steps = stable_prefixes(search_steps(stepper.step, stepper.select, spec, self.device))
        while True:
            # Not held between two steps: the caller's thread may compute something else meanwhile.
            with self._exclusive():
                prefix = next(steps, None)
            if prefix is None:
                return
            yield prefix

    def _checked(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> Sequence[Sequence[int]]:
        """Sources as they are; prompts with the token that begins a text in place of nothing. What needs a source is refused."""
        if self.has_encoder:
            return ids
        if options is not None and options.coverage:
            raise UserError("coverage needs a source, which this model does not have; leave it out")
        for constraint in constraints:
            if constraint.code_switch is not None or any(phrase.source for phrase in constraint.phrases):
                raise ValueError("phrases must not name tokens of a source, which a model without an encoder lacks")
        first = self.bos_id if self.bos_id >= 0 else self.eos_id
        if first >= self.model.config.vocab_size and not all(ids):
            raise UserError("a prompt must not be empty with this model, which has no token that begins a text")
        return [prompt or (first,) for prompt in ids]

    def _search_spec(
        self, ids: Sequence[Sequence[int]], options: SearchOptions, constraints: Sequence[Constraints]
    ) -> tuple[Stepper, SearchSpec]:
        ids = self._checked(ids, options, constraints)
        limits = self._limits(ids, options, constraints)
        longest = max(map(len, ids)) + 1
        capacity = min(max(limits) + 1, 2 * longest + 16 if self.has_encoder else _CONTINUATION)
        phrases = [PhraseAutomaton(constraint.phrases) if constraint.phrases else None for constraint in constraints]
        needs_attention = options.coverage > 0 or any(one is not None and one.has_sources for one in phrases)
        stepper = Stepper(
            self.models, ids, self.eos_id, options.beam, capacity, self.bucket, self.device, needs_attention
        )
        spec = SearchSpec(
            limits,
            options,
            self.bos_id,
            self.eos_id,
            self.forbidden,
            prefixes=[constraint.prefix for constraint in constraints]
            if any(constraint.prefix for constraint in constraints)
            else (),
            phrases=phrases if any(phrases) else (),
            src=ids if self.has_encoder else (),
            attention=stepper.attention if needs_attention else None,
            prompts=() if self.has_encoder else ids,
            stop_ids=self.stop_ids,
            ends=[constraint.ends for constraint in constraints] if _has_ends(constraints) else (),
        )
        return stepper, spec

    def _limits(
        self, ids: Sequence[Sequence[int]], options: SearchOptions, constraints: Sequence[Constraints] = ()
    ) -> list[int]:
        constraints = constraints or [Constraints()] * len(ids)
        return [
            min(length_limit(sentence, options, model.config, constraint, self.context) for model in self.models)
            for sentence, constraint in zip(ids, constraints, strict=True)
        ]

    @torch.inference_mode()
    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        """As `Engine.attention`; of an ensemble, the mean."""
        if not self.has_encoder:
            raise UserError("this model has no encoder: there is no source that its words could be aligned with")
        results: list[Matrix] = [[] for _ in src]
        lengths = [max(map(len, pair)) for pair in zip(src, tgt, strict=True)]
        order = sorted((n for n in range(len(src)) if src[n]), key=lambda number: (len(tgt[number]), len(src[number])))
        for numbers in cut_batches(order, lengths, self.batch, self.batch_tokens):
            with self._exclusive():
                matrices = self._attention([src[number] for number in numbers], [tgt[number] for number in numbers])
            for number, matrix in zip(numbers, matrices, strict=True):
                results[number] = matrix
        return results

    def _attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        sources = [(*ids, self.eos_id) for ids in src]
        read = [(self.bos_id, *ids) for ids in tgt]
        sums: list[Tensor] = []
        for model, chosen in zip(self._recorded_models(), self._aligning, strict=True):
            matrices = []
            for layers in cross_attention(model, sources, read, self.device):
                # (num_heads, tgt_len + 1, src_len + 1) -> (tgt_len, src_len)
                steps = layers[chosen.layer][list(chosen.heads)].float().mean(0)
                matrices.append((steps[1:] if chosen.shift else steps[:-1])[:, :-1])
            sums = [one + other for one, other in zip(sums, matrices, strict=True)] if sums else matrices
        return [(one / len(self.models)).tolist() for one in sums]

    def _recorded_models(self) -> list[Transformer]:
        with self._copying:
            self._recorded = self._recorded or [reference_copy(model) for model in self.models]
        return self._recorded

    @torch.inference_mode()
    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """As `Engine.score` and `TextEngine.score`; of an ensemble, of the mean probabilities."""
        src = self._checked(src)
        self._check_texts(src, tgt)
        results: list[list[float]] = [[] for _ in src]
        order = sorted(range(len(src)), key=lambda number: (len(tgt[number]), len(src[number])))
        lengths = [(max if self.has_encoder else sum)(map(len, pair)) for pair in zip(src, tgt, strict=True)]
        for numbers in cut_batches(order, lengths, self.batch, self.batch_tokens):
            with self._exclusive():
                scored = list(self._score(src, tgt, numbers))
            for number, values in zip(numbers, scored, strict=True):
                results[number] = values
        return results

    def _score(
        self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], numbers: Sequence[int]
    ) -> Iterator[list[float]]:
        sources, targets = [src[number] for number in numbers], [tgt[number] for number in numbers]
        labels = torch.tensor([token for one in targets for token in (*one, self.eos_id)], device=self.device)
        is_end = torch.tensor([n == len(one) for one in targets for n in range(len(one) + 1)], device=self.device)
        ends = [self.eos_id, *self.stop_ids]
        by_model = []
        for model in self.models:
            picked = []
            hidden = self._decode(model, sources, targets)
            # In parts, since the logits of all tokens may not fit into memory.
            for part, label in zip(torch.split(hidden, _SCORE_ROWS), torch.split(labels, _SCORE_ROWS), strict=True):
                log_probs = torch.log_softmax(with_end(model.logits(part), self.eos_id).float(), dim=-1)
                picked.append(torch.cat((log_probs.gather(1, label[:, None]), log_probs[:, ends]), dim=1))
            by_model.append(torch.cat(picked))
        scores = mean_probability(by_model)  # (tgt_tokens, 1 + ends)
        values = iter(torch.where(is_end, scores[:, 1:].amax(dim=1), scores[:, 0]).tolist())
        for target in targets:
            yield list(islice(values, len(target) + 1))

    def _check_texts(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> None:
        """Refuse texts that are longer, with their prompts, than learned positions allow."""
        stacks = [model.config.decoder_stack for model in self.models if not self.has_encoder]
        most = min((one.max_positions for one in stacks if one and one.positions == "learned"), default=None)
        longest = max((len(prompt) + len(text) for prompt, text in zip(prompts, texts, strict=True)), default=0)
        if most is not None and longest > most:
            raise InputError(
                f"a text with its prompt must have at most {most:,} tokens, the limit of this model, but has {longest:,}; "
                "shorten it"
            )

    def _decode(self, model: Transformer, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> Tensor:
        """Decoder states before each token of given outputs and before their end tokens, (tgt_tokens, d_model)."""
        if not self.has_encoder:
            texts = [(*prompt, *target) for prompt, target in zip(src, tgt, strict=True)]
            ids = torch.tensor([token for text in texts for token in text], device=self.device)
            layout = SequenceLayout.from_lengths([len(text) for text in texts], self.device)
            states = model.states(ids, layout).split(list(layout.lengths))
            return torch.cat([one[-len(target) - 1 :] for one, target in zip(states, tgt, strict=True)])
        memory, src_layout = encode(model, src, self.eos_id, self.device)
        tgt_in = torch.tensor([token for target in tgt for token in (self.bos_id, *target)], device=self.device)
        layout = SequenceLayout.from_lengths([len(target) + 1 for target in tgt], self.device)
        return model.decode(tgt_in, layout, memory, src_layout)

    @torch.inference_mode()
    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """As `Engine.next_log_probs` and `TextEngine.next_log_probs`; of an ensemble, of the mean probabilities."""
        [src] = self._checked([src])
        self._check_texts([src], [prefix])
        by_model = []
        with self._exclusive():
            for model in self.models:
                logits = model.logits(self._decode(model, [src], [prefix])[-1:])
                by_model.append(torch.log_softmax(logits.float(), dim=-1)[0])
            values: list[float] = mean_probability(by_model).tolist()
        return values


def _has_ends(constraints: Sequence[Constraints]) -> bool:
    return any(constraint.ends is not None for constraint in constraints)


def load_model(bundle: Bundle) -> Transformer:
    """The bundle's model with its weights, on the CPU, in evaluation mode."""
    with torch.device("meta"):
        model = Transformer(bundle.config)
    weights = load_weights(bundle)
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in weights:
            raise UserError(f"{bundle.weights}: tensor {name} is missing")
        if weights[name].shape != tensor.shape:
            shape, wanted = tuple(weights[name].shape), tuple(tensor.shape)
            raise UserError(f"{bundle.weights}: tensor {name} must have shape {wanted}, but has {shape}")
    if extra := set(weights) - set(expected):
        raise UserError(f"{bundle.weights}: tensor {min(extra)} does not belong to this model")
    model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)
