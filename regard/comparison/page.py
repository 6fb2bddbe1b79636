"""The page of a comparison: one HTML file without scripts, with the scores and the sentences that differ most."""

from __future__ import annotations

from collections.abc import Sequence

from regard.comparison.systems import DifferingSentence, SystemComparison
from regard.html_page import escaped, mark, matching_blocks, render_page, row, section, table, words_of

_LEGEND = (
    "<p>The sentences with the largest difference in chrF come first. Words that differ from {others} are marked: "
    "<mark class=right>also in the reference</mark>, <mark class=other>not in the reference</mark>. "
    "chrF of one sentence is a rough measure: read before you judge.</p>"
)
_STYLE = """
mark.other { background: var(--other); } .sample dl > div { grid-template-columns: 190px 1fr; }
:root { --other: #fbe3cf; } @media (prefers-color-scheme: dark) { :root { --other: #553317; } }
section > .table + p { margin-top: 10px; }
.sample h3 { color: var(--soft); font-weight: 500; margin-bottom: 4px; } dt { overflow-wrap: anywhere; }
@media (max-width: 560px) { .sample dl > div { grid-template-columns: 1fr; } }
"""


def render_comparison(comparison: SystemComparison) -> str:
    """The page as one self-contained file; all text is escaped."""
    names = comparison.names
    count = comparison.scores[0].sentences
    title = " · ".join(names)
    body = [
        f'<header><p class="over">Comparison</p><h1>{escaped(" and ".join(names))}</h1>'
        f"<p>{count:,} {'sentence' if count == 1 else 'sentences'}</p></header>",
        section("Scores", _scores(comparison)),
        section("Sentences that differ most", _sentences(comparison)),
        section("Signatures", _signatures(comparison)),
        section("Notes", "".join(f"<p>{escaped(note)}</p>" for note in comparison.all_notes())),
    ]
    return render_page(f"Comparison: {title}", [part for part in body if part], _STYLE)


def _scores(comparison: SystemComparison) -> str:
    metrics = comparison.scores[0].metrics
    heads = ["System", *(head for metric in metrics for head in (f"#{metric.name}", "#p"))]
    baseline = [(str(metric), "") for metric in metrics]
    rows = [_score_row(comparison.names[0], baseline, "baseline")]
    for one, counts in zip(comparison.comparisons, comparison.counts, strict=True):
        cells = [(str(one.b[difference.name]), difference.p_value_text) for difference in one.differences]
        rows.append(_score_row(one.name_b, cells, f"sentences by chrF: {counts}"))
    summaries = "".join(f"<p>{escaped(one.summary())}</p>" for one in comparison.comparisons)
    return f"{table(heads, rows)}<p>p: {escaped(comparison.test)}. ± is half of the 95% interval.</p>{summaries}"


def _score_row(name: str, cells: Sequence[tuple[str, str]], under: str) -> str:
    numbers = "".join(f'<td class="number">{escaped(cell)}</td>' for pair in cells for cell in pair)
    return f"<tr><td>{escaped(name)}<br><small>{escaped(under)}</small></td>{numbers}</tr>"


def _signatures(comparison: SystemComparison) -> str:
    # A signature may wrap after each bar, and must copy without spaces.
    rows = [
        f"<tr><td>{escaped(metric.name)}</td><td><code>{escaped(metric.signature).replace('|', '|<wbr>')}</code></td></tr>"
        for metric in comparison.scores[0].metrics
    ]
    return table(("Metric", "Signature"), rows)


def _sentences(comparison: SystemComparison) -> str:
    if not comparison.sentences:
        return "<p>All translations are the same.</p>"
    names = comparison.names
    others = "the other translation" if len(names) == 2 else f"{escaped(names[0])} (there: from any other system)"
    return _LEGEND.format(others=others) + "".join(_sentence(one, names) for one in comparison.sentences)


def _sentence(sentence: DifferingSentence, names: Sequence[str]) -> str:
    rows = [] if sentence.source is None else [row("source", escaped(sentence.source))]
    rows.append(row("reference", escaped(sentence.reference), "reference"))
    best = max(sentence.scores)
    baseline, *others = sentence.translations
    for index, (name, text, score) in enumerate(zip(names, sentence.translations, sentence.scores, strict=True)):
        marked = mark(text, _runs(text, [baseline] if index else others, sentence.reference))
        label = f"{name} {score:.1f}" + (" ★" if score == best and sentence.spread else "")
        rows.append(row(label, marked))
    heading = f"Line {sentence.number:,} · chrF differs by {sentence.spread:.1f}"
    return f'<div class="card sample"><h3>{heading}</h3><dl>{"".join(rows)}</dl></div>'


def _runs(text: str, others: Sequence[str], reference: str) -> list[tuple[int, int, str]]:
    """The words that at least one of `others` does not have, as runs for `mark`."""
    right = _shared(text, reference)
    differs: set[int] = set()
    for other in others:
        differs |= set(range(len(words_of(text)))) - _shared(text, other)
    runs: list[tuple[int, int, str]] = []
    for index in sorted(differs):
        kind = "right" if index in right else "other"
        if runs and runs[-1][0] + runs[-1][1] == index and runs[-1][2] == kind:
            first, size, _ = runs.pop()
            runs.append((first, size + 1, kind))
        else:
            runs.append((index, 1, kind))
    return runs


def _shared(text: str, other: str) -> set[int]:
    """The positions of the words of `text` that are in `other` in the same order."""
    return {index for first, size in matching_blocks(text, other) for index in range(first, first + size)}
