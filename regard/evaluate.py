"""Scores translations: BLEU, chrF and TER as the `sacrebleu` command computes them, each with its full signature and a 95%
bootstrap interval, and the paired comparison of systems; and the likelihood of text. Running models is left to the callers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from regard.arguments import check_texts
from regard.errors import UserError

if TYPE_CHECKING:
    import numpy.typing as npt
    from sacrebleu.metrics.base import Metric as SacreMetric

    _FloatArray: TypeAlias = npt.NDArray[np.float64]

METRICS = ("bleu", "chrf", "ter")
SIGNIFICANT = 0.05

# ISO 639-3 spellings of the languages for which sacreBLEU has a tokenizer of its own.
_SAME_LANGUAGE = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}


@dataclass(frozen=True)
class Metric:
    """One score of one system; `mean` and `confidence` (half the width of the 95% interval) come from the bootstrap."""

    name: str
    score: float
    signature: str
    mean: float | None = None
    confidence: float | None = None

    @property
    def key(self) -> str:
        """The name without its settings: chrF2 -> chrf."""
        return _key(self.name)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "score": self.score,
            "mean": self.mean,
            "confidence": self.confidence,
            "signature": self.signature,
        }

    def __str__(self) -> str:
        return f"{self.score:.2f}" if self.confidence is None else f"{self.score:.2f} ± {self.confidence:.2f}"


@dataclass(frozen=True)
class Scores:
    """The scores of one system; `notes` are caveats about them that the signatures do not show."""

    metrics: tuple[Metric, ...]
    sentences: int
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        sentences = f"{self.sentences:,} sentence{'' if self.sentences == 1 else 's'}"
        return f"<regard.Scores {', '.join(f'{metric.name} {metric}' for metric in self.metrics)}; {sentences}>"

    def __getitem__(self, name: str) -> Metric:
        for metric in self.metrics:
            if metric.key == _key(name):
                return metric
        raise KeyError(f"{name} was not computed, only {', '.join(metric.key for metric in self.metrics)}")

    @property
    def bleu(self) -> float:
        return self["bleu"].score

    @property
    def chrf(self) -> float:
        return self["chrf"].score

    @property
    def ter(self) -> float:
        return self["ter"].score

    def to_json(self) -> dict[str, Any]:
        metrics = {metric.key: metric.to_json() for metric in self.metrics}
        return {"sentences": self.sentences, "metrics": metrics, "notes": list(self.notes)}

    def lines(self) -> list[str]:
        """One line for each metric, then the notes."""
        name_width = max((len(metric.name) for metric in self.metrics), default=0)
        width = max((len(str(metric)) for metric in self.metrics), default=0)
        scores = [f"{m.name:<{name_width}}  {m!s:<{width}}  {m.signature}" for m in self.metrics]
        return [*scores, *(f"note: {note}" for note in self.notes)]


@dataclass(frozen=True)
class MetricDifference:
    """One metric of two systems. `difference` is b - a in the metric's own terms; for TER, lower is better."""

    name: str
    a: float
    b: float
    difference: float
    p_value: float

    @property
    def significant(self) -> bool:
        return self.difference != 0 and self.p_value < SIGNIFICANT

    @property
    def p_value_text(self) -> str:
        """The p-value as tables show it; a star marks a significant difference."""
        return f"{self.p_value:.3f}{' *' if self.significant else ''}"

    @property
    def better(self) -> str | None:
        """ "a" or "b", or None where the scores are equal; `significant` says whether it may be chance."""
        if self.difference == 0:
            return None
        return "b" if (self.difference > 0) != (_key(self.name) == "ter") else "a"

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "p_value": self.p_value,
            "significant": self.significant,
            "better": self.better,
        }


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same references, with a paired test for each metric: approximate randomization if `trials` is given, else
    paired bootstrap."""

    name_a: str
    name_b: str
    a: Scores
    b: Scores
    differences: tuple[MetricDifference, ...]
    bootstrap: int
    trials: int = 0

    def __repr__(self) -> str:
        return f"<regard.Comparison of {self.name_a} and {self.name_b}: {self.summary()}>"

    @property
    def test(self) -> dict[str, Any]:
        """The name and the size of the test."""
        if self.trials:
            return {"name": "paired approximate randomization", "trials": self.trials, "level": SIGNIFICANT}
        return {"name": "paired bootstrap", "resamples": self.bootstrap, "level": SIGNIFICANT}

    def to_json(self) -> dict[str, Any]:
        return {
            "a": {"name": self.name_a, **self.a.to_json()},
            "b": {"name": self.name_b, **self.b.to_json()},
            "test": self.test,
            "differences": {_key(difference.name): difference.to_json() for difference in self.differences},
            "summary": self.summary(),
        }

    def lines(self) -> list[str]:
        """A table of both systems' scores with a sentence for each metric, the summary, then signatures and notes."""
        rows = [("", self.name_a, self.name_b, "")]
        for difference in self.differences:
            a, b = self.a[difference.name], self.b[difference.name]
            rows.append((difference.name, str(a), str(b), self._sentence(difference)))
        lines = [*aligned(rows), "", self.summary(), ""]
        lines += [f"{metric.name:<5}  {metric.signature}" for metric in self.a.metrics]
        notes = dict.fromkeys((*self.a.notes, *self.b.notes))
        return [*lines, *(f"note: {note}" for note in notes)]

    def summary(self) -> str:
        """Which system is better, by which metrics, and what may be chance, in one plain sentence."""
        parts = []
        for side, name, other in (("a", self.name_a, self.name_b), ("b", self.name_b, self.name_a)):
            won = [d.name for d in self.differences if d.significant and d.better == side]
            if won:
                parts.append(f"{name} is significantly better than {other} by {_listed(won)}")
        undecided = [d.name for d in self.differences if not d.significant]
        if undecided and not parts:
            return f"No significant difference between {self.name_a} and {self.name_b} by {_listed(undecided)}."
        if undecided:
            parts.append(f"the difference by {_listed(undecided)} may be chance")
        return "; ".join(parts) + "."

    def _sentence(self, difference: MetricDifference) -> str:
        if difference.better is None:
            return "equal"
        name = self.name_b if difference.better == "b" else self.name_a
        verdict = "significant" if difference.significant else "not significant"
        return f"{name} is better by {abs(difference.difference):.2f}, {verdict} (p = {difference.p_value:.3f})"


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None = None,
    bootstrap: int = 1000,
    metrics: Sequence[str] = METRICS,
    seed: int = 12345,
    names: tuple[str, str] = ("hypotheses", "references"),
) -> Scores:
    """Score translations against one reference each; `bootstrap=0` is fast and leaves out the intervals.

    >>> score(["Ein Haus am See."], ["Ein Haus am See."], bootstrap=0).bleu
    100.00000000000004
    """
    _check_lines((names[0], hypotheses), (names[1], references))
    _check_bootstrap(bootstrap, least=0)
    measured = []
    counters, notes = _counters(metrics, target_language)
    for counter in counters:
        statistics = _statistics(counter, hypotheses, references)
        samples = _resampled(counter, [statistics], bootstrap, seed)[0] if bootstrap else None
        measured.append(_measure(counter, statistics, samples, seed))
    return Scores(tuple(measured), len(hypotheses), (*notes, *_tokenized_note(names[0], hypotheses)))


def compare(
    hypotheses_a: Sequence[str],
    hypotheses_b: Sequence[str],
    references: Sequence[str],
    *,
    target_language: str | None = None,
    bootstrap: int = 1000,
    metrics: Sequence[str] = METRICS,
    seed: int = 12345,
    names: tuple[str, str, str] = ("A", "B", "references"),
) -> Comparison:
    """Compare two systems by paired bootstrap: both are scored on the same resampled sets of sentences."""
    [comparison] = compare_all(
        [(names[0], hypotheses_a), (names[1], hypotheses_b)],
        references,
        target_language=target_language,
        bootstrap=bootstrap,
        metrics=metrics,
        seed=seed,
        reference_name=names[2],
    )
    return comparison


def compare_all(
    systems: Sequence[tuple[str, Sequence[str]]],
    references: Sequence[str],
    *,
    target_language: str | None = None,
    bootstrap: int = 1000,
    trials: int = 0,
    metrics: Sequence[str] = METRICS,
    seed: int = 12345,
    reference_name: str = "references",
) -> list[Comparison]:
    """Compare the first of the named systems, the baseline, with each of the others.

    The test is the paired bootstrap, or with `trials` approximate randomization: the two translations of a sentence change sides at
    random. Both as sacreBLEU computes them (--paired-bs, --paired-ar).
    """
    names, texts = [name for name, _ in systems], [hypotheses for _, hypotheses in systems]
    _check_lines(*systems, (reference_name, references))
    _check_bootstrap(bootstrap, least=2)
    if trials < 0:
        raise UserError(f"trials must be at least 1, or 0 for a paired bootstrap test, but is {trials}; 10000 is usual")
    measured: list[list[Metric]] = [[] for _ in systems]
    differences: list[list[MetricDifference]] = [[] for _ in systems]
    counters, notes = _counters(metrics, target_language)
    for counter in counters:
        statistics = [_statistics(counter, hypotheses, references) for hypotheses in texts]
        samples = _resampled(counter, statistics, bootstrap, seed)
        for index, (counts, drawn) in enumerate(zip(statistics, samples, strict=True)):
            metric = _measure(counter, counts, drawn, seed, trials)
            measured[index].append(metric)
            baseline = measured[0][-1]
            difference = metric.score - baseline.score
            if trials:
                p_value = _randomization_p_value(counter, difference, statistics[0], counts, trials, seed)
            else:
                p_value = _p_value(difference, drawn - samples[0])
            differences[index].append(MetricDifference(metric.name, baseline.score, metric.score, difference, p_value))
    scores = [
        Scores(tuple(ours), len(references), (*notes, *_tokenized_note(name, hypotheses)))
        for ours, name, hypotheses in zip(measured, names, texts, strict=True)
    ]
    return [
        Comparison(names[0], names[index], scores[0], scores[index], tuple(differences[index]), bootstrap, trials)
        for index in range(1, len(systems))
    ]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines with columns of equal width.

    >>> aligned([("", "A"), ("BLEU", "12.30")])
    ['      A', 'BLEU  12.30']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def likelihood_scores(nll: float, tokens: int, sentences: int, num_bytes: int = 0) -> Scores:
    """What a model makes of text whose negative log-likelihood is `nll` nats over so many tokens: the loss per token, its
    perplexity and, if the tokens are all of the text, bits per byte, which alone compares models with different vocabularies.

    >>> likelihood_scores(nll=5545.0, tokens=2000, sentences=3, num_bytes=8000)
    <regard.Scores bits per byte 1.00, loss 2.77, perplexity 16.00; 3 sentences>
    """
    loss = nll / tokens
    signature = f"tokens:{tokens}" + (f"|bytes:{num_bytes}" if num_bytes else "")
    metrics = [Metric("loss", loss, signature), Metric("perplexity", math.exp(min(loss, 50.0)), signature)]
    if num_bytes:
        metrics.insert(0, Metric("bits per byte", nll / math.log(2.0) / num_bytes, signature))
    return Scores(tuple(metrics), sentences)


def sentence_scorer(metric: str, target_language: str | None = None) -> Callable[[str, str], float]:
    """A function of (translation, reference) that returns sentence-level BLEU or chrF, to choose among translations.

    BLEU only counts n-gram sizes that the sentence is long enough for. The sum over sentences is not the corpus score.

    >>> bleu = sentence_scorer("bleu")
    >>> bleu("Ein Haus am See.", "Ein Haus am See.") > bleu("Das Haus am See.", "Ein Haus am See.") > 0
    True
    """
    if metric not in ("bleu", "chrf"):
        raise UserError(f"metric must be bleu or chrf to score single sentences, but is '{metric}'")
    [counter], _ = _counters([metric], target_language, effective_order=True)

    def score_sentence(translation: str, reference: str) -> float:
        return float(counter.sentence_score(translation, [reference]).score)

    return score_sentence


def _counters(
    metrics: Sequence[str], target_language: str | None, effective_order: bool = False
) -> tuple[list[SacreMetric], list[str]]:
    """sacreBLEU's metric objects for the target language, and notes about them."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.metrics.ter import TER

    language = _language(target_language)
    notes: list[str] = []
    counters: list[SacreMetric] = []
    for name in metrics:
        if name == "bleu":
            # force: otherwise sacreBLEU logs a warning about tokenized text; here it becomes a note.
            try:
                counters.append(BLEU(trg_lang=language, force=True, effective_order=effective_order))
            except RuntimeError:
                # A missing package must not end a validation after hours of training: count characters, with a note.
                counters.append(BLEU(tokenize="char", force=True, effective_order=effective_order))
                notes.append(
                    f"BLEU counts characters (tok:char) and cannot be compared with BLEU over words: the word "
                    f"tokenizer for '{target_language}' is missing; pip install 'sacrebleu[{language}]' adds it"
                )
        elif name == "chrf":
            counters.append(CHRF())
        elif name == "ter":
            # TER counts words separated by white space; these languages have none, so each character is a word.
            unspaced = language in ("zh", "ja")
            counters.append(TER(normalized=unspaced, asian_support=unspaced))
        else:
            raise UserError(f"metrics must be among {', '.join(METRICS)}, but one is '{name}'")
    return counters, notes


def _language(label: str | None) -> str:
    """The language of a label: zh-CN -> zh, jpn_Jpan -> ja; any other label passes through."""
    code = re.split(r"[-_]", (label or "").lower())[0]
    return _SAME_LANGUAGE.get(code, code)


def _statistics(counter: SacreMetric, hypotheses: Sequence[str], references: Sequence[str]) -> _FloatArray:
    """The metric's counts for each sentence: (sentences, counts)."""
    return np.array(counter._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)


def _resampled(counter: SacreMetric, systems: Sequence[_FloatArray], bootstrap: int, seed: int) -> list[_FloatArray]:
    """The metric of each system over `bootstrap` resampled sets of sentences, the same sets for all: (bootstrap,) each.

    Not by sacreBLEU's own resampling, which gathers the counts of all resamples at once, 8 GB for 100,000 lines, and takes
    its seed from the environment. Drawing row by row gives the same numbers, as tests check.
    """
    generator = np.random.default_rng(seed)
    sentences = len(systems[0])
    samples = np.empty((len(systems), bootstrap))
    for row in range(bootstrap):
        drawn = generator.choice(sentences, size=sentences, replace=True)
        times = np.bincount(drawn, minlength=sentences).astype(np.float64)
        for system, statistics in enumerate(systems):
            samples[system, row] = counter._compute_score_from_stats(list(times @ statistics)).score
    return list(samples)


def _measure(
    counter: SacreMetric, statistics: _FloatArray, samples: _FloatArray | None, seed: int, trials: int = 0
) -> Metric:
    result = counter._compute_score_from_stats(list(statistics.sum(axis=0)))
    mean = confidence = None
    if samples is not None:
        # As in the command, the signature has the number of resamples and the seed.
        counter.n_bootstrap, counter.seed = len(samples), str(seed)
        ordered = np.sort(samples)
        tail = len(ordered) // 40
        mean, confidence = float(ordered.mean()), float(ordered[-1 - tail] - ordered[tail]) / 2
    signature = counter.get_signature()
    if trials:
        signature.update("ar", trials)
    return Metric(result.name, float(result.score), signature.format(), mean, confidence)


def _p_value(difference: float, sampled: _FloatArray) -> float:
    """The probability of a difference this large by chance alone (Koehn 2004, as sacreBLEU computes it)."""
    if difference == 0:
        return 1.0  # sacreBLEU reports 0.001 for a system against itself, which looks like a finding
    sizes = np.abs(sampled)
    larger = int(np.sum(sizes - sizes.mean() > abs(difference)))
    return (larger + 1) / (len(sampled) + 1)


def _randomization_p_value(
    counter: SacreMetric, difference: float, a: _FloatArray, b: _FloatArray, trials: int, seed: int
) -> float:
    """The share of trials with a larger difference when the two translations of each sentence change sides at random."""
    if difference == 0:
        return 1.0
    generator = np.random.default_rng(seed)
    together = a.sum(axis=0) + b.sum(axis=0)
    larger, left = 0, trials
    while left:
        # 32 rows at a time: numpy draws 32 bits at once, so that these are the bits that sacreBLEU draws for all trials together.
        sides = generator.integers(2, size=(32, len(a)), dtype=np.bool_)[:left]
        for counts in np.where(sides, 1.0, 0.0) @ (a - b) + b.sum(axis=0):
            one, other = (counter._compute_score_from_stats(list(c)).score for c in (counts, together - counts))
            larger += abs(one - other) > abs(difference)
        left -= len(sides)
    return (larger + 1) / (trials + 1)


def _check_lines(*texts: tuple[str, Sequence[str]]) -> None:
    texts = tuple((name, check_texts(name, lines)) for name, lines in texts)
    *others, (reference_name, references) = texts
    if not references:
        raise UserError(f"{reference_name} must have at least one line, but is empty")
    for name, lines in others:
        if len(lines) != len(references):
            raise UserError(
                f"{name} must have as many lines as {reference_name}, but has {len(lines):,} against "
                f"{len(references):,}; line N of one must correspond to line N of the other"
            )


def _check_bootstrap(bootstrap: int, least: int) -> None:
    if bootstrap < least or bootstrap == 1:
        rule = "0 (no intervals) or at least 2" if least == 0 else f"at least {least}"
        raise UserError(f"bootstrap must be {rule}, but is {bootstrap}; 1000 is usual")


def _tokenized_note(name: str, hypotheses: Sequence[str]) -> list[str]:
    """A note if the text looks tokenized, by sacreBLEU's rule: a hundred lines end in a separate full stop."""
    count = sum(line.endswith(" .") for line in hypotheses)
    if count < 100:
        return []
    return [
        f"{count:,} lines of {name} end in ' .': BLEU expects plain text, and tokenized text gets a different score"
    ]


def _key(name: str) -> str:
    return name.lower() if name.endswith("F1") else name.lower().rstrip("+0123456789")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
