"""The engine for CPUs: CTranslate2, without torch.

It searches as Regard's own search does (`search/`): the same candidates, the same ranking. What differs:

- A sentence's search ends when 1.5 * beam hypotheses have ended (2 * beam for a list of the best) and one of them was the best
  candidate of its step. Regard's own goes on until nothing alive can win.
- CTranslate2 bans tokens before the softmax, Regard after it. So it first searches with nothing banned; only where a forbidden
  token turns up is the sentence searched again without them, and the log-probabilities are then computed anew.
- A hypothesis that reaches the limit is ended there with the end token. Regard ends all that are alive; CTranslate2 does not
  show those that took the place of one that had just ended.
- It does not translate an empty sentence: the translation is empty, too, or what it must begin with.
- After a prefix it searches without the forbidden tokens from the start. Where the token after the prefix is one of many, it
  searches once after each of the `beam` likeliest of them.

Log-probabilities are the model's own, to rounding. Sentences get the same in whatever batch they are, but for the last bits of
the numbers, so that only near-ties can fall another way; `tests/generate/test_ctranslate2.py` holds it to that.
"""

from __future__ import annotations

import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.bundle import Bundle
from regard.errors import UserError
from regard.generate.engines.batches import cut_batches, length_limit
from regard.generate.engines.ctranslate2_cache import converted
from regard.generate.engines.ctranslate2_model import Weights, positions, vocabularies
from regard.generate.engines.ctranslate2_ranking import (
    RawHypotheses,
    best_of,
    could_win,
    number_wanted,
    rank,
    split_at_limit,
)
from regard.generate.options import Constraints, Finished, Hypothesis, Matrix, Prefix, SearchOptions, forbidden_ids
from regard.generate.search.constrained import constrained_search
from regard.parallel.processes import own_threads, process_info

if TYPE_CHECKING:
    from regard.generate.engines.torch_engine import TorchEngine

OLDEST = (4, 8)  # the earliest that this was tried with
_BATCH = 64  # sentences searched together
_AHEAD = 4  # batches handed in for each worker: one may take as long as several others
_ROOM = 8_192  # tokens of a batch, counted at the longest sentence's length
_WHOLE = 16  # sentences at a time whose logits of every step are looked at
_COMPUTE = {"fp32": "float32", "fp16": "float32", "int8": "int8"}  # no CPU computes faster in 16-bit floats

Values = NDArray[np.float64]


def import_ctranslate2() -> Any:
    """The package, which is an extra of Regard."""
    try:
        package = import_module("ctranslate2")
        version = tuple(int(number) for number in re.findall(r"\d+", package.__version__)[:2])
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"CTranslate2 is not installed ({error}); install it with pip install 'regard[export]', or use --engine torch"
        ) from None
    if version < OLDEST:
        raise UserError(
            f"CTranslate2 must be {'.'.join(map(str, OLDEST))} or later, but is {package.__version__}; "
            f"renew it with pip install --upgrade ctranslate2, or use --engine torch"
        )
    return package


def share_cores(cores: int) -> tuple[int, int]:
    """How many batches are searched at a time, and by how many threads each. Batches beside each other use cores better than
    threads inside one, which wait for each other at every step.

    >>> share_cores(2), share_cores(8), share_cores(64)
    ((2, 1), (4, 2), (16, 4))
    """
    threads = max(1, min(4, cores // 4))
    return max(1, cores // threads), threads


class CTranslate2Engine:
    """Holds a converted model."""

    def __init__(
        self,
        folder: Path,
        bundle: Bundle,
        weights: Weights,
        *,
        forbidden: Sequence[int] = (),
        batch: int = 0,
        alone: bool = False,
    ) -> None:
        """`folder` holds the bundle as `convert` wrote it, with these weights; it is not needed afterwards. `alone`: what
        CTranslate2 cannot do is refused by name, and not left to torch."""
        self.alone = alone
        self._said: set[str] = set()
        self.is_quiet = False  # whether what is left to torch is left so without a word
        self._loading = threading.Lock()
        self._loaded: TorchEngine | None = None  # torch's engine, once something was left to it
        self.bundle, self.batch, self.forbidden = bundle, batch or _BATCH, frozenset(forbidden)
        self._source, self._target = vocabularies(bundle.tokenizer, bundle.config.vocab_size)
        self._ids = {piece: i for i, piece in enumerate(self._target)}
        self._rows = positions(bundle)
        self._workers, threads = share_cores(own_threads())
        self.parallel = self._workers
        self.takes_phrases = False
        package = import_ctranslate2()
        compute = _COMPUTE[weights]
        make = partial(
            package.Translator,
            str(folder),
            device="cpu",
            compute_type=compute if compute in package.get_supported_compute_types("cpu") else "default",
            inter_threads=self._workers,
            intra_threads=threads,
        )
        # In a thread of its own: it sets the number of OpenMP's threads for the thread it is made in, which are torch's, too.
        with ThreadPoolExecutor(1) as thread:
            self._translator = thread.submit(make).result()

    @classmethod
    def from_bundle(cls, bundle: Bundle, batch: int = 0, alone: bool = False) -> CTranslate2Engine:
        import_ctranslate2()  # before anything is converted
        weights: Weights = "int8" if bundle.stored == "int8" else "fp32"
        with converted(bundle, weights) as folder:
            return cls(folder, bundle, weights, forbidden=forbidden_ids(bundle.tokenizer), batch=batch, alone=alone)

    # --- translating ---

    def translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        finished: Finished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        insists = any(constraint.phrases for constraint in constraints)
        if options.beyond_beam or (insists and self.alone):
            beyond = [*options.beyond_beam, *_insisted_on(constraints)]
            return self._instead(" and ".join(beyond)).translate(ids, options, finished, constraints)
        if insists:
            return constrained_search(ids, options, finished, constraints, self.translate, self._insisting, self.score)
        return self._translate(ids, options, finished, constraints or [Constraints()] * len(ids))

    def _insisting(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        finished: Finished | None,
        constraints: Sequence[Constraints],
    ) -> list[list[Hypothesis]]:
        what = " and ".join(_insisted_on(constraints))
        engine = self._torch(f"{_are_left(what)} where something is missing: ctranslate2 cannot insist on it")
        # Not its `translate`: that would search plainly first, as was done here already.
        return engine.in_batches(ids, options, finished, constraints)

    def _translate(
        self,
        ids: Sequence[Sequence[int]],
        options: SearchOptions,
        finished: Finished | None,
        constraints: Sequence[Constraints],
    ) -> list[list[Hypothesis]]:
        """What is too long goes to torch, what has a given beginning is searched after it, and the rest from the start."""
        results: list[list[Hypothesis]] = [[] for _ in ids]
        limits = [
            length_limit(sentence, options, self.bundle.config, constraint)
            for sentence, constraint in zip(ids, constraints, strict=True)
        ]

        def finish(number: int, hypotheses: list[Hypothesis]) -> None:
            results[number] = hypotheses
            if finished is not None:
                finished([number])

        far = [n for n, sentence in enumerate(ids) if sentence and max(len(sentence), limits[n]) >= self._rows]
        if far:
            left = self._for_long.translate([ids[n] for n in far], options, constraints=[constraints[n] for n in far])
            for number, hypotheses in zip(far, left, strict=True):
                finish(number, hypotheses)
        apart = set(far)
        begun = [n for n, constraint in enumerate(constraints) if constraint.prefix and n not in apart]
        for number, hypotheses in self._after_prefixes(ids, begun, constraints, limits, options):
            finish(number, hypotheses)
        for number, hypotheses in self._from_the_start(ids, apart.union(begun), limits, options):
            finish(number, hypotheses)
        return results

    def _from_the_start(
        self, ids: Sequence[Sequence[int]], apart: set[int], limits: Sequence[int], options: SearchOptions
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Hypotheses for all sentences but those `apart`. Most are found in the first search; where a forbidden token turns up or
        the limit was reached, others follow."""
        near = {n for n, sentence in enumerate(ids) if sentence} - apart
        scored: dict[
            int, RawHypotheses
        ] = {}  # of sentences with something left to score: what has its log-probabilities
        to_score: dict[int, RawHypotheses] = {
            n: [((), 0.0)] for n, sentence in enumerate(ids) if not sentence and n not in apart
        }
        with_forbidden, at_limit, both = [], [], []
        for number, found in self._search(ids, near, limits, options):
            if self._has_forbidden(found):
                with_forbidden.append(number)
            elif any(len(tokens) > limits[number] for tokens, _ in found):
                at_limit.append(number)
            else:
                yield number, rank(found, options)
        for number, found in self._search(ids, at_limit, limits, options, to_limit=True):
            ended, alive = split_at_limit(found, limits[number])
            if self._has_forbidden(found):
                both.append(number)
            elif hopeful := could_win(alive, ended, options):
                scored[number], to_score[number] = ended, hopeful
            else:
                yield number, rank(ended, options)
        for number, found in self._search(ids, with_forbidden, limits, options, ban=True):
            if any(len(tokens) > limits[number] for tokens, _ in found):
                both.append(number)
            else:
                to_score[number] = best_of(found, options, options.beam)
        for number, found in self._search(ids, both, limits, options, ban=True, to_limit=True):
            ended, alive = split_at_limit(found, limits[number])
            to_score[number] = best_of(ended, options, options.beam) + alive
        for number, found in self._scored_anew(ids, to_score):
            yield number, rank(scored.get(number, []) + found, options)

    def _after_prefixes(
        self,
        ids: Sequence[Sequence[int]],
        numbers: Sequence[int],
        constraints: Sequence[Constraints],
        limits: Sequence[int],
        options: SearchOptions,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Hypotheses for sentences whose translations have a given beginning; CTranslate2's own scores do not count that."""
        owners: list[int] = []  # the sentence of each prefix that is searched after
        prefixes: list[tuple[int, ...]] = []
        given = [constraints[number].prefix for number in numbers]
        spelt_out = self._spelt_out([ids[number] for number in numbers], given, options.beam)
        for number, spelt in zip(numbers, spelt_out, strict=True):
            owners += [number] * len(spelt)
            prefixes += spelt
        sources, most = [ids[number] for number in owners], [limits[number] for number in owners]
        found: dict[int, RawHypotheses] = {number: [] for number in numbers}
        # What has no place left, or nothing to translate, is the prefix and no more.
        ended = [job for job, prefix in enumerate(prefixes) if len(prefix) >= most[job] or not sources[job]]
        ended += [job for job, prefix in enumerate(prefixes) if prefix[-1] == self.bundle.tokenizer.eos_id]
        for job in set(ended):
            found[owners[job]].append((_without(prefixes[job], self.bundle.tokenizer.eos_id), 0.0))
        jobs = [job for job in range(len(owners)) if job not in ended]
        at_limit = []
        for job, some in self._search(sources, jobs, most, options, ban=True, prefixes=prefixes):
            if any(len(tokens) > most[job] for tokens, _ in some):
                at_limit.append(job)
            else:
                found[owners[job]] += some
        for job, some in self._search(sources, at_limit, most, options, ban=True, to_limit=True, prefixes=prefixes):
            found[owners[job]] += some
        for number, some in self._scored_anew(ids, found):
            yield number, rank(some, options)

    def _spelt_out(
        self, srcs: Sequence[Sequence[int]], prefixes: Sequence[Prefix], most: int
    ) -> list[list[tuple[int, ...]]]:
        """Prefixes whose places leave a choice, each as several without one: at each such place the likeliest tokens, `most` in
        all."""
        open_ones: list[RawHypotheses] = [[((), 0.0)] for _ in srcs]
        for length in range(max(map(len, prefixes), default=0)):
            longer: list[RawHypotheses] = [[] for _ in srcs]
            choices: list[tuple[int, tuple[int, ...], float]] = []  # the sentence, what it begins with so far
            for number, prefix in enumerate(prefixes):
                place = prefix[length] if length < len(prefix) else ()
                if isinstance(place, int):
                    open_ones[number] = [((*tokens, place), log_prob) for tokens, log_prob in open_ones[number]]
                elif place:
                    choices += [(number, *one) for one in open_ones[number]]
            after = self._after([srcs[number] for number, _, _ in choices], [tokens for _, tokens, _ in choices])
            for (number, tokens, log_prob), values in zip(choices, after, strict=True):
                place = prefixes[number][length]
                assert not isinstance(place, int)
                longer[number] += [((*tokens, token), log_prob + float(values[token])) for token in place]
            for number in {number for number, _, _ in choices}:
                open_ones[number] = sorted(longer[number], key=lambda one: -one[1])[:most]
        return [[tokens for tokens, _ in some] for some in open_ones]

    def _has_forbidden(self, found: RawHypotheses) -> bool:
        return not self.forbidden.isdisjoint(token for tokens, _ in found for token in tokens)

    def _search(
        self,
        ids: Sequence[Sequence[int]],
        numbers: Iterable[int],
        limits: Sequence[int],
        options: SearchOptions,
        *,
        ban: bool = False,
        to_limit: bool = False,
        prefixes: Sequence[Sequence[int]] = (),
    ) -> Iterator[tuple[int, RawHypotheses]]:
        """What CTranslate2 finds for these sentences. Its limit is one for a whole batch. So a search goes one token further than
        the longest may, and a hypothesis with more tokens than its own limit shows that this was reached; `to_limit`: batches
        have one limit, which is also where the search stops, and hypotheses of just so many tokens have no end yet."""
        banned = [[self._target[i]] for i in sorted(self.forbidden)] if ban else None

        def submit(batch: Sequence[int]) -> list[Any]:
            longest = limits[batch[0]] + (0 if to_limit else 1)
            begun = [[self._target[i] for i in prefixes[n]] for n in batch] if prefixes else None
            steps = longest - min(map(len, begun)) if begun else longest
            wanted = number_wanted(options, steps if to_limit else 0)
            submitted: list[Any] = self._translator.translate_batch(
                [self._source_pieces(ids[n]) for n in batch],
                begun,
                beam_size=options.beam,
                num_hypotheses=wanted,
                patience=max(1.0, wanted / options.beam),
                length_penalty=0,  # scores are then sums of log-probabilities
                return_scores=True,
                min_decoding_length=0,
                max_decoding_length=longest,
                max_input_length=0,
                suppress_sequences=banned,
                asynchronous=True,
            )
            return submitted

        # The longest first: at the end workers wait for each other, and then it is for short ones.
        order = sorted(numbers, key=lambda n: (-limits[n], -len(ids[n]), n))
        for number, result in self._in_order(cut_batches(order, limits, self.batch, _ROOM, alike=to_limit), submit):
            found = zip(result.hypotheses, result.scores, strict=True)
            yield number, [(tuple(self._ids[piece] for piece in pieces), log_prob) for pieces, log_prob in found]

    def _scored_anew(
        self, ids: Sequence[Sequence[int]], found: Mapping[int, RawHypotheses]
    ) -> Iterator[tuple[int, RawHypotheses]]:
        pairs = [(number, tokens) for number, hypotheses in found.items() for tokens, _ in hypotheses]
        scores = iter(self.score([ids[number] for number, _ in pairs], [tokens for _, tokens in pairs]))
        for number, hypotheses in found.items():
            yield number, [(tokens, sum(next(scores))) for tokens, _ in hypotheses]

    @property
    def _for_long(self) -> TorchEngine:
        """For what is beyond the table of positions."""
        return self._torch(f"what has {self._rows} tokens or more is left to torch")

    def _instead(self, what: str) -> TorchEngine:
        """For what CTranslate2 cannot do."""
        if self.alone:
            raise UserError(f"engine ctranslate2 cannot do {what}; use --engine torch, or auto")
        return self._torch(f"{_are_left(what)}: ctranslate2 cannot do it")

    def _torch(self, why: str) -> TorchEngine:
        """The other engine, with a word about it, once for each reason."""
        if why not in self._said and not self.is_quiet:
            self._said.add(why)
            sys.stderr.write(f"regard: {process_info().name}{why}\n")
        return self.torch_engine

    @property
    def torch_engine(self) -> TorchEngine:
        """The other engine with the same model; loaded when it is first needed."""
        with self._loading:  # several threads may translate at a time
            if self._loaded is None:
                from regard.generate.engines.torch_engine import TorchEngine

                self._loaded = TorchEngine.from_bundle(self.bundle, "cpu", self.batch)
            return self._loaded

    def stream(
        self, src: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        return self._instead("streaming").stream(src, options, constraint)

    # --- scoring ---

    def score(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities of the tokens of given translations, the end token last."""
        results: list[list[float]] = [[] for _ in src]
        lengths = [max(map(len, pair)) for pair in zip(src, tgt, strict=True)]
        if far := [n for n, length in enumerate(lengths) if length >= self._rows]:
            found = self._for_long.score([src[n] for n in far], [tgt[n] for n in far])
            for number, values in zip(far, found, strict=True):
                results[number] = values

        def submit(numbers: Sequence[int]) -> list[Any]:
            sources = [self._source_pieces(src[n]) for n in numbers]
            targets = [[self._target[i] for i in tgt[n]] for n in numbers]
            submitted: list[Any] = self._translator.score_batch(sources, targets, max_input_length=0, asynchronous=True)
            return submitted

        near = sorted(set(range(len(src))) - set(far), key=lambda n: (-len(tgt[n]), -len(src[n])))
        for number, result in self._in_order(cut_batches(near, lengths, self.batch, _ROOM), submit):
            results[number] = list(result.log_probs)
        return results

    def attention(self, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> list[Matrix]:
        """As `Engine` says. CTranslate2 shows it only while it searches, so the translation is given as a prefix; what
        it shows of a search with a beam is not always that of the hypothesis that it returns."""
        results: list[Matrix] = [[] for _ in src]
        lengths = [max(map(len, pair)) for pair in zip(src, tgt, strict=True)]
        if far := [n for n, length in enumerate(lengths) if length >= self._rows]:
            found = self._for_long.attention([src[n] for n in far], [tgt[n] for n in far])
            for number, matrix in zip(far, found, strict=True):
                results[number] = matrix

        def submit(numbers: Sequence[int]) -> list[Any]:
            submitted: list[Any] = self._translator.translate_batch(
                [self._source_pieces(src[n]) for n in numbers],
                [[self._target[i] for i in tgt[n]] for n in numbers],
                beam_size=1,
                min_decoding_length=0,
                max_decoding_length=len(tgt[numbers[0]]),
                max_input_length=0,
                return_attention=True,
                asynchronous=True,
            )
            return submitted

        near = [n for n in range(len(src)) if n not in far and src[n] and tgt[n]]
        near.sort(key=lambda n: (-len(tgt[n]), -len(src[n])))
        for number, result in self._in_order(cut_batches(near, lengths, self.batch, _ROOM), submit):
            results[number] = result.attention[0][: len(tgt[number])]
        return results

    def next_log_probs(self, src: Sequence[int], prefix: Sequence[int]) -> list[float]:
        [values] = self._after([src], [prefix])
        log_probs: list[float] = values.tolist()
        return log_probs

    def _after(self, srcs: Sequence[Sequence[int]], prefixes: Sequence[Sequence[int]]) -> Iterator[Values]:
        """(vocab_size,) log-probabilities right after beginnings of translations that are all equally long."""
        lengths = [max(len(src), len(prefix) + 1) for src, prefix in zip(srcs, prefixes, strict=True)]
        near = {n for n, length in enumerate(lengths) if length < self._rows and srcs[n]}
        for n in range(0, len(srcs), _WHOLE):
            numbers = [number for number in range(n, min(n + _WHOLE, len(srcs))) if number in near]
            found: list[Any] = self._translator.translate_batch(
                [self._source_pieces(srcs[number]) for number in numbers],
                [[self._target[i] for i in prefixes[number]] for number in numbers],
                beam_size=1,
                min_decoding_length=0,
                max_decoding_length=len(prefixes[n]) + 1,
                max_input_length=0,
                return_logits_vocab=True,
            )
            logits = dict(zip(numbers, (result.logits[0][-1] for result in found), strict=True))
            for number in range(n, min(n + _WHOLE, len(srcs))):
                if number in near:
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
        """Hand in batches ahead of the workers, but not all at once, and give back each sentence's result."""
        waiting: deque[tuple[int, Any]] = deque()
        for numbers in batches:
            waiting.extend(zip(numbers, submit(numbers), strict=True))
            while len(waiting) > _AHEAD * self._workers * self.batch:
                number, result = waiting.popleft()
                yield number, result.result()
        for number, result in waiting:
            yield number, result.result()


def _insisted_on(constraints: Sequence[Constraints]) -> list[str]:
    """The names of what people asked for so that something must appear."""
    are_terms = {phrase.is_satisfied_by is not None for constraint in constraints for phrase in constraint.phrases}
    return ["glossary"] * (True in are_terms) + ["phrases"] * (False in are_terms)


def _are_left(what: str) -> str:
    return f"{what} {'are' if ' and ' in what else 'is'} left to torch"


def _without(tokens: tuple[int, ...], end: int) -> tuple[int, ...]:
    """Tokens without the end token, if that is the last."""
    return tokens[:-1] if tokens[-1:] == (end,) else tokens
