"""The engine for language models on CPUs: CTranslate2, without torch.

It finds what Regard's own search finds (`search/`), greedily and with beams, and draws samples from the same distribution. It
computes in int8, or in fp32 on request.

- A prompt's text does not depend on the other prompts. In int8, prompts of the same length are computed together, since sums of
  integers are exact. In fp32 the order of a sum depends on the number of rows, so each prompt is computed alone.
- CTranslate2 seeds its random numbers when a worker first draws one. So the samples of a prompt come from a worker of their own,
  seeded with `seed` and the prompt. They differ from those of the torch engine.
- Rules about repetition count the prompt, except its first token. The prompt is then read token by token, which is slower.
- CTranslate2 masks forbidden tokens before the softmax, Regard after it: log-probabilities are computed again where that matters,
  except under a repetition penalty.
- Left to torch: `min_p`, `max_repeat`, groups, rules about repetition with a beam, a choice of tokens in a prefix, phrases that a
  search missed.
- With a beam, a text that is complete early (`Constraints.ends`) is still searched to its limit; the caller cuts it.

`tests/generate/test_ctranslate2_text.py` compares it with torch's engine.
"""

from __future__ import annotations

import math
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from regard.builtin import shown_name
from regard.bundle import Bundle
from regard.errors import RegardError
from regard.generate.engines.batches import beam_batch, check_constraints, cut_batches
from regard.generate.engines.ctranslate2_cache import converted
from regard.generate.engines.ctranslate2_common import WithTorch, are_left, import_ctranslate2, open_model
from regard.generate.engines.ctranslate2_model import WeightFormat, positions, vocabularies
from regard.generate.engines.ctranslate2_ranking import number_wanted
from regard.generate.engines.text_jobs import TextJob, check_length, make_hypothesis, make_job, opened
from regard.generate.options import (
    NO_CONTINUATION,
    Constraints,
    Hypothesis,
    OnFinished,
    SearchOptions,
    forbidden_ids,
)
from regard.generate.search.constrained import constrained_search
from regard.generate.search.seeds import sentence_rng
from regard.parallel.processes import own_threads

_BATCH = 32  # prompts per batch
_BATCH_TOKENS = 8_192  # tokens per batch, prompts and continuations
_MAX_CELLS = 1 << 26  # logits per batch when scoring, 256 MB
_MAX_THREADS = 4  # per worker: a step is too short for more
_SEEDING = threading.Lock()  # CTranslate2 has one random seed for the whole process

OnToken = Callable[[int, int, int], bool]  # index of the prompt, sample, token -> whether this text ends here


class CTranslate2TextEngine(WithTorch):
    """Continues texts with a converted model."""

    def __init__(self, bundle: Bundle, weights: WeightFormat = "int8", *, batch: int = 0, strict: bool = False) -> None:
        """Convert the bundle unless the cache has it. With `strict`, options that CTranslate2 lacks are refused by name; otherwise
        torch takes over."""
        import_ctranslate2()  # fails before anything is converted
        super().__init__(bundle, batch or _BATCH, strict)
        tokenizer = bundle.tokenizer
        self.weights: WeightFormat = weights
        self.forbidden = frozenset(forbidden_ids(tokenizer))
        self.ends = tuple(end for end in dict.fromkeys((tokenizer.eos_id, *tokenizer.stop_ids)) if end >= 0)
        self.first = tokenizer.bos_id if tokenizer.bos_id >= 0 else tokenizer.eos_id
        self.takes_phrases = False
        self._pieces = vocabularies(tokenizer, bundle.config.vocab_size)[1]
        self._max_positions = positions(bundle)
        cores = own_threads()
        self._threads = min(_MAX_THREADS, cores)
        self.parallel = max(1, cores // self._threads)
        with converted(bundle, weights) as folder:
            self._generator = open_model("Generator", folder, weights, self.parallel, self._threads)

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
        has_phrases = any(constraint.phrases for constraint in constraints)
        if unsupported := self._unsupported(options, constraints, self.strict):
            engine = self._fallback_for(" and ".join(unsupported))
            return engine.generate(prompts, options, on_finished, constraints)
        prompts = opened(prompts, self.first)
        if has_phrases:
            return constrained_search(
                prompts, options, on_finished, constraints, self.generate, self._generate_constrained, self.score
            )
        return self._generate(prompts, options, on_finished, constraints or [Constraints()] * len(prompts))

    def _unsupported(self, options: SearchOptions, constraints: Sequence[Constraints], phrases: bool) -> list[str]:
        """The names of the options that CTranslate2 cannot handle; phrases only with `phrases`."""
        is_beam = options.beam > 1 and not options.sample
        used = {
            "coverage": options.coverage > 0,
            "max_repeat": options.max_repeat > 0,
            "groups": options.groups > 1,
            "no_repeat with a beam": options.no_repeat > 0 and is_beam,
            "repetition_penalty with a beam": options.repetition_penalty != 1.0 and is_beam,
            "min_p": options.min_p > 0,
            "a choice in a prefix": any(not isinstance(one, int) for some in constraints for one in some.prefix),
            "phrases": phrases and any(constraint.phrases for constraint in constraints),
        }
        return [name for name, is_used in used.items() if is_used]

    def _generate_constrained(
        self,
        prompts: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None,
        constraints: Sequence[Constraints],
    ) -> list[list[Hypothesis]]:
        engine = self._fallback(f"{are_left('phrases')} where one is missing: ctranslate2 cannot enforce phrases")
        # Not its `generate`: that would start with an unconstrained search, which was done here already.
        return engine.in_batches(prompts, options, on_finished, constraints)

    def _generate(
        self,
        prompts: Sequence[Sequence[int]],
        options: SearchOptions,
        on_finished: OnFinished | None,
        constraints: Sequence[Constraints],
    ) -> list[list[Hypothesis]]:
        results: list[list[Hypothesis]] = [[] for _ in prompts]
        jobs = [make_job(self.bundle, n, *one, options) for n, one in enumerate(zip(prompts, constraints, strict=True))]
        too_long = [job.number for job in jobs if len(job.prompt) + job.limit > self._max_positions]
        if too_long:
            engine = self._fallback(f"texts of more than {self._max_positions:,} tokens are left to torch")
            chosen = [prompts[n] for n in too_long], [constraints[n] for n in too_long]
            for number, found in zip(too_long, engine.generate(chosen[0], options, None, chosen[1]), strict=True):
                results[number] = found
            if on_finished is not None:
                on_finished(too_long)
        others = [job for job in jobs if job.number not in set(too_long)]
        for numbers, found_all in self._batches(others, options):
            for number, found in zip(numbers, found_all, strict=True):
                results[number] = found
            if on_finished is not None:
                on_finished(numbers)
        return results

    def _batches(
        self, jobs: Sequence[TextJob], options: SearchOptions
    ) -> Iterator[tuple[list[int], list[list[Hypothesis]]]]:
        """The hypotheses of all jobs, in batches."""
        together = min(self.batch, beam_batch(options, self.bundle.config, self.batch))
        if options.sample or self.weights != "int8":
            together = 1
        by_shape: dict[tuple[int, int], list[int]] = {}
        for place, job in enumerate(jobs):
            by_shape.setdefault((len(job.prompt), job.limit), []).append(place)
        for (length, limit), places in sorted(by_shape.items()):
            lengths = [length + limit] * len(jobs)
            for batch in cut_batches(places, lengths, together, _BATCH_TOKENS // options.beam):
                chosen = [jobs[place] for place in batch]
                yield [job.number for job in chosen], self._search(chosen, options)

    def _search(self, jobs: Sequence[TextJob], options: SearchOptions) -> list[list[Hypothesis]]:
        """The hypotheses of prompts of one length with one limit."""
        if jobs[0].limit == 0:  # there is room for the prefix only
            found: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)] for _ in jobs]
        else:
            found = self._found(jobs, options)
        before = [0.0] * len(jobs)
        if any(job.prefix for job in jobs):
            prompts = [job.prompt[: len(job.prompt) - len(job.prefix)] for job in jobs]
            before = [sum(scores[:-1]) for scores in self.score(prompts, [job.prefix for job in jobs])]
        return [
            sorted(
                (make_hypothesis(job, ids, first + log_prob, options) for ids, log_prob in some),
                key=lambda one: -one.score,
            )[: options.nbest]
            for job, first, some in zip(jobs, before, found, strict=True)
        ]

    def _found(self, jobs: Sequence[TextJob], options: SearchOptions) -> list[list[tuple[tuple[int, ...], float]]]:
        """Tokens and log-probabilities."""
        masks = bool(self.forbidden) and options.sample
        found = self._run(jobs, options, masks)
        again = [
            place
            for place, some in enumerate(found)
            if not masks and any(not self.forbidden.isdisjoint(ids) for ids, _ in some)
        ]
        if again:
            for place, some in zip(again, self._run([jobs[n] for n in again], options, True), strict=True):
                found[place] = some
        if options.repetition_penalty != 1.0:
            return found
        rescored = range(len(jobs)) if masks or options.no_repeat else again
        for place in rescored:
            texts = [ids for ids, _ in found[place]]
            scores = self.score([jobs[place].prompt] * len(texts), texts)
            at_limit = [len(ids) == jobs[place].limit for ids in texts]
            found[place] = [
                (ids, sum(values[:-1] if is_open else values))
                for ids, values, is_open in zip(texts, scores, at_limit, strict=True)
            ]
        return found

    def _run(
        self, jobs: Sequence[TextJob], options: SearchOptions, masks: bool
    ) -> list[list[tuple[tuple[int, ...], float]]]:
        """One call of CTranslate2."""
        own: dict[tuple[int, int], list[int]] = {}

        def on_token(place: int, sample: int, token: int) -> bool:
            ends = jobs[place].ends
            tokens = own.setdefault((place, sample), [])
            tokens.append(token)
            return ends is not None and ends((*jobs[place].prefix, *tokens))

        watches = any(job.ends is not None for job in jobs) and (options.sample or options.beam == 1)
        results = self._submit(jobs, options, masks, on_token if watches else None)()
        found = []
        for result in results:
            if not all(map(math.isfinite, result.scores)):
                raise RegardError(f"{shown_name(self.bundle.folder)}: {NO_CONTINUATION}")
            skipped = len(jobs[0].prompt) if options.counts_text else 0
            found.append(
                [
                    (self._without_end(ids[skipped:]), log_prob)
                    for ids, log_prob in zip(result.sequences_ids, result.scores, strict=True)
                ]
            )
        return found

    def _without_end(self, ids: Sequence[int]) -> tuple[int, ...]:
        return tuple(ids[:-1] if ids and ids[-1] in self.ends else ids)

    def _submit(
        self, jobs: Sequence[TextJob], options: SearchOptions, masks: bool, on_token: OnToken | None
    ) -> Callable[[], list[Any]]:
        """Start a search; returns a function that waits for the results."""
        length, limit = len(jobs[0].prompt), jobs[0].limit
        given: dict[str, Any] = {
            "include_prompt_in_result": options.counts_text,  # else rules about repetition would not count it
            "max_length": limit + (length - 1 if options.counts_text else 0),
            "end_token": [self._pieces[end] for end in self.ends],
            "return_end_token": True,
            "length_penalty": 0.0,  # so that scores are sums of log-probabilities
            "return_scores": True,
            "repetition_penalty": options.repetition_penalty,
            "no_repeat_ngram_size": options.no_repeat,
            "suppress_sequences": [[self._pieces[i]] for i in sorted(self.forbidden)] if masks else None,
        }
        read = length - 1 if options.counts_text else 0  # steps that read the prompt
        seen = threading.Event()  # set once the first random number was drawn

        def callback(step: Any) -> bool:
            seen.set()
            if on_token is None or step.step < read or step.token_id in self.ends:
                return False
            return on_token(step.batch_id, step.hypothesis_id, step.token_id)

        released = threading.Event()
        weakref.finalize(callback, released.set)
        pieces = [[self._pieces[i] for i in job.prompt] for job in jobs]
        if not options.sample:
            wanted = number_wanted(options)
            given |= {"beam_size": options.beam, "num_hypotheses": max(wanted, options.nbest)}
            given["patience"] = max(1.0, given["num_hypotheses"] / options.beam)
            if on_token is not None and options.beam == 1:
                given["callback"] = callback
            return _waiting(self._generator.generate_batch(pieces, asynchronous=True, **given), released)
        given |= {"num_hypotheses": options.beam, "sampling_topk": options.top_k, "sampling_topp": options.top_p}
        given |= {"sampling_temperature": options.temperature, "callback": callback}
        with _SEEDING:
            worker = self._new_worker()
            package = import_ctranslate2()
            package.set_random_seed(sentence_rng(options.seed, jobs[0].prompt).getrandbits(31))
            submitted = worker.generate_batch(pieces, asynchronous=True, **given)
            while not seen.wait(0.05) and not submitted[0].done():
                pass
        return _waiting(submitted, released, worker)

    def _new_worker(self) -> Any:
        """A generator whose worker has not drawn a random number yet."""
        return open_model("Generator", self.bundle.folder, self.weights, 1, self._threads, self._files)

    @cached_property
    def _files(self) -> dict[str, bytes]:
        """The converted model."""
        with converted(self.bundle, self.weights) as folder:
            return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}

    def stream(
        self, prompt: Sequence[int], options: SearchOptions, constraint: Constraints | None = None
    ) -> Iterator[tuple[int, ...]]:
        """As `TextEngine.stream`. With a beam, several samples or phrases there is only one item, the complete output."""
        constraint = constraint or Constraints()
        if unsupported := self._unsupported(options, [constraint], self.strict):
            yield from self._fallback_for(" and ".join(unsupported)).stream(prompt, options, constraint)
            return
        [begun] = opened([prompt], self.first)
        job = make_job(self.bundle, 0, begun, constraint, options)
        if options.beam > 1 or constraint.phrases or len(job.prompt) + job.limit > self._max_positions or not job.limit:
            yield self.generate([prompt], options, None, [constraint])[0][0].ids
            return
        yield from self._stream(job, options)

    def _stream(self, job: TextJob, options: SearchOptions) -> Iterator[tuple[int, ...]]:
        tokens: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        is_left = threading.Event()  # set when the caller stops reading

        def on_token(place: int, sample: int, token: int) -> bool:
            tokens.put(token)
            written.append(token)
            return is_left.is_set() or (job.ends is not None and job.ends(written))

        written = list(job.prefix)
        wait = self._submit([job], options, bool(self.forbidden), on_token)

        def finish() -> None:
            try:
                wait()
            finally:
                tokens.put(None)

        thread = threading.Thread(target=finish, daemon=True)
        thread.start()
        try:
            grown = job.prefix
            while (token := tokens.get()) is not None:
                grown = (*grown, token)
                yield grown
            yield grown
        finally:
            is_left.set()
            thread.join()

    # --- scoring ---

    def score(self, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[list[float]]:
        """As `TextEngine.score`."""
        whole = [(*prompt, *text) for prompt, text in zip(opened(prompts, self.first), texts, strict=True)]
        check_length(whole, self._max_positions)
        end = self.ends[0] if self.ends else whole[0][0]
        given = [[self._pieces[i] for i in (*ids, end)] for ids in whole]
        lengths = [len(ids) for ids in whole]
        results: list[list[float]] = [[] for _ in whole]
        order = sorted(range(len(whole)), key=lambda n: lengths[n])
        most = max(1, _MAX_CELLS // self.bundle.config.vocab_size)
        together = self.batch if self.weights == "int8" else 1
        for numbers in cut_batches(order, lengths, together, min(most, _BATCH_TOKENS), same_length=True):
            scored: list[Any] = self._generator.score_batch([given[n] for n in numbers], max_input_length=0)
            for number, result in zip(numbers, scored, strict=True):
                results[number] = list(result.log_probs)[-len(texts[number]) - 1 :]
        if len(self.ends) != 1:  # a text ends with the likeliest of several, or never
            for number, ids in enumerate(whole):
                after = self._log_probs(ids) if self.ends else np.array([-math.inf])
                results[number][-1] = float(max(after[end] for end in self.ends) if self.ends else -math.inf)
        return results

    def next_log_probs(self, prompt: Sequence[int], prefix: Sequence[int]) -> list[float]:
        """As `TextEngine.next_log_probs`."""
        [prompt] = opened([prompt], self.first)
        check_length([[*prompt, *prefix]], self._max_positions)
        values: list[float] = self._log_probs((*prompt, *prefix)).tolist()
        return values

    def _log_probs(self, ids: Sequence[int]) -> Any:
        """Log-probabilities of the next token, (vocab_size,)."""
        [result] = self._generator.generate_batch(
            [[self._pieces[i] for i in ids]], include_prompt_in_result=False, max_length=1, return_logits_vocab=True
        )
        values = np.array(result.logits[0][-1], dtype=np.float64)
        return values - values.max() - np.log(np.exp(values - values.max()).sum())


def _waiting(submitted: Sequence[Any], released: threading.Event, worker: Any = None) -> Callable[[], list[Any]]:
    """A function that waits for the results, and until CTranslate2 has released the callback. Its thread needs the interpreter for
    that, so `worker`, whose end stops the thread, is kept alive until then."""

    def wait() -> list[Any]:
        try:
            return [one.result() for one in submitted]
        finally:
            released.wait()
            del kept[:]

    kept = [worker]
    return wait
