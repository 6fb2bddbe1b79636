"""The comparison of systems as plain data: scores and tests against the first system, and the sentences that differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from regard.evaluate import Comparison, Scores, aligned, compare_all, sentence_scorer


@dataclass(frozen=True)
class DifferingSentence:
    """A sentence that the systems translate differently; `scores` are chrF of each translation, `number` is its line."""

    number: int
    source: str | None
    reference: str
    translations: tuple[str, ...]
    scores: tuple[float, ...]

    @property
    def spread(self) -> float:
        return max(self.scores) - min(self.scores)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        rows = zip(names, self.translations, self.scores, strict=True)
        return {
            "line": self.number,
            "source": self.source,
            "reference": self.reference,
            "translations": [{"system": name, "text": text, "chrf": chrf} for name, text, chrf in rows],
        }


@dataclass(frozen=True)
class SentenceCounts:
    """How many sentences a system translates better or worse than the baseline, by chrF of the sentence."""

    better: int
    worse: int
    same_score: int
    identical: int

    def __str__(self) -> str:
        return (
            f"{self.better:,} better, {self.worse:,} worse, {self.same_score:,} with the same score, "
            f"{self.identical:,} identical"
        )


@dataclass(frozen=True)
class SystemComparison:
    """Systems against the first of them, the baseline. `sentences` holds those that differ most, the largest difference first."""

    comparisons: tuple[Comparison, ...]
    counts: tuple[SentenceCounts, ...]
    sentences: tuple[DifferingSentence, ...]
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        return [self.comparisons[0].name_a, *(comparison.name_b for comparison in self.comparisons)]

    @property
    def scores(self) -> list[Scores]:
        return [self.comparisons[0].a, *(comparison.b for comparison in self.comparisons)]

    @property
    def test(self) -> str:
        """The test in a sentence."""
        test = self.comparisons[0].test
        size = f"{test['trials']:,} trials" if "trials" in test else f"{test['resamples']:,} resamples"
        return f"{test['name']} with {size} against {self.names[0]}; * means p < {test['level']}"

    def all_notes(self) -> list[str]:
        """Caveats about the comparison and about the scores, each once."""
        return list(dict.fromkeys([*self.notes, *(note for scores in self.scores for note in scores.notes)]))

    def to_json(self) -> dict[str, Any]:
        systems = [{"name": name, **scores.to_json()} for name, scores in zip(self.names, self.scores, strict=True)]
        against = []
        for comparison, counts in zip(self.comparisons, self.counts, strict=True):
            document = comparison.to_json()
            against.append(
                {
                    "name": comparison.name_b,
                    "differences": document["differences"],
                    "summary": document["summary"],
                    "sentences": vars(counts),
                }
            )
        return {
            "systems": systems,
            "baseline": self.names[0],
            "test": self.comparisons[0].test,
            "against_baseline": against,
            "sentences": [sentence.to_json(self.names) for sentence in self.sentences],
            "notes": self.all_notes(),
        }

    def lines(self) -> list[str]:
        """The table, the test, a summary for each system, then signatures and notes."""
        metrics = self.scores[0].metrics
        rows = [["", *(cell for metric in metrics for cell in (metric.name, "p"))]]
        rows.append([self.names[0], *(cell for metric in metrics for cell in (str(metric), ""))])
        for comparison in self.comparisons:
            cells = [
                cell
                for difference in comparison.differences
                for cell in (str(comparison.b[difference.name]), difference.p_value_text)
            ]
            rows.append([comparison.name_b, *cells])
        lines = [*aligned(rows), "", f"p: {self.test}", ""]
        for comparison, counts in zip(self.comparisons, self.counts, strict=True):
            lines += [comparison.summary(), f"  sentences of {comparison.name_b} by chrF: {counts}"]
        lines += ["", *aligned([[metric.name, metric.signature] for metric in metrics])]
        return [*lines, *(f"note: {note}" for note in self.all_notes())]


def compare_systems(
    systems: Sequence[tuple[str, Sequence[str]]],
    references: Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    target_language: str | None = None,
    bootstrap: int = 1000,
    trials: int = 0,
    most: int = 50,
    notes: Sequence[str] = (),
    reference_name: str = "references",
) -> SystemComparison:
    """Compare two or more named systems with the first of them; keep the `most` sentences on which they differ most."""
    comparisons = compare_all(
        systems,
        references,
        target_language=target_language,
        bootstrap=bootstrap,
        trials=trials,
        reference_name=reference_name,
    )
    differing = _differing(systems, references, sources, target_language)
    counts = tuple(_counts(differing, index, len(references)) for index in range(1, len(systems)))
    # Ties, such as all scores 0, in the order of the text.
    differing.sort(key=lambda sentence: (-sentence.spread, sentence.number))
    return SystemComparison(tuple(comparisons), counts, tuple(differing[:most]), tuple(notes))


def _differing(
    systems: Sequence[tuple[str, Sequence[str]]],
    references: Sequence[str],
    sources: Sequence[str] | None,
    target_language: str | None,
) -> list[DifferingSentence]:
    """The sentences with more than one translation."""
    chrf = sentence_scorer("chrf", target_language)
    found = []
    for index, reference in enumerate(references):
        translations = tuple(hypotheses[index] for _, hypotheses in systems)
        if len(set(translations)) == 1:
            continue
        scored = {text: chrf(text, reference) for text in set(translations)}
        source = sources[index] if sources is not None else None
        scores = tuple(scored[text] for text in translations)
        found.append(DifferingSentence(index + 1, source, reference, translations, scores))
    return found


def _counts(differing: Sequence[DifferingSentence], system: int, sentences: int) -> SentenceCounts:
    """The system's sentences against the baseline's."""
    changed = [one for one in differing if one.translations[system] != one.translations[0]]
    better = sum(one.scores[system] > one.scores[0] for one in changed)
    worse = sum(one.scores[system] < one.scores[0] for one in changed)
    return SentenceCounts(better, worse, len(changed) - better - worse, sentences - len(changed))
