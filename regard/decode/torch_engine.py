"""The engine that runs the model itself, on any device that torch knows.

Sentences are sorted by length and searched in batches. What a sentence gets does not depend on its batch: linear layers
take rows in tiles of a fixed size, and attention works at lengths that are a function of the sentence alone. On GPUs with
Triton they take turns in slots of a fixed shape instead, in captured graphs and in fp16 (`slot_engine.py`).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from regard.bundle import Bundle, load_weights
from regard.decode.alignment import Matrix, aligning_layer
from regard.decode.batches import cut_batches, length_limit
from regard.decode.options import Done, Hypothesis, SearchOptions, Wish, forbidden_ids
from regard.decode.search import Observer, beam_search
from regard.decode.slot_engine import SlotDecoder
from regard.device import numbered, pick_device
from regard.errors import RegardError, UserError
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer
from regard.nn.attention import Recorder, set_kernel
from regard.nn.kernels import on_triton
from regard.nn.linear import set_row_tile

_ROW_TILE = {"cpu": 64, "cuda": 256, "mps": 256}
_BUCKET = {"cpu": 8, "cuda": 64, "mps": 64}
_SCORED = 2_048  # rows of logits held at a time; a multiple of every row tile
_ROOM = {"cpu": 8_192, "cuda": 32_768, "mps": 8_192}  # tokens of a batch, counted at the longest sentence's length
_BATCH = {"cpu": 32, "cuda": 256, "mps": 64}  # sentences searched together
_SLOTS = 512  # likewise, in slots; fewer where the memory does not hold so many


class TorchEngine:
    """Holds a model for translation; the model must not be trained while it is in here."""

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
    ) -> None:
        self.device = numbered(torch.device(device))
        self.model = model.to(self.device).eval()
        self.bos_id, self.eos_id, self.forbidden = bos_id, eos_id, tuple(forbidden)
        self.batch = batch or (_SLOTS if slots else _BATCH.get(self.device.type, 64))
        self.parallel = 1
        self.room = _ROOM.get(self.device.type, 8_192)
        self.bucket = _BUCKET.get(self.device.type, 64)
        self.slots: SlotDecoder | None = None
        self._lock = threading.Lock()  # slots are for one caller at a time
        if slots:
            self.slots = SlotDecoder(self.model, self.bos_id, self.eos_id, self.forbidden, self.batch)
        else:
            set_row_tile(self.model, _ROW_TILE.get(self.device.type, 64))
            set_kernel(self.model, "by_length")

    @classmethod
    def from_bundle(cls, bundle: Bundle, device: str = "auto", batch: int = 0) -> TorchEngine:
        """In slots and fp16 where there is a GPU for them, else in batches and fp32."""
        tokenizer = bundle.tokenizer
        model = load_model(bundle)
        place = pick_device(device)
        slots = on_triton(place)
        if slots:
            model = model.half()  # eleven bits of a number where bf16 has eight: fewer near-ties fall another way
        return cls(
            model,
            tokenizer.bos_id,
            tokenizer.eos_id,
            forbidden=forbidden_ids(tokenizer),
            device=place,
            batch=batch,
            slots=slots,
        )

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        done: Done | None = None,
        wishes: Sequence[Wish] = (),
    ) -> list[list[Hypothesis]]:
        if self.slots is not None and not wishes:
            with self._lock, self._on_device():
                return self._translate_in_slots(self.slots, ids, options, done)
        results: list[list[Hypothesis]] = [[] for _ in ids]
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        for numbers in cut_batches(order, [len(sentence) for sentence in ids], self.batch, self.room):
            wished = [wishes[number] for number in numbers] if wishes else ()
            found = self.search([ids[number] for number in numbers], options, wished)
            for number, hypotheses in zip(numbers, found, strict=True):
                results[number] = hypotheses
            if done is not None:
                done(len(numbers))
        return results

    def _translate_in_slots(
        self, slots: SlotDecoder, ids: Sequence[Sequence[int]], options: SearchOptions, done: Done | None
    ) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in ids]
        limits = [length_limit(sentence, options, self.model.config) for sentence in ids]
        for number, hypotheses in slots.translate(ids, limits, options):
            if not hypotheses:
                raise RegardError(
                    "the model's numbers are not finite in half precision, in which GPUs translate; use --device cpu"
                )
            results[number] = hypotheses
            if done is not None:
                done(1)
        return results

    def _on_device(self) -> AbstractContextManager[object]:
        """Triton and events go to the current device, which is a matter of the thread."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    @torch.inference_mode()
    def search(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        wishes: Sequence[Wish] = (),
        observer: Observer | None = None,
    ) -> list[list[Hypothesis]]:
        """Search all sentences together, without slots."""
        wishes = wishes or [Wish()] * len(ids)
        memory, layout = self._encode(ids)
        limits = [
            length_limit(sentence, options, self.model.config, wish) for sentence, wish in zip(ids, wishes, strict=True)
        ]
        capacity = min(max(limits) + 1, 2 * layout.max_length + 16)
        cache = self.model.start(memory, layout, options.beam, capacity, self.bucket)
        return beam_search(
            lambda newest: self.model.step(newest, cache),
            cache.select,
            limits,
            options,
            bos_id=self.bos_id,
            eos_id=self.eos_id,
            forbidden=self.forbidden,
            device=self.device,
            prefixes=[wish.prefix for wish in wishes] if any(wish.prefix for wish in wishes) else (),
            observer=observer,
        )

    def _encode(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, SequenceLayout]:
        flat = torch.tensor([token for sentence in ids for token in (*sentence, self.eos_id)], device=self.device)
        layout = SequenceLayout.from_lengths([len(sentence) + 1 for sentence in ids], self.device)
        return self.model.encode(flat, layout), layout

    @torch.inference_mode()
    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        results: list[list[float]] = [[] for _ in src]
        order = sorted(range(len(src)), key=lambda number: (len(tgt[number]), len(src[number])))
        lengths = [max(map(len, pair)) for pair in zip(src, tgt, strict=True)]
        with self._on_device():
            for numbers in cut_batches(order, lengths, self.batch, self.room):
                for number, values in zip(numbers, self._score(src, tgt, numbers), strict=True):
                    results[number] = values
        return results

    def _score(
        self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]], numbers: Sequence[int]
    ) -> Iterator[list[float]]:
        memory, src_layout = self._encode([src[number] for number in numbers])
        tgt_in = [token for number in numbers for token in (self.bos_id, *tgt[number])]
        labels = torch.tensor(
            [token for number in numbers for token in (*tgt[number], self.eos_id)], device=self.device
        )
        layout = SequenceLayout.from_lengths([len(tgt[number]) + 1 for number in numbers], self.device)
        hidden = self.model.decode(torch.tensor(tgt_in, device=self.device), layout, memory, src_layout)
        picked: list[float] = []
        # The logits of all tokens would be too much to hold at once.
        for part, label in zip(torch.split(hidden, _SCORED), torch.split(labels, _SCORED), strict=True):
            log_probs = torch.log_softmax(self.model.logits(part).float(), dim=-1)
            picked += log_probs.gather(1, label[:, None])[:, 0].tolist()
        values = iter(picked)
        for length in layout.lengths:
            yield list(islice(values, length))

    @torch.inference_mode()
    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        with self._on_device():
            memory, src_layout = self._encode([src])
            layout = SequenceLayout.from_lengths([len(prefix) + 1], self.device)
            tgt_in = torch.tensor([self.bos_id, *prefix], device=self.device)
            hidden = self.model.decode(tgt_in, layout, memory, src_layout)
            values: list[float] = torch.log_softmax(self.model.logits(hidden[-1:]).float(), dim=-1)[0].tolist()
        return values

    @torch.inference_mode()
    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        """As `alignment.Attentive` says."""
        layer = aligning_layer(self.model.config)
        results: list[Matrix] = [[] for _ in src]
        with self._on_device():
            for number, (source, target) in enumerate(zip(src, tgt, strict=True)):
                if not source or not target:
                    continue
                ids = [
                    torch.tensor(side, device=self.device) for side in ([*source, self.eos_id], [self.bos_id, *target])
                ]
                layouts = [SequenceLayout.from_lengths([len(side)], self.device) for side in ids]
                recorder = Recorder()
                memory = self._reader.encode(ids[0], layouts[0])
                self._reader.decode(ids[1], layouts[1], memory, layouts[0], recorder)
                # (heads, target with its end, source with its end) -> (target, source)
                weights = recorder.weights[f"decoder.{layer}.cross"][0].float().mean(0)
                results[number] = weights[:-1, :-1].tolist()
        return results

    @cached_property
    def _reader(self) -> Transformer:
        return reading_copy(self.model)


def reading_copy(model: Transformer) -> Transformer:
    """The same weights, computed by the kernel that shows its attention."""
    copied = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})
    set_kernel(copied, "reference")
    set_row_tile(copied, 0)
    return copied


def load_model(bundle: Bundle) -> Transformer:
    """The bundle's model with its weights, on the CPU, ready to translate."""
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
