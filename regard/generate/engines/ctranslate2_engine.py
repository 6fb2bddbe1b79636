"""The engine for CPUs: CTranslate2, without torch.

It searches as Regard's own search does (`search/`), with the same candidates and the same ranking, except that:

- A search ends when 1.5 * beam hypotheses have finished (2 * beam for an n-best list) and one of them was the best candidate of
  its step. Regard's own search goes on until no live hypothesis can win.
- CTranslate2 masks forbidden tokens before the softmax, Regard after it. So the first search forbids nothing; only if a forbidden
  token turns up is the sentence searched again without them, and the log-probabilities are recomputed.
- At the length limit Regard ends every live hypothesis. CTranslate2 does not return those that replaced one that had just
  finished; the others get their end token here.
- An empty sentence is not translated: the output is empty, or the forced prefix.
- After a forced prefix the forbidden tokens are masked from the start. If the prefix ends in a choice of tokens, there is one
  search after each of the `beam` likeliest of them.

Log-probabilities are the model's own, up to rounding. A sentence's result depends on its batch only in the last bits, so that only
near-ties can flip; `tests/generate/test_ctranslate2.py` tests this.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.errors import RegardError
from regard.generate.engines.batches import beam_batch, check_constraints, cut_batches, length_limit
from regard.generate.engines.ctranslate2_cache import converted
from regard.generate.engines.ctranslate2_common import WithTorch, are_left, import_ctranslate2, open_model
from regard.generate.engines.ctranslate2_model import WeightFormat, positions, vocabularies
from regard.generate.engines.ctranslate2_ranking import (
    RawHypotheses,
    best_of,
    could_win,
    number_wanted,
    rank,
    split_at_limit,
)
from regard.generate.options import (
    NOTHING_FOUND,
    Constraints,
    Hypothesis,
    Matrix,
    OnFinished,
    Prefix,
    SearchOptions,
    forbidden_ids,
)
from regard.generate.search.constrained import constrained_search
from regard.parallel.processes import own_threads

if TYPE_CHECKING:
    from regard.generate.engines.torch_engine import TorchEngine

_BATCH = 64  # sentences of a batch
_BATCHES_AHEAD = 4  # batches submitted ahead per worker: one may take as long as several others
_BATCH_TOKENS = 8_192  # tokens of a batch, counted with padding
_LOGITS_BATCH = 16  # sentences at a time when logits are requested

Values = NDArray[np.float64]


def share_cores(cores: int) -> tuple[int, int]:
    """How many batches to search in parallel, and with how many threads each. Parallel batches use cores better than threads
    inside one batch, which wait for each other at every step.

    >>> share_cores(2), share_cores(8), share_cores(64)
    ((2, 1), (4, 2), (16, 4))
    """
    threads = max(1, min(4, cores // 4))
    return max(1, cores // threads), threads


class CTranslate2Engine(WithTorch):
    """Searches with a converted model."""

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        weights: WeightFormat,
        *,
        forbidden: Sequence[int] = (),
        batch: int = 0,
        strict: bool = False,
    ) -> None:
        """`folder` holds the bundle as `convert` wrote it, and is not needed afterwards. With `strict`, what CTranslate2 cannot do
        is refused by name; otherwise torch does it."""
        super().__init__(bundle, batch or _BATCH, strict)
        self.forbidden = frozenset(forbidden)
        self._source, self._target = vocabularies(bundle.tokenizer, bundle.config.vocab_size)
        self._ids = {piece: i for i, piece in enumerate(self._target)}
        self._max_positions = positions(bundle)
        self._workers, threads = share_cores(own_threads())
        self.parallel = self._workers
        self.takes_phrases = False
        self._translator = open_model("Translator", folder, weights, self._workers, threads)

    @classmethod
    def from_bundle(
        cls, bundle: Bundle, batch: int = 0, strict: bool = False, weights: WeightFormat | None = None
    ) -> CTranslate2Engine:
        """The engine for this bundle, which is converted unless the cache has it; in int8 if it is stored so, unless `weights` says
        otherwise."""
        import_ctranslate2()  # fails before anything is converted
        weights = weights or ("int8" if bundle.stored == "int8" else "fp32")
        with converted(bundle, weights) as folder:
            return cls(folder, bundle, weights, forbidden=forbidden_ids(bundle.tokenizer), batch=batch, strict=strict)

    # --- translating ---

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        """As `Engine.translate`."""
        check_constraints(constraints)
        has_phrases = any(constraint.phrases for constraint in constraints)
        if options.beyond_beam or (has_phrases and self.strict):
            unsupported = [*options.beyond_beam, *_phrase_options(constraints)]
            return self._fallback_for(" and ".join(unsupported)).translate(ids, options, on_finished, constraints)
        if has_phrases:
            return constrained_search(
                ids, options, on_finished, constraints, self.translate, self._translate_constrained, self.score
            )
        return self._translate(ids, options, on_finished, constraints or [Constraints()] * len(ids))

    def _translate_constrained(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None,
        constraints: Sequence[Constraints],
    ) -> list[list[Hypothesis]]:
        what = " and ".join(_phrase_options(constraints))
        engine = self._fallback(f"{are_left(what)} where a phrase is missing: ctranslate2 cannot enforce phrases")
        # Not its `translate`: that would start with an unconstrained search, which was done here already.
        return engine.in_batches(ids, options, on_finished, constraints)

    def _translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None,
        constraints: Sequence[Constraints],
    ) -> list[list[Hypothesis]]:
        """Too long sentences go to torch, those with a forced prefix are searched after it, and the rest from the start."""
        results: list[list[Hypothesis]] = [[] for _ in ids]
        limits = [
            length_limit(sentence, options, self.bundle.config, constraint)
            for sentence, constraint in zip(ids, constraints, strict=True)
        ]

        def finish(number: int, hypotheses: list[Hypothesis]) -> None:
            results[number] = hypotheses
            if on_finished is not None:
                on_finished([number])

        too_long = [
            n for n, sentence in enumerate(ids) if sentence and max(len(sentence), limits[n]) >= self._max_positions
        ]
        if too_long:
            from_torch = self._for_long.translate(
                [ids[n] for n in too_long], options, constraints=[constraints[n] for n in too_long]
            )
            for number, hypotheses in zip(too_long, from_torch, strict=True):
                finish(number, hypotheses)
        others = set(too_long)
        with_prefix = [n for n, constraint in enumerate(constraints) if constraint.prefix and n not in others]
        for number, hypotheses in self._after_prefixes(ids, with_prefix, constraints, limits, options):
            finish(number, hypotheses)
        for number, hypotheses in self._without_prefixes(ids, others.union(with_prefix), limits, options):
            finish(number, hypotheses)
        return results

    def _without_prefixes(
        self, ids: Sequence[Sequence[int]], others: set[int], limits: Sequence[int], options: SearchOptions
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Hypotheses for all sentences except `others`. Most need one search; those with a forbidden token or at the length limit
        are searched again."""
        first = {n for n, sentence in enumerate(ids) if sentence} - others
        scored: dict[int, RawHypotheses] = {}  # hypotheses that need no rescoring, of sentences where others do
        to_score: dict[int, RawHypotheses] = {
            n: [((), 0.0)] for n, sentence in enumerate(ids) if not sentence and n not in others
        }
        with_forbidden, at_limit, both = [], [], []
        for number, hypotheses in self._search(ids, first, limits, options):
            if self._has_forbidden(hypotheses):
                with_forbidden.append(number)
            elif any(len(tokens) > limits[number] for tokens, _ in hypotheses):
                at_limit.append(number)
            else:
                yield number, rank(hypotheses, options)
        for number, hypotheses in self._search(ids, at_limit, limits, options, to_limit=True):
            finished, alive = split_at_limit(hypotheses, limits[number])
            if self._has_forbidden(hypotheses):
                both.append(number)
            elif contenders := could_win(alive, finished, options):
                scored[number], to_score[number] = finished, contenders
            else:
                yield number, rank(finished, options)
        for number, hypotheses in self._search(ids, with_forbidden, limits, options, mask_forbidden=True):
            if any(len(tokens) > limits[number] for tokens, _ in hypotheses):
                both.append(number)
            else:
                to_score[number] = best_of(hypotheses, options, options.beam)
        for number, hypotheses in self._search(ids, both, limits, options, mask_forbidden=True, to_limit=True):
            finished, alive = split_at_limit(hypotheses, limits[number])
            to_score[number] = best_of(finished, options, options.beam) + alive
        for number, hypotheses in self._rescored(ids, to_score):
            yield number, rank(scored.get(number, []) + hypotheses, options)

    def _after_prefixes(
        self,
        ids: Sequence[Sequence[int]],
        numbers: Sequence[int],
        constraints: Sequence[Constraints],
        limits: Sequence[int],
        options: SearchOptions,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Hypotheses for sentences with a forced prefix, whose tokens CTranslate2's own scores leave out."""
        owners: list[int] = []  # the sentence of each prefix
        prefixes: list[tuple[int, ...]] = []
        given = [constraints[number].prefix for number in numbers]
        expanded = self._expand_prefixes([ids[number] for number in numbers], given, options.beam)
        for number, own_prefixes in zip(numbers, expanded, strict=True):
            owners += [number] * len(own_prefixes)
            prefixes += own_prefixes
        sources, own_limits = [ids[number] for number in owners], [limits[number] for number in owners]
        hypotheses: dict[int, RawHypotheses] = {number: [] for number in numbers}
        # At the length limit, or with nothing to translate, the output is the prefix.
        ended = [job for job, prefix in enumerate(prefixes) if len(prefix) >= own_limits[job] or not sources[job]]
        ended += [job for job, prefix in enumerate(prefixes) if prefix[-1] == self.bundle.tokenizer.eos_id]
        for job in set(ended):
            hypotheses[owners[job]].append((_without(prefixes[job], self.bundle.tokenizer.eos_id), 0.0))
        jobs = [job for job in range(len(owners)) if job not in ended]
        at_limit = []
        search = partial(
            self._search, sources, limits=own_limits, options=options, mask_forbidden=True, prefixes=prefixes
        )
        for job, some in search(jobs):
            if any(len(tokens) > own_limits[job] for tokens, _ in some):
                at_limit.append(job)
            else:
                hypotheses[owners[job]] += some
        for job, some in search(at_limit, to_limit=True):
            hypotheses[owners[job]] += some
        for number, some in self._rescored(ids, hypotheses):
            yield number, rank(some, options)

    def _expand_prefixes(
        self, srcs: Sequence[Sequence[int]], prefixes: Sequence[Prefix], beam: int
    ) -> list[list[tuple[int, ...]]]:
        """Each prefix as its `beam` likeliest expansions, in which every choice of tokens is replaced by one of them."""
        expansions: list[RawHypotheses] = [[((), 0.0)] for _ in srcs]
        for length in range(max(map(len, prefixes), default=0)):
            longer: list[RawHypotheses] = [[] for _ in srcs]
            choices: list[tuple[int, tuple[int, ...], float]] = []  # sentence, expansion so far, its log-probability
            for number, prefix in enumerate(prefixes):
                choice = prefix[length] if length < len(prefix) else ()
                if isinstance(choice, int):
                    expansions[number] = [((*tokens, choice), log_prob) for tokens, log_prob in expansions[number]]
                elif choice:
                    choices += [(number, *one) for one in expansions[number]]
            after = self._log_probs_after(
                [srcs[number] for number, _, _ in choices], [tokens for _, tokens, _ in choices]
            )
            for (number, tokens, log_prob), values in zip(choices, after, strict=True):
                choice = prefixes[number][length]
                assert not isinstance(choice, int)
                longer[number] += [((*tokens, token), log_prob + float(values[token])) for token in choice]
            for number in {number for number, _, _ in choices}:
                expansions[number] = sorted(longer[number], key=lambda one: -one[1])[:beam]
        return [[tokens for tokens, _ in some] for some in expansions]

    def _has_forbidden(self, hypotheses: RawHypotheses) -> bool:
        return not self.forbidden.isdisjoint(token for tokens, _ in hypotheses for token in tokens)

    def _search(
        self,
        ids: Sequence[Sequence[int]],
        numbers: Iterable[int],
        limits: Sequence[int],
        options: SearchOptions,
        *,
        mask_forbidden: bool = False,
        to_limit: bool = False,
        prefixes: Sequence[Sequence[int]] = (),
    ) -> Iterator[tuple[int, RawHypotheses]]:
        """What CTranslate2 finds for these sentences. It has one length limit per batch. So a search goes one token beyond the
        highest limit, and a hypothesis longer than its own limit shows that the limit was reached. With `to_limit`, all
        sentences of a batch have the same limit, the search stops there, and hypotheses of that length have no end token yet."""
        suppressed = [[self._target[i]] for i in sorted(self.forbidden)] if mask_forbidden else None

        def submit(batch: Sequence[int]) -> list[Any]:
            longest = limits[batch[0]] + (0 if to_limit else 1)
            target_prefix = [[self._target[i] for i in prefixes[n]] for n in batch] if prefixes else None
            steps = longest - min(map(len, target_prefix)) if target_prefix else longest
            num_hypotheses = number_wanted(options, steps if to_limit else 0)
            submitted: list[Any] = self._translator.translate_batch(
                [self._source_pieces(ids[n]) for n in batch],
                target_prefix,
                beam_size=options.beam,
                num_hypotheses=num_hypotheses,
                patience=max(1.0, num_hypotheses / options.beam),
                length_penalty=0,  # so that scores are sums of log-probabilities
                return_scores=True,
                min_decoding_length=0,
                max_decoding_length=longest,
                max_input_length=0,
                suppress_sequences=suppressed,
                asynchronous=True,
            )
            return submitted

        # The longest first, so that workers wait only for short sentences at the end.
        order = sorted(numbers, key=lambda n: (-limits[n], -len(ids[n]), n))
        together = beam_batch(options, self.bundle.config, self.batch)
        for number, result in self._in_order(
            cut_batches(order, limits, together, _BATCH_TOKENS, same_length=to_limit), submit
        ):
            if not all(map(math.isfinite, result.scores)):
                raise RegardError(f"{shown_name(self.bundle.folder)}: {NOTHING_FOUND}")
            scored = zip(result.hypotheses, result.scores, strict=True)
            yield number, [(tuple(self._ids[piece] for piece in pieces), log_prob) for pieces, log_prob in scored]

    def _rescored(
        self, ids: Sequence[Sequence[int]], hypotheses: Mapping[int, RawHypotheses]
    ) -> Iterator[tuple[int, RawHypotheses]]:
        """The same hypotheses with log-probabilities of the model."""
        pairs = [(number, tokens) for number, own in hypotheses.items() for tokens, _ in own]
        scores = iter(self.score([ids[number] for number, _ in pairs], [tokens for _, tokens in pairs]))
        for number, own in hypotheses.items():
            yield number, [(tokens, sum(next(scores))) for tokens, _ in own]

    @property
    def _for_long(self) -> TorchEngine:
        """Torch's engine, for sentences beyond the position table."""
        return self._fallback(f"sentences of {self._max_positions} tokens or more are left to torch")

    def stream(
        self, src: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        return self._fallback_for("streaming").stream(src, options, constraint)

    # --- scoring ---

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """As `Engine.score`."""
        results: list[list[float]] = [[] for _ in src]
        lengths = [max(map(len, pair)) for pair in zip(src, tgt, strict=True)]
        if too_long := [n for n, length in enumerate(lengths) if length >= self._max_positions]:
            from_torch = self._for_long.score([src[n] for n in too_long], [tgt[n] for n in too_long])
            for number, values in zip(too_long, from_torch, strict=True):
                results[number] = values

        def submit(numbers: Sequence[int]) -> list[Any]:
            sources = [self._source_pieces(src[n]) for n in numbers]
            targets = [[self._target[i] for i in tgt[n]] for n in numbers]
            submitted: list[Any] = self._translator.score_batch(sources, targets, max_input_length=0, asynchronous=True)
            return submitted

        order = sorted(set(range(len(src))) - set(too_long), key=lambda n: (-len(tgt[n]), -len(src[n])))
        for number, result in self._in_order(cut_batches(order, lengths, self.batch, _BATCH_TOKENS), submit):
            results[number] = list(result.log_probs)
        return results

    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        """As `Engine.attention`. CTranslate2 returns attention only from a search, so the output is given as a forced prefix: the
        attention of a search with a beam does not always belong to the hypothesis that it returns. A last token is added to the
        prefix, since the step that reads a token is the one that predicts the next."""
        shift = self.bundle.alignment_heads.shift
        results: list[Matrix] = [[] for _ in src]
        lengths = [max(map(len, pair)) for pair in zip(src, tgt, strict=True)]
        if too_long := [n for n, length in enumerate(lengths) if length + 1 >= self._max_positions]:
            from_torch = self._for_long.attention([src[n] for n in too_long], [tgt[n] for n in too_long])
            for number, matrix in zip(too_long, from_torch, strict=True):
                results[number] = matrix

        def submit(numbers: Sequence[int]) -> list[Any]:
            submitted: list[Any] = self._translator.translate_batch(
                [self._source_pieces(src[n]) for n in numbers],
                [[self._target[i] for i in (*tgt[n], tgt[n][-1])] for n in numbers],
                beam_size=1,
                min_decoding_length=0,
                max_decoding_length=len(tgt[numbers[0]]) + 1,
                max_input_length=0,
                return_attention=True,
                asynchronous=True,
            )
            return submitted

        order = [n for n in range(len(src)) if n not in too_long and src[n] and tgt[n]]
        order.sort(key=lambda n: (-len(tgt[n]), -len(src[n])))
        for number, result in self._in_order(cut_batches(order, lengths, self.batch, _BATCH_TOKENS), submit):
            results[number] = result.attention[0][shift : len(tgt[number]) + shift]
        return results

    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """As `Engine.next_log_probs`."""
        [values] = self._log_probs_after([src], [prefix])
        log_probs: list[float] = values.tolist()
        return log_probs

    def _log_probs_after(self, srcs: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]) -> Iterator[Values]:
        """Log-probabilities of the next token, (vocab_size,), after prefixes that all have the same length."""
        lengths = [max(len(src), len(prefix) + 1) for src, prefix in zip(srcs, prefixes, strict=True)]
        possible = {n for n, length in enumerate(lengths) if length < self._max_positions and srcs[n]}
        for n in range(0, len(srcs), _LOGITS_BATCH):
            numbers = [number for number in range(n, min(n + _LOGITS_BATCH, len(srcs))) if number in possible]
            searched: list[Any] = self._translator.translate_batch(
                [self._source_pieces(srcs[number]) for number in numbers],
                [[self._target[i] for i in prefixes[number]] for number in numbers],
                beam_size=1,
                min_decoding_length=0,
                max_decoding_length=len(prefixes[n]) + 1,
                max_input_length=0,
                return_logits_vocab=True,
            )
            logits = dict(zip(numbers, (result.logits[0][-1] for result in searched), strict=True))
            for number in range(n, min(n + _LOGITS_BATCH, len(srcs))):
                if number in possible:
                    values = np.array(logits[number], dtype=np.float64)
                    yield values - values.max() - np.log(np.exp(values - values.max()).sum())
                else:
                    yield np.array(self._for_long.next_log_probs(srcs[number], prefixes[number]))

    # --- batches ---

    def _source_pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._source[i] for i in ids]

    def _in_order(
        self, batches: Iterator[list[int]], submit: Callable[[Sequence[int]], list[Any]]
    ) -> Iterator[tuple[int, Any]]:
        """Submit batches ahead of the workers, but not all at once, and yield each sentence's result in order."""
        waiting: deque[tuple[int, Any]] = deque()
        for numbers in batches:
            waiting.extend(zip(numbers, submit(numbers), strict=True))
            while len(waiting) > _BATCHES_AHEAD * self._workers * self.batch:
                number, result = waiting.popleft()
                yield number, result.result()
        for number, result in waiting:
            yield number, result.result()


def _phrase_options(constraints: Sequence[Constraints]) -> list[str]:
    """The names of the options that these phrases come from."""
    are_terms = {phrase.count_in is not None for constraint in constraints for phrase in constraint.phrases}
    return ["glossary"] * (True in are_terms) + ["phrases"] * (False in are_terms)


def _without(tokens: tuple[int, ...], end: int) -> tuple[int, ...]:
    """The tokens without a final end token."""
    return tokens[:-1] if tokens[-1:] == (end,) else tokens
