"""Translation that keeps a GPU full: a fixed number of slots, out of which finished sentences go and into which new ones come.

Encoding what comes in and the step of all slots are each captured once as a CUDA graph and replayed. The host is always one
step ahead of what it has seen, so that the device never waits for it. The same code runs without graphs on any device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.generate.engines.slot_entrance import Entrance
from regard.generate.engines.slot_search import Fetched, SlotSearch, hypotheses, to_device
from regard.generate.options import Hypothesis, SearchOptions
from regard.models.transformer import Transformer
from regard.nn.attention import set_kernel
from regard.nn.block import set_fused
from regard.nn.embedding import SinusoidalPositions
from regard.nn.kernels import on_triton
from regard.nn.linear import set_row_tile

REFILL_SHARE = 8  # new sentences come in when one slot of so many is free: encoding a few at a time would be slow
ENTRANCE_TOKENS = 2048  # that come in at once, where there are slots for so many
SENTENCE_TOKENS = 16  # the entrance has places for sentences of this many tokens, on average
SMALLEST_ROOM = {"cpu": 64, "cuda": 256}  # places of the smallest slots; the next are twice as large, and so on
MEMORY_SHARE = 0.25  # of the free memory, for the slots of one size
KEPT = 4  # sizes of slots that are kept ready


@dataclass(frozen=True)
class Shape:
    slots: int
    room: int  # places for source tokens and for target tokens, of each slot
    options: SearchOptions


@dataclass(frozen=True)
class SlotJob:
    number: int
    ids: Sequence[int]
    limit: int  # most tokens that the translation may have


@dataclass(frozen=True)
class ActiveJob:
    job: SlotJob
    since: int  # the step before which it came in


class Replayed:
    """Work on memory that stays where it is: computed the first time, captured the second, replayed from then on."""

    def __init__(self, compute: Callable[[], None], device: torch.device) -> None:
        self._compute, self._device = compute, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._is_warm = False

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif self._device.type != "cuda" or not self._is_warm:  # elsewhere nothing is ever captured
            self._compute()  # loads and compiles what it needs
            self._is_warm = True
        else:
            torch.cuda.synchronize(self._device)
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._device)
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._compute()
            self._graph = graph
            graph.replay()


class SlotRunner:
    """Slots of one shape, with the graphs of their work."""

    def __init__(self, model: Transformer, shape: Shape, bos_id: int, eos_id: int, forbidden: Sequence[int]) -> None:
        self.model, self.shape, self.eos_id = model, shape, eos_id
        device = model.output_matrix.device
        room = min(shape.room, model.config.max_positions) if model.config.positions == "learned" else shape.room
        self.cache = model.start_slots(shape.slots, shape.options.beam, room, room)
        vocab_size = model.config.vocab_size
        self.search = SlotSearch(shape.slots, room, vocab_size, shape.options, bos_id, eos_id, forbidden, device)
        tokens = max(room, min(ENTRANCE_TOKENS, 4 * shape.slots))  # about the share that is refilled
        sentences = max(1, min(shape.slots, tokens // SENTENCE_TOKENS))
        self.entrance = Entrance(tokens, sentences, shape.slots, room)
        self._words = torch.zeros(self.entrance.size, dtype=torch.int32, device=device)
        self._enter = Replayed(self._compute_entering, device)
        self._step = Replayed(self._compute_step, device)
        # What the graphs read must not be freed, also where the model gets a larger table of positions later on.
        for stack in (model.encoder, model.decoder):
            if isinstance(stack.positions, SinusoidalPositions):
                stack.positions.reserve(room)
        self._kept = [*model.parameters(), *model.buffers()]

    def run(self, jobs: Sequence[SlotJob]) -> Iterator[tuple[SlotJob, list[Hypothesis]]]:
        """Translate them all; they come out as they are finished."""
        waiting = deque(jobs)
        running: dict[int, ActiveJob] = {}
        free = list(range(self.shape.slots))
        threshold = max(1, self.shape.slots // REFILL_SHARE)
        steps = 0
        look: Fetched | None = None  # at what was done one step ago
        taken: deque[tuple[list[SlotJob], Fetched]] = deque()
        while running or waiting:
            if waiting and (len(free) >= threshold or not running):
                running |= {slot: ActiveJob(job, steps) for slot, job in self._let_in(waiting, free)}
            self._step()
            seen, look = look, self.search.look()
            while taken:
                yield from self._finished(*taken.popleft())
            if seen is not None:
                is_done = seen.tensors()[0].tolist()
                slots = [slot for slot, it in running.items() if is_done[slot] and it.since < steps]
                if slots:
                    taken.append(([running.pop(slot).job for slot in slots], self.search.take(slots)))
                    free += slots
            steps += 1
        while taken:
            yield from self._finished(*taken.popleft())

    def _finished(self, jobs: list[SlotJob], results: Fetched) -> Iterator[tuple[SlotJob, list[Hypothesis]]]:
        return zip(jobs, hypotheses(results, self.shape.options.nbest), strict=True)

    def _let_in(self, waiting: deque[SlotJob], free: list[int]) -> Iterator[tuple[int, SlotJob]]:
        """As many as there are free slots, in as many goes as it takes."""
        while waiting and free:
            candidates = [waiting[n] for n in range(min(len(waiting), len(free), self.entrance.sentences))]
            jobs = candidates[: self.entrance.count([len(job.ids) for job in candidates])]
            slots = [free.pop() for _ in jobs]
            for _ in jobs:
                waiting.popleft()
            ids, limits = [job.ids for job in jobs], [job.limit for job in jobs]
            self._words.copy_(to_device(self.entrance.pack(ids, slots, limits, self.eos_id), self._words.device))
            self._enter()
            yield from zip(slots, jobs, strict=True)

    def _compute_entering(self) -> None:
        arrival = self.entrance.arrival(self._words)
        self.model.enter_slots(self.cache, arrival.entering, arrival.src, arrival.layout)
        self.search.enter(arrival.entering.slots, arrival.limits)

    def _compute_step(self) -> None:
        self.search.step(self._logits, self.cache.reorder)

    def _logits(self, newest: Tensor) -> Tensor:
        return self.model.step(newest, self.cache)


class SlotDecoder:
    """Translates any number of sentences, each in slots as large as it needs."""

    def __init__(self, model: Transformer, bos_id: int, eos_id: int, forbidden: Sequence[int], slots: int) -> None:
        self.model, self.slots = model, slots
        self.bos_id, self.eos_id, self.forbidden = bos_id, eos_id, forbidden
        self.device = model.output_matrix.device
        self._runners: dict[Shape, SlotRunner] = {}  # that nobody uses at the moment
        self._most: dict[tuple[int, int], int] = {}  # slots that the memory held for a room and a beam
        # Everything has always the same rows here, so that none need go in tiles for a sentence to be alone with itself.
        set_row_tile(model, 0)
        set_kernel(model, "auto")
        is_fast = on_triton(self.device)
        set_fused(model, residual=is_fast, feed_forward=is_fast)

    @torch.inference_mode()
    def translate(
        self, ids: Sequence[Sequence[int]], limits: Sequence[int], options: SearchOptions
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The number of each sentence and its hypotheses, as they are finished."""
        by_room: dict[int, list[SlotJob]] = {}
        config = self.model.config
        longest = max(map(len, ids), default=0) + 1
        if config.positions == "learned" and longest > config.max_positions:
            raise ValueError(f"a sentence of {longest} tokens is longer than max_positions = {config.max_positions}")
        for number, (sentence, limit) in enumerate(zip(ids, limits, strict=True)):
            room = SMALLEST_ROOM.get(self.device.type, 64)
            while room < max(limit + 1, len(sentence) + 1):
                room *= 2
            by_room.setdefault(room, []).append(SlotJob(number, sentence, limit))
        for room, jobs in sorted(by_room.items()):
            # The longest first: what is left at the end is short.
            jobs.sort(key=lambda job: -len(job.ids))
            shape = Shape(self._num_slots(len(jobs), room, options.beam), room, options.of_engine)
            runner = self._runners.pop(shape, None) or self._new_runner(shape)
            try:
                for job, found in runner.run(jobs):
                    yield job.number, found
            finally:
                self._runners[shape] = runner

    def _num_slots(self, jobs: int, room: int, beam: int) -> int:
        """A power of two, so that few shapes are ever captured: enough for the jobs, and not more than the memory holds."""
        if (room, beam) not in self._most:  # once, for what is captured then takes memory itself
            config, weight = self.model.config, self.model.output_matrix
            numbers = 2 * (beam + 1) * room * config.kv_heads * config.d_head * config.decoder_layers
            memory = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 8 << 30
            self._most[room, beam] = max(1, int(MEMORY_SHARE * memory) // (numbers * weight.itemsize))
        most = min(self.slots, self._most[room, beam])
        slots = 1
        while 2 * slots <= most and slots < jobs:
            slots *= 2
        return slots

    def _new_runner(self, shape: Shape) -> SlotRunner:
        while len(self._runners) >= KEPT:
            del self._runners[next(iter(self._runners))]  # the one that was not used for longest
        return SlotRunner(self.model, shape, self.bos_id, self.eos_id, self.forbidden)
