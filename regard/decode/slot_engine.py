"""Translation that keeps a GPU full: a fixed number of slots, out of which finished sentences go and into which new ones come.

The step of all slots is captured once as a CUDA graph and replayed; the host looks every few steps at what is done. The same
code runs without a graph on any device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.decode.options import Hypothesis, SearchOptions
from regard.decode.slot_search import SlotSearch
from regard.layout import SequenceLayout
from regard.models.transformer import Transformer

STEPS_A_LOOK = 4  # steps between two looks at what is done
REFILL_SHARE = 8  # new sentences come in when one slot of so many is free: encoding a few at a time would be slow
SMALLEST_ROOM = 64  # places of the smallest slots; the next are twice as large, and so on
MEMORY_SHARE = 0.25  # of the free memory, for the slots of one size
KEPT = 4  # sizes of slots that are kept ready


@dataclass(frozen=True)
class Shape:
    slots: int
    room: int  # places for source tokens and for target tokens, of each slot
    options: SearchOptions


@dataclass(frozen=True)
class Job:
    number: int
    ids: Sequence[int]
    limit: int  # most tokens that the translation may have


class SlotRunner:
    """Slots of one shape, with the graph of their step."""

    def __init__(
        self, model: Transformer, shape: Shape, bos_id: int, eos_id: int, forbidden: Sequence[int], use_graph: bool
    ) -> None:
        self.model, self.shape, self.eos_id = model, shape, eos_id
        self.device = model.output_matrix.device
        room = min(shape.room, model.config.max_positions) if model.config.positions == "learned" else shape.room
        self.cache = model.start_slots(shape.slots, shape.options.beam, room, room)
        vocab_size = model.config.vocab_size
        self.search = SlotSearch(shape.slots, room, vocab_size, shape.options, bos_id, eos_id, forbidden, self.device)
        self._use_graph = use_graph
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captured: list[Tensor] = []
        self._steps = 0

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, list[Hypothesis]]]:
        """Translate them all; they come out as they are finished."""
        waiting = deque(jobs)
        running: dict[int, Job] = {}
        free = list(range(self.shape.slots))
        threshold = max(1, self.shape.slots // REFILL_SHARE)
        while waiting or running:
            if waiting and (len(free) >= threshold or not running):
                entering = [waiting.popleft() for _ in range(min(len(free), len(waiting)))]
                slots = [free.pop() for _ in entering]
                self._enter(slots, entering)
                running.update(zip(slots, entering, strict=True))
            for _ in range(STEPS_A_LOOK):
                self._step()
            is_done = self.search.done.tolist()  # waits for the device
            finished = [slot for slot in running if is_done[slot]]
            for slot, hypotheses in zip(finished, self.search.take(finished) if finished else [], strict=True):
                yield running.pop(slot), hypotheses
            free += finished

    def _enter(self, slots: list[int], jobs: Sequence[Job]) -> None:
        ids = torch.tensor([token for job in jobs for token in (*job.ids, self.eos_id)], device=self.device)
        layout = SequenceLayout.from_lengths([len(job.ids) + 1 for job in jobs], self.device)
        self.model.enter_slots(self.cache, slots, self.model.encode(ids, layout), layout)
        self.search.enter(slots, [job.limit for job in jobs])

    def _step(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        if self._use_graph and self._steps == 1:  # the first one has loaded and compiled what it needs
            torch.cuda.synchronize(self.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._compute()
            self._graph = graph
            # What it reads must not be freed, also where the model gets a larger table of positions later on.
            self._captured = [*self.model.parameters(), *self.model.buffers()]
            graph.replay()
        else:
            self._compute()
        self._steps += 1

    def _compute(self) -> None:
        self.search.step(self._logits, self.cache.reorder)

    def _logits(self, newest: Tensor) -> Tensor:
        return self.model.step(newest, self.cache)


class SlotDecoder:
    """Translates any number of sentences, each in slots as large as it needs."""

    def __init__(self, model: Transformer, bos_id: int, eos_id: int, forbidden: Sequence[int], slots: int) -> None:
        self.model, self.slots = model, slots
        self.bos_id, self.eos_id, self.forbidden = bos_id, eos_id, forbidden
        self.device = model.output_matrix.device
        self._runners: dict[Shape, SlotRunner] = {}

    @torch.inference_mode()
    def translate(
        self, ids: Sequence[Sequence[int]], limits: Sequence[int], options: SearchOptions
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The number of each sentence and its hypotheses, as they are finished."""
        by_room: dict[int, list[Job]] = {}
        for number, (sentence, limit) in enumerate(zip(ids, limits, strict=True)):
            room = SMALLEST_ROOM
            while room < max(limit + 1, len(sentence) + 1):
                room *= 2
            by_room.setdefault(room, []).append(Job(number, sentence, limit))
        for room, jobs in sorted(by_room.items()):
            # The longest first: what is left at the end is short.
            jobs.sort(key=lambda job: -len(job.ids))
            runner = self._runner(Shape(self._num_slots(len(jobs), room, options.beam), room, options))
            for job, hypotheses in runner.run(jobs):
                yield job.number, hypotheses

    def _num_slots(self, jobs: int, room: int, beam: int) -> int:
        """A power of two, so that few shapes are ever captured: enough for the jobs, and not more than the memory holds."""
        config, weight = self.model.config, self.model.output_matrix
        slot_bytes = 2 * (beam + 1) * room * config.kv_heads * config.d_head * config.decoder_layers * weight.itemsize
        memory = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 8 << 30
        most = max(1, min(self.slots, int(MEMORY_SHARE * memory) // slot_bytes))
        slots = 1
        while 2 * slots <= most and slots < jobs:
            slots *= 2
        return slots

    def _runner(self, shape: Shape) -> SlotRunner:
        runner = self._runners.pop(shape, None)
        if runner is None:
            while len(self._runners) >= KEPT:
                del self._runners[next(iter(self._runners))]  # the one that was not used for longest
            use_graph = self.device.type == "cuda"
            runner = SlotRunner(self.model, shape, self.bos_id, self.eos_id, self.forbidden, use_graph)
        self._runners[shape] = runner
        return runner
