"""The plain beam search of `search/core.py` on memory of a fixed shape, for continuous batching.

Every slot holds one sentence, each at its own length. A step advances all slots without asking the host, so that it can be
captured as a CUDA graph. The host reads `done`, takes the finished hypotheses and admits new sentences. Slots that are done or
empty take part in each step, and their results are ignored.

Hypotheses are not copied when they take over each other's prefixes: each step records the token of every hypothesis and the
hypothesis that it extends, and a finished one is read by following these records back to the start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.generate.options import Hypothesis, SearchOptions
from regard.generate.search.core import StepFunction, length_penalty
from regard.nn.kernels import on_triton

ReorderFunction = Callable[[Tensor, Tensor], None]  # row n continues the prefix of rows[n]; which slots are done
MAX_KERNEL_BEAM = 8  # wider beams use plain torch on GPUs, too: the kernel would take minutes to compile
Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class SlotState:
    """S slots, B hypotheses per slot, T tokens at most. Every step changes the tensors in place."""

    length: Tensor  # (S,) int64, tokens so far
    limits: Tensor  # (S,) int64, maximum number of tokens, not counting the end token
    done: Tensor  # (S,) bool
    log_probs: Tensor  # (S, B) of the live hypotheses, best first
    newest: Tensor  # (S * B,) int64
    tokens: Tensor  # (S, T, B) int32, the token that step t chose for each hypothesis
    parents: Tensor  # (S, T, B) int32, the hypothesis that it extended
    pool_scores: Tensor  # (S, B) of the finished hypotheses; -inf: empty
    pool_log_probs: Tensor  # (S, B)
    pool_lengths: Tensor  # (S, B) int64
    pool_rows: Tensor  # (S, B) int32, the hypothesis that ended

    @classmethod
    def empty(cls, slots: int, beam: int, capacity: int, device: torch.device) -> SlotState:
        """All slots done, ready for sentences."""

        def full(shape: tuple[int, ...], value: float, dtype: torch.dtype) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        by_beam, history = (slots, beam), (slots, capacity, beam)
        return cls(
            length=full((slots,), 0, torch.int64),
            limits=full((slots,), 0, torch.int64),
            done=full((slots,), True, torch.bool),
            log_probs=full(by_beam, -math.inf, torch.float32),
            newest=full((slots * beam,), 0, torch.int64),
            tokens=full(history, 0, torch.int32),
            parents=full(history, 0, torch.int32),
            pool_scores=full(by_beam, -math.inf, torch.float32),
            pool_log_probs=full(by_beam, -math.inf, torch.float32),
            pool_lengths=full(by_beam, 0, torch.int64),
            pool_rows=full(by_beam, 0, torch.int32),
        )

    def admit(self, slots: Tensor, limits: Tensor, first: Tensor) -> None:
        """Start searching new sentences in these slots, each with its limit and first token, all (sentences,)."""
        self.limits.index_copy_(0, slots, limits)
        self.length.index_fill_(0, slots, 0)
        for tensor in (self.log_probs, self.pool_log_probs, self.pool_scores):
            tensor.index_fill_(0, slots, -math.inf)
        self.log_probs[:, 0].index_fill_(0, slots, 0.0)  # all hypotheses start out equal, so only the first may live
        self.done.index_fill_(0, slots, False)
        by_slot = self.newest.view(self.log_probs.shape)
        by_slot.index_copy_(0, slots, first[:, None].expand(-1, by_slot.shape[1]))


# --- a step, in plain torch ---


def advance(
    state: SlotState,
    logits: Tensor,
    allowed: Tensor,
    width: int,
    options: SearchOptions,
    eos_id: int,
    is_free: bool = False,
) -> Tensor:
    """Extend every live hypothesis by one token, in place; returns (S, B) int64, the hypotheses that they extend.

    `allowed` (vocab_size,) uint8 marks the tokens that may be chosen; `width` is the number of candidates per row. If the end
    `is_free`, hypotheses stop at their limit without an end token.
    """
    best, parents, tokens = _candidates(state, logits, allowed, width, eos_id, is_free)
    ends = tokens == eos_id
    running = ~state.done  # a finished slot stays as it is until its result is taken
    _collect(state, best, parents, ends, running, options, is_free)
    beam = options.beam
    log_probs, kept = best.masked_fill(ends, -math.inf).topk(beam, dim=1)
    origin, chosen = parents.gather(1, kept), tokens.gather(1, kept)
    state.log_probs.copy_(log_probs)
    state.newest.copy_(chosen.flatten())
    place = state.length.clamp(max=state.tokens.shape[1] - 1)[:, None, None].expand(-1, 1, beam)
    state.tokens.scatter_(1, place, chosen[:, None].int())
    state.parents.scatter_(1, place, origin[:, None].int())
    state.length.add_(running)
    state.done.logical_or_(_is_done(state, options))
    return origin


def _candidates(
    state: SlotState, logits: Tensor, allowed: Tensor, width: int, eos_id: int, is_free: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The best extensions, the hypotheses that they extend and their tokens, each (S, 2B)."""
    slots, beam = state.log_probs.shape
    # Of one row, only its best `width` tokens can be among the candidates.
    values, tokens = logits.masked_fill(allowed == 0, -math.inf).topk(width, dim=-1)
    normaliser = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    values = values.float() - normaliser
    ending = logits[:, eos_id : eos_id + 1].float() - normaliser
    ending = torch.zeros_like(ending) if is_free else ending
    # At the length limit only the end token may follow.
    at_limit = (state.length >= state.limits).repeat_interleave(beam)[:, None]
    only_end = torch.cat((ending, torch.full_like(values[:, 1:], -math.inf)), dim=1)
    values = torch.where(at_limit, only_end, values)
    tokens = torch.where(at_limit, eos_id, tokens)
    # (rows, width) -> (S, B, width) -> (S, B * width)
    extended = (state.log_probs[:, :, None] + values.view(slots, beam, width)).view(slots, -1)
    best, place = extended.topk(min(2 * beam, beam * width), dim=-1)
    return best, place // width, tokens.view(slots, -1).gather(1, place)


def _collect(
    state: SlotState,
    best: Tensor,
    parents: Tensor,
    ends: Tensor,
    running: Tensor,
    options: SearchOptions,
    is_free: bool,
) -> None:
    """Let the candidates that end, among the `beam` best, compete for the pool."""
    among_best = torch.arange(best.shape[1], device=best.device) < options.beam
    log_probs = best.masked_fill(~(ends & among_best), -math.inf)
    counted = state.length + 1
    if is_free:  # what stops without an end token has one token less
        counted = torch.where(state.length >= state.limits, state.length, counted)
    scores = log_probs / length_penalty(counted, options.alpha)[:, None]
    scores, kept = torch.cat((state.pool_scores, scores), dim=1).topk(options.beam, dim=1)
    state.pool_scores.copy_(torch.where(running[:, None], scores, state.pool_scores))
    for pool, new in (
        (state.pool_log_probs, log_probs),
        (state.pool_lengths, state.length[:, None].expand_as(parents)),
        (state.pool_rows, parents.int()),
    ):
        pool.copy_(torch.where(running[:, None], torch.cat((pool, new), dim=1).gather(1, kept), pool))


def _is_done(state: SlotState, options: SearchOptions) -> Tensor:
    """(S,) whether no live hypothesis can still enter the best `nbest`; greedy search is done at its first ending."""
    if options.beam == 1:
        return ~torch.isneginf(state.pool_scores[:, 0])
    bound = state.log_probs[:, 0] / length_penalty(state.limits + 1, options.alpha)
    enough = (state.pool_scores >= bound[:, None]).sum(dim=1) >= options.nbest
    return enough | torch.isneginf(state.log_probs[:, 0])


# --- the search ---


class SlotSearch:
    """The search of all slots: its state and its step."""

    def __init__(
        self,
        slots: int,
        capacity: int,
        vocab_size: int,
        options: SearchOptions,
        eos_id: int,
        forbidden: Sequence[int],
        device: torch.device,
        stop_ids: Sequence[int] = (),
        is_free: bool = False,
    ) -> None:
        """`stop_ids` are further tokens that end an output; `is_free`: at its limit an output needs no end token."""
        self.options, self.eos_id, self.is_free = options, eos_id, is_free
        self._ends = torch.tensor([eos_id, *stop_ids], device=device)
        self.state = SlotState.empty(slots, options.beam, capacity, device)
        self.allowed = torch.ones(vocab_size, dtype=torch.uint8, device=device)
        self.allowed[[*forbidden, *stop_ids]] = 0
        self.width = min(2 * options.beam, vocab_size - len({*forbidden, *stop_ids}))
        self._first_rows = torch.arange(slots, device=device)[:, None] * options.beam

    def admit(self, slots: Tensor, limits: Tensor, first: Tensor) -> None:
        """As `SlotState.admit`."""
        self.state.admit(slots, limits, first)

    def step(self, step: StepFunction, reorder: ReorderFunction) -> None:
        """Extend every live hypothesis by one token, in place."""
        origin = self._advance(self._merge_ends(step(self.state.newest)))
        reorder((self._first_rows + origin).flatten(), self.state.done)

    def _merge_ends(self, logits: Tensor) -> Tensor:
        """Let the end token (rows, vocab_size) be as likely as the likeliest of all ends: the two change places, so that the sum of
        probabilities stays."""
        if len(self._ends) == 1:
            return logits
        ends = logits[:, self._ends]
        best, place = ends.max(dim=1, keepdim=True)
        logits = logits.scatter(1, self._ends[place], ends[:, :1])
        return logits.index_copy(1, self._ends[:1], best)

    def _advance(self, logits: Tensor) -> Tensor:
        state, options = self.state, self.options
        if not on_triton(logits.device) or options.beam > MAX_KERNEL_BEAM:
            return advance(state, logits, self.allowed, self.width, options, self.eos_id, self.is_free)
        from regard.nn.kernels import triton_beam

        return triton_beam.advance(
            logits, self.allowed, **vars(state), width=self.width, alpha=options.alpha, eos_id=self.eos_id,
            nbest=options.nbest, is_free=self.is_free,
        )  # fmt: skip

    def done(self) -> HostCopy:
        """Which slots are done, (S,) bool."""
        return HostCopy([self.state.done])

    def take(self, slots: list[int]) -> HostCopy:
        """The pools and records of finished slots, for `read_hypotheses`. The slots are free at once."""
        state = self.state
        numbers = to_device(torch.tensor(slots), state.done.device)
        parts = (
            state.pool_scores, state.pool_log_probs, state.pool_lengths, state.pool_rows, state.tokens, state.parents,
        )  # fmt: skip
        return HostCopy([part.index_select(0, numbers) for part in parts])


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without making the host wait."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


class HostCopy:
    """Tensors being copied to the host. Only `tensors` waits for the device; work launched after this does not change them."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._arrived: torch.cuda.Event | None = None
        if tensors[0].device.type != "cuda":
            self._copies = [tensor.clone() for tensor in tensors]
            return
        self._copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()

    def tensors(self) -> list[Tensor]:
        """The copies, once they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copies


def read_hypotheses(taken: HostCopy, nbest: int, stops: Sequence[int | None]) -> list[list[Hypothesis]]:
    """The hypotheses of each slot in `SlotSearch.take`, best first. One of `stops[n]` tokens has stopped without an end token."""
    scores, log_probs, lengths, rows, tokens, parents = (part.numpy() for part in taken.tensors())
    order = np.argsort(-scores, axis=1, kind="stable")[:, :nbest]
    scores, log_probs, lengths, rows = (
        np.take_along_axis(part, order, 1) for part in (scores, log_probs, lengths, rows)
    )
    ids = _trace_back(tokens, parents, rows, lengths)
    return [
        [
            Hypothesis(tuple(ids[n, rank, :length].tolist()), log_prob, score, length != stops[n])
            for rank, (score, log_prob, length) in enumerate(zip(*sentence, strict=True))
            if score > -math.inf  # also false for NaN
        ]
        for n, sentence in enumerate(zip(scores.tolist(), log_probs.tolist(), lengths.tolist(), strict=True))
    ]


def _trace_back(tokens: Integers, parents: Integers, rows: Integers, lengths: Integers) -> Integers:
    """The tokens of the hypotheses that end in `rows` after `lengths` tokens, (sentences, nbest, longest).

    `tokens` and `parents` are (sentences, T, beam), `rows` and `lengths` (sentences, nbest).
    """
    longest = int(lengths.max(initial=0))
    ids = np.zeros((*rows.shape, longest), np.int32)
    sentence = np.arange(rows.shape[0])[:, None]
    for position in range(longest - 1, -1, -1):
        is_inside = position < lengths
        ids[:, :, position] = np.where(is_inside, tokens[sentence, position, rows], 0)
        rows = np.where(is_inside, parents[sentence, position, rows], rows)
    return ids
