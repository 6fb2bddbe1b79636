"""Continuous batching for a server, token by token: prompts enter between two steps, each with its own options, and leave when they
are done or when nobody waits for them any more. All rows of a step share one pass through the weights; each prompt attends to its
own cache (`nn/joint_cache.py`); captured graphs are not used. On a CPU a text does not depend on what shares the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import RegardError
from regard.generate.engines.batches import length_limit
from regard.generate.engines.decoder_jobs import DecoderJob, Row, Token
from regard.generate.engines.entering import start, with_end, without_end
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import NO_CONTINUATION, SearchOptions
from regard.generate.search.allowed import forbid, forbid_loops, forbid_repeated_ngrams, merge_ends, penalise_repeated
from regard.generate.search.sampling import draw
from regard.generate.search.seeds import sentence_rng
from regard.layout import SequenceLayout
from regard.nn.cache import DecoderCache
from regard.nn.joint_cache import JointCache
from regard.nn.linear import equal_tiles, set_row_tile

_CAPACITY = 64  # tokens after a prompt that a cache has room for at first


@dataclass(eq=False)
class _Cohort:
    """Jobs that entered together, with as many rows each."""

    jobs: list[DecoderJob]
    cache: DecoderCache


class JointDecoder:
    """The texts that one engine is writing. One thread uses it."""

    def __init__(self, engine: TorchEngine) -> None:
        self._engine, self._model = engine, engine.model
        if engine.slots is None and isinstance(largest := self._model.row_tile, int) and largest:
            # A server often has few rows, and computing as many as fill a tile would take several times as long.
            matrices = [*self._model.parameters(), self._model.output_matrix]
            set_row_tile(self._model, equal_tiles(matrices, largest))
        self._cohorts: list[_Cohort] = []

    @property
    def bytes_per_token(self) -> int:
        """Memory of a token in the cache of one row."""
        stack = self._model.decoder.config
        return 2 * stack.kv_heads * stack.d_head * stack.layers * self._model.output_matrix.itemsize

    @property
    def num_rows(self) -> int:
        """Rows that a step computes."""
        return sum(len(job.rows) for cohort in self._cohorts for job in cohort.jobs)

    def prepare(self, job: DecoderJob) -> None:
        """Check a job and set its limit. Raises InputError if the prompt leaves no room in the model's context."""
        [job.prompt] = self._engine._checked([job.prompt], job.options)
        job.limit = length_limit(job.prompt, job.options, self._model.config, None, self._engine.context)
        job.rows = [Row() for _ in range(job.options.beam)]
        job.rng = sentence_rng(job.options.seed, job.prompt)

    @torch.inference_mode()
    def enter(self, jobs: Sequence[DecoderJob]) -> None:
        """Read the prompts of prepared jobs."""
        for count in sorted({len(job.rows) for job in jobs}):
            alike = [job for job in jobs if len(job.rows) == count]
            engine, capacity = self._engine, min(_CAPACITY, max(job.limit for job in alike) + 1)
            prompts = [job.prompt for job in alike]
            with engine._exclusive():
                cache = start(self._model, prompts, engine.eos_id, count, capacity, engine.bucket, engine.device)
            self._cohorts.append(_Cohort(alike, cache))

    @torch.inference_mode()
    def step(self) -> None:
        """Add a token to every row that is not done. Rows become done at their limit or where the model ends them."""
        jobs = [job for cohort in self._cohorts for job in cohort.jobs]
        if not jobs:
            return
        newest = [row.tokens[-1].id if row.tokens else job.prompt[-1] for job in jobs for row in job.rows]
        with self._engine._exclusive():
            tokens = torch.tensor(newest, device=self._engine.device)
            cache = JointCache([cohort.cache for cohort in self._cohorts])
            eos_id = self._engine.eos_id
            logits = with_end(self._model.step(without_end(tokens, self._model, eos_id), cache), eos_id)
            places = dict(zip(map(id, jobs), _places(jobs), strict=True))
            for alike in _alike(jobs):
                rows = torch.tensor([n for job in alike for n in places[id(job)]], device=logits.device)
                self._extend(alike, logits if len(rows) == len(logits) else logits[rows])

    def _extend(self, jobs: Sequence[DecoderJob], logits: Tensor) -> None:
        """Choose the next token of each row, logits (rows, V), for jobs whose options differ in nothing that matters here."""
        options, eos_id = jobs[0].options, self._engine.eos_id
        logits = logits.float()[:, None]  # (rows, 1, V)
        text = _texts(jobs, logits.device) if options.counts_text else None
        log_probs = torch.log_softmax(logits, dim=-1)
        merge_ends(log_probs, eos_id, self._engine.stop_ids, options.sample)
        given = log_probs.clone()
        if options.repetition_penalty != 1.0 and text is not None:
            log_probs = torch.log_softmax(penalise_repeated(logits, text, options.repetition_penalty), dim=-1)
            merge_ends(log_probs, eos_id, self._engine.stop_ids, options.sample)
        forbid(log_probs, self._engine.forbidden)
        ending = log_probs[:, :, eos_id].clone()
        if options.no_repeat and text is not None:
            forbid_repeated_ngrams(log_probs, text, options.no_repeat)
        if options.max_repeat and text is not None:
            forbid_loops(log_probs, text, options.max_repeat)
        log_probs[:, :, eos_id] = ending
        if options.sample:
            uniform = [[job.rng.random()] for job in jobs for _ in job.rows]
            numbers = torch.tensor(uniform, dtype=torch.float64, device=log_probs.device)
            chosen = draw(log_probs, numbers, options)[:, 0]
        else:
            chosen = log_probs[:, 0].topk(2, dim=-1).indices[:, 0]
        self._keep(jobs, chosen, given[:, 0], log_probs[:, 0])

    def _keep(self, jobs: Sequence[DecoderJob], chosen: Tensor, given: Tensor, allowed: Tensor) -> None:
        """Add the chosen tokens (rows,) to their rows; log-probabilities are (rows, V), as the model gave them and as allowed."""
        is_possible = allowed.gather(1, chosen[:, None])[:, 0].isfinite().tolist()
        values = given.gather(1, chosen[:, None])[:, 0].tolist()
        most = max(job.top for job in jobs)
        tops: list[tuple[list[float], list[int]]] = []
        if most:
            best = given.topk(min(most, given.shape[1]), dim=-1)
            tops = list(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        owners = [(job, row) for job in jobs for row in job.rows]
        for number, ((job, row), token) in enumerate(zip(owners, chosen.tolist(), strict=True)):
            if row.is_done:
                continue
            if not is_possible[number]:  # the others go on
                row.is_done, job.failure = True, RegardError(NO_CONTINUATION)
                continue
            top = tuple(zip(tops[number][1], tops[number][0], strict=True))[: job.top] if job.top else ()
            written = Token(token, values[number], top)
            if token == self._engine.eos_id:
                row.is_done, row.end = True, written
            else:
                row.tokens.append(written)
                row.is_done = len(row.tokens) >= job.limit

    def remove(self, gone: Sequence[DecoderJob]) -> None:
        """Drop jobs, whether they are done or not."""
        for cohort in self._cohorts:
            kept = [number for number, job in enumerate(cohort.jobs) if job not in gone]
            if kept and len(kept) < len(cohort.jobs):
                beam = cohort.cache.places.beam
                rows = torch.tensor([n * beam + row for n in kept for row in range(beam)], device=self._engine.device)
                with self._engine._exclusive():
                    cohort.cache.select(rows, kept)
            cohort.jobs = [cohort.jobs[number] for number in kept]
        self._cohorts = [cohort for cohort in self._cohorts if cohort.jobs]

    @torch.inference_mode()
    def read(self, prompt: Sequence[int], top: int) -> list[Token]:
        """The tokens of a prompt, without the first, each with its log-probability and the likeliest in its place."""
        engine, model = self._engine, self._model
        with engine._exclusive():
            ids = torch.tensor(list(prompt), device=engine.device)
            states = model.states(ids, SequenceLayout.from_lengths([len(ids)], engine.device))[:-1]
            found = []
            for part, labels in zip(states.split(512), ids[1:].split(512), strict=True):
                log_probs = torch.log_softmax(model.logits(part).float(), dim=-1)
                best = log_probs.topk(min(max(1, top), log_probs.shape[1]), dim=-1)
                values = log_probs.gather(1, labels[:, None])[:, 0].tolist()
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                found += [
                    Token(label, value, tuple(zip(*pair, strict=True))[:top])
                    for label, value, pair in zip(labels.tolist(), values, pairs, strict=True)
                ]
        return found


def _places(jobs: Sequence[DecoderJob]) -> Iterator[range]:
    """Where the rows of each job lie."""
    place = 0
    for job in jobs:
        yield range(place, place + len(job.rows))
        place += len(job.rows)


def _alike(jobs: Sequence[DecoderJob]) -> list[list[DecoderJob]]:
    """Jobs whose tokens are chosen in the same way."""
    groups: dict[SearchOptions, list[DecoderJob]] = {}
    for job in jobs:
        groups.setdefault(replace(job.options, beam=1, nbest=1, max_extra=0, seed=0), []).append(job)
    return list(groups.values())


def _texts(jobs: Sequence[DecoderJob], device: torch.device) -> Tensor:
    """What each row has read and written, (rows, 1, T), with -1 before shorter ones."""
    texts = [[*job.prompt, *(token.id for token in row.tokens)] for job in jobs for row in job.rows]
    longest = max(map(len, texts))
    return torch.tensor([[*[-1] * (longest - len(text)), *text] for text in texts], device=device)[:, None]
