"""Continuous batching for a server on a GPU: texts in slots of a fixed size, whose memory is allocated at the start. Reading parts
of prompts and advancing all texts by a token are captured as CUDA graphs and replayed; the next tokens are chosen outside the
graphs, since each request has its own options (`next_tokens.py`). The same code runs without graphs on any device.

The samples of one prompt share its keys and values, which are in the first of their rows. Rows that are done or still reading take
part in each step without effect: they compute again what their place already holds, or what the next part of the prompt overwrites.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import partial

import torch

from regard.errors import InputError, UserError
from regard.generate.engines.decoder_jobs import READ_TOKENS, DecoderJob, PromptPart, ReadingQueue, Token
from regard.generate.engines.entering import with_end, without_end
from regard.generate.engines.next_tokens import TokenChoice, newest_tokens, prepare_job, read_prompt
from regard.generate.engines.slot_engine import MEMORY_SHARE, CapturedWork
from regard.generate.engines.slot_search import to_device
from regard.generate.engines.torch_engine import TorchEngine
from regard.models.slots import read_parts, start_slots
from regard.nn.embedding import SinusoidalPositions
from regard.nn.slot_cache import SlotCache

_WIDTHS = (8, 32)  # rows that a step may compute instead of all, to be faster with few texts
_CPU_BYTES = 2 << 30  # of the slots, by default


class SlotTextDecoder:
    """A `TextDecoder` that keeps its texts in slots."""

    @torch.inference_mode()
    def __init__(self, engine: TorchEngine, rows: int, tokens: int, cache_bytes: int = 0) -> None:
        """At most `rows` texts of at most `tokens` each, prompt included, in `cache_bytes` (0: a share of the free memory)."""
        self._engine, self._model, self._choice = engine, engine.model, TokenChoice.of(engine)
        longest = [one for one in (tokens, engine.context, self._model.config.longest) if one is not None]
        self.capacity = min(longest)
        self.max_rows = min(rows, self._fitting(cache_bytes))
        self.max_tokens = self.max_rows * self.capacity
        self._free = list(range(self.max_rows))  # a heap: the lowest row is taken first
        self._rows: dict[int, list[int]] = {}  # of each job, by its id
        self._writing: list[DecoderJob] = []  # jobs whose prompts have been read
        self._reading = ReadingQueue()
        self._read_so_far: dict[int, int] = {}  # tokens already read of unfinished prompts, by their first row
        with engine._exclusive():
            self._make_slots()

    @property
    def cache_bytes(self) -> int:
        """The memory of all slots."""
        return (self.max_rows + 1) * self.capacity * self._engine.bytes_per_token

    @property
    def num_rows(self) -> int:
        """As `TextDecoder.num_rows`."""
        return sum(len(job.rows) for job in self._writing)

    def _fitting(self, cache_bytes: int) -> int:
        """How many slots fit into this much memory."""
        device, of_row = self._engine.device, self.capacity * self._engine.bytes_per_token
        if not cache_bytes:
            is_cuda = device.type == "cuda"
            cache_bytes = int(MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]) if is_cuda else _CPU_BYTES
        slots = cache_bytes // of_row - 1  # one more takes writes that belong to no text
        if slots < 1:
            raise UserError(
                f"the limit cache_bytes must be at least {2 * of_row:,}, so that a text of {self.capacity:,} tokens has room, but "
                f"only {cache_bytes:,} bytes are available; raise it, or lower the limit tokens"
            )
        return slots

    def _make_slots(self) -> None:
        """Allocate the cache and capture the graphs now, so that no client waits for it and the memory is known."""
        model, device, rows = self._model, self._engine.device, self.max_rows
        for stack in model.stacks:
            if isinstance(stack.positions, SinusoidalPositions):
                stack.positions.reserve(self.capacity)
        self._cache = start_slots(model, rows, 1, self.capacity)
        self._graph_inputs = [*model.parameters(), *model.buffers()]  # kept alive: the graphs read this memory
        vocab_size = max(model.config.vocab_size, self._engine.eos_id + 1)
        self._logits = torch.zeros((rows, vocab_size), dtype=model.output_matrix.dtype, device=device)
        self._newest = torch.zeros((2, rows), dtype=torch.int64, device=device)  # tokens, and their positions
        self._part = torch.zeros((3, READ_TOKENS), dtype=torch.int64, device=device)  # tokens, rows, positions
        self._part[1] = rows
        self._read_part = CapturedWork(self._compute_part, device)
        self._steps: dict[int, CapturedWork] = {}
        for width in sorted({*(one for one in _WIDTHS if one < rows), rows}):
            narrow = self._cache.narrowed(width)
            self._steps[width] = CapturedWork(partial(self._compute_step, width, narrow), device)
        if device.type == "cuda":
            for work in (self._read_part, *self._steps.values()):
                work()
                work()

    def _compute_part(self) -> None:
        ids, rows, positions = self._part
        read_parts(self._model, self._cache, ids, rows, positions)

    def _compute_step(self, width: int, cache: SlotCache) -> None:
        tokens, positions = self._newest[:, :width]
        cache.prefixes.positions.copy_(positions)
        eos_id = self._engine.eos_id
        self._logits[:width] = with_end(self._model.step(without_end(tokens, self._model, eos_id), cache), eos_id)

    # --- jobs ---

    def prepare(self, job: DecoderJob) -> None:
        """As `TextDecoder.prepare`."""
        prepare_job(self._engine, job)
        if len(job.prompt) >= self.capacity:
            raise InputError(
                f"a prompt must have fewer than {self.capacity:,} tokens on this server, but has {len(job.prompt):,}"
            )
        job.limit = min(job.limit, self.capacity - len(job.prompt))

    def enter(self, jobs: Sequence[DecoderJob]) -> None:
        """As `TextDecoder.enter`."""
        for job in jobs:
            rows = [heapq.heappop(self._free) for _ in job.rows]
            self._rows[id(job)] = rows
            self._read_so_far[rows[0]] = 0
        self._reading.add(jobs)

    @torch.inference_mode()
    def step(self) -> None:
        """As `TextDecoder.step`."""
        with self._engine._exclusive():
            if parts := self._reading.take():
                self._read(parts)
            if not self._writing:
                return
            width = self._upload()
            self._steps[width]()
            rows = [row for job in self._writing for row in self._rows[id(job)]]
            self._choice.extend(self._writing, self._logits[to_device(torch.tensor(rows), self._logits.device)])

    def _read(self, parts: Sequence[PromptPart]) -> None:
        """Read these parts of prompts, in one batch of a fixed size."""
        words = torch.zeros((3, READ_TOKENS), dtype=torch.int64)
        words[1] = self.max_rows
        place = 0
        for job, start, end in parts:
            row, own = self._rows[id(job)][0], slice(place, place + end - start)
            words[0, own] = torch.tensor(list(job.prompt[start:end]), dtype=torch.int64)
            words[1, own] = row
            words[2, own] = torch.arange(start, end)
            self._read_so_far[row] = end
            place += end - start
        if place:
            self._part.copy_(to_device(words, self._part.device))
            self._read_part()
        for part in parts:
            if part.is_last:
                self._begin(part.job)

    def _begin(self, job: DecoderJob) -> None:
        """Start all rows of a job from the prompt that its first row has read."""
        rows = self._rows[id(job)]
        numbers = to_device(torch.tensor(rows), self._newest.device)
        self._cache.prefixes.ancestors.index_fill_(0, numbers, rows[0])
        del self._read_so_far[rows[0]]
        self._writing.append(job)

    def _upload(self) -> int:
        """Copy the newest token of each row and its position to the device; returns the number of rows to compute."""
        highest = max(row for job in self._writing for row in self._rows[id(job)])
        width = next(one for one in self._steps if one > highest)
        words = torch.zeros((2, self.max_rows), dtype=torch.int64)
        for row, read in self._read_so_far.items():  # the next part overwrites what the step writes there
            words[1, row] = read
        rows = [row for job in self._writing for row in self._rows[id(job)]]
        words[0, rows] = torch.tensor(newest_tokens(self._writing))
        words[1, rows] = torch.tensor(
            [len(job.prompt) - 1 + len(row.tokens) for job in self._writing for row in job.rows]
        )
        self._newest.copy_(to_device(words, self._newest.device))
        return width

    def remove(self, gone: Sequence[DecoderJob]) -> None:
        """As `TextDecoder.remove`."""
        self._reading.remove(gone)
        self._writing = [job for job in self._writing if job not in gone]
        for job in gone:
            rows = self._rows.pop(id(job), [])
            for row in rows:
                self._read_so_far.pop(row, None)
                heapq.heappush(self._free, row)

    def read(self, prompt: Sequence[int], top: int) -> list[Token]:
        """As `TextDecoder.read`."""
        return read_prompt(self._engine, prompt, top)
