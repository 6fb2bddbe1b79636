"""Beam search on memory of a fixed shape: the same search as `search.py`, but sentences come and go while it runs.

Every slot holds one sentence, each at its own place; a step advances all of them and never asks the host, so that it can be
captured as a CUDA graph. The host looks at `done` now and then, takes the finished hypotheses out and lets others in. What
stands in a slot that is done, or empty, is computed and thrown away.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.decode.options import Hypothesis, SearchOptions
from regard.decode.search import length_penalty
from regard.nn.kernels import has_triton

Step = Callable[[Tensor], Tensor]  # newest tokens (rows,) -> logits (rows, vocab_size)
Reorder = Callable[[Tensor], None]  # row n goes on with the prefix of rows[n]


def top_tokens(logits: Tensor, allowed: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normalisers (rows, 1), logits (rows, count) and numbers (rows, count) of the best allowed tokens, best first."""
    normaliser = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    values, tokens = logits.masked_fill(allowed == 0, -math.inf).topk(count, dim=-1)
    return normaliser, values.float(), tokens


class SlotSearch:
    """The search's state: S slots, B beams, `capacity` tokens."""

    def __init__(
        self,
        slots: int,
        capacity: int,
        vocab_size: int,
        options: SearchOptions,
        bos_id: int,
        eos_id: int,
        forbidden: Sequence[int],
        device: torch.device,
    ) -> None:
        self.options, self.bos_id, self.eos_id = options, bos_id, eos_id
        self._num_forbidden = len(set(forbidden))
        self._top_tokens = top_tokens
        if device.type == "cuda" and has_triton():
            from regard.nn.kernels import triton_top

            self._top_tokens = triton_top.top_tokens
        beam = options.beam
        self.allowed = torch.ones(vocab_size, dtype=torch.uint8, device=device)  # what may be chosen
        self.allowed[list(forbidden)] = 0

        def filled(value: float, *shape: int) -> Tensor:
            return torch.full((slots, *shape), value, device=device)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros((slots, *shape), dtype=torch.int64, device=device)

        self.limits = zeros()  # most tokens a translation may have, the end token not counted
        self.length = zeros()  # tokens so far
        self.tokens, self.pool_tokens = zeros(beam, capacity), zeros(beam, capacity)
        self.log_probs, self.pool_log_probs = filled(-math.inf, beam), filled(-math.inf, beam)
        self.pool_scores = filled(-math.inf, beam)  # best first; -inf: empty
        self.pool_lengths = zeros(beam)
        self.done = torch.ones(slots, dtype=torch.bool, device=device)
        self.newest = torch.full((slots * beam,), bos_id, dtype=torch.int64, device=device)
        self._first_rows = torch.arange(slots, device=device)[:, None] * beam

    def enter(self, slots: list[int], limits: list[int]) -> None:
        """Begin the search of new sentences in these slots."""
        numbers = torch.tensor(slots, device=self.limits.device)
        self.limits[numbers] = torch.tensor(limits, device=self.limits.device)
        self.length[numbers] = 0
        for tensor in (self.log_probs, self.pool_log_probs, self.pool_scores):
            tensor[numbers] = -math.inf
        self.log_probs[numbers, 0] = 0.0  # all beams start alike, so only the first may live
        self.done[numbers] = False
        self.newest.view(-1, self.options.beam)[numbers] = self.bos_id

    def step(self, step: Step, reorder: Reorder) -> None:
        """Extend every live hypothesis by one token, in place."""
        best, parents, tokens = self._candidates(step(self.newest))
        ends = tokens == self.eos_id
        self._collect(best, parents, ends)
        beam = self.options.beam
        log_probs, kept = best.masked_fill(ends, -math.inf).topk(beam, dim=1)
        origin, chosen = parents.gather(1, kept), tokens.gather(1, kept)
        self.log_probs.copy_(log_probs)
        prefixes = self.tokens.gather(1, origin[:, :, None].expand_as(self.tokens))
        place = self.length.clamp(max=self.tokens.shape[2] - 1)[:, None, None].expand(-1, beam, 1)
        self.tokens.copy_(prefixes.scatter_(2, place, chosen[:, :, None]))
        self.length.add_(1)
        self.newest.copy_(chosen.flatten())
        reorder((self._first_rows + origin).flatten())
        self.done.logical_or_(self._is_done())

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(S, 2B): the best extensions, the beams that they extend and their tokens."""
        slots, beam = self.log_probs.shape
        width = min(2 * beam, logits.shape[1] - self._num_forbidden)
        # No more of a row's tokens than there are candidates can be among them.
        normaliser, values, tokens = self._top_tokens(logits, self.allowed, width)
        values = values - normaliser
        ending = logits[:, self.eos_id : self.eos_id + 1].float() - normaliser
        # At the limit only the end can follow.
        at_limit = (self.length >= self.limits).repeat_interleave(beam)[:, None]
        only_end = torch.cat((ending, torch.full_like(values[:, 1:], -math.inf)), dim=1)
        values = torch.where(at_limit, only_end, values)
        tokens = torch.where(at_limit, self.eos_id, tokens)
        extended = (self.log_probs[:, :, None] + values.view(slots, beam, width)).view(slots, -1)
        best, place = extended.topk(min(2 * beam, beam * width), dim=-1)
        return best, place // width, tokens.view(slots, -1).gather(1, place)

    def _collect(self, best: Tensor, parents: Tensor, ends: Tensor) -> None:
        """Let the candidates that end compete for the pool; one that ends does so only among the `beam` best."""
        beam = self.options.beam
        among_best = torch.arange(best.shape[1], device=best.device) < beam
        log_probs = best.masked_fill(~(ends & among_best), -math.inf)
        scores = log_probs / length_penalty(self.length + 1, self.options.alpha)[:, None]
        scores, kept = torch.cat((self.pool_scores, scores), dim=1).topk(beam, dim=1)
        running = ~self.done[:, None]  # what is done stays as it is until somebody takes it out
        self.pool_scores.copy_(torch.where(running, scores, self.pool_scores))
        for pool, new in (
            (self.pool_log_probs, log_probs),
            (self.pool_lengths, self.length[:, None].expand_as(parents)),
        ):
            pool.copy_(torch.where(running, torch.cat((pool, new), dim=1).gather(1, kept), pool))
        prefixes = self.tokens.gather(1, parents[:, :, None].expand(-1, -1, self.tokens.shape[2]))
        both = torch.cat((self.pool_tokens, prefixes), dim=1)
        chosen = both.gather(1, kept[:, :, None].expand_as(self.pool_tokens))
        self.pool_tokens.copy_(torch.where(running[:, :, None], chosen, self.pool_tokens))

    def _is_done(self) -> Tensor:
        """(S,) whether nothing alive can still enter the best `nbest`; greedy search ends with the first ending."""
        if self.options.beam == 1:
            return ~torch.isneginf(self.pool_scores[:, 0])
        bound = self.log_probs[:, 0] / length_penalty(self.limits + 1, self.options.alpha)
        return (self.pool_scores[:, self.options.nbest - 1] >= bound) | torch.isneginf(self.log_probs[:, 0])

    def take(self, slots: list[int]) -> list[list[Hypothesis]]:
        """The hypotheses of finished sentences, best first."""
        nbest = self.options.nbest
        scores = self.pool_scores[slots, :nbest].tolist()
        log_probs, lengths = self.pool_log_probs[slots, :nbest].tolist(), self.pool_lengths[slots, :nbest].tolist()
        tokens = self.pool_tokens[slots, :nbest].cpu()
        return [
            [
                Hypothesis(tuple(tokens[n, rank, : lengths[n][rank]].tolist()), log_probs[n][rank], scores[n][rank])
                for rank in range(nbest)
                if scores[n][rank] != -math.inf
            ]
            for n in range(len(slots))
        ]
