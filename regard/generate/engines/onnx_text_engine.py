"""The engine for language models on CPUs with VNNI: ONNX Runtime, in 8 bits, without torch.

It reads every weight once per token, while CTranslate2's products for few rows also rearrange them. So a single text takes less
than half of CTranslate2's CPU time; long prompts are read more slowly.

- Does greedy search and samples with all rules about repetition, prefixes and ends, and scores. Everything else (beams, groups,
  phrases, a choice of tokens in a prefix) is left to another engine: CTranslate2, or torch where that cannot run the model.
- A text does not depend on the others: each row of a product is computed as if it were alone, each prompt is read alone, and
  samples use the random numbers of torch's engine.
- Each 64 weights share a scale, and vectors are rounded likewise, so some words differ from CTranslate2's int8, which has one scale
  per row.

`tests/generate/test_onnx_text.py` compares it with torch.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.errors import RegardError, UserError
from regard.generate.engines.batches import check_constraints, cut_batches
from regard.generate.engines.model_cache import cached_folder
from regard.generate.engines.onnx_decoder import OnnxDecoder, Rows, import_onnxruntime
from regard.generate.engines.onnx_graph import BLOCK, CONVERTER, FILES, convert, positions
from regard.generate.engines.text_jobs import TextJob, check_length, make_hypothesis, make_job, opened
from regard.generate.options import (
    NO_CONTINUATION,
    Constraints,
    Hypothesis,
    OnFinished,
    SearchOptions,
    TextEngine,
    forbidden_ids,
)
from regard.generate.search.one_row import TokenRules, next_token
from regard.generate.search.seeds import sentence_rng
from regard.parallel.processes import own_threads

_Array = NDArray[Any]

_BATCH = 32  # texts written side by side
_BATCH_TOKENS = 8_192  # tokens per batch, prompts and continuations
_MAX_THREADS = 4  # a step is too short for more


@dataclass(eq=False)
class _Text:
    """One text while it is written."""

    job: TextJob
    prompt: tuple[int, ...]  # without the forced prefix
    tokens: list[int] = field(default_factory=list)  # with the forced prefix
    log_prob: float = 0.0
    is_done: bool = False

    @property
    def forced(self) -> int | None:
        """The next token, if the prefix forces it."""
        place, prefix = len(self.tokens), self.job.prefix
        return prefix[place] if place < len(prefix) else None

    @property
    def is_full(self) -> bool:
        return len(self.tokens) >= len(self.job.prefix) + self.job.limit


class OnnxTextEngine:
    """Continues texts with a converted model."""

    def __init__(self, bundle: Bundle, *, batch: int = 0, make_other: Callable[[], TextEngine] | None = None) -> None:
        """Convert the bundle unless the cache has it. `make_other` makes the engine for what this one cannot do, on first use;
        without it, such options are refused by name."""
        import_onnxruntime()  # fails before anything is converted
        tokenizer = bundle.tokenizer
        self.bundle, self.batch, self._make_other = bundle, batch or _BATCH, make_other
        self.parallel, self.takes_phrases = 1, False
        ends = tuple(end for end in dict.fromkeys((tokenizer.eos_id, *tokenizer.stop_ids)) if end >= 0)
        self.rules = TokenRules(ends, tuple(forbidden_ids(tokenizer)))
        self.first = tokenizer.bos_id if tokenizer.bos_id >= 0 else tokenizer.eos_id
        self._max_positions = positions(bundle)
        self._loading = threading.Lock()
        self._other: TextEngine | None = None  # made on first use
        key = f"int8x{BLOCK}-{CONVERTER}"
        with cached_folder(bundle, "onnxruntime", key, FILES, lambda folder: convert(bundle, folder)) as folder:
            self._decoder = OnnxDecoder(folder, min(_MAX_THREADS, own_threads()))

    # --- the other engine ---

    def _unsupported(self, options: SearchOptions, constraints: Sequence[Constraints]) -> list[str]:
        """The names of the options that this engine cannot handle."""
        used = {
            "a beam": options.beam > 1 and not options.sample,
            "groups": options.groups > 1,
            "coverage": options.coverage > 0,
            "a choice in a prefix": any(not isinstance(one, int) for some in constraints for one in some.prefix),
            "phrases": any(constraint.phrases for constraint in constraints),
        }
        return [name for name, is_used in used.items() if is_used]

    def _other_for(self, what: str) -> TextEngine:
        """The engine that takes over; a UserError if there is none."""
        if self._make_other is None:
            raise UserError(f"engine onnxruntime cannot do {what}; use --engine ctranslate2 or torch, or auto")
        with self._loading:  # several threads may search at once
            if self._other is None:
                self._other = self._make_other()
            return self._other

    @property
    def scorer(self) -> TextEngine:
        """The engine for scoring long texts: the other one if there is one, since it reads faster."""
        return self if self._make_other is None else self._other_for("scoring")

    # --- continuing ---

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None = None,
        constraints: Sequence[Constraints] = (),
    ) -> list[list[Hypothesis]]:
        """As `TextEngine.generate`; `options.max_extra` tokens at most."""
        check_constraints(constraints)
        if unsupported := self._unsupported(options, constraints):
            engine = self._other_for(" and ".join(unsupported))
            return engine.generate(prompts, options, on_finished, constraints)
        given = constraints or [Constraints()] * len(prompts)
        pairs = zip(opened(prompts, self.first), given, strict=True)
        jobs = [make_job(self.bundle, number, *pair, options) for number, pair in enumerate(pairs)]
        results: list[list[Hypothesis]] = [[] for _ in jobs]
        too_long = {job.number for job in jobs if len(job.prompt) + job.limit > self._max_positions}
        if too_long:
            engine, numbers = self._other_for(f"texts of more than {self._max_positions:,} tokens"), sorted(too_long)
            found = engine.generate([prompts[n] for n in numbers], options, None, [given[n] for n in numbers])
            self._finish(results, numbers, found, on_finished)
        others = [job for job in jobs if job.number not in too_long]
        for batch in self._batches(others, options):
            texts = [text for job in batch for text in self._texts(job, options)]
            for _ in self._write(texts, options):
                pass
            self._finish(results, [job.number for job in batch], self._hypotheses(texts, options), on_finished)
        return results

    def _finish(
        self,
        results: list[list[Hypothesis]],
        numbers: Sequence[int],
        found: Sequence[list[Hypothesis]],
        on_finished: OnFinished | None,
    ) -> None:
        for number, some in zip(numbers, found, strict=True):
            results[number] = some
        if on_finished is not None:
            on_finished(numbers)

    def _batches(self, jobs: Sequence[TextJob], options: SearchOptions) -> Iterator[list[TextJob]]:
        """Jobs to write side by side, grouped by similar length."""
        lengths = [len(job.prompt) + job.limit for job in jobs]
        order = sorted(range(len(jobs)), key=lambda place: (lengths[place], place))
        rows = options.beam if options.sample else 1
        for batch in cut_batches(order, lengths, max(1, self.batch // rows), _BATCH_TOKENS // rows):
            yield [jobs[place] for place in batch]

    def _texts(self, job: TextJob, options: SearchOptions) -> list[_Text]:
        """The texts of a job, one for each sample."""
        prompt = job.prompt[: len(job.prompt) - len(job.prefix)]
        return [_Text(job, prompt) for _ in range(options.beam if options.sample else 1)]

    def _hypotheses(self, texts: Sequence[_Text], options: SearchOptions) -> list[list[Hypothesis]]:
        """The best hypotheses of each job, in the order of the texts."""
        by_job: dict[int, list[Hypothesis]] = {}
        for text in texts:
            ids = text.tokens[len(text.job.prefix) :]
            hypothesis = make_hypothesis(text.job, ids, text.log_prob, options)
            by_job.setdefault(text.job.number, []).append(hypothesis)
        return [sorted(some, key=lambda one: -one.score)[: options.nbest] for some in by_job.values()]

    def _write(self, texts: Sequence[_Text], options: SearchOptions) -> Iterator[None]:
        """Write the texts to their ends, a token at a time."""
        generators = {text.job.number: sentence_rng(options.seed, text.prompt) for text in texts}
        capacity = max(len(text.job.prompt) + text.job.limit for text in texts)
        rows = Rows(self._decoder, len(texts), capacity)
        logits = self._read_prompts(rows, texts)
        live = list(texts)
        while True:
            numbers = _uniform(texts, live, generators, options)
            for text, values in zip(live, logits, strict=True):
                self._extend(text, values, options, numbers[id(text)])
            yield
            kept = [place for place, text in enumerate(live) if not text.is_done]
            if not kept:
                return
            if len(kept) < len(live):
                rows.keep(kept)
                live = [live[place] for place in kept]
            logits = rows.step([text.tokens[-1] for text in live])

    def _read_prompts(self, rows: Rows, texts: Sequence[_Text]) -> _Array:
        """The logits after each text's prompt, which is read once for all of its samples."""
        logits: list[_Array] = []
        for place, text in enumerate(texts):
            if place and texts[place - 1].job is text.job:
                rows.copy(place - 1, place)
                logits.append(logits[-1].copy())
            else:
                logits.append(rows.read(place, text.prompt))
        return np.stack(logits)

    def _extend(self, text: _Text, logits: _Array, options: SearchOptions, uniform: float) -> None:
        """Add the next token, unless the text ends here."""
        if text.is_full:
            text.is_done = True
            return
        written = (*text.prompt, *text.tokens) if options.counts_text else ()
        token, log_prob = next_token(logits, written, options, self.rules, uniform, text.forced)
        if not math.isfinite(log_prob):
            raise RegardError(f"{shown_name(self.bundle.folder)}: {NO_CONTINUATION}")
        text.log_prob += log_prob
        if token in self.rules.ends and text.forced is None:
            text.is_done = True
            return
        text.tokens.append(token)
        is_prefix = len(text.tokens) <= len(text.job.prefix)
        ends = text.job.ends
        text.is_done = text.is_full or (not is_prefix and ends is not None and ends(text.tokens))

    def stream(
        self, prompt: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        """As `TextEngine.stream`. With several samples there is only one item, the complete output."""
        constraint = constraint or Constraints()
        check_constraints([constraint])
        if unsupported := self._unsupported(options, [constraint]):
            yield from self._other_for(" and ".join(unsupported)).stream(prompt, options, constraint)
            return
        [begun] = opened([prompt], self.first)
        job = make_job(self.bundle, 0, begun, constraint, options)
        if options.beam > 1 or len(job.prompt) + job.limit > self._max_positions:
            yield self.generate([prompt], options, None, [constraint])[0][0].ids
            return
        [text] = self._texts(job, options)
        for _ in self._write([text], options):
            if len(text.tokens) >= len(job.prefix):
                yield tuple(text.tokens)
        yield tuple(text.tokens)

    # --- scoring ---

    def score(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """As `TextEngine.score`."""
        before = opened(prompts, self.first)
        whole = [(*prompt, *text) for prompt, text in zip(before, texts, strict=True)]
        check_length(whole, self._max_positions)
        return [self._score(ids, len(text)) for ids, text in zip(whole, texts, strict=True)]

    def _score(self, ids: Sequence[int], count: int) -> list[float]:
        """The log-probabilities of the last `count` tokens, and that the text ends there."""
        labels, ends = ids[len(ids) - count :], list(self.rules.ends)
        values: list[float] = []
        log_prob_of_end = -math.inf
        for log_probs in self._log_probs(ids, count + 1):
            own = np.asarray(labels[len(values) : len(values) + len(log_probs)], dtype=np.int64)
            values += log_probs[np.arange(len(own)), own].tolist()
            log_prob_of_end = float(log_probs[-1, ends].max()) if ends else -math.inf
        return [*values, log_prob_of_end]

    def next_log_probs(self, prompt: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """As `TextEngine.next_log_probs`."""
        [begun] = opened([prompt], self.first)
        check_length([[*begun, *prefix]], self._max_positions)
        [log_probs] = self._log_probs((*begun, *prefix), 1)
        values: list[float] = log_probs[0].tolist()
        return values

    def _log_probs(self, ids: Sequence[int], wanted: int) -> Iterator[_Array]:
        """Log-probabilities after each of the last `wanted` tokens, (places, vocab_size), in parts, since all those of a long text
        may not fit into memory."""
        for logits in Rows(self._decoder, 1, len(ids)).read_parts(0, ids, wanted):
            if len(logits):
                values = logits.astype(np.float64)
                values -= values.max(axis=1, keepdims=True)
                values -= np.log(np.exp(values).sum(axis=1, keepdims=True))
                yield values


def _uniform(
    texts: Sequence[_Text], live: Sequence[_Text], generators: dict[int, random.Random], options: SearchOptions
) -> dict[int, float]:
    """The random number of each text for its next token. As in torch's search, finished samples draw one, too, so that a sample
    does not depend on when the others end."""
    if not options.sample:
        return {id(text): 0.0 for text in live}
    going = {text.job.number for text in live}
    return {id(text): generators[text.job.number].random() for text in texts if text.job.number in going}
