"""Continuous batching, which keeps a GPU full: a fixed number of slots, each refilled as soon as its sentence is finished. With an
encoder, sentences are sources to translate; without one, prompts to continue.

Admitting sentences and advancing all slots by one step are each captured once as a CUDA graph and then replayed. The host
reads results one step late, so that the device never waits for it. The same code runs without graphs on any device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.generate.engines.entering import with_end, without_end
from regard.generate.engines.slot_admission import SlotAdmission
from regard.generate.engines.slot_search import HostCopy, SlotSearch, read_hypotheses, to_device
from regard.generate.options import Hypothesis, SearchOptions
from regard.models.slots import admit, start_slots
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.block import set_fused
from regard.nn.embedding import SinusoidalPositions
from regard.nn.kernels import on_triton
from regard.nn.linear import set_row_tile

REFILL_SHARE = 8  # refill when 1 / 8 of the slots are free: encoding a few sentences at a time would be slow
ADMISSION_TOKENS = 2048  # tokens admitted at once, given enough slots
SENTENCE_TOKENS = 16  # an admission batch has entries for sentences of this many tokens on average
MIN_CAPACITY = {
    "cpu": 64,
    "cuda": 256,
}  # tokens that the smallest slots hold; the next size is twice as large, and so on
MEMORY_SHARE = 0.25  # of the free memory, for the slots of one shape
MAX_RUNNERS = 4  # shapes that are kept ready, with their graphs


@dataclass(frozen=True)
class SlotShape:
    """What a captured graph depends on."""

    slots: int
    capacity: int  # source tokens, and also target tokens, of each slot; of a prompt and what follows together
    options: SearchOptions


@dataclass(frozen=True)
class SlotJob:
    """One sentence to search."""

    number: int
    ids: Sequence[int]
    limit: int  # maximum number of output tokens


@dataclass(frozen=True)
class ActiveJob:
    """A sentence in a slot."""

    job: SlotJob
    since: int  # the step before which it was admitted


@dataclass(frozen=True)
class SpecialTokens:
    """The tokens that begin and end an output, and those that it may not have."""

    bos_id: int
    eos_id: int
    forbidden: tuple[int, ...]
    stop_ids: tuple[int, ...]  # these end it, too


class CapturedWork:
    """Work on fixed memory: on CUDA computed the first time, captured as a graph the second, and replayed from then on."""

    def __init__(self, compute: Callable[[], None], device: torch.device) -> None:
        self._compute, self._device = compute, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self._device.type != "cuda" or not self._is_warm:  # other devices never capture
            self._compute()  # also compiles the kernels
            self._is_warm = True
        else:
            torch.cuda.synchronize(self._device)
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._compute()
            self._graph = graph
            graph.replay()


class SlotRunner:
    """The cache and search of slots of one shape, with their graphs."""

    def __init__(self, model: Transformer, shape: SlotShape, special: SpecialTokens) -> None:
        self.model, self.shape, self.eos_id = model, shape, special.eos_id
        device = model.output_matrix.device
        self.is_prompts = not model.config.encoder_layers
        capacity = shape.capacity if model.config.longest is None else min(shape.capacity, model.config.longest)
        self.cache = start_slots(model, shape.slots, shape.options.beam, capacity)
        vocab_size = max(model.config.vocab_size, self.eos_id + 1)
        self.search = SlotSearch(
            shape.slots, capacity, vocab_size, shape.options, self.eos_id, special.forbidden, device, special.stop_ids,
            is_free=self.is_prompts,
        )  # fmt: skip
        tokens = max(capacity, min(ADMISSION_TOKENS, 4 * shape.slots))  # about what one refill takes
        sentences = max(1, min(shape.slots, tokens // SENTENCE_TOKENS))
        self.admission = SlotAdmission(
            tokens, sentences, shape.slots, capacity, special.bos_id, self.eos_id, self.is_prompts
        )
        self._words = torch.zeros(self.admission.size, dtype=torch.int32, device=device)
        self._admit = CapturedWork(self._compute_admission, device)
        self._step = CapturedWork(self._compute_step, device)
        # The graphs read this memory even after the model has replaced a table of positions by a larger one.
        for stack in model.stacks:
            if isinstance(stack.positions, SinusoidalPositions):
                stack.positions.reserve(capacity)
        self._graph_inputs = [*model.parameters(), *model.buffers()]

    def run(self, jobs: Sequence[SlotJob]) -> Iterator[tuple[SlotJob, list[Hypothesis]]]:
        """Search all of them; yields each with its hypotheses as it finishes."""
        waiting = deque(jobs)
        running: dict[int, ActiveJob] = {}
        free = list(range(self.shape.slots))
        threshold = max(1, self.shape.slots // REFILL_SHARE)
        steps = 0
        done: HostCopy | None = None  # which slots were done after the step before
        taken: deque[tuple[list[SlotJob], HostCopy]] = deque()
        while running or waiting:
            if waiting and (len(free) >= threshold or not running):
                running |= {slot: ActiveJob(job, steps) for slot, job in self._refill(waiting, free)}
            self._step()
            earlier, done = done, self.search.done()
            while taken:
                yield from self._finished(*taken.popleft())
            if earlier is not None:
                is_done = earlier.tensors()[0].tolist()
                slots = [slot for slot, active in running.items() if is_done[slot] and active.since < steps]
                if slots:
                    taken.append(([running.pop(slot).job for slot in slots], self.search.take(slots)))
                    free += slots
            steps += 1
        while taken:
            yield from self._finished(*taken.popleft())

    def _finished(self, jobs: list[SlotJob], results: HostCopy) -> Iterator[tuple[SlotJob, list[Hypothesis]]]:
        stops = [job.limit if self.is_prompts else None for job in jobs]
        return zip(jobs, read_hypotheses(results, self.shape.options.nbest, stops), strict=True)

    def _refill(self, waiting: deque[SlotJob], free: list[int]) -> Iterator[tuple[int, SlotJob]]:
        """Admit waiting jobs to the free slots, in as many batches as it takes."""
        while waiting and free:
            candidates = [waiting[n] for n in range(min(len(waiting), len(free), self.admission.sentences))]
            jobs = candidates[: self.admission.count([len(job.ids) for job in candidates])]
            slots = [free.pop() for _ in jobs]
            for _ in jobs:
                waiting.popleft()
            ids, limits = [job.ids for job in jobs], [job.limit for job in jobs]
            self._words.copy_(to_device(self.admission.pack(ids, slots, limits), self._words.device))
            self._admit()
            yield from zip(slots, jobs, strict=True)

    def _compute_admission(self) -> None:
        batch = self.admission.unpack(self._words)
        admit(self.model, self.cache, batch.assignment, batch.src, batch.layout)
        self.search.admit(batch.assignment.slots, batch.limits, batch.first)

    def _compute_step(self) -> None:
        self.search.step(self._logits, self.cache.reorder)

    def _logits(self, newest: Tensor) -> Tensor:
        return with_end(self.model.step(without_end(newest, self.model, self.eos_id), self.cache), self.eos_id)


class SlotDecoder:
    """Searches any number of sentences, each in slots of sufficient capacity."""

    def __init__(
        self,
        model: Transformer,
        bos_id: int,
        eos_id: int,
        forbidden: Sequence[int],
        slots: int,
        stop_ids: Sequence[int] = (),
    ) -> None:
        self.model, self.slots = model, slots
        self.special = SpecialTokens(bos_id, eos_id, tuple(forbidden), tuple(stop_ids))
        self.device = model.output_matrix.device
        self._runners: dict[SlotShape, SlotRunner] = {}  # those not in use
        self._max_slots: dict[tuple[int, int], int] = {}  # slots that fit into memory, by capacity and beam
        # Shapes are fixed, so that linear layers need no row tiles.
        set_row_tile(model, 0)
        set_kernel(model, "auto")
        is_fast = on_triton(self.device)
        set_fused(model, residual=is_fast, feed_forward=is_fast)

    @torch.inference_mode()
    def translate(
        self, ids: Sequence[Sequence[int]], limits: Sequence[int], options: SearchOptions
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yields the number of each sentence and its hypotheses, as it finishes."""
        by_capacity: dict[int, list[SlotJob]] = {}
        is_prompts = not self.model.config.encoder_layers
        most = self.model.config.longest
        for number, (sentence, limit) in enumerate(zip(ids, limits, strict=True)):
            room = len(sentence) + limit if is_prompts else max(limit + 1, len(sentence) + 1)
            if most is not None and (longest := room if is_prompts else len(sentence) + 1) > most:
                raise ValueError(f"a sentence of {longest} tokens is longer than max_positions = {most}")
            capacity = MIN_CAPACITY.get(self.device.type, 64)
            while capacity < room:
                capacity *= 2
            by_capacity.setdefault(capacity, []).append(SlotJob(number, sentence, limit))
        for capacity, jobs in sorted(by_capacity.items()):
            # The longest first, so that the last to finish are short.
            jobs.sort(key=lambda job: -len(job.ids))
            shape = SlotShape(self._num_slots(len(jobs), capacity, options.beam), capacity, options)
            runner = self._runners.pop(shape, None) or self._new_runner(shape)
            try:
                for job, hypotheses in runner.run(jobs):
                    yield job.number, hypotheses
            finally:
                self._runners[shape] = runner

    def _num_slots(self, jobs: int, capacity: int, beam: int) -> int:
        """Enough slots for the jobs, but no more than fit into memory; a power of two, so that few shapes are captured."""
        if (capacity, beam) not in self._max_slots:  # measured once, since captured graphs take memory themselves
            stack, weight = self.model.decoder.config, self.model.output_matrix
            sentences = beam + 1 if stack.cross else beam  # a source takes as much room as a hypothesis
            numbers = 2 * sentences * capacity * stack.kv_heads * stack.d_head * stack.layers
            memory = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 8 << 30
            self._max_slots[capacity, beam] = max(1, int(MEMORY_SHARE * memory) // (numbers * weight.itemsize))
        max_slots = min(self.slots, self._max_slots[capacity, beam])
        slots = 1
        while 2 * slots <= max_slots and slots < jobs:
            slots *= 2
        return slots

    def _new_runner(self, shape: SlotShape) -> SlotRunner:
        while len(self._runners) >= MAX_RUNNERS:
            del self._runners[next(iter(self._runners))]  # the least recently used
        return SlotRunner(self.model, shape, self.special)
