"""Continuous batching for a server, without captured graphs (`slot_text_decoder.py` has those). Prompts enter between two steps,
each with its own options, and leave when they are done or their client is gone. All rows of a step share one pass through the
weights; each prompt attends to its own cache (`nn/joint_cache.py`). On a CPU a text does not depend on what shares the batch.

On a CPU the matrix products may be computed in int8 (`nn/int8.py`). CTranslate2 is faster for a single client, but nothing can join
a call that has begun: later requests would wait, or be computed apart. Measured with SmolLM2-135M, tokens per second of CPU time on
one core with VNNI (2026-11-18, torch 2.13, CTranslate2 4.8, `python -m benchmarks.writing_clients`), with 1, 4 and 16 clients:

    joint decoder, fp32                    12    41    92
    joint decoder, int8                    30    91   165
    CTranslate2, int8, a call for each     48    52    52
    CTranslate2, int8, one call for all    51   158   349    if all requests came at once, with the same options
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from regard.generate.engines.decoder_jobs import DecoderJob, PromptPart, ReadingQueue, Token
from regard.generate.engines.entering import start, with_end, without_end
from regard.generate.engines.next_tokens import TokenChoice, newest_tokens, prepare_job, read_prompt
from regard.generate.engines.torch_engine import TorchEngine
from regard.nn.cache import DecoderCache
from regard.nn.joint_cache import JointCache
from regard.nn.linear import equal_tiles, set_row_tile

_CAPACITY = 64  # tokens after a prompt that a cache first has room for
_CACHE_BYTES = 2 << 30  # of all texts, by default


@dataclass(eq=False)
class _Cohort:
    """Jobs whose prompts were read together, each with the same number of rows."""

    jobs: list[DecoderJob]
    cache: DecoderCache


class JointDecoder:
    """A `TextDecoder` that keeps its texts in joined caches."""

    def __init__(self, engine: TorchEngine, cache_bytes: int = 0) -> None:
        """`cache_bytes`: the most that keys and values of all texts may take; 0: 2 GiB."""
        self._engine, self._model = engine, engine.model
        self._choice = TokenChoice.of(engine)
        is_tiled = engine.slots is None and self._model.output_int8 is None  # int8 needs no tiles
        if is_tiled and isinstance(largest := self._model.row_tile, int) and largest:
            # A server often has few rows, and filling whole tiles would take several times as long.
            matrices = [*self._model.parameters(), self._model.output_matrix]
            set_row_tile(self._model, equal_tiles(matrices, largest))
        self.max_rows = sys.maxsize
        self.max_tokens = max(1, (cache_bytes or _CACHE_BYTES) // engine.bytes_per_token)
        self._cohorts: list[_Cohort] = []
        self._reading = ReadingQueue()
        self._parts: dict[int, DecoderCache] = {}  # of partly read prompts, by the id of their job

    @property
    def num_rows(self) -> int:
        """As `TextDecoder.num_rows`."""
        return sum(len(job.rows) for cohort in self._cohorts for job in cohort.jobs)

    def prepare(self, job: DecoderJob) -> None:
        """As `TextDecoder.prepare`."""
        prepare_job(self._engine, job)

    def enter(self, jobs: Sequence[DecoderJob]) -> None:
        """As `TextDecoder.enter`."""
        self._reading.add(jobs)

    @torch.inference_mode()
    def step(self) -> None:
        """As `TextDecoder.step`."""
        self._read()
        jobs = [job for cohort in self._cohorts for job in cohort.jobs]
        if not jobs:
            return
        with self._engine._exclusive():
            tokens = torch.tensor(newest_tokens(jobs), device=self._engine.device)
            cache = JointCache([cohort.cache for cohort in self._cohorts])
            eos_id = self._engine.eos_id
            logits = with_end(self._model.step(without_end(tokens, self._model, eos_id), cache), eos_id)
            self._choice.extend(jobs, logits)

    # --- prompts ---

    def _read(self) -> None:
        """Read the next parts: short prompts together, parts of longer ones alone."""
        parts = self._reading.take()
        whole = [part.job for part in parts if part.is_first and part.is_last]
        for count in sorted({len(job.rows) for job in whole}):
            self._try(self._read_whole, [job for job in whole if len(job.rows) == count])
        for part in parts:
            if not (part.is_first and part.is_last):
                self._try(partial(self._read_part, part), [part.job])

    def _try(self, read: Callable[[list[DecoderJob]], None], jobs: list[DecoderJob]) -> None:
        """Read the prompts of these jobs; a bad one fails alone."""
        try:
            with self._engine._exclusive():
                read(jobs)
        except Exception as error:  # noqa: BLE001 - reported to the client
            if len(jobs) > 1:
                for job in jobs:
                    self._try(read, [job])
                return
            self.remove(jobs)
            jobs[0].fail(error)

    def _read_whole(self, jobs: list[DecoderJob]) -> None:
        engine, prompts, rows = self._engine, [job.prompt for job in jobs], len(jobs[0].rows)
        cache = start(
            self._model, prompts, engine.eos_id, rows, _capacity(jobs), engine.bucket, engine.device
        )  # fmt: skip
        self._cohorts.append(_Cohort(jobs, cache))

    def _read_part(self, part: PromptPart, jobs: list[DecoderJob]) -> None:
        engine, [job] = self._engine, jobs
        if part.is_first:
            empty = [job.prompt[-1:]]
            cache = start(self._model, empty, engine.eos_id, 1, len(job.prompt), engine.bucket, engine.device)
            self._parts[id(job)] = cache
        cache = self._parts[id(job)]
        ids = torch.tensor(list(job.prompt[part.start : part.end]), device=engine.device)
        self._model.read(ids, cache, [len(ids)])
        if part.is_last:
            del self._parts[id(job)]
            self._cohorts.append(_Cohort([job], cache.as_prompt(len(job.rows), _capacity([job]))))

    def remove(self, gone: Sequence[DecoderJob]) -> None:
        """As `TextDecoder.remove`."""
        self._reading.remove(gone)
        for job in gone:
            self._parts.pop(id(job), None)
        for cohort in self._cohorts:
            kept = [number for number, job in enumerate(cohort.jobs) if job not in gone]
            if kept and len(kept) < len(cohort.jobs):
                beam = cohort.cache.places.beam
                rows = torch.tensor([n * beam + row for n in kept for row in range(beam)], device=self._engine.device)
                with self._engine._exclusive():
                    cohort.cache.select(rows, kept)
            cohort.jobs = [cohort.jobs[number] for number in kept]
        self._cohorts = [cohort for cohort in self._cohorts if cohort.jobs]

    def read(self, prompt: Sequence[int], top: int) -> list[Token]:
        """As `TextDecoder.read`."""
        return read_prompt(self._engine, prompt, top)


def _capacity(jobs: Sequence[DecoderJob]) -> int:
    """Tokens after their prompts that a cache first has room for."""
    return min(_CAPACITY, max(job.limit for job in jobs) + 1)
