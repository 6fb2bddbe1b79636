"""Chooses the next token of each text that a server writes, by the options of its job, and reports log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.errors import InputError, RegardError
from regard.generate.engines.batches import length_limit
from regard.generate.engines.decoder_jobs import DecoderJob, Row, Token
from regard.generate.engines.torch_engine import TorchEngine
from regard.generate.options import NO_CONTINUATION, SearchOptions
from regard.generate.search.allowed import forbid, forbid_loops, forbid_repeated_ngrams, merge_ends, penalise_repeated
from regard.generate.search.order import likeliest
from regard.generate.search.sampling import draw
from regard.generate.search.seeds import sentence_rng
from regard.layout import SequenceLayout

_SCORED = 512  # prompt tokens whose logits are in memory at a time


def prepare_job(engine: TorchEngine, job: DecoderJob) -> None:
    """As `TextDecoder.prepare`."""
    [job.prompt] = engine._checked([job.prompt], job.options)
    if not all(0 <= token < engine.model.config.vocab_size for token in job.prompt):
        raise InputError(f"a prompt must have token ids below {engine.model.config.vocab_size:,}")
    job.limit = length_limit(job.prompt, job.options, engine.model.config, None, engine.context)
    job.rows = [Row() for _ in range(job.options.beam)]
    job.rng = sentence_rng(job.options.seed, job.prompt)


def newest_tokens(jobs: Sequence[DecoderJob]) -> list[int]:
    """The last token of each row, which the next step reads."""
    return [row.tokens[-1].id if row.tokens else job.prompt[-1] for job in jobs for row in job.rows]


@dataclass(frozen=True)
class TokenChoice:
    """Chooses tokens, given those that end a text and those that may not appear."""

    eos_id: int
    stop_ids: Sequence[int]
    forbidden: Sequence[int]

    @classmethod
    def of(cls, engine: TorchEngine) -> TokenChoice:
        """That of an engine."""
        return cls(engine.eos_id, engine.stop_ids, engine.forbidden)

    def extend(self, jobs: Sequence[DecoderJob], logits: Tensor) -> None:
        """Add a token to every row that is not done; logits (rows, V), the rows of each job side by side."""
        places = dict(zip(map(id, jobs), _places(jobs), strict=True))
        for alike in _alike(jobs):
            rows = torch.tensor([n for job in alike for n in places[id(job)]], device=logits.device)
            self._extend(alike, logits if len(rows) == len(logits) else logits[rows])

    def _extend(self, jobs: Sequence[DecoderJob], logits: Tensor) -> None:
        """`extend` for jobs with the same options."""
        options, eos_id = jobs[0].options, self.eos_id
        logits = logits.float()[:, None]  # (rows, 1, V)
        text = _texts(jobs, logits.device) if options.counts_text else None
        log_probs = torch.log_softmax(logits, dim=-1)
        merge_ends(log_probs, eos_id, self.stop_ids, options.sample)
        given = log_probs.clone()
        if options.repetition_penalty != 1.0 and text is not None:
            log_probs = torch.log_softmax(penalise_repeated(logits, text, options.repetition_penalty), dim=-1)
            merge_ends(log_probs, eos_id, self.stop_ids, options.sample)
        forbid(log_probs, self.forbidden)
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
            chosen = log_probs[:, 0].argmax(dim=-1)  # of equals the first, as in `order.py`
        self._keep(jobs, chosen, given[:, 0], log_probs[:, 0])

    def _keep(self, jobs: Sequence[DecoderJob], chosen: Tensor, given: Tensor, allowed: Tensor) -> None:
        """Add the chosen tokens (rows,) to their rows; log-probabilities are (rows, V), as the model gave them and as allowed."""
        is_possible = allowed.gather(1, chosen[:, None])[:, 0].isfinite().tolist()
        values = given.gather(1, chosen[:, None])[:, 0].tolist()
        most = max(job.top for job in jobs)
        tops: list[tuple[list[float], list[int]]] = []
        if most:
            values_of, tokens_of = likeliest(given, min(most, given.shape[1]))
            tops = list(zip(values_of.tolist(), tokens_of.tolist(), strict=True))
        owners = [(job, row) for job in jobs for row in job.rows]
        for number, ((job, row), token) in enumerate(zip(owners, chosen.tolist(), strict=True)):
            if row.is_done:
                continue
            if not is_possible[number]:  # the others go on
                row.is_done, job.failure = True, RegardError(NO_CONTINUATION)
                continue
            top = tuple(zip(tops[number][1], tops[number][0], strict=True))[: job.top] if job.top else ()
            written = Token(token, values[number], top)
            if token == self.eos_id:
                row.is_done, row.end = True, written
            else:
                row.tokens.append(written)
                row.is_done = len(row.tokens) >= job.limit


@torch.inference_mode()
def read_prompt(engine: TorchEngine, prompt: Sequence[int], top: int) -> list[Token]:
    """As `TextDecoder.read`."""
    model = engine.model
    with engine._exclusive():
        ids = torch.tensor(list(prompt), device=engine.device)
        states = model.states(ids, SequenceLayout.from_lengths([len(ids)], engine.device))[:-1]
        found = []
        for part, labels in zip(states.split(_SCORED), ids[1:].split(_SCORED), strict=True):
            log_probs = torch.log_softmax(model.logits(part).float(), dim=-1)
            best, tokens = likeliest(log_probs, min(max(1, top), log_probs.shape[1]))
            values = log_probs.gather(1, labels[:, None])[:, 0].tolist()
            pairs = zip(tokens.tolist(), best.tolist(), strict=True)
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
    """Jobs grouped by the options that matter for a single token."""
    groups: dict[SearchOptions, list[DecoderJob]] = {}
    for job in jobs:
        groups.setdefault(replace(job.options, beam=1, nbest=1, max_extra=0, seed=0), []).append(job)
    return list(groups.values())


def _texts(jobs: Sequence[DecoderJob], device: torch.device) -> Tensor:
    """The prompt and text of each row, (rows, 1, T), left-padded with -1."""
    texts = [[*job.prompt, *(token.id for token in row.tokens)] for job in jobs for row in job.rows]
    longest = max(map(len, texts))
    return torch.tensor([[*[-1] * (longest - len(text)), *text] for text in texts], device=device)[:, None]
